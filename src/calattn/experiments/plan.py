"""The plan of a grid: which cells are done, which are left, and about how long they take."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from calattn.experiments.cells import Cell, ScaleName, spec_of
from calattn.experiments.operations import operations
from calattn.experiments.results import CellResult, ResultStore

# Measured on an H200 (results/bench-training.json, engine of this package): DeiT-S, images a second by image size.
_MEASURED_RATE = {32: 27_000.0, 224: 8_900.0}
_MEASURED_FLOPS = {32: 2.84e9, 224: 9.20e9}  # of the same networks, one forward pass of one image
# Compiling (52 to 63 s, less once cached), predictions of both checkpoints, 16 bootstraps: of every cell.
_OVERHEAD = 90.0
_SMOKE = 3.0  # measured on one core: two epochs, predictions and analysis
_TRAINING_IMAGES = {
    "cifar10": 47_500,
    "cifar100": 47_500,
    "mnist": 57_000,
    "tiny_imagenet": 95_000,
    "imagenet1k": 1_217_000,
}
BASIS = (
    "H200: 27,000 images/s of DeiT-S at 32 px and 8,900 at 224 px as measured, other networks in proportion to their "
    f"operations, and {_OVERHEAD:.0f} s a cell for compiling and analysis"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """`seconds` has an estimate for each cell to do, one after another on one device; `basis` says what it rests on."""

    scale: ScaleName
    done: tuple[Cell, ...]
    todo: tuple[Cell, ...]
    seconds: dict[Cell, float]
    basis: str

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

    A cell like one that is done (data set and network) is expected to take as long as that did. With `until_epoch`, cells that
    got so far are done.
    """
    ordered = twins_first(cells)
    found = {cell: store.get(cell) for cell in ordered}
    done = {cell: result for cell, result in found.items() if isinstance(result, CellResult)}
    if until_epoch is not None:
        partly = {cell: store.unfinished(cell) for cell in ordered if cell not in done}
        done |= {cell: each for cell, each in partly.items() if each is not None and each.run["epochs"] >= until_epoch}
    todo = tuple(cell for cell in ordered if cell not in done)
    known: dict[tuple[str, str], list[float]] = {}
    for cell, result in done.items():
        so_far = result.planned_epochs if until_epoch is None else min(until_epoch, result.planned_epochs)
        if "seconds" in result.run and result.run["epochs"] == so_far:
            alone = result.run["seconds"] / result.run.get("side_by_side", 1)
            known.setdefault((cell.dataset, cell.model), []).append(alone)
    seconds = {
        cell: statistics.median(known[key])
        if (key := (cell.dataset, cell.model)) in known
        else estimate(cell, scale, until_epoch=until_epoch)
        for cell in todo
    }
    for cell in todo if scale != "smoke" else ():  # of what was begun, the rest is left
        begun = store.unfinished(cell)
        if begun is not None:
            last = begun.planned_epochs if until_epoch is None else min(until_epoch, begun.planned_epochs)
            share = max(0.0, 1 - begun.run["epochs"] / last)
            seconds[cell] = _OVERHEAD + share * max(0.0, seconds[cell] - _OVERHEAD)
    basis = "3 s a cell, as measured on one core" if scale == "smoke" else BASIS
    like = sum((cell.dataset, cell.model) in known for cell in todo)
    basis += f"; {like} of {len(todo)} as long as finished cells of the same kind took" if like else ""
    return Plan(scale=scale, done=tuple(done), todo=todo, seconds=seconds, basis=basis)


def twins_first(cells: Iterable[Cell]) -> list[Cell]:
    """The cells once each, in their order, except that a cell's twin comes before it where it would come later."""
    wanted = dict.fromkeys(cells)
    ordered: dict[Cell, None] = {}
    for cell in wanted:
        if cell.twin in wanted:
            ordered[cell.twin] = None
        ordered[cell] = None
    return list(ordered)


def estimate(cell: Cell, scale: ScaleName, *, until_epoch: int | None = None) -> float:
    """Seconds of a cell by `BASIS`; at the scale "smoke", on one core."""
    if scale == "smoke":
        return _SMOKE
    spec = spec_of(cell, scale)
    side = 224 if (spec.data.size or 32) >= 128 else 32
    rate = _MEASURED_RATE[side] * _MEASURED_FLOPS[side] / operations(spec)
    # Tiny networks wait for the host, which the measured one at 32 px nearly does.
    rate = min(rate, _MEASURED_RATE[32])
    epochs = spec.train.epochs if until_epoch is None else min(until_epoch, spec.train.epochs)
    return epochs * _TRAINING_IMAGES.get(cell.dataset, 50_000) / rate + _OVERHEAD


class Forecast:
    """The time left, from the plan's estimates corrected by how long finished cells took."""

    def __init__(self, seconds: dict[Cell, float], *, jobs: int = 1) -> None:
        self._seconds, self._jobs = dict(seconds), jobs
        self._expected = self._spent = 0.0

    def took(self, cell: Cell, seconds: float) -> None:
        self._expected += self._seconds[cell]
        self._spent += seconds / self._jobs

    def of(self, cells: Sequence[Cell]) -> float:
        """Seconds that cells will take, the device shared by all jobs."""
        ratio = self._spent / self._expected if self._expected else 1.0
        return ratio * sum(self._seconds[cell] for cell in cells)
