"""One mergeable state for any set of metrics: batches, streams, processes and machines are the same three calls."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Never, Self, TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.metrics import ranks
from calattn.metrics.binning import BinSums
from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import SCORES, Columns, LabelledValues, columns_of
from calattn.metrics.scoresums import ScoreSums
from calattn.metrics.smooth import SmoothGrid
from calattn.metrics.words import TEXTS
from calattn.registry import Registry, UnknownName
from calattn.types import checked_scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the metrics of one state agree on. `bandwidth=None` picks smooth ECE's bandwidth from the data.

    With a `target`, calibration errors are those of P(class `target`) against the event that it is the label;
    `target_name` is what people call that class.
    """

    num_bins: int = 15
    bandwidth: float | None = 0.05
    threshold: float = 0.9
    target: int | None = None
    target_name: str | None = None

    def __post_init__(self) -> None:
        checks.positive_int(self.num_bins, "num_bins")
        checks.in_unit_interval(self.threshold, "threshold")
        if self.bandwidth is not None:
            checks.positive(self.bandwidth, "bandwidth")
        if self.target is not None and (isinstance(self.target, bool) or not isinstance(self.target, int)):
            raise ValueError(f"target must be a class number or None, got {self.target!r}")

    @property
    def event(self) -> str | None:
        """P(class) as people write it, with a target."""
        return None if self.target is None else f"P({self.target if self.target_name is None else self.target_name})"


class OptionValues(TypedDict, total=False):
    """The fields of `Options` as keyword arguments."""

    num_bins: int
    bandwidth: float | None
    threshold: float
    target: int | None
    target_name: str | None


# The sums a state can hold; a metric names those that it reads, and a state gathers no others.
PARTS = ("scores", "bins", "grid", "ranks", "classes")


@dataclasses.dataclass(frozen=True)
class Metric:
    """How a metric is read from a state, and how a person reads it.

    `raised` says that chance alone raises the value, as it does every error that is a mean of absolute values: replicates
    are raised once more, and are moved back onto the value. A plain mean over samples is not raised. Intervals are cut to
    `limits`; with `interval=False` there is none, because resampling gives none that holds. `text` is what pages say it is.

    >>> Metric("m", ("bin",), lambda state: state.bins.error(), "lower")
    Traceback (most recent call last):
    ...
    ValueError: parts of metric 'm' names 'bin'; there are scores, bins, grid, ranks, classes
    """

    title: str
    parts: tuple[str, ...]
    read: Callable[[MetricState], float]
    better: str  # "lower" or "higher"
    raised: bool = dataclasses.field(default=True, kw_only=True)
    limits: tuple[float, float] = dataclasses.field(default=(-math.inf, math.inf), kw_only=True)
    interval: bool = dataclasses.field(default=True, kw_only=True)
    text: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.parts, str) or not self.parts:
            raise ValueError(f'parts of metric {self.title!r} must be a tuple such as ("bins",), got {self.parts!r}')
        if unknown := [part for part in self.parts if part not in PARTS]:
            raise ValueError(f"parts of metric {self.title!r} names {unknown[0]!r}; there are {', '.join(PARTS)}")
        if self.better not in ("lower", "higher"):
            raise ValueError(f'better of metric {self.title!r} must be "lower" or "higher", got {self.better!r}')
        if not callable(self.read):
            raise ValueError(f"read of metric {self.title!r} must be a function of a state, got {self.read!r}")
        if not self.limits[0] < self.limits[1]:
            raise ValueError(f"limits of metric {self.title!r} must be (low, high), got {self.limits!r}")


class Metrics(Registry[Metric]):
    """The metrics by name; a function of `calattn.metrics` that is none of them is told apart from a misspelling."""

    def __getitem__(self, name: str) -> Metric:
        if name in _FUNCTIONS:
            raise UnknownName(
                f"{name} is a function, not a metric of evaluate: call calattn.metrics.{name}; known: {', '.join(self)}"
            )
        return super().__getitem__(name)

    def title(self, name: str, options: Options | None = None) -> str:
        """What people call a metric, its threshold and its event filled in.

        >>> METRICS.title("ece", Options(target=1)), METRICS.title("nll", Options(target=1))
        ('ECE of P(1)', 'NLL')
        """
        title = self[name].title
        if options is None:
            return title
        of = f" of {options.event}" if options.target is not None and name in OF_EVENT else ""
        return title.replace("≥ t", f"≥ {options.threshold:g}") + of

    def text(self, name: str, options: Options | None = None) -> str:
        """What a metric is, its options filled in; of one that was added, in the words of whoever added it.

        >>> METRICS.text("high_confidence_error_rate", Options(threshold=0.95))
        'Error rate among the samples with confidence 0.95 or more.'
        """
        metric, options = self[name], options or Options()
        if name not in TEXTS:
            return metric.text or f"A metric added under the name {name}; {metric.better} is better."
        bandwidth = "chosen from the data" if options.bandwidth is None else f"{options.bandwidth:g}"
        return TEXTS[name].format(bins=options.num_bins, threshold=f"{options.threshold:g}", bandwidth=bandwidth)


