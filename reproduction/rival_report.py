"""The section of REPRODUCTION.md on a recipe that memorises less, which no claim of the paper is about."""

from __future__ import annotations

from reproduction.cells import Cell
from reproduction.claim_report import markdown_table, metric_value, outcome_table
from reproduction.claims import RULES
from reproduction.comparisons import CIFAR
from reproduction.evidence import Arm, Comparison, Results, outcomes_of
from reproduction.results import CellResult, Phase

MIXUP = "mixup"
_METHODS = (("ce", "none"), ("ce_brier", "none"), ("ce_brier", "calattn"))
_COLUMNS: tuple[tuple[str, str, Phase], ...] = (
    ("accuracy", "accuracy", "pre"),
    ("ECE", "ece", "pre"),
    ("ECE + TS", "ece", "post"),
    ("NLL", "nll", "pre"),
    ("NLL + TS", "nll", "post"),
    ("Brier + TS", "brier", "post"),
)


def rival(results: Results) -> str:
    """The recipe's numbers beside the plain ones; what the head does under it; and what it does without any head."""
    cells = [
        Cell(dataset=dataset, model="deit", loss=loss, head=head, recipe=recipe)
        for dataset in CIFAR
        for loss, head in _METHODS
        for recipe in ("paper", MIXUP)
    ]
    text = (
        "Mixup (0.8) and drop-path (0.1) are known means against memorising the training set. The paper does not say whether its "
        "recipes have any of this, nor compares with and without; here the same cells are trained with it, seed 0, beside the "
        "plain recipe of this report. Not judged: no claim of the paper is about it.\n\n"
    )
    found = [each for cell in cells if isinstance(each := results.get(cell), CellResult)]
    if not any(each.cell.recipe == MIXUP for each in found):
        return f"{text}Not run.\n"
    rows = [
        [f"`{each.cell.name}`", rule, *(metric_value(each, metric, rule, phase) for _, metric, phase in _COLUMNS)]
        for each in found
        for rule in RULES
    ]
    parts = [text + markdown_table(["network", "rule", *(title for title, _, _ in _COLUMNS)], rows)]
    for title, wanted in (
        ("CalAttn (tested) against the same network without it (reference), both with mixup:", head_with_mixup()),
        ("Plain cross-entropy with mixup (tested) against CalAttn with the plain recipe (reference):", _duel()),
    ):
        outcomes = [(rule, each) for rule in RULES for each in outcomes_of(wanted, rule=rule, results=results)]
        judged = outcome_table(outcomes) if outcomes else "No pair has both sides.\n"
        parts.append(f"{title}\n\n{judged}")
    return "\n".join([*parts, "Holm's correction is over each table and rule alone.\n"])


def head_with_mixup() -> list[Comparison]:
    """What the head does where the network does not know its training images by heart."""
    shown: tuple[tuple[str, Phase], ...] = (("ece", "pre"), ("ece", "post"), ("nll", "post"), ("accuracy", "pre"))
    found = []
    for dataset in CIFAR:
        head = Cell(dataset=dataset, model="deit", head="calattn", recipe=MIXUP)
        for metric, phase in shown:
            family = f"{dataset}: CalAttn with mixup{', both + TS' if phase == 'post' else ''}"
            arms = {"a": Arm(cell=head.twin, phase=phase), "b": Arm(cell=head, phase=phase)}
            found.append(Comparison(family=family, metric=metric, **arms))
    return found


def _duel() -> list[Comparison]:
    found = []
    phases: tuple[tuple[str, Phase], ...] = (("ece", "pre"), ("ece", "post"), ("nll", "post"))
    for dataset in CIFAR:
        for metric, phase in phases:
            ours = Arm(cell=Cell(dataset=dataset, model="deit", head="calattn"), phase=phase)
            other = Arm(cell=Cell(dataset=dataset, model="deit", loss="ce", recipe=MIXUP), phase=phase)
            family = f"{dataset}: cross-entropy with mixup against CalAttn{', both + TS' if phase == 'post' else ''}"
            found.append(Comparison(family=family, metric=metric, a=ours, b=other))
    return found
