"""Made-up worlds: stores in which it is known what CalAttn does, so that the verdicts are known too."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reproduction.cells import GridCell, ScaleName, spec_of
from reproduction.planned import ordered_cells
from reproduction.results import CellResult, Hole, ResultStore

RULES = ("last", "best-ece")
BASE = {
    "accuracy": 0.7,
    "nll": 1.1,
    "brier": 0.42,
    "ece": 0.08,
    "smooth_ece": 0.07,
    "adaptive_ece": 0.075,
    "classwise_ece": 0.004,
    "misclassification_auroc": 0.85,
    "high_confidence_error_rate": 0.06,
    "high_confidence_error_share": 0.2,
}
AFTER = {"post": 0.25, "post_nll": 0.3, "sats": 0.4}
"""What a post-hoc step leaves of the calibration errors."""

Effect = Callable[[GridCell, str, str, str], float]
"""(cell, rule, phase, metric) → what the head adds; OOD metrics are "ood_svhn" and "ood_cifar10_c"."""


def helps(cell: GridCell, _rule: str, phase: str, metric: str) -> float:
    """CalAttn as the paper has it."""
    good = {"accuracy": 0.003, "misclassification_auroc": 0.02, "ood_svhn": 0.03, "ood_cifar10_c": 0.05, "nll": -0.05}
    scale = 0.4 if phase == "pre" else 0.1
    size = good.get(metric, -scale * BASE.get(metric, 0.1))
    return size * {"dirichlet": 0.2}.get(cell.head, 1.0) * {"cls": 1.0, "patch_mean": 1.3}.get(cell.features, 0.5)


def nothing(_cell: GridCell, _rule: str, _phase: str, _metric: str) -> float:
    return 0.0


def changes(changed: str, size: float, other: Effect = nothing) -> Effect:
    """The head changes one metric by this much, and the rest as another world has it."""
    return lambda cell, rule, phase, metric: size if metric == changed else other(cell, rule, phase, metric)


def phased_log(epochs: int = 60) -> list[dict[str, Any]]:
    """The paper's three phases: mean and variation fall, stay, then variation rises and the mean crosses 1."""
    rows = []
    for epoch in range(1, epochs + 1):
        share = epoch / epochs
        mean = 1.6 - 0.3 * min(1.0, share / 0.09) if share < 0.43 else 1.3 - 0.9 * (share - 0.43)
        cv = 0.3 - 0.2 * min(1.0, share / 0.09) if share < 0.43 else 0.1 + 0.4 * (share - 0.43)
        rows.append(
            {
                "epoch": epoch,
                "train": {"loss": 1.0, "accuracy": share},
                "validation": {"scale": {"mean": mean, "std": cv * mean, "cv": cv}, "accuracy": share, "ece": 0.05},
            }
        )
    return rows


def made(
    cell: GridCell,
    effect: Effect,
    *,
    scale: ScaleName = "reduced",
    half: float = 0.001,
    log: list[dict[str, Any]] | None = None,
    head_parameters: int = 49_409,
) -> CellResult:
    """A document; `half` is half the width of every interval."""
    spec = spec_of(cell, scale)
    commit = {"hash": "0123456789abcdef", "dirty": False}
    return CellResult(
        cell=cell,
        scale=scale,
        cell_hash=spec.hash,
        run={
            "spec": spec.model_dump(mode="json"),
            "spec_hash": spec.hash,
            "environment": {
                "commit": commit,
                "devices": [{"name": "made-up device"}],
                "started": "2026-01-01T00:00:00",
            },
            "epochs": spec.train.epochs,
            "training_seconds": 61.0,
            "images_per_second": 27_000.0,
            "parameters": {"backbone": 21_665_664, "head": 0 if cell.head == "none" else head_parameters},
        },
        log=phased_log() if log is None else log,
        rules={rule: _rule(cell, effect, rule, half) for rule in RULES},
        pair={rule: _pair(cell, effect, rule, half) for rule in RULES} if cell.head != "none" else {},
    )


class MadeStore(ResultStore):
    """A store in memory: files are tested elsewhere, and a hundred of them for every test take seconds."""

    def __init__(self, scale: ScaleName, found: dict[GridCell, CellResult]) -> None:
        super().__init__(Path("nowhere"), scale)
        self.found = found

    def get(self, cell: GridCell) -> CellResult | Hole:
        return self.found.get(cell) or Hole(cell=cell, reason="not run")


def world(
    effect: Effect, *, cells: Iterable[GridCell] | None = None, scale: ScaleName = "reduced", **options: Any
) -> MadeStore:
    """A store of all cells of the scale (or of those named)."""
    wanted = ordered_cells(scale) if cells is None else cells
    return MadeStore(scale, {cell: made(cell, effect, scale=scale, **options) for cell in wanted})


def on_disk(folder: Path, store: MadeStore) -> ResultStore:
    written = ResultStore(folder, store.scale)
    for result in store.found.values():
        written.put(result)
    return written


def value(cell: GridCell, effect: Effect, rule: str, phase: str, metric: str) -> float:
    base = BASE.get(metric, 0.7)
    error = metric not in ("accuracy", "nll", "brier", "misclassification_auroc") and not metric.startswith("ood_")
    base *= AFTER.get(phase, 1.0) if error else 1.0
    base += _jitter(cell) if metric in ("accuracy", "ece", "nll") else 0.0
    return base + (effect(cell, rule, phase, metric) if cell.head != "none" else 0.0)


def _jitter(cell: GridCell) -> float:
    """Families differ, as they do; a cell and its twin share it, and so do the inputs and heads of a network."""
    return (zlib.crc32(f"{cell.dataset}/{cell.model}/{cell.recipe}".encode()) % 1000) * 1e-5


def _rule(cell: GridCell, effect: Effect, rule: str, half: float) -> dict[str, Any]:
    def row(phase: str, metric: str) -> dict[str, float]:
        middle = value(cell, effect, rule, phase, metric)
        return {"value": middle, "low": middle - half, "high": middle + half}

    found: dict[str, Any] = {
        "epoch": 60 if rule == "last" else 21,
        "temperature": {"ece": 1.5, "nll": 1.4},
        "phases": {phase: {metric: row(phase, metric) for metric in BASE} for phase in ("pre", *AFTER)},
    }
    if cell.dataset == "cifar10":
        names = ("svhn", "cifar10_c")
        found["ood"] = {name: value(cell, effect, rule, "pre", f"ood_{name}") for name in names}
        found["ood_intervals"] = {name: {"low": v - half, "high": v + half} for name, v in found["ood"].items()}
    return found


def _pair(cell: GridCell, effect: Effect, rule: str, half: float) -> dict[str, Any]:
    metrics = (*BASE, *(("ood_svhn", "ood_cifar10_c") if cell.dataset == "cifar10" else ()))
    found: dict[str, Any] = {"pre": {}, "post": {}}
    for phase, rows in found.items():
        for metric in metrics:
            there, here = (value(each, effect, rule, phase, metric) for each in (cell.twin, cell))
            reach = half if math.isfinite(half) else 1.0
            rows[metric] = {"difference": here - there, "low": here - there - reach, "high": here - there + reach}
            rows[metric]["p_value"] = max(
                0.002, math.erfc(1.96 * abs(here - there) / reach / math.sqrt(2))
            )  # of 1,000 resamples
    return found
