"""Every metric of a set of predictions with its interval, and the paired difference of two sets."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Never

import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.errors import Args, InputError
from calattn.metrics.groups import (
    MOST_GROUPS,
    GroupDifference,
    GroupEvaluation,
    Labelling,
    group_differences,
    shuffled_values,
    worst_first,
)
from calattn.metrics.parts import FEWEST_ERRORS, Bootstrap, Measured, measured
from calattn.metrics.resampling.bootstrap import interval, two_sided, wider_for_few
from calattn.metrics.sources import PredictionSource, check_paired, target_of
from calattn.metrics.state import METRICS, WITH_EVENT, Options
from calattn.registry import UnknownName
from calattn.types import MetricRow, Predictions, given_predictions

_ROUNDING = 1e-9


class NotComparedWarning(UserWarning):
    """A metric that was asked for cannot be resampled, so there is no difference of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Mapping[str, MetricRow]):
    """Metric rows by name; `print(evaluation)` shows them, `evaluation["ece"].value` reads one. Fractions throughout.

    `groups`, where samples were given some, has an evaluation of each, worst first. `gaps` is what a verdict in words rests on.
    """

    rows: dict[str, MetricRow]
    num_samples: int
    num_classes: int
    options: Options
    level: float
    num_bootstrap: int
    num_clusters: int | None = None
    groups: Mapping[str, GroupEvaluation] = dataclasses.field(default_factory=dict)
    draws: Mapping[str, Tensor] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Each metric in every resample. Evaluations of the same samples, of one seed, are resampled alike: see `paired`."""
    gaps: Float[Tensor, "8 m"] | None = dataclasses.field(default=None, compare=False)

    @property
    def num_units(self) -> int:
        """How many independent parts are resampled."""
        return self.num_clusters or self.num_samples

    def __getitem__(self, name: str) -> MetricRow:
        if name not in self.rows:
            METRICS[name]  # raises with the nearest name
            raise UnknownName(f"{name} was not evaluated; evaluated: {', '.join(self.rows)}")
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def as_dict(self) -> dict[str, dict[str, float | None]]:
        """Name → value, low, high; None where there is no interval, or the value is not defined. An infinite NLL stays infinite.

        >>> from calattn import Predictions, evaluate
        >>> found = Predictions(logits=torch.tensor([[2.0, 0.0], [0.0, 2.0]]), labels=torch.tensor([0, 0]))
        >>> evaluate(found, metrics=["accuracy"], num_bootstrap=0).as_dict()
        {'accuracy': {'value': 0.5, 'low': None, 'high': None}}
        """
        return {row.name: row.numbers() for row in self.rows.values()}

    @property
    def reading(self) -> str:
        """With a target, which probability is held against which event, in words; else empty."""
        event = self.options.event
        return "" if event is None else f"calibration errors of {event} against “the label is {event[2:-1]}”"

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        clusters = "" if self.num_clusters is None else f" in {self.num_clusters:,} clusters"
        lines = [f"{self.num_samples:,} samples{clusters}, {self.num_classes:,} classes"]
        if self.num_bootstrap:
            lines[0] += f"; {self.level:.0%} intervals from {self.num_bootstrap:,} resamples"
        if self.options.event is not None:
            lines.append(self.reading)
        titles = [METRICS.title(name, self.options) for name in self.rows]
        named = zip(titles, self.rows.values(), strict=True)
        lines += [f"{title:<{max(map(len, titles))}}  {row.text()}" for title, row in named]
        return "\n\n".join(["\n".join(lines), *(f"{name}: {each.evaluation}" for name, each in self.groups.items())])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """b − a of one metric with its paired interval, and how often a resample falls on the other side of zero."""

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float = 0.95
    num_bootstrap: int | None = None
    options: Options | None = None

    @property
    def too_few(self) -> str | None:
        """Why there can be no verdict, in words: p is never below 2/(B + 1), which B resamples may leave above 1 − level."""
        if not METRICS[self.name].interval and not self._certain:
            return "cannot tell (no interval holds)"
        needed = math.ceil(2 / (1 - self.level) - 1e-9) - 1
        if self.num_bootstrap is None or self.num_bootstrap >= needed or self._certain:
            return None
        return f"too few resamples to tell (at least {needed:,} at {100 * self.level:.6g} %)"

    @property
    def _certain(self) -> bool:
        """Whether resamples have no say: the difference is infinite, or no more than rounding."""
        return math.isinf(self.difference) or abs(self.difference) <= _ROUNDING * max(abs(self.a), abs(self.b))

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out zero, by more than rounding, and p agrees (with few resamples it may not).

        An infinite difference (a label that one side gave probability 0) is a fact about the predictions, not chance.
        """
        if self._certain:
            return math.isinf(self.difference)
        if self.p_value > 1 - self.level + 1e-12:
            return False
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        title = METRICS.title(self.name, self.options)
        if math.isnan(self.difference):
            return f"{title} is not defined for both"
        verdict = self.too_few or ("more than chance" if self.significant else "within chance")
        ends = "" if math.isnan(self.low) else f" [{self.low:+.4f}, {self.high:+.4f}], p = {self.p_value:.2g}"
        return f"{title} {self.a:.4f} → {self.b:.4f}: {self.difference:+.4f}{ends}, {verdict}"