METRICS = Metrics("metric")
_CPU = torch.device("cpu")

# Not a single number, or not of fixed memory: functions only.
_FUNCTIONS = ("ece_sweep", "brier_decomposition", "risk_coverage", "ood_auroc", "class_bins", "smooth_ece_automatic")
# Read as P(class) against the event with a target. NLL and Brier score are of all classes either way; whatever is about the
# predicted class being right has no such reading.
OF_EVENT = frozenset({"ece", "debiased_ece", "mce", "adaptive_ece", "smooth_ece", "kernel_ece"})
WITH_EVENT = OF_EVENT | {"nll", "brier"}


class _Undeclared:
    """Stands where a part would be that a metric reads without naming it: filled or empty, by what else is asked for."""

    def __init__(self, name: str, part: str, parts: tuple[str, ...]) -> None:
        self.message = (
            f"metric {name!r} reads {part!r} of the state, and its parts name {', '.join(parts)} alone; "
            f"add {part!r} to its parts"
        )

    def __getattr__(self, attribute: str) -> Never:
        raise ValueError(self.message)


class MetricState:
    """`update` (or `update_probs`, `update_logits`), `merge`, `compute`: constant memory however many predictions pass through.

    Adaptive ECE, AUROC and AURC are exact up to 2**20 samples and then go over to a fixed sketch (see `ranks`). Keyword
    arguments are those of `Options`: `num_bins`, `bandwidth`, `threshold` and `target`.

    >>> import torch
    >>> a, b = MetricState(["ece", "accuracy"]), MetricState(["ece", "accuracy"])
    >>> _ = a.update_probs(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    >>> _ = b.update_probs(torch.tensor([[0.7, 0.3]]), torch.tensor([1]))
    >>> {name: round(value, 3) for name, value in a.merge(b).compute().items()}
    {'ece': 0.4, 'accuracy': 0.5}
    """

    def __init__(
        self,
        metrics: str | Iterable[str],
        *,
        rank_capacity: int = ranks.CAPACITY,
        from_logits: bool | None = None,
        **options: Unpack[OptionValues],
    ) -> None:
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not self.metrics:
            raise ValueError(f"metrics is empty; known: {', '.join(METRICS)}")
        self.from_logits = from_logits
        self.options = Options(**options)
        self.needs = parts_of(self.metrics)
        target = self.options.target
        if target is not None and (unread := [name for name in self.metrics if name not in WITH_EVENT]):
            known = ", ".join(name for name in METRICS if name in WITH_EVENT)
            raise ValueError(
                f"{unread[0]} is about the predicted class and has no reading with target={target}; leave one of them "
                f"out. With a target there are: {known}"
            )
        self.scores = ScoreSums(self.options.threshold)
        self.bins = BinSums.empty(self.options.num_bins)
        self.grid = SmoothGrid.empty()
        self.ranks = ranks.RankSums(rank_capacity)
        self.classes: ClassBins | None = None

    def update(self, values: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Self:
        """Adds logits or probabilities, as `from_logits` said when the state was made."""
        if self.from_logits is None:
            raise ValueError("make the state with from_logits=True or False, or call update_logits or update_probs")
        return self._update(LabelledValues.of(values, labels, "logits" if self.from_logits else "probs"))

    def update_probs(self, probs: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> Self:
        return self._update(LabelledValues.of(probs, labels, "probs"))

    def update_logits(
        self, logits: Float[Tensor, "n c"], labels: Int[Tensor, " n"], scale: Float[Tensor, " n"] | None = None
    ) -> Self:
        if scale is not None:
            scale = checked_scale(checks.as_tensor(scale, "scale"), checks.widened(checks.matrix(logits, "logits")))
        return self._update(LabelledValues.of(logits, labels, "logits", scale))

    def _update(self, given: LabelledValues) -> Self:
        self.add(*reduce_for(self, given))
        return self

    def add(self, columns: Columns, classes: ClassBins | None) -> None:
        """Adds what one pass over a batch gave."""
        for part in self.needs - {"classes"}:
            getattr(self, part).add(columns)
        if classes is not None:
            self.classes = classes if self.classes is None else self.classes.merge(classes)

    def merge(self, other: MetricState) -> MetricState:
        """A new state that has seen what both have seen."""
        if (self.metrics, self.options) != (other.metrics, other.options):
            raise ValueError(
                f"cannot merge states of {other.metrics} with {other.options} and {self.metrics} with {self.options}"
            )
        merged = copy.copy(self)
        merged.needs = set(self.needs)
        for part in ("scores", "bins", "grid", "ranks"):
            setattr(merged, part, getattr(self, part).merge(getattr(other, part)))
        both = [state.classes for state in (self, other) if state.classes is not None]
        merged.classes = functools.reduce(ClassBins.merge, both) if both else None
        return merged

    def to(self, device: torch.device) -> Self:
        """Gathers the sums there; without it, on the CPU."""
        for part in (self.scores, self.bins, self.grid, self.ranks):
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    setattr(part, name, value.to(device))
        self.classes = None if self.classes is None else self.classes.to(device)
        return self

    def __repr__(self) -> str:
        return f"MetricState({', '.join(self.metrics)}; {'some' if self.seen() else 'no'} predictions added)"

    def compute(self) -> dict[str, float]:
        if not self.seen():
            raise ValueError("no predictions were added: there is nothing to compute")
        here = copy.copy(self)  # few sums are read on the CPU: each number from a GPU is waited for
        here.scores, here.bins = ScoreSums(self.scores.threshold, self.scores.sums.cpu()), self.bins.to(_CPU)
        return {name: here.read(name) for name in self.metrics}

    def read(self, name: str) -> float:
        """One metric of what was added; it sees the parts that it names, whatever other metrics need."""
        metric, view = METRICS[name], copy.copy(self)
        for part in PARTS:
            if part not in metric.parts:
                setattr(view, part, _Undeclared(name, part, metric.parts))
        return float(metric.read(view))

    def seen(self) -> bool:
        held = [
            part.num_samples
            for part in (self.scores, self.bins, self.grid, self.ranks, self.classes)
            if part is not None
        ]
        return any(count > 0 for count in held)

    def smooth_error(self) -> float:
        bandwidth = self.options.bandwidth
        return self.grid.automatic()[0] if bandwidth is None else self.grid.smooth_error(bandwidth)

    def class_bins(self) -> ClassBins:
        if self.classes is None:
            raise ValueError("no predictions were added: there is nothing to compute")
        if isinstance(self.classes, _Undeclared):
            raise ValueError(self.classes.message)
        return self.classes


def parts_of(names: Iterable[str]) -> set[str]:
    """The parts that these metrics read."""
    return {part for name in names for part in METRICS[name].parts}


def reduce_for(state: MetricState, given: LabelledValues) -> tuple[Columns, ClassBins | None]:
    """The one pass over the values that `state` needs."""
    target, wanted = state.options.target, SCORES if "scores" in state.needs else frozenset()
    if "classes" not in state.needs:
        return columns_of(given, target=target, wanted=wanted), None
    classes = ClassBins.empty(given.values.shape[1], state.options.num_bins, device=state.scores.sums.device)
    collector = classes.collector()
    columns = columns_of(given, target=target, visit=collector, wanted=wanted)
    collector.finish()
    return columns, classes


def _built_in(
    name: str,
    title: str,
    part: str,
    read: Callable[[MetricState], float] | None = None,
    *,
    better: str = "lower",
    limits: tuple[float, float] = (0.0, 1.0),
) -> None:
    """What the scores hold under its name, or what `read` reads.

    Chance alone raises the errors that are means of absolute values, and AURC; their replicates are moved back. Means over
    samples are not raised, and moving them by the noise of the resampling would turn draws of exactly zero into small
    differences.
    """
    raised = part != "scores" and better == "lower"
    found = read or (lambda state: state.scores.read()[name])
    METRICS.add(name, Metric(title, (part,), found, better, raised=raised, limits=limits))


_built_in("accuracy", "accuracy", "scores", better="higher")
_built_in("nll", "NLL", "scores", limits=(0.0, math.inf))
_built_in("brier", "Brier score", "scores", limits=(0.0, 2.0))
_built_in("ece", "ECE", "bins", lambda state: state.bins.error())
_built_in("debiased_ece", "debiased ECE", "bins", lambda state: state.bins.debiased_error("l1"), limits=(-1.0, 1.0))
# One bin of a few samples decides it, and resampling cannot know what others there would have been: 95 % intervals held 55-92 %.
METRICS.add(
    "mce",
    Metric("MCE", ("bins",), lambda state: state.bins.error("max"), "lower", limits=(0.0, 1.0), interval=False),
)
_built_in(
    "adaptive_ece",
    "AdaECE",
    "ranks",
    lambda state: ranks.equal_count_bins(state.ranks.groups(), state.options.num_bins).error(),
)
_built_in("classwise_ece", "ClassECE", "classes", lambda state: state.class_bins().error())
_built_in("smooth_ece", "smECE", "grid", MetricState.smooth_error)
_built_in("kernel_ece", "kernel ECE", "grid", lambda state: state.grid.kernel_error(state.options.bandwidth or 0.05))
_built_in(
    "misclassification_auroc",
    "AUROC of errors",
    "ranks",
    lambda state: ranks.auroc_of(state.ranks.groups()),
    better="higher",
)
_built_in("aurc", "AURC", "ranks", lambda state: ranks.aurc_of(state.ranks.groups()))
_built_in("high_confidence_error_rate", "error rate at p ≥ t", "scores")
_built_in("high_confidence_error_share", "share of errors at p ≥ t", "scores")
_built_in("high_confidence_error_confidence", "confidence of errors at p ≥ t", "scores")

# These have replicates of their own; those that others add are read from resampled states.
BUILT_IN = frozenset(METRICS)
