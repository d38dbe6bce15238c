"""Results of cells as files: everything a table, a figure or a verdict needs, small enough to commit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from calattn.experiments.cells import Cell, ScaleName, spec_of
from calattn.types import MetricRow
from calattn.workbench.folder import read_json, write_json

FORMAT = 1
Rule = Literal["last", "best-ece"]
Phase = Literal["pre", "post", "post_nll", "sats"]
"""As it stands; after temperature scaling by the paper's grid on ECE; by NLL; after SATS. All fitted on validation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hole:
    """A cell without a result, and why."""

    cell: Cell
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """A metric of a cell minus that of its twin without the head, resampled together."""

    difference: float
    low: float
    high: float
    p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell's document. Its parts:

    run       spec (settled), spec_hash, environment, epochs, training_seconds, images_per_second, parameters
    log       a row an epoch: epoch, train loss, validation accuracy, NLL, ECE, scale, inverse_scale, feature_norm
              (histograms at the first, middle and last epoch only)
    rules     rule → epoch, temperature {ece, nll}, phases {phase → metric → value, low, high},
              bins {phase → counts, confidence (mean of each bin), accuracy}, ood {name → auroc},
              scale (engine.measure.distribution), scatter {feature_norm, max_prob, scaled_max_prob, scale, correct},
              lists of one length: max_prob of the raw logits, scaled_max_prob of what is predicted
    pair      rule → phase → metric → difference, low, high, p_value; empty where the twin was not at hand
    """

    cell: Cell
    scale: ScaleName
    cell_hash: str
    run: dict[str, Any]
    log: list[dict[str, Any]]
    rules: dict[str, dict[str, Any]]
    pair: dict[str, Any]

    def metric(self, name: str, *, rule: Rule = "last", phase: Phase = "pre") -> MetricRow | None:
        """A metric of the test images, a fraction, with its interval; None where it was not measured."""
        found = self.rules.get(rule, {}).get("phases", {}).get(phase, {}).get(name)
        if found is None or found["value"] is None:
            return None
        return MetricRow(name=name, value=found["value"], low=found["low"], high=found["high"])

    def temperature(self, *, rule: Rule = "last", objective: Literal["ece", "nll"] = "ece") -> float | None:
        return self.rules.get(rule, {}).get("temperature", {}).get(objective)

    def ood(self, name: str, *, rule: Rule = "last") -> float | None:
        """AUROC of 1 − max probability against out-of-distribution images: "svhn", or "cifar10_c" (the mean over fifteen)."""
        return self.rules.get(rule, {}).get("ood", {}).get(name)

    def paired(self, name: str, *, rule: Rule = "last", phase: Phase = "pre") -> PairedDifference | None:
        found = self.pair.get(rule, {}).get(phase, {}).get(name)
        return None if found is None else PairedDifference(**found)


class ResultStore:
    """`<folder>/<scale>/<cell>.json`: written whole or not at all, found again by the cell's hash."""

    def __init__(self, folder: Path, scale: ScaleName) -> None:
        self.folder, self.scale = Path(folder) / scale, scale

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.name}.json"

    def get(self, cell: Cell) -> CellResult | Hole:
        path = self.path(cell)
        if not path.exists():
            failure = path.with_suffix(".failed.json")
            reason = read_json(failure)["reason"] if failure.exists() else "not run"
            return Hole(cell=cell, reason=reason)
        found = read_json(path)
        wanted = spec_of(cell, self.scale).hash
        if found.get("format") != FORMAT or found.get("cell_hash") != wanted:
            return Hole(cell=cell, reason=f"{path.name} is of another spec ({found.get('cell_hash')}, now {wanted})")
        parts = {name: found[name] for name in ("cell_hash", "run", "log", "rules", "pair")}
        return CellResult(cell=cell, scale=self.scale, **parts)

    def put(self, result: CellResult) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, **dataclasses.asdict(result)}
        write_json(document, self.path(result.cell))
        self.path(result.cell).with_suffix(".failed.json").unlink(missing_ok=True)
        return self.path(result.cell)

    def fail(self, cell: Cell, reason: str) -> None:
        """Remembers why a cell has no result; the next attempt replaces it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json({"format": FORMAT, "reason": reason}, self.path(cell).with_suffix(".failed.json"))
