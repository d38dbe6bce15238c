"""One-vs-rest calibration: each class's probability is mapped on its own, by bins or by steps, then rows are normalised."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.errors import InputError
from calattn.metrics.binning import bin_edges, bin_index, equal_count_bounds
from calattn.posthoc.base import Calibrator, Learned
from calattn.posthoc.modules import BinnedProbs, InterpolatedProbs
from calattn.types import Predictions, row_blocks

_COLUMNS = 64  # classes handled at a time: 50,000 rows of float64 take 26 MB


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class OneVsRestCalibrator(Calibrator):
    """p_k → g_k(p_k) / Σ_j g_j(p_j); a row whose values are all zero becomes uniform (scikit-learn's rule).

    The order of classes, and so accuracy, can change. Mapped values may be exactly 0: then the logit is −inf
    and the NLL is ∞ if that was the label. `floor` replaces smaller values before normalising.
    """

    by_class: ClassVar[bool] = True

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor < 1.0:
            raise InputError(f"must be in [0, 1), got {self.floor!r}", argument="floor")

    @abc.abstractmethod
    def _mapped(self, probs: Tensor, first_class: int) -> Tensor:
        """g_k of columns first_class, first_class + 1, …; probs and result are [columns, n]."""

    def _apply(self, predictions: Predictions) -> Predictions:
        logits = predictions.logits.new_empty(predictions.logits.shape)
        for columns, probs in class_probs(predictions):
            logits[:, columns] = self._mapped(probs, columns.start).T.to(logits)
        for rows in row_blocks(*logits.shape):
            block = logits[rows].clamp_(min=self.floor)
            total = block.sum(dim=1, keepdim=True)
            logits[rows] = torch.where(total > 0, block / total, 1.0 / predictions.num_classes)
        return predictions.replace(logits=logits.log(), scale=None, stated_probs=logits)


def class_probs(predictions: Predictions) -> Iterator[tuple[slice, Tensor]]:
    """Probabilities of a few classes at a time, [columns, n], in the logits' precision like the metrics' own."""
    logits, scale, stated = predictions.logits, predictions.scale, predictions.stated_probs
    if stated is not None:
        for columns in (slice(start, start + _COLUMNS) for start in range(0, predictions.num_classes, _COLUMNS)):
            yield slice(columns.start, min(columns.stop, predictions.num_classes)), stated[:, columns].T.contiguous()
        return
    log_norm = torch.cat([block.double().logsumexp(dim=1) for block, _ in predictions.blocks()])
    for start in range(0, predictions.num_classes, _COLUMNS):
        columns = slice(start, min(start + _COLUMNS, predictions.num_classes))
        values = logits[:, columns] if scale is None else logits[:, columns] / scale.unsqueeze(1)
        probs = (values.double() - log_norm.unsqueeze(1)).exp_().clamp_(max=1.0)
        yield columns, probs.to(logits.dtype).T.contiguous()


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(OneVsRestCalibrator):
    """g_k(p) = share of samples with label k among those whose p_k falls into p's bin, then normalised.

    Zadrozny & Elkan 2001. `bins="width"` is (k/m, (k+1)/m]; `bins="count"` puts equally many samples of the
    fitting split into each bin. An empty bin answers with its middle.

    >>> p = Predictions.from_probs(torch.tensor([[0.9, 0.1], [0.8, 0.2]] * 2), torch.tensor([0, 1, 0, 0]))
    >>> new = Predictions.from_probs(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    >>> HistogramBinning(num_bins=2).fit(p)(new).probs.numpy().round(4).tolist()
    [[0.75, 0.25]]
    """

    num_bins: int = 15
    bins: Literal["width", "count"] = "width"
    edges_: Float[Tensor, "c m1"] = dataclasses.field(init=False, repr=False)
    frequencies_: Float[Tensor, "c m"] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int(self.num_bins, "num_bins")
        if self.bins not in ("width", "count"):
            raise ValueError(f"bins must be 'width' or 'count', got {self.bins!r}")

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        all_edges, all_frequencies = [], []
        for columns, probs in class_probs(predictions):
            edges = self._edges(probs)
            index = self._index(probs, edges[:, 1:-1].contiguous())
            width = columns.stop - columns.start
            flat = index.add_(torch.arange(width, device=index.device).unsqueeze(1) * self.num_bins)
            count = torch.bincount(flat.flatten(), minlength=width * self.num_bins).view(width, -1).double()
            mine = (predictions.labels >= columns.start) & (predictions.labels < columns.stop)
            own_class = predictions.labels[mine] - columns.start
            own_bins = flat[own_class, mine.nonzero().squeeze(1)]
            hits = torch.bincount(own_bins, minlength=width * self.num_bins).view(width, -1)
            middle = (edges[:, :-1] + edges[:, 1:]) / 2
            all_frequencies.append(torch.where(count > 0, hits / count, middle).cpu())
            all_edges.append(edges[:, 1:-1].cpu())
        return {"edges_": torch.cat(all_edges), "frequencies_": torch.cat(all_frequencies)}

    def _try_out(self, logits: Tensor) -> None:
        if self.frequencies_.shape != (self.num_classes_, self.num_bins):  # before so many edges are made
            raise ValueError(f"frequencies_ has shape {list(self.frequencies_.shape)}")
        super()._try_out(logits)

    def _edges(self, probs: Tensor) -> Tensor:
        """[columns, num_bins + 1] edges; a bin holds its upper one."""
        if self.bins == "width":
            return bin_edges(self.num_bins).to(probs).expand(probs.shape[0], -1)
        bounds = equal_count_bounds(probs.shape[1], self.num_bins)[1:-1]
        # With fewer samples than bins a bound can be 0: that bin ends before the first sample, and stays
        # empty.
        inner = probs.sort(dim=1).values[:, (bounds - 1).clamp_min(0).to(probs.device)]
        inner[:, (bounds == 0).to(probs.device)] = 0.0
        zero = torch.zeros_like(probs[:, :1])
        return torch.cat([zero, inner, torch.ones_like(zero)], dim=1)

    def _index(self, probs: Tensor, inner_edges: Tensor) -> Tensor:
        if self.bins == "width":
            return bin_index(probs, self.num_bins)
        return torch.searchsorted(inner_edges, probs, right=False)

    def _module(self) -> BinnedProbs:
        return BinnedProbs(self.edges_, self.frequencies_, floor=self.floor)

    def _mapped(self, probs: Tensor, first_class: int) -> Tensor:
        rows = slice(first_class, first_class + probs.shape[0])
        index = self._index(probs, self.edges_[rows].to(probs).contiguous())
        return self.frequencies_[rows].to(probs.device).gather(1, index)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class IsotonicCalibration(OneVsRestCalibrator):
    """For each class the non-decreasing g_k that minimises Σ (g_k(p_k) − [y = k])², then normalised.

    Zadrozny & Elkan 2002, in the form of scikit-learn's `CalibratedClassifierCV(method="isotonic")`: linear
    between the steps, constant outside. A class that the split does not hold gets probability 0 everywhere.

    >>> p = Predictions.from_probs(
    ...     torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.8]]), torch.tensor([0, 1, 0, 1])
    ... )
    >>> new = Predictions.from_probs(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    >>> IsotonicCalibration().fit(p)(new).probs.tolist()  # 0.8 and 0.7 are out of order and pooled to 1/2
    [[0.5, 0.5]]
    """

    knots_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    values_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    starts_: Int[Tensor, " c1"] = dataclasses.field(init=False, repr=False)
    """Class k's knots and values are entries starts_[k] to starts_[k + 1]."""

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        from sklearn.isotonic import (
            IsotonicRegression,
        )  # here, because scikit-learn doubles the time of `import calattn`

        knots, values, starts = [], [], [0]
        labels = predictions.labels.cpu().numpy()
        for columns, probs in class_probs(predictions):
            for k, row in zip(range(columns.start, columns.stop), probs.double().cpu().numpy(), strict=True):
                model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(row, labels == k)
                knots.append(model.X_thresholds_)
                values.append(model.y_thresholds_)
                starts.append(starts[-1] + len(model.X_thresholds_))
        return {
            "knots_": torch.from_numpy(np.concatenate(knots)),
            "values_": torch.from_numpy(np.concatenate(values)),
            "starts_": torch.tensor(starts),
        }

    def _mapped(self, probs: Tensor, first_class: int) -> Tensor:
        out = np.empty(probs.shape)
        knots, values, starts = self.knots_.numpy(), self.values_.numpy(), self.starts_.tolist()
        for offset, row in enumerate(probs.double().cpu().numpy()):
            part = slice(starts[first_class + offset], starts[first_class + offset + 1])
            out[offset] = np.interp(row, knots[part], values[part])
        return torch.from_numpy(out)

    def _module(self) -> InterpolatedProbs:
        return InterpolatedProbs(self.knots_, self.values_, self.starts_, floor=self.floor)
