"""The bootstrap of more samples than memory holds: weighted sums of all resamples, a few thousand samples at a time.

A pass over the predictions adds weights × summands to tables that do not grow with the number of samples. What needs the
order of the samples, and the smoothed errors, is read from rank cells: a few thousand of about equally many samples. Within
a cell, samples count as tied and have the cell's mean confidence. Both move a replicate by less than a cell's share of the
samples, 1/4096, and all replicates alike, so that the interval, which is moved onto the value, does not see it. Everything
else is the same sum as in memory.
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
from calattn.metrics.ranks import RankSums, odds_key
from calattn.metrics.resampling.classwise import ClassCounts, ClassGaps, ClassTables, WideSum
from calattn.metrics.resampling.replicates import (
    KERNEL_CELLS,
    RANKED,
    Ranked,
    Resamples,
    Resampling,
    bin_values,
    fill_features,
    kernel_values,
    own_values,
    rank_values,
)
from calattn.metrics.resampling.weights import GROUP, ROWS, PoissonWeights
from calattn.metrics.scoresums import read_scores
from calattn.metrics.smooth import cosine_features, integral_of_absolute
from calattn.metrics.sources import PredictionSource, blocks_in, cuts

CELLS = 4096
_MOST_RESAMPLES = 512  # of one pass: 50 MB of rank cells; more of them take another pass
_CLASS_SUMS = 1 << 22  # (class, bin, resample) sums of one pass: 50 MB

# First sample's number, what the samples come down to and, where classwise ECE wants it, the rows themselves.
Samples = Callable[[], Iterable[tuple[int, Columns, Block | None]]]


@dataclasses.dataclass(frozen=True)
class RankCells:
    """Which cell an odds key belongs to, most confident first, and the mean confidence of every cell."""

    cell_of: Int[Tensor, " k"]
    confidence: Float[Tensor, " g"]

    @classmethod
    def of(cls, ranks: RankSums, most: int = CELLS) -> Self:
        """At most `most` cells that hold about equally many of the samples; a key with many of them is a cell by itself."""
        count, confidence, _ = ranks.by_key().cpu()
        middle = count.cumsum(0) - count / 2
        place = (middle * (most / count.sum())).long().clamp_(max=most - 1)
        # Keys that no sample has take the cell before them.
        used, inverse = place[count > 0].unique_consecutive(return_inverse=True)
        cell_of = inverse[((count > 0).cumsum(0) - 1).clamp_min_(0)]
        mass = torch.zeros(len(used), dtype=torch.float64).index_add_(0, cell_of, count)
        total = torch.zeros(len(used), dtype=torch.float64).index_add_(0, cell_of, confidence)
        return cls(cell_of, total / mass)

    def __len__(self) -> int:
        return len(self.confidence)

    def index(self, odds: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return self.cell_of[odds_key(odds)]


class StreamResampler:
    """Adds samples in order, with weights drawn for them, and reads the replicates of every metric at the end."""

    def __init__(self, weights: PoissonWeights, plan: Resampling, cells: RankCells | None) -> None:
        self.weights, self.plan, self.options = weights, plan, plan.options
        self.cells = cells
        self.samples = 0
        self.width = 7 + 3 * plan.options.num_bins
        self.sums = torch.zeros(len(weights), self.width + 1, dtype=torch.float64)  # the last counts infinite NLLs
        # Two rows a cell, the wrong and the right; whole numbers, exact in float32 up to 2²⁴ and a weight is at most 8.
        self.counts = None if cells is None else WideSum(2 * len(cells), len(weights), 1 << 20)
        self.classes: ClassTables | None = None
        if plan.num_classes is not None:
            kind = ClassCounts if "classes" in plan.own_parts else ClassGaps
            self.classes = kind(plan.num_classes, plan.options.num_bins, len(weights))

    def add(self, start: int, columns: Columns, block: Block | None) -> None:
        columns = columns.cpu()
        size = len(columns)
        weights = self.weights.rows(start, size)
        features = torch.zeros(size, self.width + 1)
        fill_features(features[:, : self.width], columns, self.options)
        features[:, -1] = torch.isinf(columns.nll)
        self.sums += weights.t() @ features
        if self.counts is not None and self.cells is not None:
            place = 2 * self.cells.index(columns.odds) + columns.correct
            self.counts.table.index_add_(0, place, weights)
            self.counts.seen(size)
        if self.classes is not None and block is not None:
            self.classes.add(block, weights)
        self.samples += size

    def values(self) -> dict[str, Float[Tensor, " r"]]:
        bins = self.options.num_bins
        scores, count, gap, hits, infinite = self.sums.split([7, bins, bins, bins, 1], dim=1)
        n = scores[:, 0]
        values = read_scores(scores)
        values["nll"] = torch.where(infinite.squeeze(1) > 0, torch.inf, values["nll"])
        values |= bin_values(count, gap, hits, n.long())
        if self.counts is not None:
            values |= self._cell_values(n.long())
        if self.classes is not None:
            values["classwise_ece"] = self.classes.values(n)
        if self.plan.own:
            values |= self._own_values(scores.clone(), count, gap, hits, values["nll"])
        return {name: draws for name, draws in values.items() if name in self.plan.metrics}

    def _cell_values(self, n: Tensor) -> dict[str, Tensor]:
        count, right, confidence = self._cell_sums()
        residual = (count * confidence.unsqueeze(1) - right).t()
        values = {}
        if "smooth_ece" in self.plan.metrics:
            waves = residual @ cosine_features(confidence, self.plan.bandwidth) / n.unsqueeze(1)
            values["smooth_ece"] = integral_of_absolute(waves, self.plan.bandwidth, fineness=64)
        if "kernel_ece" in self.plan.metrics:
            place = (confidence * KERNEL_CELLS).long().clamp_(0, KERNEL_CELLS - 1)
            empty = torch.zeros(KERNEL_CELLS, count.shape[1], dtype=torch.float64)
            mass, hits = empty.index_add(0, place, count), empty.index_add(0, place, right)
            values["kernel_ece"] = kernel_values(mass, hits, n, self.options.bandwidth or 0.05)
        if self.plan.metrics & RANKED:
            values |= rank_values(count.t().contiguous(), right.t().contiguous(), residual, n, self.options.num_bins)
        return values

    def _own_values(self, scores: Tensor, count: Tensor, gap: Tensor, hits: Tensor, nll: Tensor) -> dict[str, Tensor]:
        """Of the metrics that have no replicates of their own."""
        scores[:, 2] = nll * scores[:, 0]
        ranked = None
        if self.plan.own_parts & {"ranks", "grid"}:
            samples, right, confidence = self._cell_sums()
            ranked = Ranked(samples.t(), right.t(), confidence)
        classes = self.classes.bins() if isinstance(self.classes, ClassCounts) else None
        return own_values(self.plan, Resamples(scores, count, gap, hits, ranked, classes))

    def _cell_sums(self) -> tuple[Float[Tensor, "g r"], Float[Tensor, "g r"], Float[Tensor, " g"]]:
        """Of every rank cell: its samples, the right ones among them, and its confidence."""
        assert self.counts is not None
        assert self.cells is not None
        wrong, right = self.counts.total().view(len(self.cells), 2, -1).unbind(dim=1)
        return wrong + right, right, self.cells.confidence


def stream_replicates(
    samples: Samples, plan: Resampling, *, n: int, cells: RankCells | None
) -> dict[str, Float[Tensor, " r"]]:
    """Replicates of every metric; one pass over the n samples for as many resamples as its tables may hold."""
    width = _MOST_RESAMPLES
    if plan.num_classes is not None:
        tables = 4 if "classes" in plan.own_parts else 1
        sums = tables * plan.num_classes * plan.options.num_bins
        width = min(width, max(GROUP, _CLASS_SUMS // sums // GROUP * GROUP))
    parts = []
    for first in range(0, plan.count, width):
        weights = PoissonWeights(plan.seed, first, min(plan.count, first + width))
        resampler = StreamResampler(weights, plan, cells)
        for start, columns, block in samples():
            resampler.add(start, columns, block)
        if resampler.samples != n:
            raise InputError(
                f"predictions gave {n} samples on the first pass and {resampler.samples} on a later one",
                remedy=("pass something that gives the same blocks each time, or ", Args(num_bootstrap=0)),
            )
        parts.append(resampler.values())
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def samples_of(source: PredictionSource, target: int | None = None) -> Iterator[tuple[int, Columns, Block]]:
    """A source, block by block, each within one block of weights."""
    for start, block in blocks_in(source, ROWS):
        yield start, block.columns(target), block


def samples_kept(parts: list[Columns]) -> Iterator[tuple[int, Columns, None]]:
    """Columns that were kept because the source cannot be read again; without rows, so without classwise ECE."""
    offset = 0
    for columns in parts:
        for cut in cuts(len(columns), offset, ROWS):
            yield offset + cut.start, columns.select(cut), None
        offset += len(columns)