@checks.full_precision()
def evaluate(
    predictions: PredictionSource | None = None,
    *more: Never,
    logits: Any = None,
    probs: Any = None,
    labels: Any = None,
    metrics: str | Iterable[str] | None = None,
    target: int | str | None = None,
    num_bins: int = 15,
    bandwidth: float | None = 0.05,
    threshold: float = 0.9,
    num_bootstrap: int | None = None,
    level: float = 0.95,
    generator: torch.Generator | None = None,
    groups: object = None,
    clusters: object = None,
) -> Evaluation:
    """All metrics in one pass over the calibrated logits, each with a bootstrap interval.

    Plain arrays (NumPy, torch, pandas) are `logits` or `probs`, and `labels`. Columns of a table are the class names.

    `predictions` may be an iterable of blocks (see `calattn.stream_predictions`). Resampling is a second pass over them, in
    memory that does not grow. A one-shot iterator gets no classwise interval, and 17 bytes a sample are kept.
    `num_bootstrap` defaults to 1,000 resamples, 200 beyond 200,000 samples; 0 leaves the intervals out. Without a
    `generator`, resampling starts from seed 0. `target`, the number or the name of a class, reads P(class) against "the
    label is that class" instead of the confidence against "the predicted class is right": ECE and its kin are then of
    that event, NLL and Brier score stay those of all classes, and what is about the predicted class is left out.

    `groups`, a value per sample such as the camera, evaluates each group too (`.groups`, worst first). `clusters`, a value per
    sample such as the image that a pixel is of, names samples that are not independent: whole clusters are resampled.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), labels=torch.tensor([0, 0, 0]))
    >>> round(evaluate(p, num_bootstrap=0)["ece"].value, 4)
    0.2992
    >>> evaluate(probs=[[0.9, 0.1], [0.6, 0.4]], labels=[0, 1], num_bootstrap=0)["accuracy"].value
    0.5
    """
    predictions = given_predictions(predictions, *more, logits=logits, probs=probs, labels=labels)
    names, options = _asked(predictions, metrics, target, num_bins, bandwidth, threshold)
    bootstrap = Bootstrap(count=num_bootstrap, seed=_seed(generator), level=level, clusters=clusters)
    found = measured([predictions], names, options, bootstrap)
    overall = _evaluation(found, level)
    if groups is None:
        return overall
    return dataclasses.replace(overall, groups=_by_group(predictions, found, bootstrap, overall, groups))


@checks.full_precision()
def evaluate_shards(
    shards: Sequence[PredictionSource],
    *,
    over: Callable[..., Iterable[Any]] = map,
    num_bootstrap: int | None = None,
    level: float = 0.95,
    generator: torch.Generator | None = None,
    **asked: Any,
) -> Evaluation:
    """`evaluate`, with its arguments, of the rows of all shards as if they were one; each can be read more than once.

    `over(function, *arguments)` is `map`, or does what `map` does on other machines: function, shards and results are pickled.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), labels=torch.tensor([0, 0, 0]))
    >>> rows = torch.arange(3)
    >>> evaluate_shards([p.select(rows[:2]), p.select(rows[2:])])["ece"] == evaluate(p)["ece"]
    True
    """
    if not shards:
        raise InputError("is empty: there is nothing to evaluate", argument="shards")
    names, options = _asked(shards[0], **asked)
    bootstrap = Bootstrap(count=num_bootstrap, seed=_seed(generator), level=level)
    return _evaluation(measured(shards, names, options, bootstrap, over=over), level)


