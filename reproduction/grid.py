"""Which cells belong to a scale (`grid.yaml`), in which order: what matters most first, each head after its twin without one."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from reproduction.cells import Cell, ScaleName, combinations
from reproduction.tables import LAYOUTS, layout_of

_GRID: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@functools.cache
def ordered_cells(scale: ScaleName) -> tuple[Cell, ...]:
    """All cells of a scale in the order in which they are worth running.

    >>> [cell.name for cell in ordered_cells("reduced")[:3]]
    ['cifar10-deit-ce', 'cifar10-deit-ce-calattn', 'cifar10-deit-ce_brier']
    >>> {scale: len(ordered_cells(scale)) for scale in ("smoke", "reduced", "paper")}
    {'smoke': 59, 'reduced': 100, 'paper': 295}
    """
    cells = [each for step in steps(scale) for cell in step for each in (cell.twin, cell)]
    return tuple(dict.fromkeys(cells))


def steps(scale: ScaleName) -> list[list[Cell]]:
    """The steps of a scale; at the paper's, first what the reduced scale has too, then table by table."""
    if scale == "paper":
        wanted = dict.fromkeys(cell for name in LAYOUTS for cell in layout_of(name, "paper").cells())
        return [[cell for step in steps("reduced") for cell in step if cell in wanted], list(wanted)]
    # A method is several fields at once.
    return [
        [Cell(**each.pop("method", {}), **each) for group in step for each in combinations(group)]
        for step in _GRID[scale]
    ]
