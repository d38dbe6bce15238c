"""The bootstrap of more samples than memory holds: weighted sums of all resamples, a few thousand samples at a time.

A pass over the predictions adds weights × summands to tables that do not grow with the number of samples. What needs the order of
the samples, and the smoothed errors, is read from rank cells (see `cells`); everything else is the same sum as in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.errors import Args, InputError
from calattn.metrics.columns import Block, Columns, blocks_of
from calattn.metrics.resampling.bootstrap import signed_entries
from calattn.metrics.resampling.cells import RankCells
from calattn.metrics.resampling.poisson import GROUP, ROWS, PoissonWeights
from calattn.metrics.resampling.replicates import (
    KERNEL_CELLS,
    RANKED,
    bin_values,
    fill_features,
    kernel_values,
    rank_values,
)
from calattn.metrics.resampling.resampled import ClassTables, Ranked, Resamples, needs_groups, own_metrics, own_values
from calattn.metrics.scoresums import read_scores
from calattn.metrics.smooth import cosine_features, integral_of_absolute
from calattn.metrics.sources import PredictionSource, pieces
from calattn.metrics.state import Options, parts_of
from calattn.metrics.widesum import WideSum

_MOST_RESAMPLES = 512  # of one pass: 50 MB of rank cells; more of them take another pass
_CLASS_SUMS = 1 << 22  # (class, bin, resample) sums of one pass: 50 MB
_ENTRIES = 1 << 14  # listed probabilities that are weighted at a time

# First sample's number, what the samples come down to and, where classwise ECE wants it, the rows themselves.
Samples = Callable[[], Iterable[tuple[int, Columns, Block | None]]]


class ClassResampler:
    """Signed gaps Σ w (p − [y = class]) of every (class, bin), for classwise ECE."""

    def __init__(self, num_classes: int, num_bins: int, resamples: int) -> None:
        self.num_classes, self.num_bins = num_classes, num_bins
        self.listed = WideSum(num_classes * num_bins, resamples, 1 << 16)
        self.low = WideSum(num_classes, resamples, 1 << 16)  # the first bin of all classes is one product a block

    def add(self, block: Block, weights: Float[Tensor, "n r"]) -> None:
        """Adds a block of rows, which nothing may read afterwards."""
        device = block.rest.device
        weights = weights.to(device)
        listed, low = self.listed.table.to(device), self.low.table.to(device)
        cells, rows, signed = signed_entries(block, self.num_bins)
        for part in torch.arange(len(cells), device=device).split(_ENTRIES):
            listed.index_add_(0, cells[part], weights[rows[part]].mul_(signed[part].float().unsqueeze(1)))
        block.rest.div_(block.total.unsqueeze(1))
        low.addmm_(block.rest.float().t(), weights)
        self.listed.table, self.low.table = listed, low
        self.listed.seen(len(block.labels))
        self.low.seen(len(block.labels))

    def values(self, n: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        gaps = self.listed.total().view(self.num_classes, self.num_bins, -1)
        first = gaps[:, 0] + self.low.total()
        return (first.abs().sum(dim=0) + gaps[:, 1:].abs().sum(dim=(0, 1))) / (n * self.num_classes)


class StreamResampler:
    """Adds samples in order, with weights drawn for them, and reads the replicates of every metric at the end."""

    def __init__(
        self,
        weights: PoissonWeights,
        options: Options,
        metrics: frozenset[str],
        *,
        bandwidth: float,
        cells: RankCells | None,
        num_classes: int | None,
    ) -> None:
        self.weights, self.options, self.metrics = weights, options, metrics
        self.bandwidth = bandwidth  # smooth ECE's; an automatic bandwidth is held at its value on the full data
        self.cells = cells
        self.samples = 0
        self.width = 7 + 3 * options.num_bins
        self.sums = torch.zeros(len(weights), self.width + 1, dtype=torch.float64)  # the last counts infinite NLLs
        # Two rows a cell, the wrong and the right; whole numbers, exact in float32 up to 2²⁴ and a weight is at most 8.
        self.counts = None if cells is None else WideSum(2 * len(cells), len(weights), 1 << 20)
        self.own = own_metrics(metrics, classes=num_classes is not None)
        self.classes: ClassTables | ClassResampler | None = None
        if num_classes is not None:
            kind = ClassTables if "classes" in parts_of(self.own) else ClassResampler
            self.classes = kind(num_classes, options.num_bins, len(weights))

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
        if self.own:
            values |= self._own_values(scores.clone(), count, gap, hits, values["nll"])
        return {name: draws for name, draws in values.items() if name in self.metrics}

    def _cell_values(self, n: Tensor) -> dict[str, Tensor]:
        assert self.counts is not None
        assert self.cells is not None
        wrong, right = self.counts.total().view(len(self.cells), 2, -1).unbind(dim=1)
        count, confidence = wrong + right, self.cells.confidence
        residual = (count * confidence.unsqueeze(1) - right).t()
        values = {}
        if "smooth_ece" in self.metrics:
            waves = residual @ cosine_features(confidence, self.bandwidth) / n.unsqueeze(1)
            values["smooth_ece"] = integral_of_absolute(waves, self.bandwidth, fineness=64)
        if "kernel_ece" in self.metrics:
            values["kernel_ece"] = self._kernel_values(count, right, n)
        if self.metrics & RANKED:
            values |= rank_values(count.t().contiguous(), right.t().contiguous(), residual, n, self.options.num_bins)
        return values

    def _own_values(self, scores: Tensor, count: Tensor, gap: Tensor, hits: Tensor, nll: Tensor) -> dict[str, Tensor]:
        """Of the metrics that have no replicates of their own."""
        scores[:, 2] = nll * scores[:, 0]
        ranked = None
        if needs_groups(self.own):
            assert self.counts is not None
            assert self.cells is not None
            wrong, right = self.counts.total().view(len(self.cells), 2, -1).unbind(dim=1)
            ranked = Ranked((wrong + right).t(), right.t(), self.cells.confidence)
        classes = self.classes.bins() if isinstance(self.classes, ClassTables) else None
        return own_values(self.own, self.options, Resamples(scores, count, gap, hits, ranked, classes))

    def _kernel_values(self, count: Tensor, right: Tensor, n: Tensor) -> Tensor:
        assert self.cells is not None
        place = (self.cells.confidence * KERNEL_CELLS).long().clamp_(0, KERNEL_CELLS - 1)
        empty = torch.zeros(KERNEL_CELLS, count.shape[1], dtype=torch.float64)
        mass, hits = empty.index_add(0, place, count), empty.index_add(0, place, right)
        return kernel_values(mass, hits, n, self.options.bandwidth or 0.05)


def stream_replicates(
    samples: Samples,
    *,
    n: int,
    count: int,
    seed: int,
    options: Options,
    metrics: frozenset[str],
    bandwidth: float,
    cells: RankCells | None,
    num_classes: int | None,
) -> dict[str, Float[Tensor, " r"]]:
    """Replicates of every metric; one pass over the samples for as many resamples as its tables may hold."""
    width = _MOST_RESAMPLES
    if num_classes is not None:
        tables = 4 if "classes" in parts_of(own_metrics(metrics)) else 1
        width = min(width, max(GROUP, _CLASS_SUMS // (tables * num_classes * options.num_bins) // GROUP * GROUP))
    parts = []
    for first in range(0, count, width):
        resampler = StreamResampler(
            PoissonWeights(seed, first, min(count, first + width)),
            options,
            metrics,
            bandwidth=bandwidth,
            cells=cells,
            num_classes=num_classes,
        )
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
    for piece in pieces(source, ROWS):
        for block in blocks_of(piece.values, piece.labels, piece.kind, piece.scale):
            yield piece.start + block.rows.start, block.columns(target), block


def samples_kept(parts: list[Columns]) -> Iterator[tuple[int, Columns, None]]:
    """Columns that were kept because the source cannot be read again; without rows, so without classwise ECE."""
    offset = 0
    for columns in parts:
        start = 0
        while start < len(columns):
            stop = min(len(columns), start + ROWS - (offset + start) % ROWS)
            yield offset + start, columns.rows(start, stop), None
            start = stop
        offset += len(columns)
