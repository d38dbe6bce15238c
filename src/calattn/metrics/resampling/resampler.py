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
import functools
from collections.abc import Iterator
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.metrics.binning import summed
from calattn.metrics.columns import Block, Columns
from calattn.metrics.ranks import RankSums
from calattn.metrics.resampling.classwise import ClassCounts, ClassGaps, ClassTables, WideSum
from calattn.metrics.resampling.replicates import (
    KERNEL_CELLS,
    RANKED,
    Ranked,
    Resamples,
    bin_values,
    kernel_values,
    own_values,
    rank_values,
    summands,
)
from calattn.metrics.resampling.weights import GROUP, Weights
from calattn.metrics.scoresums import read_scores
from calattn.metrics.smooth import cosine_features, integral_of_absolute
from calattn.metrics.sources import PredictionSource, blocks_in
from calattn.metrics.state import BUILT_IN, METRICS, Options, parts_of

CELLS = 4096
_MOST_RESAMPLES = 1024  # of one pass: 32 MB of rank cells; more of them take another pass
_CLASS_SUMS = 1 << 24  # (class, bin, resample) sums of one pass: 64 MB
_READ = 128  # resamples read at a time: 4 MB for each number of all rank cells
_WEIGHTS = 1 << 22  # weights drawn at a time by the CPU: 16 MB


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
            place = torch.arange(len(odds), device=odds.device)
        _, cell, size = place.unique_consecutive(return_inverse=True, return_counts=True)
        mass, total = (summed(cell, part, len(size)) for part in (groups.count, groups.confidence))
        return cls(odds[size.cumsum(0) - size], total / mass)

    def __len__(self) -> int:
        return len(self.confidence)

    def to(self, device: torch.device) -> RankCells:
        return RankCells(self.odds.to(device), self.confidence.to(device))

    def index(self, odds: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return (torch.searchsorted(self.odds, odds.double(), right=True) - 1).clamp_min_(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resampling:
    """What is resampled, how often, and from which seed.

    `bandwidth` is smooth ECE's; an automatic one is held at its value on the full data. `num_classes` is None where the rows
    cannot be read again: then there are no class sums. `clusters` number the samples that are drawn together. `first` is the
    number of the first resample.
    """

    n: int
    options: Options
    metrics: frozenset[str] = BUILT_IN
    bandwidth: float = 0.05
    cells: RankCells | None = None
    count: int = 1000
    seed: int = 0
    num_classes: int | None = None
    clusters: Int[Tensor, " n"] | None = None
    first: int = 0

    @functools.cached_property
    def num_clusters(self) -> int | None:
        return None if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def num_units(self) -> int:
        """How many independent parts are resampled."""
        return self.num_clusters or self.n

    @property
    def own(self) -> tuple[str, ...]:
        """The metrics that are read from resampled states, in the order of the registry."""
        own = [name for name in METRICS if name in self.metrics and name not in BUILT_IN]
        return tuple(name for name in own if self.num_classes is not None or "classes" not in METRICS[name].parts)

    @property
    def own_parts(self) -> set[str]:
        """The parts of a state that these read."""
        return parts_of(self.own)

    @property
    def most(self) -> int:
        """As many resamples as the tables of one pass may hold."""
        width = _MOST_RESAMPLES
        if self.num_classes is not None:
            tables = 4 if "classes" in self.own_parts else 1
            width = min(width, _CLASS_SUMS // (tables * self.num_classes * self.options.num_bins))
        return max(GROUP, width // GROUP * GROUP)

    def passes(self) -> Iterator[Resampling]:
        """The same in as many passes over the samples as the tables take."""
        for first in range(0, self.count, self.most):
            yield dataclasses.replace(self, first=first, count=min(self.most, self.count - first))

    def drawn(self, source: PredictionSource | list[Columns], first_row: int = 0) -> Resampler:
        """The sums over the samples of a source, the first of them number `first_row` of all."""
        weights = Weights(self.n, self.seed, self.first, self.first + self.count, self.clusters)
        resampler = Resampler(self, self.count)
        rows = max(1, _WEIGHTS // self.count)
        for start, columns, block in samples_of(source, rows, self.options.target):
            here = weights.rows(first_row + start, len(columns), columns.odds.device)
            resampler.add(columns, block, here)
        return resampler


class Resampler:
    """Adds samples with their weights in some resamples, and reads the replicates of every metric at the end.

    Of the samples of several shards there is one each: they are merged before they are read.
    """

    def __init__(self, plan: Resampling, resamples: int) -> None:
        self.plan, self.options, self.cells = plan, plan.options, plan.cells
        self.resamples, self.samples = resamples, 0
        self.sums = torch.zeros(resamples, 8 + 3 * plan.options.num_bins, dtype=torch.float64)
        # Two rows a cell, the wrong and the right; whole numbers, exact in float32 up to 2²⁴ and a weight is at most 8.
        self.counts = None if self.cells is None else WideSum(2 * len(self.cells), resamples, 1 << 20)
        self.classes: ClassTables | None = None
        if plan.num_classes is not None:
            kind = ClassCounts if "classes" in plan.own_parts else ClassGaps
            self.classes = kind(plan.num_classes, plan.options.num_bins, resamples)

    def add(self, columns: Columns, block: Block | None, weights: Float[Tensor, "n r"]) -> None:
        if not self.samples:  # all of it is where the samples are
            self.sums = self.sums.to(weights.device)
            self.cells = None if self.cells is None else self.cells.to(weights.device)
        self.sums += weights.t().double() @ summands(columns, self.options)
        if self.counts is not None and self.cells is not None:
            self.counts.add(2 * self.cells.index(columns.odds) + columns.correct, weights, len(columns))
        if self.classes is not None and block is not None:
            self.classes.add(block, weights)
        self.samples += len(columns)

    def merge(self, other: Resampler) -> Self:
        """Adds what another has seen."""
        self.samples += other.samples
        self.sums = self.sums + other.sums.to(self.sums.device)
        if self.counts is not None and other.counts is not None:
            self.counts.merge(other.counts)
        if self.classes is not None and other.classes is not None:
            self.classes.merge(other.classes)
        return self

    def values(self) -> dict[str, Float[Tensor, " r"]]:
        step = _READ if self.sums.device.type == "cpu" else self.resamples
        parts = [self._read(slice(first, first + step)) for first in range(0, self.resamples, step)]
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if "classwise_ece" in self.plan.metrics and self.classes is not None:
            values["classwise_ece"] = self.classes.values(self.sums[:, 0])
        wanted = {name: draws for name, draws in values.items() if name in self.plan.metrics}
        together = torch.stack([each.to(self.sums.device) for each in wanted.values()]).cpu()
        return dict(zip(wanted, together, strict=True))

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
            resamples = Resamples(scores.cpu(), count.cpu(), gap.cpu(), hits.cpu(), ranked and ranked.cpu(), classes)
            values |= own_values(self.plan.own, self.options, resamples)
        return values

    def _ranked_values(self, ranked: Ranked, n: Int[Tensor, " r"]) -> dict[str, Tensor]:
        confidence, values = ranked.confidence, {}
        residual = ranked.count * confidence - ranked.right
        if "smooth_ece" in self.plan.metrics:
            waves = residual @ cosine_features(confidence, self.plan.bandwidth) / n.unsqueeze(1)
            values["smooth_ece"] = integral_of_absolute(waves, self.plan.bandwidth, fineness=64)
        if "kernel_ece" in self.plan.metrics:
            place = (confidence * KERNEL_CELLS).long().clamp_(0, KERNEL_CELLS - 1)
            empty = torch.zeros(len(n), KERNEL_CELLS, dtype=torch.float64, device=n.device)
            mass, hits = (empty.index_add(1, place, each) for each in (ranked.count, ranked.right))
            values["kernel_ece"] = kernel_values(mass, hits, n, self.options.bandwidth or 0.05)
        if self.plan.metrics & RANKED:
            values |= rank_values(ranked.count, ranked.right, residual, n, self.options.num_bins)
        return values


def samples_of(
    source: PredictionSource | list[Columns], rows: int, target: int | None = None
) -> Iterator[tuple[int, Columns, Block | None]]:
    """First sample's number, what at most `rows` samples come down to and, but of kept columns, the rows themselves."""
    if not (isinstance(source, list) and isinstance(source[0], Columns)):
        for start, block in blocks_in(source, rows):  # type: ignore[arg-type]
            yield start, block.columns(target), block
        return
    offset = 0
    for columns in source:
        for start in range(0, len(columns), rows):
            part = columns.select(slice(start, start + rows))
            yield offset + start, part, None
        offset += len(columns)
