"""Samples in order of confidence: the mergeable state of adaptive ECE, of AUROC and of the risk–coverage curve.

These need the order of all samples, which no fixed memory holds exactly. Up to `capacity` samples are kept as they are and
the answers are exact. Beyond that they collapse into 2**18 cells keyed by the leading bits of the odds (1 − p)/p, a tenth of
a per cent wide each wherever p lies, 1 − 1e-30 included (odds below 1e-38 share a cell); samples of one cell count as tied.
Whether a state is collapsed depends on its number of samples alone, so the order of merging does not matter.

Order is by odds, not by confidence: a float32 confidence rounds to 1 at odds of 6e-8, the odds themselves do not.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from calattn.metrics.binning import BinSums, CellSums, equal_count_bounds, summed
from calattn.metrics.columns import Columns

CAPACITY = 1 << 20
_KEY_BITS = 18


class Groups(CellSums):
    """The sums of tied samples, most confident first."""


@dataclasses.dataclass
class RankSums:
    """Exact samples up to `capacity`, a fixed histogram (count, Σ confidence, Σ correct per odds cell) beyond."""

    capacity: int = CAPACITY
    samples: Float[Tensor, "3 n"] = dataclasses.field(default_factory=lambda: torch.zeros(3, 0, dtype=torch.float64))
    histogram: Float[Tensor, "3 k"] | None = None
    _tied: tuple[Tensor, Groups] | None = dataclasses.field(default=None, init=False, repr=False, compare=False)

    def add(self, columns: Columns) -> Self:
        self._tied = None
        new = torch.stack([columns.odds, columns.confidence.double(), columns.correct.double()])
        self.samples = torch.cat([self.samples, new.to(self.samples.device)], dim=1)
        self._collapse_if_full()
        return self

    def merge(self, other: RankSums) -> Self:
        if self.capacity != other.capacity:
            raise ValueError(f"cannot merge rank states of capacity {other.capacity} and {self.capacity}")
        held = None if self.histogram is None else self.histogram.clone()
        merged = type(self)(self.capacity, torch.cat([self.samples, other.samples], dim=1), held)
        if other.histogram is not None:
            merged.histogram = other.histogram + (0 if held is None else held)
        merged._collapse_if_full()
        return merged

    @property
    def num_samples(self) -> float:
        return self.samples.shape[1] + (0.0 if self.histogram is None else float(self.histogram[0].sum()))

    def _collapse_if_full(self) -> None:
        if self.histogram is None and self.samples.shape[1] <= self.capacity:
            return
        if self.histogram is None:
            self.histogram = odds_histogram(self.samples)
        else:  # into the cells that are there: a fresh histogram a batch would be 6 MB for 64 samples
            device = self.histogram.device
            new = torch.stack([torch.ones_like(self.samples[0]), self.samples[1], self.samples[2]]).to(device)
            self.histogram.index_add_(1, odds_key(self.samples[0]).to(device), new)
        self.samples = self.samples[:, :0]

    def tied(self) -> tuple[Float[Tensor, " g"], Groups]:
        """The smallest odds of every tied group, and its sums, most confident first."""
        if self._tied is None:  # several metrics ask
            self._tied = self._sorted()
        return self._tied

    def _sorted(self) -> tuple[Float[Tensor, " g"], Groups]:
        if self.histogram is not None:
            held = self.histogram[0] > 0
            bits = held.nonzero().squeeze(1) << (31 - _KEY_BITS)
            return bits.to(torch.int32).view(torch.float32).double(), Groups(*self.histogram[:, held])
        odds, order = self.samples[0].sort()
        values, inverse, counts = odds.unique_consecutive(return_inverse=True, return_counts=True)
        sums = (summed(inverse, part, len(counts)) for part in self.samples[1:, order])
        return values, Groups(counts.double(), *sums)

    def groups(self) -> Groups:
        return self.tied()[1]


def empty_histogram() -> Float[Tensor, "3 k"]:
    return torch.zeros(3, 1 << _KEY_BITS, dtype=torch.float64)


def odds_key(odds: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The 8 exponent bits and the first 10 fraction bits of the float32 odds, which order as odds do."""
    return odds.float().view(torch.int32).long() >> (31 - _KEY_BITS)