@checks.full_precision()
def compare(
    a: PredictionSource,
    b: PredictionSource,
    *,
    metrics: str | Iterable[str] | None = None,
    target: int | str | None = None,
    num_bins: int = 15,
    bandwidth: float | None = 0.05,
    threshold: float = 0.9,
    num_bootstrap: int | None = None,
    level: float = 0.95,
    generator: torch.Generator | None = None,
    clusters: object = None,
) -> dict[str, Difference]:
    """Paired bootstrap of b − a: both are resampled with the same weights, so what they share cancels.

    The two must be predictions of the same samples in the same order; labels (and indices, where both have them) are
    checked, of streams only the number of samples of each class. `target` and `clusters` as in `evaluate`.
    """
    if isinstance(a, Predictions) and isinstance(b, Predictions):
        check_paired(a, b)
    names, options = _asked(a, metrics, target, num_bins, bandwidth, threshold)
    # Of its own: `evaluate` with the same generator draws other resamples.
    seed = _seed(torch.Generator().manual_seed(_seed(generator)))
    if num_bootstrap == 0:
        remedy = ("pass ", Args(num_bootstrap=1000), ", or leave it out")
        raise InputError("is 0: a comparison needs resamples", argument="num_bootstrap", remedy=remedy)
    bootstrap = Bootstrap(count=num_bootstrap, seed=seed, level=level, clusters=clusters)
    one, other = (_Side.of(measured([source], names, options, bootstrap)) for source in (a, b))
    if one.n != other.n:
        raise ValueError(f"a has {one.n} samples and b has {other.n}: a paired comparison needs the same samples")
    if bool((one.labels != other.labels).any()):
        raise ValueError("a and b do not have the same number of samples of each class: they are not the same samples")
    found = {name: _difference(name, one, other, level, options) for name in names}
    if metrics is not None:
        _warn_left_out([name for name, each in found.items() if each is None], options)
    return {name: each for name, each in found.items() if each is not None}


def paired(a: Evaluation, b: Evaluation, metric: str) -> Difference | None:
    """b − a of one metric, from the resamples that the two evaluations share; None where they share none.

    The caller knows that they are of the same samples in the same order. `compare` checks it, and draws resamples of its own.
    """
    alike = (a.num_samples, a.num_clusters, a.num_bootstrap) == (b.num_samples, b.num_clusters, b.num_bootstrap)
    if not alike or metric not in a or metric not in b:
        return None
    one, other = (_Side(e.num_samples, e.num_units, torch.empty(0), {metric: e[metric].value}, e.draws) for e in (a, b))
    return _difference(metric, one, other, a.level, a.options)


class _Side(NamedTuple):
    """One of two sets of predictions: its size, how many units are resampled, the samples of each class, and the rest."""

    n: int
    units: int
    labels: Float[Tensor, " c"]
    values: Mapping[str, float]
    draws: Mapping[str, Float[Tensor, " r"]]

    @classmethod
    def of(cls, found: Measured) -> _Side:
        values = found.whole.state.compute()
        return cls(found.plan.n, found.plan.num_units, found.whole.labels, values, found.telling())


def _evaluation(found: Measured, level: float) -> Evaluation:
    draws, rows = found.telling(), {}
    wider = wider_for_few(found.plan.num_units, level)
    for name, value in found.whole.state.compute().items():
        low, high = _interval(name, value, draws[name], level, wider) if name in draws else (None, None)
        rows[name] = MetricRow(name=name, value=value, low=low, high=high)
    return Evaluation(
        rows=rows,
        num_samples=found.plan.n,
        num_classes=found.whole.num_classes,
        options=found.plan.options,
        level=level,
        num_bootstrap=found.plan.count,
        num_clusters=found.plan.num_clusters,
        draws=draws,
        gaps=found.whole.gaps,
    )


def _asked(
    source: PredictionSource,
    metrics: str | Iterable[str] | None = None,
    target: object = None,
    num_bins: int = 15,
    bandwidth: float | None = 0.05,
    threshold: float = 0.9,
) -> tuple[tuple[str, ...], Options]:
    """The metrics by name, and their options."""
    cls, named = target_of(target, source)
    options = Options(num_bins=num_bins, bandwidth=bandwidth, threshold=threshold, target=cls, target_name=named)
    return _names(metrics, cls), options


