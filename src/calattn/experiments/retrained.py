"""The section of REPRODUCTION.md on networks that were trained twice: how much of a difference another training makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calattn.experiments.cells import Cell
from calattn.experiments.claim_report import NONE, markdown_table
from calattn.experiments.claims import CLAIMS, RULES, verdicts
from calattn.experiments.evidence import Results
from calattn.experiments.results import CellResult, Phase, ResultStore, Rule
from calattn.report.style import number
from calattn.workbench.folder import read_json

_BEFORE = "trained-before"
"""First results of cells that were trained again, as a store of their own beside that of the grid."""
_PILOT = {
    "cifar10-deit-small/ce": Cell(dataset="cifar10", model="deit", loss="ce"),
    "cifar10-deit-small/calattn": Cell(dataset="cifar10", model="deit", head="calattn"),
}
"""Runs of `calattn train` with the settings and seeds of cells."""
_SHOWN: tuple[tuple[str, str, Phase], ...] = (
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
    commit: str
    epochs: dict[Rule, int]
    values: dict[tuple[Rule, str, Phase], float]

    def row(self, network: str) -> list[str]:
        shown = [network, self.where, self.commit]
        for rule in RULES:
            shown.append(str(self.epochs[rule]))
            shown += [number(metric, self.values[rule, metric, phase]) for _, metric, phase in _SHOWN]
        return shown


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


def retrained(results: Results) -> str:
    """Both trainings of each network beside each other, how far they are apart, and what hangs on which of them counts."""
    pairs = list(pairs_of(results))
    if not pairs:
        return "None.\n"
    header = ["network", "result", "commit"]
    for rule in RULES:
        header += [f"{rule}: epoch", *(title for title, _, _ in _SHOWN)]
    rows = [each.row(f"`{pair.cell.name}`") for pair in pairs for each in (pair.counted, pair.other)]
    text = (
        "Training on a GPU does not always give the same network again. These were trained twice with the same settings and "
        "seed; CE+BS with λ = 0 is cross-entropy. The first of two is the one that counts for the claims; the other has its "
        "place in the λ tables, and counts wherever this report counts networks, or is in no table.\n\n"
    )
    return f"{text}{markdown_table(header, rows)}\n{_apart(pairs)}{_hangs_on_it(pairs, results)}"


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
        for _, metric, phase in _SHOWN:
            row = result.metric(metric, rule=rule, phase=phase)
            values[rule, metric, phase] = float("nan") if row is None else row.value
    epochs = {rule: int(result.rules[rule]["epoch"]) for rule in RULES}
    return Training(where=where, commit=_commit(result.run["environment"]), epochs=epochs, values=values)


def _of_summary(path: Path, name: str) -> Training:
    """What `calattn train` writes."""
    found = read_json(path)
    values = {
        (rule, metric, phase): float(found["results"][rule][_PARTS[phase]][metric]["value"])
        for rule in RULES
        for _, metric, phase in _SHOWN
    }
    epochs = {rule: int(found["results"][rule]["epoch"]) for rule in RULES}
    return Training(where=f"results/{name}", commit=_commit(found["environment"]), epochs=epochs, values=values)


def _commit(environment: dict[str, Any]) -> str:
    commit = environment.get("commit")
    return f"`{str(commit['hash'])[:10]}`" if commit else NONE


def _apart(pairs: Sequence[Pair]) -> str:
    others = [pair for pair in pairs if not pair.same]
    text = f"{len(pairs) - len(others)} of {len(pairs)} came out the same."
    if not others:
        return f"{text}\n"
    most = [
        (f"{title} at `{rule}`", max(abs(pair.apart(rule, metric, phase)) for pair in others))
        for rule in RULES
        for title, metric, phase in _SHOWN
    ]
    shown = ", ".join(f"{title} {number('ece', value)}" for title, value in most)
    return (
        f"{text} The others are apart by up to, in points: {shown}. So what is decided with one seed may not survive another "
        "training, least of all at `best-ece`.\n"
    )


def _hangs_on_it(pairs: Sequence[Pair], results: Results) -> str:
    """What would be different if the other training counted."""
    lines = []
    for pair in pairs:
        if pair.same:
            continue
        told = [*_accuracies(pair, results), *_counts(pair, pairs, results)]
        if told:
            lines.append(f"- `{pair.cell.name}`: {'; '.join(told)}.")
    return "\nIf the other of the two counted:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _accuracies(pair: Pair, results: Results) -> list[str]:
    """The difference of accuracy to the twin, or to the network with CalAttn whose twin it is."""
    head = dataclasses.replace(pair.cell, head="calattn")
    partner = results.get(pair.cell.twin if pair.cell.head != "none" else head)
    row = partner.metric("accuracy", rule="best-ece") if isinstance(partner, CellResult) else None
    if row is None:
        return []
    plain = pair.cell.head == "none"
    values = [
        number("accuracy", row.value - ours if plain else ours - row.value, signed=True)
        for each in (pair.other, pair.counted)
        for ours in (each.values["best-ece", "accuracy", "pre"],)
    ]
    return [
        f"the difference of accuracy that comes with CalAttn at `best-ece` would be {values[0]} instead of {values[1]}"
    ]


def _counts(pair: Pair, pairs: Sequence[Pair], results: Results) -> list[str]:
    """Counts of families that would be others. A paired difference is to the other training's own twin: where that came out
    as the counted twin did, it can take the place."""
    twins_same = any(each.cell == pair.cell.twin and each.same for each in pairs)
    if pair.result is None or not twins_same:
        return []
    before, after = verdicts(results), verdicts(results.with_result(pair.result))
    told = []
    for name, verdict in before.items():
        for rule, finding in verdict.findings.items():
            pairs_of_counts = [
                [each.counts.get("better", 0), each.counts.get("worse", 0)]
                for each in (after[name].findings[rule], finding)
            ]
            if pairs_of_counts[0] != pairs_of_counts[1]:
                shown = " instead of ".join(
                    f"better in {better}, worse in {worse}" for better, worse in pairs_of_counts
                )
                told.append(f"“{CLAIMS[name].title}” at `{rule}` would be {shown} of {len(finding.outcomes)} families")
        if after[name].title != verdict.title:
            told.append(f"“{CLAIMS[name].title}” would have the verdict “{after[name].title}”")
    return told
