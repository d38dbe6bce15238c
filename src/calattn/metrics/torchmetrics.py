"""`torchmetrics.Metric` wrappers: the same states, synchronised by torchmetrics under DDP.

Every state is a float64 tensor of fixed size, so nothing grows with the number of samples; all are summed, except for that of the
rank metrics (AdaECE, AUROC, AURC), which keeps up to 65,536 samples of all processes as they are and goes over to an odds sketch
beyond. It is one tensor: the first 2**18 columns are the odds histogram (see `ranks`), the last `SLOTS` hold samples as they are:
odds, confidence, and 1 for wrong or 2 for right, 0 where a slot is free. A state that grew with the samples would need none of
this, but torchmetrics stacks the tensors of all processes, which takes equal shapes, and one tensor, because samples that
overflow have to reach the histogram in the same step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from calattn import checks
from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import LabelledValues
from calattn.metrics.ranks import RankSums, empty_histogram
from calattn.metrics.state import METRICS, MetricState, OptionValues, reduce_for

SLOTS = 1 << 16  # 1.6 MB beside the histogram's 6.3 MB; holds the 50,000 test images of ImageNet
_CELLS = empty_histogram().shape[1]


class CalibrationMetrics(Metric):
    """Any set of calattn metrics as one torchmetrics Metric; `compute` returns a dict of 0-d tensors.

    `from_logits` is required: what comes in is never guessed. Targets equal to `ignore_index` are left out. `target` is
    that of `calattn.evaluate`: P(class) against the event that it is the label; it, `num_bins`, `bandwidth` and `threshold` are
    options, all others are torchmetrics' own. Before the first sample, values are NaN.

    >>> metric = CalibrationMetrics(["ece", "nll"], num_classes=2, from_logits=True)
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> {name: round(float(value), 4) for name, value in metric.compute().items()}
    {'ece': 0.4251, 'nll': 0.7201}
    """

    is_differentiable = False
    full_state_update = False

    def __init__(
        self,
        metrics: str | Iterable[str],
        *,
        num_classes: int,
        from_logits: bool,
        ignore_index: int | None = None,
        **options: Any,
    ) -> None:
        self.options = {name: options.pop(name) for name in OptionValues.__annotations__ if name in options}
        super().__init__(**options)
        self.names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self.num_classes = checks.positive_int(num_classes, "num_classes")
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        state = self._state()
        state.classes = ClassBins.empty(self.num_classes, state.options.num_bins)
        for name, tensor in _tensors(state, empty_packed()).items():
            self.add_state(name, default=tensor, dist_reduce_fx=merged if name == "ranks" else "sum")
        # A MetricCollection shares the states of metrics whose states are equal after the first batch: this one tells apart
        # those that only later batches would.
        target, ignored = state.options.target, ignore_index
        asked = [state.options.threshold, from_logits, target is None, target or 0, ignored is None, ignored or 0]
        self.add_state("asked", default=torch.tensor(asked, dtype=torch.float64), dist_reduce_fx="max")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """Of all the metrics, where they agree."""
        found = {METRICS[name].better == "higher" for name in self.names}
        return found.pop() if len(found) == 1 else None

    def update(self, preds: Float[Tensor, "n *c_and_more"], target: Int[Tensor, "n *more"]) -> None:  # noqa: F821
        """Adds logits or probabilities, as `from_logits` says, [n, c] or [n, c, …]; of two classes class 1 alone will do."""
        rows, labels = self._rows(preds, target)
        if len(labels) == 0:
            return
        held = {name: _writable(getattr(self, name)) for name in self._defaults}
        state = self._state(held)
        columns, classes = reduce_for(state, LabelledValues.of(rows, labels, "logits" if self.from_logits else "probs"))
        if classes is not None:
            classes = classes.to(held["classes"].device)
        state.add(columns, classes)
        for name, tensor in _tensors(state, held.get("ranks")).items():
            setattr(self, name, tensor)

    def compute(self) -> dict[str, Tensor]:
        state = self._state({name: getattr(self, name).cpu() for name in self._defaults})
        values = state.compute() if state.seen() else dict.fromkeys(self.names, float("nan"))
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """The value, or the values of several steps, as torchmetrics draws them."""
        return self._plot(val, ax)

    def extra_repr(self) -> str:
        parts = [*map(repr, self.names), f"num_classes={self.num_classes}", f"from_logits={self.from_logits}"]
        more = {"target": self.options.get("target"), "ignore_index": self.ignore_index}
        return ", ".join(parts + [f"{name}={value}" for name, value in more.items() if value is not None])

    def _state(self, tensors: dict[str, Tensor] | None = None) -> MetricState:
        """A state that writes into these tensors."""
        state = MetricState(self.names, **self.options, rank_capacity=SLOTS)
        _fill(state, tensors or {})
        return state

    def _rows(self, preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """[n, c] and [n], without what is to be ignored."""
        preds, target = checks.as_tensor(preds, "preds"), checks.as_tensor(target, "target")
        if preds.ndim == target.ndim and self.num_classes == 2:
            zero = torch.zeros_like(preds) if self.from_logits else 1 - preds
            preds = torch.stack([zero, preds], dim=1)
        if preds.ndim < 2 or preds.shape[:1] + preds.shape[2:] != target.shape:
            raise ValueError(
                f"preds must be [n, {self.num_classes}, …] and target [n, …]; got {list(preds.shape)} and {list(target.shape)}"
            )
        if preds.shape[1] != self.num_classes:
            raise ValueError(f"got {preds.shape[1]} classes, num_classes is {self.num_classes}")
        rows, labels = preds.detach().movedim(1, -1).flatten(0, -2), target.flatten()
        if self.ignore_index is not None:
            kept = labels != self.ignore_index
            rows, labels = rows[kept.to(rows.device)], labels[kept]
        return rows, labels


class CalibrationMetric(CalibrationMetrics):
    """One calattn metric as a torchmetrics Metric; `compute` returns a 0-d tensor.

    >>> ece = CalibrationMetric("ece", num_classes=2, from_logits=False)
    >>> round(float(ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))), 4)
    0.35
    >>> ece
    CalibrationMetric('ece', num_classes=2, from_logits=False)
    """

    def __init__(self, metric: str, *, num_classes: int, from_logits: bool, **options: Any) -> None:
        super().__init__(metric, num_classes=num_classes, from_logits=from_logits, **options)

    def compute(self) -> Tensor:  # type: ignore[override]
        return super().compute()[self.names[0]]


def _writable(held: Tensor) -> Tensor:
    """A state that `reset` made under inference mode can be written to there alone: elsewhere, a copy."""
    return held.clone() if held.is_inference() and not torch.is_inference_mode_enabled() else held


def _tensors(state: MetricState, packed: Tensor | None) -> dict[str, Tensor]:
    """The state's tensors under the names torchmetrics knows them by, ranks in `packed`; only those that the metrics need."""
    tensors: dict[str, Tensor] = {}
    if "scores" in state.needs:
        tensors["scores"] = state.scores.sums
    if "bins" in state.needs:
        tensors["bins"] = torch.stack([state.bins.count, state.bins.confidence, state.bins.correct])
    if "grid" in state.needs:
        tensors["grid_residual"], tensors["grid_weight"] = state.grid.residual, state.grid.weight
    if "ranks" in state.needs:
        assert packed is not None
        tensors["ranks"] = pack(state.ranks, packed)
    if "classes" in state.needs:
        classes = state.class_bins()
        tensors["classes"] = torch.stack([classes.count, classes.confidence, classes.correct])
    return tensors


