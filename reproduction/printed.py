"""What the paper prints for the setting of an outcome, with and without CalAttn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reproduction import paper
from reproduction.evidence import Outcome
from reproduction.layouts.parts import BACKBONES


class Pair(NamedTuple):
    """In the units of the paper's table."""

    without: float
    head: float


def _of(outcome: Outcome, **more: paper.Cell) -> dict[str, paper.Cell]:
    return {"dataset": outcome.cell.dataset, "backbone": BACKBONES[outcome.cell.model], **more}


_TABLES: dict[str, Callable[[Outcome], tuple[str, dict[str, paper.Cell]]]] = {
    "ece_falls": lambda o: ("ece", _of(o, loss=o.cell.loss, phase="pre")),
    "complementary_to_ts": lambda o: ("ece", _of(o, loss=o.cell.loss, phase="post")),
    "high_confidence_errors": lambda o: ("high_confidence", _of(o, metric="high_confidence_false_positives")),
    "ood_auroc": lambda o: ("ood", _of(o, loss=o.cell.loss, shift=o.metric.removeprefix("ood_"))),
}


def has_printed(claim: str) -> bool:
    """Whether the paper has a table of what the claim compares."""
    return claim in _TABLES


def printed(claim: str, outcome: Outcome) -> Pair | None:
    """The paper's numbers for the same setting; None where it has no such row."""
    table, keys = _TABLES[claim](outcome)
    try:
        return Pair(*(paper.value(table, head=head, **keys) for head in ("none", "calattn")))
    except ValueError:
        return None
