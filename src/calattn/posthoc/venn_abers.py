"""Venn–Abers prediction for two classes: two isotonic fits, one for each label that the new sample may have."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calattn.errors import InputError
from calattn.posthoc.base import Calibrator, Learned, finite_logits
from calattn.types import Predictions


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