def odds_histogram(samples: Float[Tensor, "3 n"]) -> Float[Tensor, "3 k"]:
    """Sums over the samples of each odds key."""
    key, size = odds_key(samples[0]), 1 << _KEY_BITS
    return torch.stack([summed(key, weights, size) for weights in (None, samples[1], samples[2])])


def equal_count_bins(groups: Groups, num_bins: int) -> BinSums:
    """Bins of ⌊kN/m⌋ boundaries over the samples in ascending confidence; a tied group on a boundary is shared in proportion.

    Sharing makes the value independent of the order in which tied samples happen to stand.
    """
    ascending = Groups(groups.count.flip(0), groups.confidence.flip(0), groups.correct.flip(0))
    ends = torch.cat([ascending.count.new_zeros(1), ascending.count.cumsum(0)])
    bounds = equal_count_bounds(round(float(ends[-1])), num_bins).to(ends)
    place = torch.searchsorted(ends, bounds, right=True).clamp_(1, len(ends) - 1)
    share = (bounds - ends[place - 1]) / ascending.count[place - 1]

    def between(values: Tensor) -> Tensor:
        sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
        return (sums[place - 1] + share * values[place - 1]).diff()

    return BinSums(bounds.diff(), between(ascending.confidence), between(ascending.correct))


def auroc_of(groups: Groups) -> float:
    """P(a right prediction is more confident than a wrong one), ties counting half; NaN when all are right or all wrong."""
    wrong = groups.count - groups.correct
    right_before = groups.correct.cumsum(0) - groups.correct
    # `right_before` right predictions are more confident than each wrong one of this group
    pairs = float((wrong * (right_before + groups.correct / 2)).sum())
    total = float(groups.correct.sum() * wrong.sum())
    return pairs / total if total else float("nan")


def risk_coverage_of(groups: Groups) -> tuple[Float[Tensor, " g"], Float[Tensor, " g"]]:
    """(coverage, error rate among the covered), most confident first, one point a tied group."""
    covered = groups.count.cumsum(0)
    return covered / covered[-1], (groups.count - groups.correct).cumsum(0) / covered


def aurc_of(groups: Groups) -> float:
    """Mean over samples of the risk at that sample's coverage; within a tied group, the expectation over its orders."""
    end = groups.count.cumsum(0)
    start = end - groups.count
    wrong = groups.count - groups.correct
    rate = wrong / groups.count
    before = wrong.cumsum(0) - wrong
    # Σ_{j=1..g} (before + j·rate)/(start + j) = rate·g + (before − rate·start)·(H(end) − H(start))
    harmonic = torch.digamma(end + 1) - torch.digamma(start + 1)
    return float((rate * groups.count + (before - rate * start) * harmonic).sum() / end[-1])


def two_sample_auroc(low: Float[Tensor, " a"], high: Float[Tensor, " b"]) -> float:
    """P(high > low) + ½ P(equal) over all pairs: the Mann–Whitney statistic, by one sort."""
    both = torch.cat([low.double(), high.double().to(low.device)])
    from_high: Bool[Tensor, " n"] = torch.arange(len(both), device=both.device) >= len(low)
    values, order = both.sort()
    _, inverse = values.unique_consecutive(return_inverse=True)
    size = int(inverse[-1]) + 1
    highs = torch.bincount(inverse, weights=from_high[order].double(), minlength=size)
    lows: Int[Tensor, " k"] = torch.bincount(inverse, minlength=size) - highs
    below = lows.cumsum(0) - lows
    return float((highs * (below + lows / 2)).sum() / (len(low) * len(high)))
