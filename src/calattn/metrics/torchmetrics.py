"""`torchmetrics.Metric` wrappers: the same states, synchronised by torchmetrics under DDP.

Every state is a fixed-size float64 tensor reduced by a sum, so nothing grows with the number of samples. The rank metrics
(AdaECE, AUROC, AURC) therefore use the 2**18-cell odds sketch from the first sample on: within a tenth of a per cent of the
exact value of the odds, and equal to it where odds differ by more than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

from calattn import checks
from calattn.metrics.classbins import ClassBins
from calattn.metrics.ranks import RankSums, empty_histogram
from calattn.metrics.state import MetricState


class CalibrationMetrics(Metric):
    """Any set of calattn metrics as one torchmetrics Metric; `compute` returns a dict of 0-d tensors.

    `from_logits` is required: what comes in is never guessed.

    >>> metric = CalibrationMetrics(["ece", "nll"], num_classes=2, from_logits=True)
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> {name: round(float(value), 4) for name, value in metric.compute().items()}
    {'ece': 0.4251, 'nll': 0.7201}
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(
        self,
        metrics: str | Iterable[str],
        *,
        num_classes: int,
        from_logits: bool,
        num_bins: int = 15,
        bandwidth: float | None = 0.05,
        threshold: float = 0.9,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self.num_classes = checks.positive_int(num_classes, "num_classes")
        self.from_logits = from_logits
        self.options: dict[str, Any] = {"num_bins": num_bins, "bandwidth": bandwidth, "threshold": threshold}
        blank = self._blank()
        for name, tensor in _tensors(blank).items():
            self.add_state(name, default=tensor, dist_reduce_fx="sum")

    def _blank(self) -> MetricState:
        state = MetricState(self.names, **self.options, rank_capacity=0)
        if "classes" in state.needs:
            state.classes = ClassBins.empty(self.num_classes, self.options["num_bins"])
        if "ranks" in state.needs:
            state.ranks = RankSums(0, histogram=empty_histogram())
        return state

    def update(self, values: Float[Tensor, "n c"], labels: Int[Tensor, " n"]) -> None:
        """Adds a batch of logits or probabilities, as `from_logits` says."""
        if values.ndim == 2 and values.shape[1] != self.num_classes:
            raise ValueError(f"got {values.shape[1]} classes, num_classes is {self.num_classes}")
        batch = self._blank()
        batch = batch.update_logits(values, labels) if self.from_logits else batch.update_probs(values, labels)
        for name, tensor in _tensors(batch).items():
            held = getattr(self, name)
            setattr(self, name, held + tensor.to(held.device))

    def compute(self) -> dict[str, Tensor]:
        state = self._blank()
        _fill(state, {name: getattr(self, name).cpu() for name in _tensors(state)})
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in state.compute().items()}


class CalibrationMetric(CalibrationMetrics):
    """One calattn metric as a torchmetrics Metric; `compute` returns a 0-d tensor.

    >>> ece = CalibrationMetric("ece", num_classes=2, from_logits=False)
    >>> round(float(ece(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))), 4)
    0.35
    """

    def __init__(self, metric: str, *, num_classes: int, from_logits: bool, **options: Any) -> None:
        super().__init__(metric, num_classes=num_classes, from_logits=from_logits, **options)

    def compute(self) -> Tensor:  # type: ignore[override]
        return super().compute()[self.names[0]]


def _tensors(state: MetricState) -> dict[str, Tensor]:
    """The state's tensors under the names torchmetrics knows them by; only those that the metrics need."""
    tensors: dict[str, Tensor] = {}
    if "scores" in state.needs:
        tensors["scores"] = state.scores.sums
    if "bins" in state.needs:
        tensors["bins"] = torch.stack([state.bins.count, state.bins.confidence, state.bins.correct])
    if "grid" in state.needs:
        tensors["grid_residual"], tensors["grid_weight"] = state.grid.residual, state.grid.weight
    if "ranks" in state.needs:
        assert state.ranks.histogram is not None
        tensors["ranks"] = state.ranks.histogram
    if "classes" in state.needs:
        classes = state.class_bins()
        tensors["classes"] = torch.stack([classes.count, classes.confidence, classes.correct])
    return tensors


def _fill(state: MetricState, tensors: dict[str, Tensor]) -> None:
    """The other way: puts synchronised tensors back into a state."""
    if "scores" in tensors:
        state.scores.sums = tensors["scores"]
    if "bins" in tensors:
        state.bins.count, state.bins.confidence, state.bins.correct = tensors["bins"]
    if "grid_residual" in tensors:
        state.grid.residual, state.grid.weight = tensors["grid_residual"], tensors["grid_weight"]
    if "ranks" in tensors:
        state.ranks.histogram = tensors["ranks"]
    if "classes" in tensors:
        state.classes = ClassBins(*tensors["classes"])
