"""Networks that were trained twice with the same settings and seed: how much of a difference another training makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calattn.runs.folder import read_json
from reproduction.cells import Cell
from reproduction.claims import RULES
from reproduction.evidence import Results
from reproduction.results import CellResult, Phase, ResultStore, Rule

_BEFORE = "trained-before"
"""First results of cells that were trained again, as a store of their own beside that of the grid."""
_PILOT = {
    "cifar10-deit-small/ce": Cell(dataset="cifar10", model="deit", loss="ce"),
    "cifar10-deit-small/calattn": Cell(dataset="cifar10", model="deit", head="calattn"),
}
"""Runs of `calattn train` with the settings and seeds of cells."""
SHOWN: tuple[tuple[str, str, Phase], ...] = (
    ("accuracy", "accuracy", "pre"),
    ("ECE", "ece", "pre"),
    ("ECE + TS", "ece", "post"),
)
"""Title, metric, phase."""
_PARTS: dict[Phase, str] = {"pre": "test", "post": "test_ts_ece"}
"""Of what `calattn train` writes, by phase."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One of two trainings. `where`: the cell that counts it, or the folder of what is counted nowhere."""

    where: str
    environment: dict[str, Any]
    epochs: dict[Rule, int]
    values: dict[tuple[Rule, str, Phase], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two trainings of `cell`, the first being what its cell counts. `result`: the second, where all of it is known."""

    cell: Cell
    counted: Training
    other: Training
    result: CellResult | None = None

    @property
    def same(self) -> bool:
        ours, theirs = self.counted, self.other
        # The documents of the two have been rounded to different digits.
        close = all(abs(value - theirs.values[key]) < 1e-7 for key, value in ours.values.items())
        return close and ours.epochs == theirs.epochs

    def apart(self, rule: Rule, metric: str, phase: Phase = "pre") -> float:
        key = (rule, metric, phase)
        return self.other.values[key] - self.counted.values[key]


def pairs_of(results: Results) -> Iterator[Pair]:
    """Of cells with λ = 0 and plain cross-entropy; of first results that were kept; of the pilot."""
    for found in results.stored():
        if found.cell.loss == "ce_brier" and found.cell.weight == 0.0:
            cell = dataclasses.replace(found.cell, loss="ce", weight=Cell.weight)
            counted = results.get(cell)
            if isinstance(counted, CellResult):
                ours, theirs = (_training(each, f"`{each.cell.name}`") for each in (counted, found))
                yield Pair(cell=cell, counted=ours, other=theirs, result=dataclasses.replace(found, cell=cell))
    folder = results.store.folder.parents[1]
    before = Results(ResultStore(folder / _BEFORE, results.scale))
    for first in before.stored():
        counted = results.get(first.cell)
        if isinstance(counted, CellResult):
            ours = _training(counted, f"`{counted.cell.name}`")
            yield Pair(cell=first.cell, counted=ours, other=_training(first, f"results/{_BEFORE}"))
    for name, cell in _PILOT.items():
        counted, path = results.get(cell), folder / name / "summary.json"
        if isinstance(counted, CellResult) and path.exists():
            yield Pair(cell=cell, counted=_training(counted, f"`{cell.name}`"), other=_of_summary(path, name))


def _training(result: CellResult, where: str) -> Training:
    values = {}
    for rule in RULES:
        for _, metric, phase in SHOWN:
            row = result.metric(metric, rule=rule, phase=phase)
            values[rule, metric, phase] = float("nan") if row is None else row.value
    epochs = {rule: int(result.rules[rule]["epoch"]) for rule in RULES}
    return Training(where=where, environment=result.run["environment"], epochs=epochs, values=values)


def _of_summary(path: Path, name: str) -> Training:
    """What `calattn train` writes."""
    found = read_json(path)
    values = {
        (rule, metric, phase): float(found["results"][rule][_PARTS[phase]][metric]["value"])
        for rule in RULES
        for _, metric, phase in SHOWN
    }
    epochs = {rule: int(found["results"][rule]["epoch"]) for rule in RULES}
    return Training(where=f"results/{name}", environment=found["environment"], epochs=epochs, values=values)
