"""The paper's own schedule: networks trained with it, whole or as far as they came, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from calattn.report.style import number
from reproduction import paper
from reproduction.cells import BACKBONES, Cell, rules_of
from reproduction.evidence import Results
from reproduction.grid import ordered_cells
from reproduction.render import markdown_table, shown
from reproduction.results import CellResult, ResultStore

EVERY = 25
"""Epochs from one row of the course to the next."""
TEXT = """# The paper's schedule

SGD with a rate of 0.1 in two steps over 350 epochs, at 32 px with batch 256. Test images; ECE and accuracy in per
cent; T* by validation ECE. The paper's numbers are those of 224 px. It prints accuracy for CE alone.

{judged}

## Accuracy over epochs

Validation images; s is the mean scale. Networks that were stopped end early.

{course}

## The pair at 224 px

The paper's protocol, stopped at epoch 12 of 350; accuracy of validation images. With CalAttn it is ahead in {ahead}
of {epochs} epochs.

{pair}
"""


def page(results: Results) -> str:
    """What ran, as Markdown."""
    cells = [cell for cell in ordered_cells(results.scale) if cell.recipe == "350"]
    stored = [found for cell in cells if (found := _far(results.store, cell)) is not None]
    rows = [row for cell in cells for row in _judged(results.get(cell), cell)]
    full = ResultStore(results.store.folder.parent, "paper")
    pair = [Cell(dataset="cifar10", model="deit", head=head) for head in ("none", "calattn")]
    begun = [found.log for cell in pair if (found := _far(full, cell)) is not None]
    both = list(zip(*begun, strict=False)) if len(begun) == len(pair) else []
    accuracies = [[epoch["validation"]["accuracy"] for epoch in epochs] for epochs in both]
    header = ["network", "checkpoint", "epoch", "accuracy", "ECE", "T*", "ECE after TS", "NLL"]
    return TEXT.format(
        judged=markdown_table(header, rows),
        course=_course(stored),
        ahead=sum(with_head > plain for plain, with_head in accuracies),
        epochs=len(accuracies),
        pair=markdown_table(
            ["epoch", "without", "with CalAttn"],
            [
                [str(epochs[0]["epoch"]), *(shown("accuracy", each) for each in values)]
                for epochs, values in zip(both, accuracies, strict=True)
            ],
        ),
    )


def _far(store: ResultStore, cell: Cell) -> CellResult | None:
    found = store.get(cell)
    return found if isinstance(found, CellResult) else store.unfinished(cell)


def _judged(result: object, cell: Cell) -> list[list[str]]:
    """A row for each checkpoint rule, then the paper's."""
    keys = {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "head": cell.head}
    before, after = (paper.find("ece", loss=cell.loss, phase=phase, **keys) for phase in ("pre", "post"))
    top1 = paper.find("accuracy", **keys)
    assert before is not None and after is not None and top1 is not None  # noqa: PT018
    theirs = [f"{top1['value']:.2f}", f"{before['value']:.2f}", f"{after['temperature']:.1f}", f"{after['value']:.2f}"]
    rows = []
    for rule in rules_of(cell) if isinstance(result, CellResult) else ():
        assert isinstance(result, CellResult)
        found = [result.metric(name, rule=rule) for name in ("accuracy", "ece", "nll")]
        post = result.metric("ece", rule=rule, phase="post")
        accuracy, ece, nll, scaled = ("–" if m is None else number(m.name, m.value) for m in (*found, post))
        epoch, temperature = str(result.rules[rule]["epoch"]), f"{result.temperature(rule=rule):.1f}"
        rows.append([f"`{cell.name}`", f"`{rule}`", epoch, accuracy, ece, temperature, scaled, nll])
    return [*rows, [f"`{cell.name}`", "paper", "–", *theirs, "–"]]


def _course(stored: Sequence[CellResult]) -> str:
    """Validation accuracy, ECE and scale in rows of epochs, a column of each for every network."""
    logs = [{row["epoch"]: row["validation"] for row in result.log} for result in stored]
    last = max((max(log) for log in logs), default=0)
    wanted = range(0, last + EVERY, EVERY)
    lines = []
    for start, end in pairwise(wanted):
        # Long logs are thinned: the last epoch of each stretch that is there.
        known = [[epoch for epoch in log if start < epoch <= end] for log in logs]
        parts = [
            "–" if not epochs else _epoch(max(epochs), log[max(epochs)])
            for epochs, log in zip(known, logs, strict=True)
        ]
        lines.append([f"{start + 1}–{end}", *parts])
    names = [f"`{result.cell.name}`: epoch, accuracy, ECE, s" for result in stored]
    return markdown_table(["last of epochs", *names], lines)


def _epoch(epoch: int, row: dict[str, object]) -> str:
    scale = row.get("scale")
    mean = scale["mean"] if isinstance(scale, dict) else 1.0
    return f"{epoch}, {shown('accuracy', row['accuracy'])}, {shown('ece', row['ece'])}, {mean:.2f}"  # type: ignore[arg-type]
