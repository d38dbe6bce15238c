"""Are the baselines reproduced? Our networks without the head beside the paper's, before any verdict."""

from __future__ import annotations

from typing import Any

from calattn.rules import Rule
from reproduction import paper
from reproduction.cells import BACKBONES, TRANSFORMERS, Cell
from reproduction.evidence import Results
from reproduction.grid import ordered_cells
from reproduction.render import markdown_table
from reproduction.results import RULES, CellResult
from reproduction.tables import DATASETS, LOSS_TITLES, MODELS

RULES_SHOWN: tuple[Rule, ...] = (*RULES, "best-nll")
FACTOR = 2.0
"""A baseline counts as reproduced if its ECE is within this factor of the paper's."""
NOTES = """
- ECE before temperature scaling and accuracy in per cent; T* is the temperature of the lowest validation ECE. Seed 0.
- At `last` and `best-ece`: test images, and so at `best-nll` where T* stands. Where it does not, no test images were predicted at
  the epoch of the lowest validation NLL: ECE and accuracy are those of the **validation** images in the log (2,500; MNIST 3,000),
  which also chose the epoch.
- The paper prints accuracy for CE alone (tab:cls_acc), and none for MNIST and Tiny ImageNet.
"""


def rows(results: Results) -> list[dict[str, Any]]:
    """One for each transformer of the paper's table without the head that has a result; None: not stored or not printed."""
    found = []
    for cell in ordered_cells(results.scale):
        result, keys = results.get(cell), {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "head": "none"}
        plain = Cell(dataset=cell.dataset, model=cell.model, loss=cell.loss) == cell and cell.model in TRANSFORMERS
        before, after = (paper.find("ece", loss=cell.loss, phase=phase, **keys) for phase in ("pre", "post"))
        if not plain or before is None or after is None or not isinstance(result, CellResult):
            continue
        top1 = paper.find("accuracy", **keys) if cell.loss == "ce" else None
        row: dict[str, Any] = {"cell": cell, "paper": (before["value"], after["temperature"], top1 and top1["value"])}
        for rule in RULES_SHOWN:
            values = [result.metric(name, rule=rule) for name in ("ece", "accuracy")]
            ece, accuracy = (None if each is None else 100 * each.value for each in values)
            row[rule] = (ece, result.temperature(rule=rule), accuracy)
        if row["best-nll"][0] is None and (lowest := result.lowest_nll):
            row["best-nll"] = (100 * lowest["ece"], None, 100 * lowest["accuracy"])
        found.append(row)
    return found


def reproduced(found: list[dict[str, Any]], rule: str) -> int:
    """How many are within `FACTOR` of the paper's ECE."""
    pairs = [(row[rule][0], row["paper"][0]) for row in found]
    return sum(1 / FACTOR <= ours / theirs <= FACTOR for ours, theirs in pairs if ours is not None)


def page(results: Results) -> str:
    """The whole table, as Markdown."""
    places = ("paper", *RULES_SHOWN)
    found = rows(results)
    cells = [(DATASETS[row["cell"].dataset], MODELS[row["cell"].model], LOSS_TITLES[row["cell"].loss]) for row in found]
    lines = [[*cell, *(_text(row[place]) for place in places)] for cell, row in zip(cells, found, strict=True)]
    counts = "; ".join(f"at `{rule}` {reproduced(found, rule)}" for rule in places[1:])
    said = f"Of {len(found)} baselines, within a factor of {FACTOR:g} of the paper's ECE: {counts}."
    header = ["data set", "network", "loss", *(f"{place}: ECE, T*, accuracy" for place in places)]
    return f"# Are the baselines reproduced?\n\n{said}\n\n{markdown_table(header, lines)}\n{NOTES}"


def _text(values: tuple[float | None, ...]) -> str:
    """
    >>> _text((4.381, 1.2, None))
    '4.38, 1.2, –'
    """
    parts = zip(values, (2, 1, 1), strict=True)
    return ", ".join("–" if value is None else f"{value:.{digits}f}" for value, digits in parts)
