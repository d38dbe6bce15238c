"""Replicates: what a metric is in each of many resamples, from the weighted sums of that resample.

Everywhere `n` is the sum of each resample's weights, and b the number of resamples. A metric that has no formula here is read
from the state that each resample would have left. The states are filled from weighted sums, never by going through the samples
again, so a resample costs what `read` costs, and, where it reads ranks, the grid or class sums, the filling of these. Ranks come
as tied groups (the rank cells of `resampler`), most confident first, and the grid is filled from the same groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.metrics.binning import BinSums, bin_index, equal_count_bounds_of, folded_normal_mean
from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import Columns
from calattn.metrics.ranks import RankSums
from calattn.metrics.scoresums import score_features
from calattn.metrics.smooth import SmoothGrid
from calattn.metrics.state import MetricState, Options

KERNEL_CELLS = 1024  # kernel ECE of a resample is taken on this grid: below 1e-3 absolute, far less than the interval
RANKED = frozenset({"adaptive_ece", "misclassification_auroc", "aurc"})


def summands(columns: Columns, options: Options) -> Float[Tensor, "n f"]:
    """7 scores (an infinite NLL as 0), whether the NLL is infinite, then count, gap and hits of each bin."""
    size = options.num_bins
    out = torch.zeros(len(columns), 8 + 3 * size, dtype=torch.float64, device=columns.odds.device)
    out[:, :7] = score_features(columns, options.threshold)
    out[:, 7] = torch.isinf(columns.nll)
    out[:, 2].nan_to_num_(posinf=0.0)
    index, correct = bin_index(columns.confidence, size).unsqueeze(1), columns.correct.double()
    values = (torch.ones_like(correct), columns.confidence.double() - correct, correct)
    for part, value in zip(out[:, 8:].split(size, dim=1), values, strict=True):
        part.scatter_(1, index, value.unsqueeze(1))
    return out


def bin_values(
    count: Float[Tensor, "b m"], gap: Float[Tensor, "b m"], correct: Float[Tensor, "b m"], n: Float[Tensor, " b"]
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
    mass: Float[Tensor, "b g"], hits: Float[Tensor, "b g"], n: Int[Tensor, " b"], bandwidth: float
) -> Float[Tensor, " b"]:
    """Kernel ECE from the samples and the right ones in each of `KERNEL_CELLS` cells of the confidence."""
    place = torch.arange(KERNEL_CELLS, dtype=torch.float64, device=mass.device)
    # Of a circle of twice as many cells, on which no sample is nearer than it was.
    apart = torch.cat([place, KERNEL_CELLS - place]) / KERNEL_CELLS
    kernel = torch.fft.rfft(torch.exp(-apart.square() / (2 * bandwidth**2)))

    def smoothed(values: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(values, n=2 * KERNEL_CELLS) * kernel)[:, :KERNEL_CELLS]

    accuracy = smoothed(hits) / smoothed(mass).clamp_min(1e-6)  # where samples are, the mass is 1 or more
    return ((accuracy - (place + 0.5) / KERNEL_CELLS).abs() * mass).sum(dim=1) / n


def rank_values(
    count: Float[Tensor, "b g"],
    right: Float[Tensor, "b g"],
    residual: Float[Tensor, "b g"],
    n: Int[Tensor, " b"],
    num_bins: int,
) -> dict[str, Float[Tensor, " b"]]:
    """From tied groups, most confident first."""
    end = count.cumsum(dim=1)
    wrong = count - right
    wrong_end = wrong.cumsum(dim=1)
    right_before = end - wrong_end - right
    total_wrong = wrong_end[:, -1]
    pairs = (wrong * (right_before + right / 2)).sum(dim=1)
    return {
        "misclassification_auroc": pairs / (total_wrong * (n - total_wrong)),
        "aurc": _aurc(count, end, wrong, wrong_end) / n,
        "adaptive_ece": _adaptive(count, end, residual, n, num_bins),
    }


def _adaptive(count: Tensor, end: Tensor, residual: Tensor, n: Tensor, num_bins: int) -> Tensor:
    """AdaECE with boundaries at ⌊kN/m⌋ counted from the least confident, a group on a boundary shared."""
    sums = residual.cumsum(dim=1)
    bounds = (n.unsqueeze(1) - equal_count_bounds_of(n, num_bins).flip(1)).to(end.dtype)
    place = torch.searchsorted(end, bounds).clamp_(max=end.shape[1] - 1)
    # the share of the group beyond the boundary
    missing = (end.gather(1, place) - bounds) / count.gather(1, place).clamp_min(1)
    at = sums.gather(1, place) - missing.clamp(0, 1) * residual.gather(1, place)
    at[:, 0] = 0.0
    return at.diff(dim=1).abs().sum(dim=1) / n


def _aurc(count: Tensor, end: Tensor, wrong: Tensor, wrong_end: Tensor) -> Tensor:
    """Σ over samples of the risk at their coverage; the harmonic sums by their logarithms, good to 1/24n²."""
    start, before = end - count, wrong_end - wrong
    rate = wrong / count.clamp_min(1)
    harmonic = torch.log((end + 0.5) / (start + 0.5))
    return (wrong + (before - rate * start) * harmonic).sum(dim=1)


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Tied samples, most confident first: how many of each group a resample has, how many right, and their confidence."""

    count: Float[Tensor, "b g"]
    right: Float[Tensor, "b g"]
    confidence: Float[Tensor, " g"]

    def cpu(self) -> Ranked:
        return Ranked(self.count.cpu(), self.right.cpu(), self.confidence.cpu())


@dataclasses.dataclass(frozen=True)
class Resamples:
    """The weighted sums of b resamples."""

    scores: Float[Tensor, "b 7"]
    count: Float[Tensor, "b m"]
    gap: Float[Tensor, "b m"]
    right: Float[Tensor, "b m"]
    ranked: Ranked | None = None
    classes: Sequence[ClassBins] | None = None


def own_values(names: tuple[str, ...], options: Options, resamples: Resamples) -> dict[str, Float[Tensor, " b"]]:
    """Every metric that has no formula here, of every resample, by its own `read`."""
    state = MetricState(names, **vars(options))
    draws = {name: torch.zeros(len(resamples.scores), dtype=torch.float64) for name in names}
    for index in range(len(resamples.scores)):
        _fill(state, resamples, index)
        for name, values in draws.items():
            values[index] = state.read(name)
    return draws


def _fill(state: MetricState, resamples: Resamples, index: int) -> None:
    """Makes `state` what it would be had it seen this resample."""
    state.scores.sums = resamples.scores[index]
    count, gap, right = (part[index] for part in (resamples.count, resamples.gap, resamples.right))
    state.bins = BinSums(count, gap + right, right)
    if resamples.ranked is not None:
        ranked = resamples.ranked
        held = ranked.count[index] > 0
        count, right, confidence = ranked.count[index][held], ranked.right[index][held], ranked.confidence[held]
        if "ranks" in state.needs:
            state.ranks = RankSums(0, histogram=torch.stack([count, count * confidence, right]))
        if "grid" in state.needs:
            state.grid = SmoothGrid.empty().add_weighted(confidence, count, count * confidence - right)
    if resamples.classes is not None:
        state.classes = resamples.classes[index]
