"""The plan of a grid: which cells are done, which are left, and about how long they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from calattn.experiments.cells import Cell, ScaleName
from calattn.experiments.estimates import OVERHEAD, Experience
from calattn.experiments.order import ordered_cells
from calattn.experiments.results import CellResult, ResultStore


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """`seconds` has an estimate for each cell to do, one after another on one device; `basis` says what it rests on.

    `gpus` are those that the estimates are of.
    """

    scale: ScaleName
    done: tuple[Cell, ...]
    todo: tuple[Cell, ...]
    seconds: dict[Cell, float]
    basis: str
    gpus: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "done": [cell.name for cell in self.done],
            "todo": [{"cell": cell.name, "seconds": round(self.seconds[cell], 1)} for cell in self.todo],
            "seconds": round(self.total, 1),
            "basis": self.basis,
        }


def plan(cells: Iterable[Cell], scale: ScaleName, store: ResultStore, *, until_epoch: int | None = None) -> Plan:
    """Sorts cells into done and to do, twins first, and estimates the latter.

    Cells are expected to take what finished ones like them took (`Experience`). With `until_epoch`, cells that got so far are
    done.
    """
    ordered = twins_first(cells)
    # Also those that nobody asked for: of how long they took others can be told.
    known = {cell: _result(cell, store, until_epoch) for cell in dict.fromkeys((*ordered, *ordered_cells(scale)))}
    done = tuple(cell for cell in ordered if known[cell] is not None)
    todo = tuple(cell for cell in ordered if known[cell] is None)
    results = [result for result in known.values() if result is not None]
    experience = Experience(scale, results, until_epoch=until_epoch)
    seconds = {cell: experience.seconds(cell) for cell in todo}
    for cell in todo:  # of what was begun, the rest is left
        begun = store.unfinished(cell)
        if begun is not None:
            last = begun.planned_epochs if until_epoch is None else min(until_epoch, begun.planned_epochs)
            overhead = min(OVERHEAD, seconds[cell])  # finished cells may have taken less
            seconds[cell] = overhead + (1 - begun.run["epochs"] / last) * (seconds[cell] - overhead)
    basis, gpus = experience.basis(todo), experience.gpus(todo)
    return Plan(scale=scale, done=done, todo=todo, seconds=seconds, basis=basis, gpus=gpus)


def _result(cell: Cell, store: ResultStore, until_epoch: int | None) -> CellResult | None:
    """What a cell that is done has come to; done is also what got as far as `until_epoch`."""
    found = store.get(cell)
    if isinstance(found, CellResult):
        return found
    partly = None if until_epoch is None else store.unfinished(cell)
    return partly if partly is not None and until_epoch is not None and partly.run["epochs"] >= until_epoch else None


def twins_first(cells: Iterable[Cell]) -> list[Cell]:
    """The cells once each, in their order, except that a cell's twin comes before it where it would come later."""
    wanted = dict.fromkeys(cells)
    ordered: dict[Cell, None] = {}
    for cell in wanted:
        if cell.twin in wanted:
            ordered[cell.twin] = None
        ordered[cell] = None
    return list(ordered)


class Forecast:
    """The time left, from the plan's estimates corrected by how long finished cells took."""

    def __init__(self, seconds: dict[Cell, float]) -> None:
        self._seconds = dict(seconds)
        self._expected = self._spent = 0.0

    def took(self, cell: Cell, seconds: float) -> None:
        """So many seconds of the device: of those that it shared, its part."""
        self._expected += self._seconds[cell]
        self._spent += seconds

    def of(self, cells: Sequence[Cell]) -> float:
        """Seconds of the device that cells will take, side by side or not."""
        ratio = self._spent / self._expected if self._expected else 1.0
        return ratio * sum(self._seconds[cell] for cell in cells)
