"""Which cells belong to a scale, in which order: what matters most first, each head after its twin without one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from reproduction.cells import CIFARS, LOSSES, Cell, ScaleName
from reproduction.layouts import LAYOUTS, layout_of

SWEEP = (0.0, 0.3, 0.9)
"""Weights of the Brier term beside the default of 0.1."""


@functools.cache
def ordered_cells(scale: ScaleName) -> tuple[Cell, ...]:
    """All cells of a scale in the order in which they are worth running.

    >>> [cell.name for cell in ordered_cells("reduced")[:3]]
    ['cifar10-deit-ce', 'cifar10-deit-ce-calattn', 'cifar10-deit-ce_brier']
    >>> {scale: len(ordered_cells(scale)) for scale in ("smoke", "reduced", "paper")}
    {'smoke': 56, 'reduced': 79, 'paper': 287}
    """
    steps = {"smoke": smoke_steps, "reduced": reduced_steps, "paper": paper_steps}[scale]()
    cells = [each for step in steps for cell in step for each in (cell.twin, cell)]
    return tuple(dict.fromkeys(cells))


def reduced_steps() -> list[list[Cell]]:
    """What GPU-hours allow, most telling first.

    The second step has CE+BS too, although the paper compares CE with CE+BS+CalAttn: without it the head's share of a
    difference could not be told from the loss's.
    """
    losses = ("ce", "ce_brier", *(loss for loss in LOSSES if loss not in ("ce", "ce_brier")))
    return [
        _pairs(Cell(dataset=dataset, model="deit", loss=loss) for dataset in CIFARS for loss in losses),
        [cell for seed in (1, 2) for dataset in CIFARS for cell in _three(dataset, "deit", seed=seed)],
        [cell for dataset in CIFARS for cell in _three(dataset, "deit", recipe="mixup")],
        [cell for dataset in CIFARS for cell in _three(dataset, "swin")],
        [*_ablations("cifar100", "deit"), *_inputs("cifar10", "deit")],
        [cell for dataset in CIFARS for cell in _three(dataset, "vit")],
        _pairs(Cell(dataset="mnist", model=model) for model in ("deit", "swin", "vit")),
        [Cell(dataset=dataset, model="resnet50", loss=loss) for dataset in CIFARS for loss in ("ce", "ce_brier")],
    ]


def smoke_steps() -> list[list[Cell]]:
    """A few of each: every table and figure has something to show of every data set that it is about."""
    return [
        _pairs(Cell(dataset="cifar10", model="deit", loss=loss) for loss in LOSSES),
        _pairs(Cell(dataset="cifar100", model="deit", loss=loss) for loss in ("ce", "ce_brier")),
        [cell for dataset in CIFARS for cell in _three(dataset, "deit", seed=1)],
        [cell for model in ("vit", "swin") for dataset in CIFARS for cell in _three(dataset, model)],
        [
            *_inputs("cifar100", "deit"),
            Cell(dataset="cifar100", model="deit", head="dirichlet"),
            *_pairs([Cell(dataset="cifar100", model="deit", weight=SWEEP[-1])]),
        ],
        _pairs(Cell(dataset=dataset, model="deit") for dataset in ("mnist", "tiny_imagenet")),
        [Cell(dataset=dataset, model="resnet50", loss="ce") for dataset in CIFARS],
        _three("imagenet1k", "swin"),
        [cell for dataset in CIFARS for cell in _three(dataset, "deit", recipe="mixup")],
    ]


def paper_steps() -> list[list[Cell]]:
    """Everything that the tables show: first what the reduced scale has too, then table by table."""
    wanted = dict.fromkeys(cell for name in LAYOUTS for cell in layout_of(name, "paper").cells())
    first = [cell for step in reduced_steps() for cell in step if cell in wanted]
    return [first, list(wanted)]


def _pairs(cells: Iterable[Cell]) -> list[Cell]:
    return [each for cell in cells for each in (cell, dataclasses.replace(cell, head="calattn"))]


def _three(dataset: str, model: str, *, seed: int = 0, recipe: str = "paper") -> list[Cell]:
    """CE, CE+BS and CE+BS with CalAttn."""
    baseline = Cell(dataset=dataset, model=model, loss="ce", seed=seed, recipe=recipe)
    return [baseline, *_pairs([dataclasses.replace(baseline, loss="ce_brier")])]


def _ablations(dataset: str, model: str) -> list[Cell]:
    return [
        *_inputs(dataset, model),
        Cell(dataset=dataset, model=model, head="dirichlet"),
        *_pairs(Cell(dataset=dataset, model=model, weight=weight) for weight in SWEEP),
    ]


def _inputs(dataset: str, model: str) -> list[Cell]:
    """Other inputs of the head than CLS, under plain cross-entropy: so the paper's own, as its numbers give away."""
    head = Cell(dataset=dataset, model=model, loss="ce", head="calattn")
    return [dataclasses.replace(head, features=each) for each in ("patch_mean", "concat")]
