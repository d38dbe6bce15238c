"""One pass over the predictions, and what is resampled of it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import Columns
from calattn.metrics.groups import Labelling
from calattn.metrics.resampling.bootstrap import spread_for_few
from calattn.metrics.resampling.replicates import Resampling
from calattn.metrics.resampling.resampler import RankCells, Samples, replicates, samples_kept, samples_of
from calattn.metrics.sources import PredictionSource, pieces, repeatable
from calattn.metrics.state import MetricState, parts_of, reduce_for

IN_MEMORY = 200_000  # samples whose columns are kept, and that get 1,000 resamples
FEWEST_ERRORS = 10  # below, resampling says nothing about the mean confidence of high-confidence errors

# Rows reduced at a time: large inputs leave no column of their length behind, small ones are one piece.
_PIECE = 1 << 18


class Seen(NamedTuple):
    """What the first pass leaves beside the state: the columns of all samples, unless they can be made again."""

    n: int
    columns: list[Columns]
    classes: ClassBins


def one_pass(state: MetricState, source: PredictionSource, *, keep: bool) -> Seen:
    state.needs.add("classes")
    if keep and "grid" in state.needs:
        state.needs.add("ranks")  # smoothed errors of large inputs are resampled by rank cells
    parts: list[Columns] = []
    n, again = 0, False
    for piece in pieces(source, _PIECE):
        columns, classes = reduce_for(state, piece.values, piece.labels, piece.kind, piece.scale)
        state.add(columns, classes)
        n += len(columns)
        if n > IN_MEMORY:
            again = again or repeatable(source)
            parts = [] if again else [part.compact() for part in parts]
        if keep and not again:
            parts.append(columns if n <= IN_MEMORY else columns.compact())
    if not n:
        raise ValueError("predictions is empty: there is nothing to evaluate")
    return Seen(n, parts, state.class_bins())


@dataclasses.dataclass(frozen=True)
class Resampled:
    """What there is to resample, and how."""

    state: MetricState
    seen: Seen
    source: PredictionSource
    count: int
    seed: int
    clusters: Labelling | None

    def replicates(self, level: float) -> dict[str, Float[Tensor, " r"]]:
        draws = replicates(*self.planned(self.count), n=self.seen.n, cells=self.cells())
        if self.state.scores.num_high_errors < FEWEST_ERRORS:
            draws.pop("high_confidence_error_confidence", None)
        if self.clusters is None:
            return draws
        return {name: spread_for_few(each, len(self.clusters), level) for name, each in draws.items()}

    def cells(self) -> RankCells | None:
        return RankCells.of(self.state.ranks) if parts_of(self.state.metrics) & {"ranks", "grid"} else None

    def planned(self, count: int) -> tuple[Samples, Resampling]:
        state, again = self.state, repeatable(self.source)
        bandwidth = state.options.bandwidth or max(state.grid.automatic()[0], state.grid.min_bandwidth)
        classes = again and "classes" in parts_of(state.metrics)
        plan = Resampling(
            metrics=frozenset(state.metrics),
            options=state.options,
            bandwidth=bandwidth,
            count=count,
            seed=self.seed,
            num_classes=self.seen.classes.count.shape[0] if classes else None,
            clusters=None if self.clusters is None else self.clusters.codes,
        )
        if self.seen.columns and not classes:
            return lambda: samples_kept(self.seen.columns), plan
        return lambda: samples_of(self.source, plan.options.target), plan
