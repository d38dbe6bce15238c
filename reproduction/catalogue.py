"""The catalogue: every table and figure of the paper, and of ours, by the name that the command takes."""

from __future__ import annotations

from pathlib import Path

from calattn.registry import Registry
from reproduction.cells import GridCell, ScaleName
from reproduction.figures import FIGURES
from reproduction.paper_tables import LAYOUTS, NOT_AT_THIS_SCALE, Found, PaperTable, fill, layout_of
from reproduction.planned import ordered_cells
from reproduction.render import write_tables
from reproduction.results import RULES, Hole, ResultStore


class Experiment:
    """A table (md, csv) or a figure (png, pdf, svg, and its caption as md)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cells(self, scale: ScaleName) -> tuple[GridCell, ...]:
        """What must be run at a scale, twins included, so that a difference can always be tested in pairs."""
        wanted = self._shown(scale)
        wanted |= {cell.twin for cell in wanted}
        return tuple(cell for cell in ordered_cells(scale) if cell in wanted)

    def write(self, store: ResultStore, out: Path) -> list[Path]:
        """Its files, in a folder of the scale."""
        folder = Path(out) / store.scale
        if self.name in LAYOUTS:
            return write_tables(tables_of(self.name, store), folder, self.name)
        found = results_of(store, self._shown(store.scale))
        return [path for drawn in FIGURES[self.name].draw(found) for path in drawn.write(folder)]

    def _shown(self, scale: ScaleName) -> set[GridCell]:
        return set(FIGURES[self.name].cells if self.name in FIGURES else layout_of(self.name, scale).cells())


def tables_of(name: str, store: ResultStore) -> list[PaperTable]:
    """A table under both checkpoint rules."""
    layout, planned = layout_of(name, store.scale), frozenset(ordered_cells(store.scale))
    found = {cell: store.get(cell) for cell in layout.cells() if cell in planned}
    return [fill(layout, found, scale=store.scale, rule=rule) for rule in RULES]


def results_of(store: ResultStore, cells: set[GridCell]) -> Found:
    """What the store has of them; a cell that the scale does not plan is a hole."""
    planned = frozenset(ordered_cells(store.scale))
    return {cell: store.get(cell) if cell in planned else Hole(cell=cell, reason=NOT_AT_THIS_SCALE) for cell in cells}


EXPERIMENTS: Registry[Experiment] = Registry("table or figure")
for _name in (*LAYOUTS, *FIGURES):
    EXPERIMENTS.add(_name, Experiment(_name))
