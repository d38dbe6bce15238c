"""The paper's own schedule: networks trained with it, whole or as far as they came, beside the paper's numbers."""

from __future__ import annotations

import dataclasses
import statistics
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction import paper
from reproduction.cells import BACKBONES, Cell, rules_of
from reproduction.evidence import Results
from reproduction.render import markdown_table, shown
from reproduction.results import CellResult, ResultStore

PAIR = tuple(Cell(dataset="cifar10", model="deit", head=head, recipe="350") for head in ("none", "calattn"))
WITH = {"none": "without", "calattn": "with CalAttn"}
EVERY = 25
"""Epochs from one row of the course to the next."""
TEXT = string.Template((Path(__file__).parent / "templates/schedule.md").read_text(encoding="utf-8"))
HEADER = ["network", "checkpoint", "epoch", "accuracy", "ECE", "T*", "ECE after TS", "NLL"]


def table(results: Results) -> str:
    """For the report: both in the mean over the last epochs that both have logged, and the paper's."""
    found = [result for cell in PAIR if (result := _far(results.store, cell)) is not None]
    end = min((result.log[-1]["epoch"] for result in found), default=0)
    rows = []
    for result in found:
        logged = [row for row in result.log if end - EVERY < row["epoch"] <= end]
        columns = [
            (row["validation"]["accuracy"], row["train"]["accuracy"], row["validation"]["ece"]) for row in logged
        ]
        means = [shown("accuracy", statistics.fmean(column)) for column in zip(*columns, strict=True)]
        scale = statistics.fmean(_scale(row["validation"]) for row in logged)
        rows.append([f"ours, {WITH[result.cell.head]}, epochs {end - EVERY + 1} to {end}", *means, f"{scale:.2f}"])
    for cell in PAIR:
        accuracy, before, _ = _printed(cell)
        rows.append([f"paper, {WITH[cell.head]}", f"{accuracy['value']:.2f}", "–", f"{before['value']:.2f}", "–"])
    return markdown_table(["", "validation accuracy", "training accuracy", "ECE", "mean s"], rows)


def page(results: Results) -> str:
    """What ran, as Markdown."""
    full = ResultStore(results.store.folder.parent, "paper")
    pair = [_far(full, dataclasses.replace(cell, recipe="paper")) for cell in PAIR]
    both = list(zip(*(found.log for found in pair if found is not None), strict=False)) if None not in pair else []
    rows = [(epochs[0]["epoch"], *(epoch["validation"]["accuracy"] for epoch in epochs)) for epochs in both]
    return TEXT.substitute(
        judged=markdown_table(HEADER, [row for cell in PAIR for row in _judged(results.get(cell), cell)]),
        course=_course([found for cell in PAIR if (found := _far(results.store, cell)) is not None]),
        ahead=sum(with_head > plain for _, plain, with_head in rows),
        epochs=len(rows),
        pair=markdown_table(
            ["epoch", "without", "with CalAttn"],
            [[str(epoch), *(shown("accuracy", each) for each in values)] for epoch, *values in rows],
        ),
    )


def _far(store: ResultStore, cell: Cell) -> CellResult | None:
    found = store.get(cell)
    return found if isinstance(found, CellResult) else store.unfinished(cell)


def _printed(cell: Cell) -> list[Mapping[str, paper.Value]]:
    """The paper's accuracy, and its ECE before and after temperature scaling."""
    keys = {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "head": cell.head}
    rows = [paper.find("ece", loss=cell.loss, phase=phase, **keys) for phase in ("pre", "post")]
    return [row for row in (paper.find("accuracy", **keys), *rows) if row is not None]


def _scale(row: dict[str, Any]) -> float:
    """The mean scale s of a row of the log; 1 of a network without a head."""
    return float(row["scale"]["mean"]) if "scale" in row else 1.0


def _judged(result: object, cell: Cell) -> list[list[str]]:
    """A row for each checkpoint rule, then the paper's."""
    top1, before, after = _printed(cell)
    theirs = [f"{top1['value']:.2f}", f"{before['value']:.2f}", f"{after['temperature']:.1f}", f"{after['value']:.2f}"]
    rows = []
    for rule in rules_of(cell):
        if not isinstance(result, CellResult) or rule not in result.rules:
            continue
        accuracy, ece, nll = (_text(result.metric(name, rule=rule)) for name in ("accuracy", "ece", "nll"))
        scaled = _text(result.metric("ece", rule=rule, phase="post"))
        epoch, temperature = str(result.rules[rule]["epoch"]), f"{result.temperature(rule=rule):.1f}"
        rows.append([f"`{cell.name}`", f"`{rule}`", epoch, accuracy, ece, temperature, scaled, nll])
    return [*rows, [f"`{cell.name}`", "paper", "–", *theirs, "–"]]


def _text(row: Any) -> str:
    return "–" if row is None else shown(row.name, row.value)


def _course(stored: Sequence[CellResult]) -> str:
    """Validation accuracy, ECE and scale: a row for each stretch of epochs, a column for each network."""
    logs = [{row["epoch"]: row["validation"] for row in result.log} for result in stored]
    last = max((max(log) for log in logs), default=0)
    lines = []
    for start in range(0, last, EVERY):
        # Long logs are thinned: the last epoch of each stretch that is there.
        ends = [max((epoch for epoch in log if start < epoch <= start + EVERY), default=None) for log in logs]
        parts = ["–" if end is None else _epoch(end, log[end]) for end, log in zip(ends, logs, strict=True)]
        lines.append([f"{start + 1}–{start + EVERY}", *parts])
    names = [f"`{result.cell.name}`: epoch, accuracy, ECE, s" for result in stored]
    return markdown_table(["last of epochs", *names], lines)


def _epoch(epoch: int, row: dict[str, Any]) -> str:
    return f"{epoch}, {shown('accuracy', row['accuracy'])}, {shown('ece', row['ece'])}, {_scale(row):.2f}"
