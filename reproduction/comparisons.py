"""The comparisons behind a claim: which cell stands against which, on which metric, before or after which step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from reproduction.cells import Cell, ScaleName, combinations
from reproduction.evidence import Arm, Comparison
from reproduction.results import Phase

SEEDS = (0, 1, 2)
Group = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """A tested network against each of its rivals, wherever both are trained: an entry of `claims.yaml`, which explains it."""

    where: Sequence[Group] | dict[str, Sequence[Group]]
    tested: dict[str, Any]
    rivals: Sequence[dict[str, Any]]
    metrics: Sequence[str]
    family: str

    def comparisons(self, scale: ScaleName) -> list[Comparison]:
        """One for each place, rival, metric and seed."""
        where = (
            self.where["paper" if scale == "paper" else "below_paper"] if isinstance(self.where, dict) else self.where
        )
        places = [place for group in where for place in combinations(group)]
        every = itertools.product(places, self.rivals, self.metrics, SEEDS)
        return [self._comparison(place | {"seed": seed}, rival, metric) for place, rival, metric, seed in every]

    def _comparison(self, place: dict[str, Any], rival: dict[str, Any], metric: str) -> Comparison:
        tested = place | self.tested
        a, b = _arm(**tested | rival), _arm(**tested)
        return Comparison(family=self.family.format(a=a, b=b, metric=metric), metric=metric, a=a, b=b)


def _arm(*, phase: Phase = "pre", **cell: Any) -> Arm:
    return Arm(cell=Cell(**cell), phase=phase)
