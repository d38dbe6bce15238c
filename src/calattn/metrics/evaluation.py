"""Every metric of a set of predictions with its interval, and the paired difference of two sets."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
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
from calattn.metrics.measurement import FEWEST_ERRORS, IN_MEMORY, Resampled, one_pass
from calattn.metrics.resampling.bootstrap import interval, two_sided
from calattn.metrics.sources import PredictionSource, check_paired, target_of
from calattn.metrics.state import METRICS, WITH_EVENT, MetricState, Options
from calattn.registry import UnknownName
from calattn.types import MetricRow, Predictions, given_predictions

_ROUNDING = 1e-9


class NotComparedWarning(UserWarning):
    """A metric that was asked for cannot be resampled, so there is no difference of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(Mapping[str, MetricRow]):
    """Metric rows by name; `print(evaluation)` shows them, `evaluation["ece"].value` reads one. Fractions throughout.

    `groups`, where samples were given some, has an evaluation of each, worst first.
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
        return (
            f"{title} {self.a:.4f} → {self.b:.4f}: {self.difference:+.4f} "
            f"[{self.low:+.4f}, {self.high:+.4f}], p = {self.p_value:.2g}, {verdict}"
        )


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

    `predictions` may be an iterable of blocks (see `calattn.stream_predictions`). Up to 200,000 samples, resampling takes
    half a kilobyte a sample; beyond, it is a second pass over the blocks, with Poisson weights, in memory that does not
    grow. A one-shot iterator cannot be passed over again: it gets no classwise interval, and 17 bytes a sample are kept.
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
    checks.in_unit_interval(level, "level")
    if generator is not None:
        checks.generator(generator)
    cls, named = target_of(target, predictions)
    options = Options(num_bins=num_bins, bandwidth=bandwidth, threshold=threshold, target=cls, target_name=named)
    state = MetricState(_names(metrics, cls), **vars(options))
    seen = one_pass(state, predictions, keep=num_bootstrap != 0)
    together = None if clusters is None else Labelling.of(clusters, seen.n, "clusters")
    job = Resampled(state, seen, predictions, _resamples(num_bootstrap, seen.n), _seed(generator), together)
    draws = job.replicates(level) if job.count else {}
    rows = {}
    for name, value in state.compute().items():
        low, high = _interval(name, value, draws[name], level) if name in draws else (None, None)
        rows[name] = MetricRow(name=name, value=value, low=low, high=high)
    found = Evaluation(
        rows=rows,
        num_samples=seen.n,
        num_classes=seen.classes.count.shape[0],
        options=options,
        level=level,
        num_bootstrap=job.count,
        num_clusters=None if together is None else len(together),
        draws=draws,
    )
    return found if groups is None else dataclasses.replace(found, groups=_by_group(job, found, groups))


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
    cls, named = target_of(target, a)
    options = Options(num_bins=num_bins, bandwidth=bandwidth, threshold=threshold, target=cls, target_name=named)
    names = _names(metrics, cls)
    checks.in_unit_interval(level, "level")
    if generator is not None:
        checks.generator(generator)
    # Of its own: `evaluate` with the same generator draws other resamples.
    seed = _seed(torch.Generator().manual_seed(_seed(generator)))

    def side(source: PredictionSource) -> _Side:
        state = MetricState(names, **vars(options))
        seen = one_pass(state, source, keep=True)
        if not (count := _resamples(num_bootstrap, seen.n)):
            remedy = ("pass ", Args(num_bootstrap=1000), ", or leave it out")
            raise InputError("is 0: a comparison needs resamples", argument="num_bootstrap", remedy=remedy)
        together = None if clusters is None else Labelling.of(clusters, seen.n, "clusters")
        draws = Resampled(state, seen, source, count, seed, together).replicates(level)
        return _Side(seen.n, seen.classes.correct.sum(dim=1), state.compute(), draws)

    one, other = side(a), side(b)
    if one.n != other.n:
        raise ValueError(f"a has {one.n} samples and b has {other.n}: a paired comparison needs the same samples")
    if bool((one.labels != other.labels).any()):
        raise ValueError("a and b do not have the same number of samples of each class: they are not the same samples")
    known = [name for name in names if name in one.draws and name in other.draws]
    if metrics is not None and len(known) < len(names):
        _warn_left_out([name for name in names if name not in known], options)
    return {name: _difference(name, one, other, level, options) for name in known}


def paired(a: Evaluation, b: Evaluation, metric: str) -> Difference | None:
    """b − a of one metric, from the resamples that the two evaluations share; None where they share none.

    The caller knows that they are of the same samples in the same order. `compare` checks it, and draws resamples of its own.
    """
    alike = (a.num_samples, a.num_clusters, a.num_bootstrap) == (b.num_samples, b.num_clusters, b.num_bootstrap)
    if not alike or metric not in a.draws or metric not in b.draws:
        return None
    one, other = (_Side(e.num_samples, torch.empty(0), {metric: e[metric].value}, e.draws) for e in (a, b))
    return _difference(metric, one, other, a.level, a.options)


class _Side(NamedTuple):
    """One of two sets of predictions: its size, the samples of each class, the values and their replicates."""

    n: int
    labels: Float[Tensor, " c"]
    values: Mapping[str, float]
    draws: Mapping[str, Float[Tensor, " r"]]


def _difference(name: str, a: _Side, b: _Side, level: float, options: Options) -> Difference:
    difference, draws, moved = b.values[name] - a.values[name], b.draws[name] - a.draws[name], METRICS[name].raised
    low, high = interval(difference, draws, level, moved=moved)
    return Difference(
        name=name,
        a=a.values[name],
        b=b.values[name],
        difference=difference,
        low=low,
        high=high,
        p_value=two_sided(difference, draws, moved=moved),
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


def default_resamples(n: int) -> int:
    """How often n samples are resampled where nobody says."""
    return 1000 if n <= IN_MEMORY else 200


def _resamples(requested: int | None, n: int) -> int:
    if requested is None:
        return default_resamples(n)
    if requested < 0:
        raise InputError(f"must be 0 or more, got {requested}", argument="num_bootstrap")
    return requested


def _seed(generator: torch.Generator | None) -> int:
    """One number off the generator, from which every pass over the same resamples starts."""
    return 0 if generator is None else int(torch.randint(2**62, (1,), generator=generator))


def _by_group(job: Resampled, overall: Evaluation, given: object) -> dict[str, GroupEvaluation]:
    """Each group evaluated, worst first."""
    if not isinstance(job.source, Predictions):
        raise InputError("needs predictions in memory", argument="groups", remedy="pass one Predictions")
    groups = Labelling.of(given, job.seen.n, "groups")
    if len(groups) > MOST_GROUPS:
        problem = f"has {len(groups):,} different values, and {MOST_GROUPS} are the most"
        raise InputError(problem, argument="groups", remedy="take wider groups")
    options: dict[str, Any] = {name: value for name, value in vars(overall.options).items() if name != "target_name"}
    evaluations = []
    for code in range(len(groups)):
        rows = groups.codes == code
        options["clusters"] = None if job.clusters is None else job.clusters.codes[rows]
        options["generator"] = torch.Generator().manual_seed(job.seed)
        part = job.source.select(rows.to(job.source.labels.device))
        found = evaluate(part, metrics=tuple(overall), num_bootstrap=job.count, level=overall.level, **options)
        evaluations.append(dataclasses.replace(found, draws={}))
    differences: list[dict[str, GroupDifference]] = [{} for _ in evaluations]
    if job.count:
        # So many that the smallest p-value of all groups can be told from chance.
        shuffles = max(job.count, math.ceil(2 * len(groups) / (1 - overall.level)))
        values = shuffled_values(*job.planned(shuffles), groups, job.cells())
        differences = group_differences(evaluations, values, overall.level)
    named = zip(groups.names, evaluations, differences, strict=True)
    return worst_first({name: GroupEvaluation(evaluation=each, differences=apart) for name, each, apart in named})


def _interval(name: str, value: float, replicates: Tensor, level: float) -> tuple[float, float] | tuple[None, None]:
    # All right, all wrong, one sample: resampling cannot tell how sure that is.
    known = replicates[~replicates.isnan()]
    if math.isfinite(value) and bool((known == known[:1]).all()):
        return None, None
    low, high = interval(value, replicates, level, moved=METRICS[name].raised)
    least, most = METRICS[name].limits
    return max(low, least), min(high, most)
