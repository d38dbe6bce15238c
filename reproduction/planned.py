"""Which cells belong to a scale (`grid.yaml`), in which order: what matters most first, each head after its twin without one."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from calattn.runs.resolving import resolve
from reproduction.cells import SCALES, GridCell, ScaleName, combinations, hash_of, spec_of
from reproduction.paper_tables import LAYOUTS, layout_of

_GRID: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("grid.yaml").read_text(encoding="utf-8"))


@functools.cache
def ordered_cells(scale: ScaleName) -> tuple[GridCell, ...]:
    """All cells of a scale in the order in which they are worth running.

    >>> [cell.name for cell in ordered_cells("reduced")[:3]]
    ['cifar10-deit-ce', 'cifar10-deit-ce-calattn', 'cifar10-deit-ce_brier']
    >>> {scale: len(ordered_cells(scale)) for scale in ("smoke", "reduced", "paper")}
    {'smoke': 59, 'reduced': 110, 'paper': 295}
    """
    cells = [each for step in steps(scale) for cell in step for each in (cell.twin, cell)]
    return tuple(dict.fromkeys(cells))


def steps(scale: ScaleName) -> list[list[GridCell]]:
    """The steps of a scale; at the paper's, first what the reduced scale has too, then table by table."""
    if scale == "paper":
        wanted = dict.fromkeys(cell for name in LAYOUTS for cell in layout_of(name, "paper").cells())
        return [[cell for step in steps("reduced") for cell in step if cell in wanted], list(wanted)]
    # A method is several fields at once.
    return [
        [GridCell(**each.pop("method", {}), **each) for group in step for each in combinations(group)]
        for step in _GRID[scale]
    ]


def as_sweep(cells: Iterable[GridCell], scale: ScaleName) -> str:
    """The same runs as a file for `calattn sweep`; their folders are those in which a cell is looked for."""
    base = SCALES[scale].transformer["recipe"]
    common, runs = _settings(resolve(base).model_dump(mode="json")), {}
    for cell in cells:
        spec = spec_of(cell, scale)
        settings = _settings(spec.model_dump(mode="json"))
        runs[folder_name(cell, scale)] = {key: value for key, value in settings.items() if value != common.get(key)}
    return yaml.safe_dump({"base": base, "runs": runs}, sort_keys=False)


def folder_name(cell: GridCell, scale: ScaleName) -> str:
    """A cell whose spec has changed does not meet its older run."""
    return f"{cell.name}-{hash_of(cell, scale)[:8]}"


def _settings(spec: dict[str, Any]) -> dict[str, Any]:
    """`section.key` → value."""
    sections = {key: value if isinstance(value, dict) else {"": value} for key, value in spec.items()}
    return {f"{name}.{key}".rstrip("."): value for name, section in sections.items() for key, value in section.items()}
