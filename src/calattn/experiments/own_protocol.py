"""The section of REPRODUCTION.md on networks trained by the paper's own protocol, whether they came to its end or not."""

from __future__ import annotations

from calattn.experiments import paper
from calattn.experiments.cells import Cell
from calattn.experiments.claim_report import NONE, checkpoint_row, markdown_table
from calattn.experiments.claims import RULES
from calattn.experiments.evidence import Results
from calattn.experiments.layouts.parts import of
from calattn.experiments.results import CellResult, ResultStore, Rule
from calattn.report.style import number
from calattn.workbench.folder import read_json


def own_protocol(store: ResultStore) -> str:
    """The networks of the scale "paper" that lie beside the store, with the paper's ECE."""
    text = (
        "At 224 px, with SGD in two steps over 350 epochs (`--scale paper`). A network that was stopped before its last epoch is "
        "shown here only: it enters no table and no verdict, and its numbers, from the midst of its schedule, say nothing about "
        "its end, from where the paper's are.\n\n"
    )
    found = own_networks(store)
    if not found:
        return f"{text}Not run.\n"
    header = ["network", "epochs", "rule (epoch)", "accuracy", "ECE", "NLL", "ECE + TS", "NLL + TS", "mean s"]
    header += ["ECE minus that without the head", "the paper's ECE, and + TS"]
    rows = [_row(result, rule) for result in found for rule in RULES if rule in result.rules]
    return f"{text}{markdown_table(header, rows)}"


def own_networks(store: ResultStore) -> list[CellResult]:
    """What the scale "paper" has beside the store, finished or not."""
    full = ResultStore(store.folder.parent, "paper")
    return [*Results(full).stored(), *_unfinished(full)]


def _unfinished(store: ResultStore) -> list[CellResult]:
    cells = [Cell(**read_json(path)["cell"]) for path in store.names(".unfinished")]
    return [found for cell in cells if (found := store.unfinished(cell)) is not None]


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