def _difference(name: str, a: _Side, b: _Side, level: float, options: Options) -> Difference | None:
    """None where resampling says nothing of these two; without an interval where it says nothing of any two."""
    if METRICS[name].interval and not (name in a.draws and name in b.draws):
        return None
    difference = b.values[name] - a.values[name]
    draws = b.draws[name] - a.draws[name] if METRICS[name].interval else torch.empty(0)
    moved, wider = METRICS[name].raised, wider_for_few(a.units, level)
    low, high = interval(difference, draws, level, moved=moved, wider=wider)
    return Difference(
        name=name,
        a=a.values[name],
        b=b.values[name],
        difference=difference,
        low=low,
        high=high,
        p_value=two_sided(difference, draws, moved=moved, wider=wider),
        level=level,
        num_bootstrap=int((~draws.isnan()).sum()),
        options=options,
    )


def _warn_left_out(names: list[str], options: Options) -> None:
    """What was asked for and cannot be resampled is named, never just missing."""
    for name in names:
        reason = (
            "class sums cannot be resampled from something that can be read only once; pass a list of blocks"
            if "classes" in METRICS[name].parts
            else f"there are fewer than {FEWEST_ERRORS} errors at p ≥ {options.threshold:g} to resample"
        )
        warnings.warn(f"{METRICS.title(name, options)} is not compared: {reason}", NotComparedWarning, stacklevel=3)


def _names(metrics: str | Iterable[str] | None, target: int | None = None) -> tuple[str, ...]:
    if isinstance(metrics, str):
        metrics = (metrics,)
    if metrics is None:
        return tuple(name for name in METRICS if target is None or name in WITH_EVENT)
    names = tuple(metrics)
    for name in names:
        METRICS[name]
    return names


def _seed(generator: torch.Generator | None) -> int:
    """One number off the generator, from which every pass over the same resamples starts."""
    return 0 if generator is None else int(torch.randint(2**62, (1,), generator=checks.generator(generator)))


def _by_group(
    source: PredictionSource, found: Measured, bootstrap: Bootstrap, overall: Evaluation, given: object
) -> dict[str, GroupEvaluation]:
    """Each group evaluated, worst first."""
    if not isinstance(source, Predictions):
        raise InputError("needs predictions in memory", argument="groups", remedy="pass one Predictions")
    groups, plan = Labelling.of(given, len(source), "groups"), found.plan
    if len(groups) > MOST_GROUPS:
        problem = f"has {len(groups):,} different values, and {MOST_GROUPS} are the most"
        raise InputError(problem, argument="groups", remedy="take wider groups")
    evaluations = []
    for code in range(len(groups)):
        rows = groups.codes == code
        clusters = None if plan.clusters is None else plan.clusters[rows]
        own = dataclasses.replace(bootstrap, count=plan.count, clusters=clusters)
        part = source.select(rows.to(source.labels.device))
        evaluations.append(_evaluation(measured([part], tuple(overall), overall.options, own), overall.level))
    differences: list[dict[str, GroupDifference]] = [{} for _ in evaluations]
    if plan.count:
        # So many that the smallest p-value of all groups can be told from chance.
        shuffles = max(plan.count, math.ceil(2 * len(groups) / (1 - overall.level)))
        values = shuffled_values(source, dataclasses.replace(plan, count=shuffles), groups)
        differences = group_differences(evaluations, values, overall.level)
    each = zip(groups.names, evaluations, differences, strict=True)
    return worst_first({name: GroupEvaluation(evaluation=one, differences=apart) for name, one, apart in each})


def _interval(
    name: str, value: float, replicates: Tensor, level: float, wider: float
) -> tuple[float, float] | tuple[None, None]:
    # All right, all wrong, one sample: resampling cannot tell how sure that is.
    known = replicates[~replicates.isnan()]
    if math.isfinite(value) and bool((known == known[:1]).all()):
        return None, None
    low, high = interval(value, replicates, level, moved=METRICS[name].raised, wider=wider)
    least, most = METRICS[name].limits
    return max(low, least), min(high, most)
