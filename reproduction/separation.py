"""Separation: the AUROC between known and foreign images with its error, and the difference of two networks' AUROCs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.columns import columns_of
from calattn.types import Predictions

_Z95 = 1.959963984540054


def uncertainty(predictions: Predictions) -> Float[Tensor, " n"]:
    """The odds Σ_{k≠top} p_k / p_top: ordered as 1 − max p is, but distinct where probabilities round to 1."""
    return columns_of(predictions.logits, predictions.labels, "logits", scale=predictions.scale).odds.cpu()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Separation:
    """P(a foreign image is the more uncertain one), ties counting half, as means of placements (DeLong et al. 1988).

    `known[i]` is the share of foreign images above known image i, `foreign[j]` the share of known images below foreign image
    j. With `same_images`, foreign image i is a corrupted copy of known image i, and the two vary together.

    >>> low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.15, 0.3])
    >>> Separation.between(low, [high]).auroc
    0.75
    """

    known: Float[Tensor, " n"]
    foreign: Float[Tensor, " m"]
    same_images: bool = False

    @classmethod
    def between(
        cls, known: Float[Tensor, " n"], foreign: Sequence[Float[Tensor, " m"]], *, same_images: bool = False
    ) -> Separation:
        """Of one foreign set, or the mean over several that show the same images (fifteen corruptions)."""
        placements = [(1 - _share_below(each, known), _share_below(known, each)) for each in foreign]
        above, below = (torch.stack(column).mean(dim=0) for column in zip(*placements, strict=True))
        return cls(known=above, foreign=below, same_images=same_images)

    @property
    def auroc(self) -> float:
        return float(self.known.mean())

    @property
    def interval(self) -> tuple[float, float]:
        reach = _Z95 * self._error()
        return max(0.0, self.auroc - reach), min(1.0, self.auroc + reach)

    def minus(self, other: Separation) -> dict[str, float]:
        """This AUROC minus that of another network on the same images: difference, 95 % interval, p-value (normal)."""
        moved = Separation(
            known=self.known - other.known, foreign=self.foreign - other.foreign, same_images=self.same_images
        )
        difference, error = moved.auroc, moved._error()
        p_value = math.erfc(abs(difference) / error / math.sqrt(2)) if error else float(difference == 0)
        reach = _Z95 * error
        return {
            "difference": difference,
            "low": difference - reach,
            "high": difference + reach,
            "p_value": p_value,
        }

    def _error(self) -> float:
        n, m = len(self.known), len(self.foreign)
        if n < 2 or m < 2:
            return math.nan
        if self.same_images:
            return math.sqrt(float((self.known + self.foreign).var()) / n)
        return math.sqrt(float(self.known.var()) / n + float(self.foreign.var()) / m)


def _share_below(sample: Float[Tensor, " n"], points: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """The share of the sample below each point, ties counting half."""
    ordered, points = sample.double().sort().values, points.double().contiguous()
    places = torch.searchsorted(ordered, points), torch.searchsorted(ordered, points, right=True)
    return (places[0] + places[1]).double() / (2 * len(ordered))
