"""Relative changes that the head makes: ours under both checkpoint rules, and the paper's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from reproduction import paper
from reproduction.cells import Cell
from reproduction.results import RULES, CellResult, Phase, Rule
from reproduction.tables import BACKBONES, Found, fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """(with − without) / without of one metric; None where a side is missing, or where without is zero. `sure`: the rules
    under which the paired difference has an interval without zero."""

    cell: Cell
    metric: str
    phase: Phase
    last: float | None
    best_ece: float | None
    paper: float | None
    sure: tuple[Rule, ...] = ()


def change_of(table: str, metric: str, cell: Cell, phase: Phase, found: Found) -> Change:
    """The change from a cell's twin to the cell, which has a head."""
    keys = {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "loss": cell.loss, "phase": phase}
    theirs = [paper.find(table, head=head, **keys) for head in ("none", cell.head)]
    values = [None if row is None else fraction(row) for row in theirs]
    return Change(
        cell=cell,
        metric=metric,
        phase=phase,
        last=_ours(metric, cell, "last", phase, found),
        best_ece=_ours(metric, cell, "best-ece", phase, found),
        paper=relative(values[0], values[1]),
        sure=tuple(rule for rule in RULES if _sure(metric, cell, rule, phase, found)),
    )


def relative(before: float | None, after: float | None) -> float | None:
    """(after − before) / before.

    >>> relative(0.5, 0.25), relative(0.0, 0.1), relative(None, 0.1)
    (-0.5, None, None)
    """
    return None if before is None or after is None or before == 0 else (after - before) / before


def _ours(metric: str, cell: Cell, rule: Rule, phase: Phase, found: Found) -> float | None:
    values = []
    for each in (cell.twin, cell):
        result = found[each]
        row = result.metric(metric, rule=rule, phase=phase) if isinstance(result, CellResult) else None
        values.append(None if row is None else row.value)
    return relative(*values)


def _sure(metric: str, cell: Cell, rule: Rule, phase: Phase, found: Found) -> bool:
    result = found[cell]
    paired = result.paired(metric, rule=rule, phase=phase) if isinstance(result, CellResult) else None
    return paired is not None and not paired.low <= 0 <= paired.high


def csv_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """One change a row, as fractions."""
    names = ("metric", "phase", "last", "best_ece", "paper")
    return [
        {"data_set": each.cell.dataset, "network": each.cell.model, "loss": each.cell.loss}
        | {name: getattr(each, name) for name in names}
        | {"cell": each.cell.name, "sure": " ".join(each.sure)}
        for each in changes
    ]
