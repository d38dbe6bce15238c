"""Replicates: what a metric is in each of many resamples, from the weighted sums of that resample.

Everywhere `n` is the sum of each resample's weights, and b the number of resamples.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.metrics.binning import bin_index, equal_count_bounds_of
from calattn.metrics.bins import folded_normal_mean
from calattn.metrics.columns import Columns
from calattn.metrics.scoresums import score_features
from calattn.metrics.state import Options

KERNEL_CELLS = 1024  # kernel ECE of a resample is taken on this grid: below 1e-3 absolute, far less than the interval
RANKED = frozenset({"adaptive_ece", "misclassification_auroc", "aurc"})


def fill_features(out: Float[Tensor, "n f"], columns: Columns, options: Options) -> None:
    """The summands of scores and bins into zeroed rows: 7 scores (an infinite NLL as 0), then count, gap and hits of each bin."""
    size = options.num_bins
    scores, count, gap, hits = out.split([7, size, size, size], dim=1)
    correct = columns.correct.double()
    scores.copy_(score_features(columns, options.threshold))
    scores[:, 2].nan_to_num_(posinf=0.0)
    index = bin_index(columns.confidence, size).unsqueeze(1)
    count.scatter_(1, index, 1.0)
    gap.scatter_(1, index, (columns.confidence.double() - correct).float().unsqueeze(1))
    hits.scatter_(1, index, correct.float().unsqueeze(1))


def bin_values(
    count: Float[Tensor, "b m"], gap: Float[Tensor, "b m"], correct: Float[Tensor, "b m"], n: Int[Tensor, " b"]
) -> dict[str, Float[Tensor, " b"]]:
    mean_gap, accuracy = gap / count.clamp_min(1), correct / count.clamp_min(1)
    deviation = (accuracy * (1 - accuracy)).clamp_min(0).div(count.clamp_min(1)).sqrt()
    debiased = 2 * mean_gap.abs() - folded_normal_mean(mean_gap, deviation)
    return {
        "ece": gap.abs().sum(dim=1) / n,
        "mce": mean_gap.abs().amax(dim=1),
        "debiased_ece": (count / n.unsqueeze(1) * debiased).sum(dim=1),
    }


def kernel_values(
    mass: Float[Tensor, "g b"], hits: Float[Tensor, "g b"], n: Int[Tensor, " b"], bandwidth: float
) -> Float[Tensor, " b"]:
    """Kernel ECE from the samples and the right ones in each of `KERNEL_CELLS` cells of the confidence."""
    kernel, centre = _kernel(bandwidth, mass.dtype)
    accuracy = (kernel @ hits) / (kernel @ mass).clamp_min(1e-30)
    return ((accuracy - centre.unsqueeze(1)).abs() * mass).sum(dim=0).double() / n


@functools.lru_cache(maxsize=2)
def _kernel(bandwidth: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The Gaussian between the cells' centres, and the centres."""
    centre = (torch.arange(KERNEL_CELLS, dtype=torch.float64) + 0.5) / KERNEL_CELLS
    kernel = torch.exp(-(centre.unsqueeze(1) - centre).square() / (2 * bandwidth**2))
    return kernel.to(dtype), centre.to(dtype)


def rank_values(
    count: Float[Tensor, "b g"],
    right: Float[Tensor, "b g"],
    residual: Float[Tensor, "b g"],
    n: Int[Tensor, " b"],
    num_bins: int,
) -> dict[str, Float[Tensor, " b"]]:
    """From tied groups, most confident first."""
    exact = count.dtype if int(n.max()) < 1 << 24 else torch.float64  # counts are integers: exact in float32 up to 2²⁴
    end = count.cumsum(dim=1, dtype=exact)
    wrong = count - right
    wrong_end = wrong.cumsum(dim=1, dtype=exact)
    right_before = end - wrong_end - right
    total_wrong = wrong_end[:, -1].double()
    pairs = (wrong * (right_before + right / 2)).sum(dim=1, dtype=torch.float64)
    return {
        "misclassification_auroc": pairs / (total_wrong * (n - total_wrong)),
        "aurc": _aurc(count, end, wrong, wrong_end) / n,
        "adaptive_ece": _adaptive(count, end, residual, n, num_bins),
    }


def _adaptive(count: Tensor, end: Tensor, residual: Tensor, n: Tensor, num_bins: int) -> Tensor:
    """AdaECE with boundaries at ⌊kN/m⌋ counted from the least confident, a group on a boundary shared."""
    sums = residual.cumsum(dim=1, dtype=torch.float64)
    bounds = (n.unsqueeze(1) - equal_count_bounds_of(n, num_bins).flip(1)).to(end.dtype)
    place = torch.searchsorted(end, bounds).clamp_(max=end.shape[1] - 1)
    own = count.gather(1, place).double()
    missing = (end.gather(1, place) - bounds).double() / own.clamp_min(1)  # share of the group beyond the boundary
    at = sums.gather(1, place) - missing.clamp(0, 1) * residual.gather(1, place).double()
    at[:, 0] = 0.0
    return at.diff(dim=1).abs().sum(dim=1) / n


def _aurc(count: Tensor, end: Tensor, wrong: Tensor, wrong_end: Tensor) -> Tensor:
    """Σ over samples of the risk at their coverage; the harmonic sums by their logarithms, good to 1/24n²."""
    start, before = end - count, wrong_end - wrong
    rate = wrong / count.clamp_min(1)
    harmonic = torch.log((end + 0.5) / (start + 0.5))
    return (wrong + (before - rate * start) * harmonic).sum(dim=1, dtype=torch.float64)
