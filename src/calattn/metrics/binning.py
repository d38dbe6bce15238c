"""Confidence bins: the only binning in the project, and sums per bin, the mergeable state of ECE, MCE and their kin.

Equal-width bins are `(k/m, (k+1)/m]`, and confidence 0 belongs to the first bin, so each confidence in [0, 1] has exactly
one bin and 1.0 is in the last. Edges are the correctly rounded k/m *in the precision of the confidences*: a float32 0.2
lies in (2/15, 3/15], although float32(0.2) is a hair above 1/5.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.metrics.columns import Columns

Norm = Literal["l1", "l2", "max"]


@functools.lru_cache(maxsize=64)
def _inner_edges(num_bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    edges = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    return edges.to(dtype=dtype, device=device)


def bin_edges(num_bins: int) -> Float[Tensor, " edges"]:
    """The num_bins + 1 edges in float64, for plots."""
    return torch.arange(num_bins + 1, dtype=torch.float64) / num_bins


def bin_index(confidence: Float[Tensor, "..."], num_bins: int) -> Int[Tensor, "..."]:
    """Index of the bin `(k/m, (k+1)/m]` of each confidence.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.2001, 1.0]), 5).tolist()
    [0, 0, 1, 4]
    """
    return torch.bucketize(confidence, _inner_edges(num_bins, confidence.dtype, confidence.device), right=False)


def equal_count_bounds(n: int, num_bins: int) -> Int[Tensor, " edges"]:
    """Boundaries of `num_bins` runs over n sorted samples: bin k is [⌊kn/m⌋, ⌊(k+1)n/m⌋).

    Sizes differ by at most one, every sample is in exactly one bin, and with n < num_bins some bins are empty.

    >>> equal_count_bounds(7, 3).tolist()
    [0, 2, 4, 7]
    """
    return equal_count_bounds_of(torch.tensor([n]), num_bins).squeeze(0)


def equal_count_bounds_of(n: Int[Tensor, " b"], num_bins: int) -> Int[Tensor, "b edges"]:
    """The boundaries of several sets at once, one row a set."""
    return torch.arange(num_bins + 1, device=n.device) * n.unsqueeze(1) // num_bins


def summed(index: Int[Tensor, " n"], weights: Tensor | None, size: int) -> Float[Tensor, " size"]:
    """Σ of the weights, or the number, of each index, in float64; unlike bincount's, no GPU waits for its size."""
    if index.device.type == "cpu":
        return torch.bincount(index, weights=weights, minlength=size).double()
    weights = torch.ones(len(index), device=index.device) if weights is None else weights
    return torch.zeros(size, dtype=torch.float64, device=index.device).index_add_(0, index, weights.double())


GAP_BINS = 15


def gap_sums(
    confidence: Float[Tensor, " n"], correct: Tensor, weight: Tensor | None = None, index: Tensor | None = None
) -> Float[Tensor, "8 m"]:
    """What a verdict rests on, per bin: Σ of 1, c − y, c (1 − c), c, y, (c − y)², and of surprises and their chance."""
    index = bin_index(confidence, GAP_BINS) if index is None else index
    c, y = confidence.double(), correct.double()
    unlikely = torch.where(c > 0.5, 1 - y, y)
    squares = c.square() - 2 * c * y + y
    parts = (torch.ones_like(c), c - y, c * (1 - c), c, y, squares, unlikely, torch.minimum(c, 1 - c))
    return torch.stack([summed(index, part if weight is None else weight * part, GAP_BINS) for part in parts])


@dataclasses.dataclass
class CellSums:
    """Count, Σ confidence and Σ correct of each cell, in float64; cells are bins, or bins of each class."""

    count: Float[Tensor, "*cells"]
    confidence: Float[Tensor, "*cells"]
    correct: Float[Tensor, "*cells"]

    @classmethod
    def empty(cls, *shape: int, device: torch.device | None = None) -> Self:
        return cls(*torch.zeros(3, *shape, dtype=torch.float64, device=device).unbind())

    def to(self, device: torch.device) -> Self:
        return type(self)(self.count.to(device), self.confidence.to(device), self.correct.to(device))

    @property
    def num_samples(self) -> float:
        """Of bins; every class of class bins counts all samples."""
        return float((self.count if self.count.ndim == 1 else self.count[0]).sum())

    def merge(self, other: Self) -> Self:
        if self.count.shape != other.count.shape:
            raise ValueError(f"cannot merge sums of {list(other.count.shape)} cells into {list(self.count.shape)}")
        return type(self)(self.count + other.count, self.confidence + other.confidence, self.correct + other.correct)


class BinSums(CellSums):
    """The sums of each confidence bin: `BinSums.empty(num_bins)` begins."""

    def add(self, columns: Columns) -> Self:
        num_bins = self.count.shape[0]
        index = bin_index(columns.confidence, num_bins)

        def total(weights: Tensor | None) -> Tensor:
            return summed(index, weights, num_bins).to(self.count.device)

        self.count = self.count + total(None)
        self.confidence = self.confidence + total(columns.confidence.double())
        self.correct = self.correct + total(columns.correct.double())
        return self

    @property
    def gap(self) -> Float[Tensor, " m"]:
        """Mean confidence minus accuracy in each bin; 0 where the bin is empty."""
        return (self.confidence - self.correct) / self.count.clamp_min(1)

    @property
    def accuracy(self) -> Float[Tensor, " m"]:
        return self.correct / self.count.clamp_min(1)

    def error(self, norm: Norm = "l1") -> float:
        """Σ |B|/N |gap| (l1), √(Σ |B|/N gap²) (l2) or max |gap| over non-empty bins (max)."""
        weight = self.count / self.count.sum()
        if norm == "l1":
            return float((weight * self.gap.abs()).sum())
        if norm == "l2":
            return float((weight * self.gap.square()).sum().sqrt())
        if norm == "max":
            return float(self.gap[self.count > 0].abs().max())
        raise ValueError(f'norm must be "l1", "l2" or "max", got {norm!r}')

    def debiased_error(self, norm: Norm = "l2") -> float:
        """The error less its small-sample bias, estimated from the bins' own label noise.

        l2: gap² − acc(1 − acc)/(|B| − 1) per bin is unbiased for the squared gap (Kumar et al. 2019); bins with one
        sample say nothing and count zero; a negative total is reported as 0. l1: the expectation of |gap + noise| with
        Gaussian noise of variance acc(1 − acc)/|B| exceeds |gap| by a closed-form amount, which is subtracted once, at
        the observed gap: for a calibrated model that is about 40 % of the bias. The result can be negative and is not clipped.
        """
        weight, acc = self.count / self.count.sum(), self.accuracy
        if norm == "l2":
            noise = acc * (1 - acc) / (self.count - 1).clamp_min(1)
            terms = torch.where(self.count > 1, self.gap.square() - noise, 0.0)
            return float((weight * terms).sum().clamp_min(0).sqrt())
        if norm != "l1":
            raise ValueError(f'norm must be "l1" or "l2", got {norm!r}')
        deviation = (acc * (1 - acc) / self.count.clamp_min(1)).sqrt()
        return float((weight * (2 * self.gap.abs() - folded_normal_mean(self.gap, deviation))).sum())


def folded_normal_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, deviation²); |mean| where the deviation is 0."""
    ratio = mean / deviation.clamp_min(torch.finfo(torch.float64).tiny)
    folded = deviation * (2 / torch.pi) ** 0.5 * (-ratio.square() / 2).exp() + mean * torch.erf(ratio / 2**0.5)
    return torch.where(deviation > 0, folded, mean.abs())
