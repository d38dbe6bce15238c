"""The bootstrap of every metric: weighted sums of all resamples, a few thousand samples at a time.

Every metric is a function of weighted sums. A pass over the samples adds weights × summands to tables that do not grow with the
number of samples, and no softmax is taken again but for classwise ECE, which needs the probabilities themselves. What needs the
order of the samples, and the smoothed errors, is read from rank cells: one for each odds value, or 4,096 of about equally many
samples where there are more. Within a cell, samples count as tied and have the cell's mean confidence. Both move a replicate by
less than a cell's share of the samples, and all replicates alike, so that the interval, which is moved onto the value, does not
see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.errors import Args, InputError
from calattn.metrics.columns import Block, Columns
from calattn.metrics.ranks import RankSums
from calattn.metrics.resampling.classwise import ClassCounts, ClassGaps, ClassTables, WideSum
from calattn.metrics.resampling.replicates import (
    KERNEL_CELLS,
    RANKED,
    Ranked,
    Resamples,
    Resampling,
    bin_values,
    kernel_values,
    own_values,
    rank_values,
    summands,
)
from calattn.metrics.resampling.weights import GROUP, ROWS, weights_of
from calattn.metrics.scoresums import read_scores
from calattn.metrics.smooth import cosine_features, integral_of_absolute
from calattn.metrics.sources import PredictionSource, blocks_in, cuts

CELLS = 4096
_MOST_RESAMPLES = 1024  # of one pass: 32 MB of rank cells; more of them take another pass
_CLASS_SUMS = 1 << 24  # (class, bin, resample) sums of one pass: 64 MB
_CLUSTER_WEIGHTS = 1 << 25  # (cluster, resample) weights held: 128 MB
_READ = 128  # resamples read at a time: 4 MB for each number of all rank cells

# First sample's number, what the samples come down to and, where class sums want it, the rows themselves.
Samples = Callable[[], Iterable[tuple[int, Columns, Block | None]]]


@dataclasses.dataclass(frozen=True)
class RankCells:
    """The smallest odds of each cell, most confident first, and the mean confidence of every cell."""

    odds: Float[Tensor, " g"]
    confidence: Float[Tensor, " g"]

    @classmethod
    def of(cls, ranks: RankSums, most: int = CELLS) -> Self:
        """At most `most` cells that hold about equally many of the samples; tied samples are in one cell."""
        odds, groups = ranks.tied()
        end = groups.count.cumsum(0)
        place = ((end - groups.count / 2) * (most / end[-1])).long().clamp_(max=most - 1)
        if len(odds) <= most:
            place = torch.arange(len(odds))
        _, cell, size = place.unique_consecutive(return_inverse=True, return_counts=True)
        mass, total = (torch.bincount(cell, weights=part) for part in (groups.count, groups.confidence))
        return cls(odds[size.cumsum(0) - size], total / mass)

    def __len__(self) -> int:
        return len(self.confidence)

    def index(self, odds: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return (torch.searchsorted(self.odds, odds.double(), right=True) - 1).clamp_min_(0)


class Resampler:
    """Adds samples with their weights in some resamples, and reads the replicates of every metric at the end."""

    def __init__(self, plan: Resampling, resamples: int, cells: RankCells | None) -> None:
        self.plan, self.options, self.cells = plan, plan.options, cells
        self.resamples, self.samples = resamples, 0
        self.sums = torch.zeros(resamples, 8 + 3 * plan.options.num_bins, dtype=torch.float64)
        # Two rows a cell, the wrong and the right; whole numbers, exact in float32 up to 2²⁴ and a weight is at most 8.
        self.counts = None if cells is None else WideSum(2 * len(cells), resamples, 1 << 20)
        self.classes: ClassTables | None = None
        if plan.num_classes is not None:
            kind = ClassCounts if "classes" in plan.own_parts else ClassGaps
            self.classes = kind(plan.num_classes, plan.options.num_bins, resamples)

    def add(self, columns: Columns, block: Block | None, weights: Float[Tensor, "n r"]) -> None:
        columns = columns.cpu()
        self.sums += weights.t().double() @ summands(columns, self.options)
        if self.counts is not None and self.cells is not None:
            place = 2 * self.cells.index(columns.odds) + columns.correct
            self.counts.table.index_add_(0, place, weights)
            self.counts.seen(len(columns))
        if self.classes is not None and block is not None:
            self.classes.add(block, weights)
        self.samples += len(columns)

    def values(self) -> dict[str, Float[Tensor, " r"]]:
        parts = [self._read(slice(first, first + _READ)) for first in range(0, self.resamples, _READ)]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if "classwise_ece" in self.plan.metrics and self.classes is not None:
            values["classwise_ece"] = self.classes.values(self.sums[:, 0])
        return {name: draws for name, draws in values.items() if name in self.plan.metrics}

    def _read(self, part: slice) -> dict[str, Tensor]:
        """All but classwise ECE, of some of the resamples."""
        bins = self.options.num_bins
        scores, infinite, count, gap, hits = self.sums[part].split([7, 1, bins, bins, bins], dim=1)
        scores[:, 2] = torch.where(infinite.squeeze(1) > 0, torch.inf, scores[:, 2])
        n, ranked = scores[:, 0], None
        values = read_scores(scores) | bin_values(count, gap, hits, n)
        if self.counts is not None and self.cells is not None:
            wrong, right = self.counts.total(part).view(len(self.cells), 2, -1).unbind(dim=1)
            ranked = Ranked((wrong + right).t().contiguous(), right.t().contiguous(), self.cells.confidence)
            values |= self._ranked_values(ranked, n.long())
        if self.plan.own:
            classes = self.classes.bins(part) if isinstance(self.classes, ClassCounts) else None
            values |= own_values(self.plan, Resamples(scores, count, gap, hits, ranked, classes))
        return values

    def _ranked_values(self, ranked: Ranked, n: Int[Tensor, " r"]) -> dict[str, Tensor]:
        confidence, values = ranked.confidence, {}
        residual = ranked.count * confidence - ranked.right
        if "smooth_ece" in self.plan.metrics:
            waves = residual @ cosine_features(confidence, self.plan.bandwidth) / n.unsqueeze(1)
            values["smooth_ece"] = integral_of_absolute(waves, self.plan.bandwidth, fineness=64)
        if "kernel_ece" in self.plan.metrics:
            place = (confidence * KERNEL_CELLS).long().clamp_(0, KERNEL_CELLS - 1)
            empty = torch.zeros(KERNEL_CELLS, len(n), dtype=torch.float64)
            mass, hits = (empty.index_add(0, place, each.t()) for each in (ranked.count, ranked.right))
            values["kernel_ece"] = kernel_values(mass, hits, n, self.options.bandwidth or 0.05)
        if self.plan.metrics & RANKED:
            values |= rank_values(ranked.count, ranked.right, residual, n, self.options.num_bins)
        return values


def replicates(
    samples: Samples, plan: Resampling, *, n: int, cells: RankCells | None
) -> dict[str, Float[Tensor, " r"]]:
    """Replicates of every metric; one pass over the n samples for as many resamples as its tables may hold."""
    parts = []
    for weights in weights_of(n, plan.count, plan.seed, most_resamples(plan), plan.clusters):
        resampler = Resampler(plan, len(weights), cells)
        for start, columns, block in samples():
            resampler.add(columns, block, weights.rows(start, len(columns)))
        if resampler.samples != n:
            raise InputError(
                f"predictions gave {n} samples on the first pass and {resampler.samples} on a later one",
                remedy=("pass something that gives the same blocks each time, or ", Args(num_bootstrap=0)),
            )
        parts.append(resampler.values())
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def most_resamples(plan: Resampling) -> int:
    """As many resamples as the tables of one pass may hold."""
    width = _MOST_RESAMPLES
    if plan.num_classes is not None:
        tables = 4 if "classes" in plan.own_parts else 1
        width = min(width, _CLASS_SUMS // (tables * plan.num_classes * plan.options.num_bins))
    if plan.clusters is not None:
        width = min(width, _CLUSTER_WEIGHTS // (int(plan.clusters.max()) + 1))
    return max(GROUP, width // GROUP * GROUP)


def samples_of(source: PredictionSource, target: int | None = None) -> Iterator[tuple[int, Columns, Block]]:
    """A source, block by block, each within one block of weights."""
    for start, block in blocks_in(source, ROWS):
        yield start, block.columns(target), block


def samples_kept(parts: list[Columns]) -> Iterator[tuple[int, Columns, None]]:
    """Columns that were kept; without rows, so without class sums."""
    offset = 0
    for columns in parts:
        for cut in cuts(len(columns), offset, ROWS):
            yield offset + cut.start, columns.select(cut), None
        offset += len(columns)
