"""Resampled states: a metric that has no replicates of its own is read from the state that each resample would have left.

The states are filled from weighted sums, never by going through the samples again, so a resample costs what `read` costs, and,
where it reads ranks, the grid or class sums, the filling of these. Ranks come as tied groups, most confident first, and the
grid is filled from the same groups: one group an odds value in memory, a rank cell (see `cells`) beyond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.binning import bin_index
from calattn.metrics.bins import BinSums
from calattn.metrics.classbins import ClassBins, class_parts
from calattn.metrics.columns import Block
from calattn.metrics.ranks import RankSums
from calattn.metrics.smooth import SmoothGrid
from calattn.metrics.state import BUILT_IN, METRICS, MetricState, Options, parts_of
from calattn.metrics.widesum import WideSum

_ENTRIES = 1 << 14  # listed probabilities that are weighted at a time


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Tied samples, most confident first: how many of each group a resample has, how many right, and their confidence."""

    count: Float[Tensor, "b g"]
    right: Float[Tensor, "b g"]
    confidence: Float[Tensor, " g"]


@dataclasses.dataclass(frozen=True)
class Resamples:
    """The weighted sums of b resamples."""

    scores: Float[Tensor, "b 7"]
    count: Float[Tensor, "b m"]
    gap: Float[Tensor, "b m"]
    right: Float[Tensor, "b m"]
    ranked: Ranked | None = None
    classes: Sequence[ClassBins] | None = None


def own_metrics(names: Iterable[str], *, classes: bool = True) -> tuple[str, ...]:
    """Those of the metrics that are read from resampled states; without `classes`, only what needs no class sums."""
    own = (name for name in names if name not in BUILT_IN)
    return tuple(name for name in own if classes or "classes" not in METRICS[name].parts)


def own_values(names: Sequence[str], options: Options, resamples: Resamples) -> dict[str, Float[Tensor, " b"]]:
    """Every metric of every resample, by its own `read`."""
    state = MetricState(names, num_bins=options.num_bins, bandwidth=options.bandwidth, threshold=options.threshold)
    state.options = options
    draws = {name: torch.zeros(len(resamples.scores), dtype=torch.float64) for name in names}
    for index in range(len(resamples.scores)):
        _fill(state, resamples, index)
        for name, values in draws.items():
            values[index] = state.read(name)
    return draws


def _fill(state: MetricState, resamples: Resamples, index: int) -> None:
    """Makes `state` what it would be had it seen this resample."""
    state.scores.sums = resamples.scores[index].double()
    count, gap, right = (part[index].double() for part in (resamples.count, resamples.gap, resamples.right))
    state.bins = BinSums(count, gap + right, right)
    if resamples.ranked is not None:
        count, right, confidence = (part.double() for part in _row(resamples.ranked, index))
        if "ranks" in state.needs:
            state.ranks = RankSums(0, histogram=torch.stack([count, count * confidence, right]))
        if "grid" in state.needs:
            state.grid = SmoothGrid.empty().add_weighted(confidence, count, count * confidence - right)
    if resamples.classes is not None:
        state.classes = resamples.classes[index]


def _row(ranked: Ranked, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The groups that this resample has samples of."""
    held = ranked.count[index] > 0
    return ranked.count[index][held], ranked.right[index][held], ranked.confidence[held]


def needs_groups(names: Iterable[str]) -> bool:
    return bool(parts_of(names) & {"ranks", "grid"})


class ClassTables:
    """Count, Σ probability and Σ [label is this class] of every (class, bin) of every resample."""

    def __init__(self, num_classes: int, num_bins: int, resamples: int) -> None:
        self.num_classes, self.num_bins = num_classes, num_bins
        self._sums = [WideSum(num_classes * num_bins, resamples, 1 << 16) for _ in range(3)]
        self._low = WideSum(num_classes, resamples, 1 << 16)  # the first bin of all classes is one product a block
        self._n = torch.zeros(resamples, dtype=torch.float64)

    def add(self, block: Block, weights: Float[Tensor, "n r"]) -> None:
        """Adds a block of rows, which nothing may read afterwards."""
        device = block.rest.device
        self._n += weights.sum(dim=0, dtype=torch.float64).cpu()
        weights = weights.to(device)
        count, confidence, right = (wide.table.to(device) for wide in self._sums)
        low = self._low.table.to(device)
        parts = class_parts(block, self.num_bins)
        cells = parts.cls * self.num_bins + bin_index(parts.prob, self.num_bins)
        for some in torch.arange(len(cells), device=device).split(_ENTRIES):
            here = weights[parts.row[some]]
            count.index_add_(0, cells[some], here)
            confidence.index_add_(0, cells[some], here * parts.prob[some].float().unsqueeze(1))
        right.index_add_(0, block.labels * self.num_bins + bin_index(parts.label_prob, self.num_bins), weights)
        block.rest.div_(block.total.unsqueeze(1))
        low.addmm_(block.rest.float().t(), weights)
        for wide, table in zip((*self._sums, self._low), (count, confidence, right, low), strict=True):
            wide.table = table
            wide.seen(len(block.labels))

    def bins(self) -> list[ClassBins]:
        """The sums of each resample."""
        count, confidence, right = (
            wide.total().t().reshape(-1, self.num_classes, self.num_bins).clone() for wide in self._sums
        )
        count[:, :, 0] += self._n.unsqueeze(1) - count.sum(dim=2)  # what is not listed is in the first bin
        confidence[:, :, 0] += self._low.total().t()
        return [ClassBins(*each) for each in zip(count, confidence, right, strict=True)]

    def values(self, n: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        """Classwise ECE."""
        errors = [(each.confidence - each.correct).abs().sum() for each in self.bins()]
        return torch.stack(errors) / (n * self.num_classes)


def class_width(n: int, count: int, cells: int) -> int:
    """How many resamples' weights and class sums are held at a time: 8 MB of weights, 50 MB of sums."""
    return max(1, min(count, (1 << 21) // n, (1 << 20) // cells))


def class_tables(
    blocks: Iterable[tuple[int, Block]], weights: Float[Tensor, "b n"], num_classes: int, num_bins: int
) -> list[ClassBins]:
    """The class sums of resamples that are in memory, from one pass over the rows."""
    tables = ClassTables(num_classes, num_bins, len(weights))
    for start, block in blocks:
        tables.add(block, weights[:, start : start + len(block.labels)].t())
    return tables.bins()
