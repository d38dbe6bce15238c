"""Are the baselines reproduced? Our networks without the head beside the paper's, before any verdict."""

from __future__ import annotations

import string
from pathlib import Path
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
TEXT = string.Template((Path(__file__).parent / "templates/baselines.md").read_text(encoding="utf-8"))


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
    found, places = rows(results), ("paper", *RULES_SHOWN)
    cells = [(DATASETS[row["cell"].dataset], MODELS[row["cell"].model], LOSS_TITLES[row["cell"].loss]) for row in found]
    lines = [[*cell, *(_text(row[place]) for place in places)] for cell, row in zip(cells, found, strict=True)]
    counts = "; ".join(f"at `{rule}` {reproduced(found, rule)}" for rule in RULES_SHOWN)
    header = ["data set", "network", "loss", *(f"{place}: ECE, T*, accuracy" for place in places)]
    return TEXT.substitute(count=len(found), factor=f"{FACTOR:g}", counts=counts, table=markdown_table(header, lines))


def _text(values: tuple[float | None, ...]) -> str:
    """
    >>> _text((4.381, 1.2, None))
    '4.38, 1.2, –'
    """
    parts = zip(values, (2, 1, 1), strict=True)
    return ", ".join("–" if value is None else f"{value:.{digits}f}" for value, digits in parts)
