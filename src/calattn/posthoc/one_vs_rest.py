"""Calibration without parameters: each class on its own, by bins or by isotonic steps; Venn–Abers prediction for two classes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.errors import InputError
from calattn.metrics.binning import bin_edges, bin_index
from calattn.posthoc.base import Calibrator, Learned, finite_logits
from calattn.posthoc.modules import BinnedProbs, InterpolatedProbs, MappedProbs
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

    def _apply(self, predictions: Predictions) -> Predictions:
        logits, stated = predictions.calibrated_logits, predictions.stated_probs
        module, found = self._module().to(logits.device), torch.empty_like(logits)
        for rows in row_blocks(*logits.shape):
            probs = logits[rows].double().softmax(dim=1).to(logits) if stated is None else stated[rows]
            found[rows] = module.probs(probs).to(found)
        return predictions.replace(logits=found.log(), scale=None, stated_probs=found)

    @abc.abstractmethod
    def _module(self) -> MappedProbs:
        """g, of all classes."""


def class_probs(predictions: Predictions) -> Iterator[tuple[slice, Tensor]]:
    """Probabilities of a few classes at a time, [columns, n], in the logits' precision like the metrics' own."""
    logits, scale, probs = predictions.logits, predictions.scale, predictions.stated_probs
    if probs is None:
        log_norm = torch.cat([block.double().logsumexp(dim=1) for block, _ in predictions.blocks()])
    for start in range(0, predictions.num_classes, _COLUMNS):
        columns = slice(start, min(start + _COLUMNS, predictions.num_classes))
        if probs is not None:
            found = probs[:, columns]
        else:
            values = logits[:, columns] if scale is None else logits[:, columns] / scale.unsqueeze(1)
            found = (values.double() - log_norm.unsqueeze(1)).exp_().clamp_(max=1.0).to(logits.dtype)
        yield columns, found.T.contiguous()


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(OneVsRestCalibrator):
    """g_k(p) = share of samples with label k among those whose p_k falls into p's bin, then normalised.

    Zadrozny & Elkan 2001, with bins (k/m, (k+1)/m]. A bin without samples keeps its middle.

    >>> p = Predictions.from_probs(torch.tensor([[0.7, 0.3]] * 4), torch.tensor([0, 0, 1, 1]))
    >>> new = Predictions.from_probs(torch.tensor([[0.68, 0.32]]), torch.tensor([0]))
    >>> HistogramBinning(num_bins=5).fit(p)(new).probs.tolist()
    [[0.5, 0.5]]
    """

    num_bins: int = 15
    frequencies_: Float[Tensor, "c m"] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int(self.num_bins, "num_bins")

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        m, edges, found = self.num_bins, bin_edges(self.num_bins), []
        for columns, probs in class_probs(predictions):
            width = columns.stop - columns.start
            flat = bin_index(probs, m).add_(torch.arange(width, device=probs.device).unsqueeze(1) * m)
            count = torch.bincount(flat.flatten(), minlength=width * m).view(width, m).double()
            mine = (predictions.labels >= columns.start) & (predictions.labels < columns.stop)
            own = flat[predictions.labels[mine] - columns.start, mine.nonzero().squeeze(1)]
            hits = torch.bincount(own, minlength=width * m).view(width, m)
            middle = ((edges[:-1] + edges[1:]) / 2).to(count)
            found.append(torch.where(count > 0, hits / count, middle).cpu())
        return {"frequencies_": torch.cat(found)}

    def _try_out(self, logits: Tensor) -> None:
        if self.frequencies_.shape != (self.num_classes_, self.num_bins):  # before so many edges are made
            raise ValueError(f"frequencies_ has shape {list(self.frequencies_.shape)}")
        super()._try_out(logits)

    def _module(self) -> BinnedProbs:
        return BinnedProbs(bin_edges(self.num_bins)[1:-1], self.frequencies_, floor=self.floor)


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
        from sklearn.isotonic import IsotonicRegression  # here: it doubles the time of `import calattn`

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

    def _module(self) -> InterpolatedProbs:
        return InterpolatedProbs(self.knots_, self.values_, self.starts_, floor=self.floor)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class VennAbers(Calibrator):
    """P(y = 1) = p₁ / (1 − p₀ + p₁), where p_k is the isotonic fit at the new sample as if its label were k (Vovk et al. 2015).

    One of p₀ and p₁ is calibrated, whatever the data are, and `intervals` gives both; they are close where many samples are.
    No probability is 0 or 1. All new scores are answered from two tables, made in O(n log n) by the authors' algorithm.

    >>> p = Predictions(logits=torch.tensor([[0.0, k] for k in (-2.0, -1.0, 1.0, 2.0)]), labels=torch.tensor([0, 1, 0, 1]))
    >>> VennAbers().fit(p).intervals(p).numpy().round(3).tolist()
    [[0.0, 0.5], [0.333, 0.667], [0.333, 0.667], [0.5, 1.0]]
    """

    by_class: ClassVar[bool] = True

    scores_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    """The different ℓ₁ − ℓ₀ of the fitting split, in order."""
    low_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    """p₀ at each score and above, up to the next."""
    high_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    """p₁ at each score and below, down to the last."""

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        if predictions.num_classes != 2:
            raise InputError(
                f"Venn–Abers prediction is for two classes, and there are {predictions.num_classes}",
                remedy="use isotonic for more",
            )
        scores, place, counts = np.unique(_scores(predictions).numpy(), return_inverse=True, return_counts=True)
        hits = np.bincount(place, predictions.labels.cpu().numpy(), minlength=len(scores))
        high = _with_a_one(counts, hits)
        low = 1.0 - _with_a_one(counts[::-1], (counts - hits)[::-1])[::-1]  # the mirror image
        return {"scores_": torch.from_numpy(scores), "low_": torch.from_numpy(low), "high_": torch.from_numpy(high)}

    def intervals(self, predictions: Predictions) -> Float[Tensor, "n 2"]:
        """p₀ and p₁, the two answers of which one is calibrated, for each sample."""
        self.check_classes(predictions.num_classes)
        scores, padding = _scores(predictions), torch.zeros(1, dtype=torch.float64)
        low = torch.cat([padding, self.low_])[torch.searchsorted(self.scores_, scores, right=True)]
        high = torch.cat([self.high_, padding + 1])[torch.searchsorted(self.scores_, scores)]
        return torch.stack([low, high], dim=1)

    def _apply(self, predictions: Predictions) -> Predictions:
        low, high = self.intervals(predictions).unbind(dim=1)
        one = high / (1 - low + high)
        probs = torch.stack([1 - one, one], dim=1).to(predictions.logits)
        return predictions.replace(logits=probs.log(), scale=None, stated_probs=probs)


def _scores(predictions: Predictions) -> Float[Tensor, " n"]:
    logits = finite_logits(predictions).double().cpu()
    return logits[:, 1] - logits[:, 0]


def _with_a_one(counts: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """For each score, the isotonic fit there with one more sample of it, whose label is 1.

    The fit is the slope of the greatest convex minorant of the cumulative sums. The sample enters on the far left, as a point at
    (−1, −1), and moves right past one score after the other: each time one point of the sums changes, and the corners to its
    right stay (algorithms 1 and 2 of Vovk et al. 2015).
    """
    xs = np.concatenate([[-1.0, 0.0], np.cumsum(counts)]).tolist()
    ys = np.concatenate([[-1.0, 0.0], np.cumsum(hits)]).tolist()

    def turns_left(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
        return (b[0] - a[0]) * (c[1] - b[1]) > (b[1] - a[1]) * (c[0] - b[0])

    corners: list[tuple[float, float]] = []
    for point in zip(reversed(xs), reversed(ys), strict=True):  # from the right, so that the leftmost corner is on top
        while len(corners) > 1 and not turns_left(point, corners[-1], corners[-2]):
            corners.pop()
        corners.append(point)
    found = np.empty(len(counts))
    for k in range(len(counts)):
        (x0, y0), (x1, y1) = corners[-1], corners[-2]
        found[k] = (y1 - y0) / (x1 - x0)
        # The sample moves past score k: the point between the two steps goes to the other corner of their parallelogram.
        moved = (xs[k] + xs[k + 2] - xs[k + 1], ys[k] + ys[k + 2] - ys[k + 1])
        xs[k + 1], ys[k + 1] = moved
        if (moved[0] - x0) * (y1 - y0) <= (moved[1] - y0) * (x1 - x0):
            continue  # it lies on or above the minorant
        corners.pop()
        while len(corners) > 1 and not turns_left(moved, corners[-1], corners[-2]):
            corners.pop()
        corners.append(moved)
    return found
