"""Evaluation in parts: what two passes over some of the rows leave, which is merged with that of all others.

    first = [Part.of(shard, names, options) for shard in shards]    # each on a machine of its own, in any order
    whole = merged(first)                                           # holds every value, and knows how many rows there are
    plan = whole.resampling(count=200, seed=0)                      # small: what a second pass has to know
    second = [plan.drawn(shard, first_row) for …]                   # `first_row`: the rows of the shards before this one
    replicates = merged(second).values()

Parts can be pickled and grow with the metrics, not with the rows. A resampling weight depends on the seed and on the number of
the row alone, so intervals do not depend on how the rows are divided. `measured` is these two passes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.errors import Args, InputError
from calattn.metrics.binning import gap_sums, summed
from calattn.metrics.columns import Columns
from calattn.metrics.groups import Labelling
from calattn.metrics.resampling.resampler import RankCells, Resampling
from calattn.metrics.sources import MOST_ROWS, PredictionSource, pieces, repeatable
from calattn.metrics.state import METRICS, MetricState, Options, parts_of, reduce_for

IN_MEMORY = 200_000  # more samples are resampled less often where nobody says how often
FEWEST_ERRORS = 10  # below, resampling says nothing about the mean confidence of high-confidence errors


class _Mergeable(Protocol):
    def merge(self, other: Any, /) -> Any: ...


_P = TypeVar("_P", bound=_Mergeable)


def merged(parts: Iterable[_P]) -> _P:
    """All of them in one."""
    return functools.reduce(lambda one, other: one.merge(other), parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What the first pass leaves: sums of metrics and of a verdict, samples of each class, columns of what comes only once."""

    state: MetricState
    gaps: Float[Tensor, "8 m"]
    labels: Float[Tensor, " c"]
    columns: list[Columns]

    @classmethod
    def of(cls, source: PredictionSource, names: tuple[str, ...], options: Options, *, resampled: bool = True) -> Part:
        """Of the rows of a source. `resampled`: a second pass may follow."""
        state = MetricState(names, **vars(options))
        if resampled and "grid" in state.needs:
            state.needs.add("ranks")  # smoothed errors are resampled by rank cells
        labels: Tensor | None = None
        gaps = torch.zeros(())
        kept: list[Columns] = []
        for _, piece in pieces(source, MOST_ROWS):
            if labels is None:
                state.to(piece.labels.device)
            columns, classes = reduce_for(state, piece)
            state.add(columns, classes)
            here = summed(piece.labels, None, piece.values.shape[1]).cpu()
            labels = here if labels is None else labels + here
            gaps = gaps + gap_sums(columns.confidence, columns.correct).cpu()
            if resampled and not repeatable(source):
                kept.append(columns.compact())
        assert labels is not None
        return cls(state=state, gaps=gaps, labels=labels, columns=kept)

    @property
    def rows(self) -> int:
        return int(self.labels.sum())

    @property
    def num_classes(self) -> int:
        return len(self.labels)

    def merge(self, other: Part) -> Part:
        if self.num_classes != other.num_classes:
            problem = f"have {self.num_classes} and {other.num_classes} classes"
            raise InputError(problem, argument="parts", remedy="evaluate predictions of one model together")
        state, gaps, labels = self.state.merge(other.state), self.gaps + other.gaps, self.labels + other.labels
        return Part(state=state, gaps=gaps, labels=labels, columns=self.columns + other.columns)

    def resampling(self, *, count: int, seed: int = 0, clusters: Int[Tensor, " n"] | None = None) -> Resampling:
        """What a second pass over the same rows has to know; of all rows, so only after merging."""
        state, parts = self.state, parts_of(self.state.metrics)
        return Resampling(
            n=self.rows,
            metrics=frozenset(state.metrics),
            options=state.options,
            bandwidth=state.options.bandwidth or max(state.grid.automatic()[0], state.grid.min_bandwidth),
            cells=RankCells.of(state.ranks) if count and parts & {"ranks", "grid"} else None,
            count=count,
            seed=seed,
            num_classes=None if self.columns or "classes" not in parts else self.num_classes,
            clusters=clusters,
        )


def default_resamples(n: int) -> int:
    """How often n samples are resampled where nobody says."""
    return 1000 if n <= IN_MEMORY else 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """How samples are resampled, checked: how often (`count`, where somebody says), and in which clusters."""

    count: int | None
    seed: int
    level: float = 0.95
    clusters: object = None

    def __post_init__(self) -> None:
        checks.in_unit_interval(self.level, "level")
        if self.count is not None and self.count < 0:
            raise InputError(f"must be 0 or more, got {self.count}", argument="num_bootstrap")

    def of(self, whole: Part) -> Resampling:
        """What the second pass has to know."""
        n = whole.rows
        clusters = None if self.clusters is None else Labelling.of(self.clusters, n, "clusters").codes
        return whole.resampling(
            count=default_resamples(n) if self.count is None else self.count, seed=self.seed, clusters=clusters
        )


@dataclasses.dataclass(frozen=True)
class Measured:
    """All rows of all sources: their sums, how they are resampled, and the replicates of every metric."""

    whole: Part
    plan: Resampling
    replicates: dict[str, Float[Tensor, " r"]]

    def telling(self) -> dict[str, Float[Tensor, " r"]]:
        """The replicates that say something."""
        draws = {name: each for name, each in self.replicates.items() if METRICS[name].interval}
        if "scores" in self.whole.state.needs and self.whole.state.scores.num_high_errors < FEWEST_ERRORS:
            draws.pop("high_confidence_error_confidence", None)
        return draws


def measured(
    sources: Sequence[PredictionSource],
    names: tuple[str, ...],
    options: Options,
    bootstrap: Bootstrap,
    *,
    over: Callable[..., Iterable[Any]] = map,
) -> Measured:
    """Two passes over the rows of all sources, one source after another.

    `over` is called as `map` is, with a function and what to call it with, which can all be pickled, and may make the calls
    elsewhere, such as on other machines; it gives their results in order.
    """
    whole, before = None, []
    for part in over(functools.partial(Part.of, names=names, options=options, resampled=bootstrap.count != 0), sources):
        before.append(0 if whole is None else whole.rows)
        whole = part if whole is None else whole.merge(part)
    if whole is None:
        raise InputError("is empty: there is nothing to evaluate", argument="predictions")
    plan = bootstrap.of(whole)
    again: Sequence[Any] = sources
    if whole.columns:
        if len(sources) > 1:
            remedy = ("pass lists of blocks, or ", Args(num_bootstrap=0))
            raise InputError("can be read only once, and is one of several", argument="predictions", remedy=remedy)
        again = [whole.columns]
    draws = []
    for each in plan.passes():
        resampler = merged(over(each.drawn, again, before))
        if resampler.samples != plan.n:
            raise InputError(
                f"predictions gave {plan.n} samples on the first pass and {resampler.samples} on a later one",
                remedy=("pass something that gives the same blocks each time, or ", Args(num_bootstrap=0)),
            )
        draws.append(resampler.values())
    replicates = {name: torch.cat([draw[name] for draw in draws]) for name in draws[0]} if draws else {}
    return Measured(whole, plan, replicates)
