"""The section of REPRODUCTION.md on networks trained by the paper's own protocol, whether they came to its end or not."""

from __future__ import annotations

from calattn.report.style import number
from reproduction import paper
from reproduction.cells import Cell
from reproduction.claim_report import NONE, checkpoint_row, markdown_table
from reproduction.claims import RULES
from reproduction.disclosures import DIFFERENCES
from reproduction.evidence import Results
from reproduction.layouts.parts import of
from reproduction.results import CellResult, Rule


def own_protocol(results: Results) -> str:
    """The networks of the scale "paper" that lie beside these results, with the paper's ECE."""
    text = (
        "At 224 px, with SGD in two steps over 350 epochs (`--scale paper`). A network that was stopped before its last epoch is "
        "shown here only: it enters no table and no verdict. Its numbers say nothing about the end, from where the paper's "
        "are. At `best-ece`, and where the two of a pair were stopped at different epochs, epochs are compared rather than "
        "heads. "
        f"{' '.join(DIFFERENCES['paper'])}\n\n"
    )
    found = results.of_own_protocol()
    if not found:
        return f"{text}Not run.\n"
    header = ["network", "epochs", "rule (epoch)", "accuracy", "ECE", "NLL", "ECE + TS", "NLL + TS", "mean s"]
    header += ["ECE minus that without the head", "the paper's ECE, and + TS"]
    rows = [_row(result, rule) for result in found for rule in RULES if rule in result.rules]
    return f"{text}{markdown_table(header, rows)}"


def _row(result: CellResult, rule: Rule) -> list[str]:
    epoch, *values = checkpoint_row(result, rule)
    paired = result.paired("ece", rule=rule)
    difference = NONE
    if paired is not None:
        low, high = (number("ece", end, signed=True) for end in (paired.low, paired.high))
        difference = f"{number('ece', paired.difference, signed=True)} [{low}, {high}]"
    printed = ", ".join(_printed(result.cell, phase) for phase in ("pre", "post"))
    return [f"`{result.cell.name}`", epochs_text(result), f"{rule} ({epoch})", *values, difference, printed]


def epochs_text(result: CellResult) -> str:
    """How far a network of the paper's protocol came."""
    return f"{result.run['epochs']} of {result.planned_epochs}"


def _printed(cell: Cell, phase: str) -> str:
    plain = Cell(dataset=cell.dataset, model=cell.model, loss=cell.loss, head=cell.head, seed=cell.seed)
    if cell != plain:  # another λ, input of the head or recipe: the paper's table has no such network
        return NONE
    try:
        found = paper.value("ece", **of(cell.dataset, cell.model, cell.head), loss=cell.loss, phase=phase)
    except ValueError:  # the paper has no such row
        return NONE
    return f"{found:.2f}"
