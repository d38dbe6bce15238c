"""Estimates of how long cells take: by finished cells like them, else by what was measured on an H200."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from datetime import datetime

from calattn.experiments.cells import Cell, ScaleName, spec_of
from calattn.experiments.operations import image_size, operations
from calattn.experiments.results import CellResult

# Measured on an H200 (results/bench-training.json, engine of this package): DeiT-S, images a second by image size.
_MEASURED_RATE = {32: 27_000.0, 224: 8_900.0}
_MEASURED_FLOPS = {32: 2.84e9, 224: 9.20e9}  # of the same networks, one forward pass of one image
# Compiling (52 to 63 s, less once cached), predictions of both checkpoints, 16 bootstraps: of every cell.
OVERHEAD = 90.0
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
    f"operations, and {OVERHEAD:.0f} s a cell for compiling and analysis"
)


def estimate(cell: Cell, scale: ScaleName, *, until_epoch: int | None = None) -> float:
    """Seconds of a cell by `BASIS`; at the scale "smoke", on one core."""
    if scale == "smoke":
        return _SMOKE
    spec = spec_of(cell, scale)
    side = 224 if image_size(spec) >= 128 else 32
    rate = _MEASURED_RATE[side] * _MEASURED_FLOPS[side] / operations(spec)
    # Tiny networks wait for the host, which the measured one at 32 px nearly does.
    rate = min(rate, _MEASURED_RATE[32])
    return _trained(cell, scale, until_epoch) / rate + OVERHEAD


def _trained(cell: Cell, scale: ScaleName, until_epoch: int | None) -> float:
    """Images that training sees: those of the data set, an epoch after another."""
    spec = spec_of(cell, scale)
    epochs = spec.train.epochs if until_epoch is None else min(until_epoch, spec.train.epochs)
    return epochs * (spec.data.limit or _TRAINING_IMAGES.get(spec.data.name, 50_000))


class Experience:
    """What finished cells took, for those like them: the same network on the same data set, or on images of the same size.

    On another data set it counts in proportion to the images that training sees.
    """

    def __init__(self, scale: ScaleName, results: Sequence[CellResult] = (), *, until_epoch: int | None = None) -> None:
        self._scale, self._until_epoch = scale, until_epoch
        self._same: dict[tuple[str, str], list[float]] = {}
        self._alike: dict[tuple[str, int], list[float]] = {}
        self._devices: set[str] = set()
        self._gpus: set[str] = set()
        times = [span for result in results if (span := _span(result)) is not None]
        for result in results:
            self._add(result, times)

    def _add(self, result: CellResult, times: Sequence[tuple[float, float]]) -> None:
        """One that stopped at another epoch than asked for says nothing."""
        cell, planned = result.cell, result.planned_epochs
        last = planned if self._until_epoch is None else min(self._until_epoch, planned)
        if "seconds" not in result.run or result.run["epochs"] != last:
            return
        alone = _alone(result, times)
        self._same.setdefault((cell.dataset, cell.model), []).append(alone)
        rate = alone / _trained(cell, self._scale, self._until_epoch)
        self._alike.setdefault(self._network(cell), []).append(rate)
        self._devices.add(result.device)
        if result.on_gpu:
            self._gpus.add(result.device)

    def same(self, cell: Cell) -> float | None:
        """The median of cells with this data set and network."""
        found = self._same.get((cell.dataset, cell.model))
        return None if found is None else statistics.median(found)

    def alike(self, cell: Cell) -> float | None:
        """By cells with this network and image size, whatever their data set."""
        found = self._alike.get(self._network(cell))
        return None if found is None else statistics.median(found) * _trained(cell, self._scale, self._until_epoch)

    def seconds(self, cell: Cell) -> float:
        for found in (self.same(cell), self.alike(cell)):
            if found is not None:
                return found
        return estimate(cell, self._scale, until_epoch=self._until_epoch)

    def basis(self, cells: tuple[Cell, ...]) -> str:
        """What the times of these cells rest on, in words."""
        same = sum(self.same(cell) is not None for cell in cells)
        alike = sum(self.alike(cell) is not None for cell in cells) - same
        parts = []
        if self._by_formula(cells):
            parts.append("3 s a cell, as measured on one core" if self._scale == "smoke" else BASIS)
        if same:
            parts.append(f"{same} of {len(cells)} as long as finished cells of the same kind took")
        if alike:
            parts.append(
                f"{alike} of {len(cells)} as long as finished cells of the same network and image size on another data set "
                "took, in proportion to training images × epochs"
            )
        if same or alike:
            parts.append(f"finished on: {', '.join(sorted(self._devices))}")
        return "; ".join(parts) or "nothing is left to do"

    def gpus(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        """The GPUs that the times of these cells are of; none at the scale that was measured on a core."""
        formula = self._by_formula(cells)
        measured = {"NVIDIA H200"} if formula and self._scale != "smoke" else set()
        return tuple(sorted(measured | (self._gpus if formula < len(cells) else set())))

    def _by_formula(self, cells: tuple[Cell, ...]) -> int:
        return sum(self.same(cell) is None and self.alike(cell) is None for cell in cells)

    def _network(self, cell: Cell) -> tuple[str, int]:
        spec = spec_of(cell, self._scale)
        return spec.model.backbone, image_size(spec)


def _span(result: CellResult) -> tuple[float, float] | None:
    """From when to when a cell was under way, by the clock; None where that is not written down."""
    started = (result.run.get("environment") or {}).get("started")
    if started is None or "seconds" not in result.run:
        return None
    begin = datetime.fromisoformat(started).timestamp()
    return begin, begin + result.run["seconds"]


def _alone(result: CellResult, times: Sequence[tuple[float, float]]) -> float:
    """Its seconds of the device: of each moment a share as large as that of the others under way, at most as many as said."""
    seconds, jobs = float(result.run["seconds"]), int(result.run.get("side_by_side", 1))
    span = _span(result)
    if span is None or jobs == 1:
        return seconds / jobs
    begin, end = span
    moments = sorted({begin, end, *(moment for other in times for moment in other if begin < moment < end)})
    return sum(
        (until - since) / min(jobs, sum(first < until and since < last for first, last in times))
        for since, until in itertools.pairwise(moments)
    )