def _fill(state: MetricState, tensors: dict[str, Tensor]) -> None:
    """The other way: puts tensors into a state, which adds to the large ones in place."""
    if "scores" in tensors:
        state.scores.sums = tensors["scores"]
    if "bins" in tensors:
        state.bins.count, state.bins.confidence, state.bins.correct = tensors["bins"]
    if "grid_residual" in tensors:
        state.grid.residual, state.grid.weight = tensors["grid_residual"], tensors["grid_weight"]
    if "ranks" in tensors:
        state.ranks = unpacked(tensors["ranks"])
    if "classes" in tensors:
        state.classes = ClassBins(*tensors["classes"])


def empty_packed() -> Float[Tensor, "3 k"]:
    return torch.zeros(3, _CELLS + SLOTS, dtype=torch.float64)


def unpacked(packed: Float[Tensor, "3 k"]) -> RankSums:
    """The state in a tensor; a histogram is the tensor's own and is added to in place."""
    slots = packed[:, _CELLS:]
    samples = slots[:, slots[2] > 0]
    samples[2] -= 1
    full = samples.shape[1] == 0 and bool(packed[0, :_CELLS].any())
    return RankSums(SLOTS, samples, packed[:, :_CELLS] if full else None)


def pack(ranks: RankSums, packed: Float[Tensor, "3 k"]) -> Float[Tensor, "3 k"]:
    """Writes a state into the tensor it was unpacked from, or into an empty one."""
    slots = packed[:, _CELLS:]
    if ranks.histogram is not None:
        if ranks.histogram.data_ptr() != packed.data_ptr():
            packed[:, :_CELLS] = ranks.histogram
            slots.zero_()
        return packed
    held = ranks.samples.shape[1]
    slots[:, :held] = ranks.samples
    slots[2, :held] += 1
    return packed


def merged(stacked: Float[Tensor, "p 3 k"]) -> Float[Tensor, "3 k"]:
    """What several processes, or several batches, have seen; their order does not matter."""
    states = [unpacked(each) for each in stacked]
    return pack(functools.reduce(RankSums.merge, states), torch.zeros_like(stacked[0]))
