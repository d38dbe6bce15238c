"""Results of cells as files: everything a table, a figure or a verdict needs, small enough to commit."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from calattn.engine.log import plain
from calattn.files.atomic import atomic_write
from calattn.rules import Rule
from calattn.runs.folder import read_json, write_json
from calattn.types import MetricRow
from reproduction.cells import GridCell, ScaleName, hash_of

FORMAT = 1
NOT_RUN = "not run"
NAMED = 6  # cells in a sentence
RULES: tuple[Rule, ...] = ("last", "best-ece")
"""Those by which claims are judged; newer cells are predicted under more, see `cells.rules_of`."""
OOD_SETS = ("svhn", "cifar10_c")
Phase = Literal["pre", "post", "post_nll", "sats"]
"""As it stands; after temperature scaling by the paper's grid on ECE; by NLL; after SATS. All fitted on validation."""


class PairedDifference(NamedTuple):
    """A metric of a cell minus that of its twin without the head, resampled together."""

    difference: float
    low: float
    high: float
    p_value: float


class Hole(NamedTuple):
    """A cell without a result, and why. It can be asked as a result can."""

    cell: GridCell
    reason: str

    def metric(self, *_: object, **__: object) -> MetricRow | None:
        return None

    def paired(self, *_: object, **__: object) -> PairedDifference | None:
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell's document. Its parts:

    run       spec (settled), spec_hash, environment, epochs (trained), training_seconds, images_per_second, parameters,
              seconds (wall time, training to analysis), side_by_side (how many runs shared the device at most), ood {sets: name →
              title, images; missing: name → reason}, twin (name of the cell that `pair` is against, None where not at hand)
    log       a row an epoch (at most 100 of a longer run, the ends among them): epoch, train {loss, accuracy}, validation
              {accuracy, nll, brier, ece, scale, inverse_scale, feature_norm: each mean, std, cv}; the first, middle and last
              row also have the quantiles and the histogram {counts, edges} of the three
    rules     rule → epoch, temperature {ece, nll}, converged {ece, nll}, phases {phase → metric → value, low, high},
              bins {pre, post → counts, confidence (mean of each bin), accuracy; null in empty bins}, ood {name → auroc},
              ood_intervals {name → low, high}, cls_norm_correlation (newer networks with a CLS token),
              scale (engine.log.distribution; absent for heads without one),
              scatter {feature_norm, max_prob, scaled_max_prob, scale, correct}, lists of up to 400 test images: max_prob of
              the raw logits, scaled_max_prob of what is predicted
    pair      rule → phase (pre, post) → metric → difference, low, high, p_value; empty where the twin was not at hand.
              Under "pre" also ood_svhn and ood_cifar10_c, differences of AUROC
    """

    cell: GridCell
    scale: ScaleName
    cell_hash: str
    run: dict[str, Any]
    log: list[dict[str, Any]]
    rules: dict[str, dict[str, Any]]
    pair: dict[str, Any]

    @property
    def planned_epochs(self) -> int:
        return int(self.run["spec"]["train"]["epochs"])

    @property
    def unfinished(self) -> bool:
        """Whether training stopped before its last epoch: such a result is shown as what it is and enters no table or verdict."""
        return int(self.run["epochs"]) < self.planned_epochs

    def metric(self, name: str, *, rule: Rule = "last", phase: Phase = "pre") -> MetricRow | None:
        """A metric of the test images, a fraction, with its interval, or an OOD AUROC, or the share of parameters that the head
        adds; None where it was not measured."""
        if name.removeprefix("ood_") in OOD_SETS:
            return self.ood(name.removeprefix("ood_"), rule=rule)
        if name == "parameters_added":
            counts = self.run["parameters"]
            return MetricRow(name=name, value=counts["head"] / counts["backbone"])
        found = self.rules.get(rule, {}).get("phases", {}).get(phase, {}).get(name)
        if found is None or found["value"] is None:
            return None
        return MetricRow(name=name, value=found["value"], low=found["low"], high=found["high"])

    def temperature(self, *, rule: Rule = "last", objective: Literal["ece", "nll"] = "ece") -> float | None:
        return self.rules.get(rule, {}).get("temperature", {}).get(objective)

    @property
    def lowest_nll(self) -> dict[str, Any] | None:
        """The validation metrics of the epoch of the lowest validation NLL, from the log."""
        rows = [row["validation"] for row in self.log if row["validation"].get("nll") is not None]
        return min(rows, key=lambda row: row["nll"], default=None)

    def ood(self, name: str, *, rule: Rule = "last") -> MetricRow | None:
        """AUROC of 1 − max probability against out-of-distribution images: "svhn", or "cifar10_c" (the mean over fifteen)."""
        found = self.rules.get(rule, {})
        value = found.get("ood", {}).get(name)
        ends = found.get("ood_intervals", {}).get(name, {})
        return None if value is None else MetricRow(name=name, value=value, **ends)

    def paired(self, name: str, *, rule: Rule = "last", phase: Phase = "pre") -> PairedDifference | None:
        found = self.pair.get(rule, {}).get(phase, {}).get(name)
        return None if found is None else PairedDifference(**found)


def missing(found: Iterable[CellResult | Hole]) -> str:
    """Which cells have no result, by reason; empty where all have."""
    reasons: dict[str, list[str]] = {}
    for hole in found:
        if isinstance(hole, Hole):
            reasons.setdefault(hole.reason, []).append(f"`{hole.cell.name}`")
    texts = []
    for reason, names in reasons.items():
        more = f" and {len(names) - NAMED} others" if len(names) > NAMED else ""
        texts.append(f"{', '.join(names[:NAMED])}{more} ({reason})")
    return "; ".join(texts)


def document_text(document: dict[str, Any]) -> str:
    """JSON with one line a list or object that holds no other: a third of the size, and differences that can be read.

    >>> print(document_text({"ece": {"value": 0.1, "low": 0.05}}), end="")
    {
     "ece": {"value": 0.1, "low": 0.05}
    }
    """
    text = json.dumps(plain(document, "result"), indent=1, ensure_ascii=False, allow_nan=False)
    # A line break inside a string is written as an escape: those found here all stand between values.
    innermost = re.compile(r"([\[{])\n *([^\[\]{}]*?)\n *([\]}])")
    return innermost.sub(lambda found: found[1] + re.sub(r"\n *", " ", found[2]) + found[3], text) + "\n"


class ResultStore:
    """`<folder>/<scale>/<cell>.json`: written whole or not at all, found again by the cell's hash.

    Beside it may lie <cell>.failed.json, why a cell has no result, and <cell>.unfinished.json, how far it got.
    """

    def __init__(self, folder: Path, scale: ScaleName) -> None:
        self.folder, self.scale = Path(folder) / scale, scale

    @property
    def heads(self) -> Path:
        """Where the documents of `benchmarks.head` lie, beside the folder of all scales."""
        return self.folder.parents[1] / "head"

    def path(self, cell: GridCell) -> Path:
        return self.folder / f"{cell.name}.json"

    def get(self, cell: GridCell) -> CellResult | Hole:
        path = self.path(cell)
        if path.exists():
            return self._read(cell, path)
        failure = path.with_suffix(".failed.json")
        if failure.exists():
            return Hole(cell=cell, reason=read_json(failure)["reason"])
        partly = self.unfinished(cell)
        if partly is not None:
            return Hole(cell=cell, reason=f"unfinished: {partly.run['epochs']} of {partly.planned_epochs} epochs")
        return Hole(cell=cell, reason=NOT_RUN)

    def unfinished(self, cell: GridCell) -> CellResult | None:
        """What a cell that was stopped before its last epoch had come to."""
        path = self.path(cell).with_suffix(".unfinished.json")
        found = self._read(cell, path) if path.exists() else None
        return found if isinstance(found, CellResult) else None

    def stored(self) -> Iterator[CellResult]:
        """Every result in the folder that is of today's spec, in the order of their names."""
        for path in self.names():
            found = self.get(GridCell(**_document(path)["cell"]))
            if isinstance(found, CellResult):
                yield found

    def names(self) -> list[Path]:
        """The files of results."""
        paths = sorted(self.folder.glob("*.json"))
        return [path for path in paths if not path.stem.endswith((".failed", ".unfinished"))]

    def _read(self, cell: GridCell, path: Path) -> CellResult | Hole:
        found, wanted = _document(path), hash_of(cell, self.scale)
        if found.get("format") != FORMAT or found.get("cell_hash") != wanted:
            return Hole(cell=cell, reason=f"{path.name} is of another spec ({found.get('cell_hash')}, now {wanted})")
        parts = {name: found[name] for name in ("cell_hash", "run", "log", "rules", "pair")}
        return CellResult(cell=cell, scale=self.scale, **parts)

    def put(self, result: CellResult) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, **dataclasses.asdict(result)}
        whole = self.path(result.cell)
        target = whole.with_suffix(".unfinished.json") if result.unfinished else whole
        with atomic_write(target) as partial:
            partial.write_text(document_text(document), encoding="utf-8")
        whole.with_suffix(".failed.json").unlink(missing_ok=True)
        if not result.unfinished:
            whole.with_suffix(".unfinished.json").unlink(missing_ok=True)
        return target

    def fail(self, cell: GridCell, reason: str) -> None:
        """Remembers why a cell has no result; the next attempt replaces it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json({"format": FORMAT, "reason": reason}, self.path(cell).with_suffix(".failed.json"))


def _document(path: Path) -> Any:
    """Verdicts ask for each result hundreds of times; a file that was replaced is read again."""
    state = path.stat()
    return _read_document(path, state.st_mtime_ns, state.st_ino)


@functools.lru_cache(maxsize=512)
def _read_document(path: Path, _changed: int, _file: int) -> Any:
    return read_json(path)
