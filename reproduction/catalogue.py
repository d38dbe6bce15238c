"""The catalogue: every table and figure of the paper, and of ours, by the name that the command takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from calattn.registry import Registry
from reproduction.cells import Cell, ScaleName
from reproduction.figures import (
    Draw,
    change_cells,
    draw_changes,
    draw_dynamics,
    draw_norms,
    draw_reliability,
    dynamics_cells,
    norm_cells,
    reliability_cells,
)
from reproduction.grid import ordered_cells
from reproduction.layouts import LAYOUTS
from reproduction.paper import PAPER_TABLES
from reproduction.render import rich_tables, write_tables
from reproduction.results import Hole, ResultStore
from reproduction.sizes import size_table
from reproduction.tables import NOT_AT_THIS_SCALE, RULES, Found, Table, fill

__all__ = ["EXPERIMENTS", "Experiment", "ordered_cells", "tables_of"]

SIZES = "checkpoint_size"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure. `label` is the paper's, empty for our own; `priority` orders them as the runs are ordered."""

    name: str
    kind: Literal["table", "figure"]
    label: str
    title: str
    priority: int
    draw: Draw | None = None
    drawn_cells: tuple[Cell, ...] = ()
    by_rule: bool = False

    def cells(self, scale: ScaleName) -> tuple[Cell, ...]:
        """What must be run at a scale, twins included, so that a difference can always be tested in pairs."""
        wanted = self._all_cells(scale)
        wanted |= {cell.twin for cell in wanted}
        return tuple(cell for cell in ordered_cells(scale) if cell in wanted)

    def show(self, store: ResultStore) -> RenderableType:
        """For the terminal: the tables, or the captions of the figures."""
        if self.draw is None:
            return rich_tables(tables_of(self.name, store))
        return Group(*(Text(f"{drawn.name}: {drawn.caption}\n") for drawn in self.draw(self._found(store))))

    def write(self, store: ResultStore, out: Path) -> list[Path]:
        """The files of the table (md, tex, csv) or figure (png, pdf, svg, md), under a folder of the scale."""
        folder = Path(out) / store.scale
        if self.draw is None:
            return write_tables(tables_of(self.name, store), folder, self.name)
        return [path for drawn in self.draw(self._found(store)) for path in drawn.write(folder)]

    def files(self, suffix: str) -> tuple[str, ...]:
        """The names of its files of a kind; some figures have one for each checkpoint rule."""
        return tuple(f"{self.name}-{rule}.{suffix}" for rule in RULES) if self.by_rule else (f"{self.name}.{suffix}",)

    def _all_cells(self, scale: ScaleName) -> set[Cell]:
        if self.kind == "figure":
            return set(self.drawn_cells)
        return set() if self.name == SIZES else set(LAYOUTS[self.name](scale).cells())

    def _found(self, store: ResultStore) -> Found:
        return _results(store, self._all_cells(store.scale))


def tables_of(name: str, store: ResultStore) -> list[Table]:
    """A table under both checkpoint rules; that of sizes, which needs no run, once."""
    if name == SIZES:
        return [size_table(store.scale)]
    layout, planned = LAYOUTS[name](store.scale), frozenset(ordered_cells(store.scale))
    found = _results(store, set(layout.cells()))
    return [fill(layout, found, scale=store.scale, rule=rule, planned=planned) for rule in RULES]


def _results(store: ResultStore, cells: set[Cell]) -> Found:
    planned = frozenset(ordered_cells(store.scale))
    return {cell: store.get(cell) if cell in planned else Hole(cell=cell, reason=NOT_AT_THIS_SCALE) for cell in cells}


EXPERIMENTS: Registry[Experiment] = Registry("experiment")
_TABLES = {
    "ece": 1,
    "smece": 1,
    "adaece": 1,
    "classece": 1,
    "accuracy": 1,
    "three_seeds": 2,
    "sats": 3,
    "feature_ablation": 4,
    "dirichlet": 4,
    "lambda_cebs": 4,
    "lambda_full": 4,
    "ood": 5,
    "high_confidence": 5,
    "imagenet1k": 9,
    SIZES: 0,
}
for _name, _priority in _TABLES.items():
    _label, _title = PAPER_TABLES[_name]
    EXPERIMENTS.add(_name, Experiment(name=_name, kind="table", label=_label, title=_title, priority=_priority))
EXPERIMENTS.add(
    "rival",
    Experiment(
        name="rival",
        kind="table",
        label="",
        title="The recipe that memorises less (mixup, drop-path) beside the plain one",
        priority=7,
    ),
)


def _add_figure(
    name: str, label: str, title: str, priority: int, draw: Draw, cells: tuple[Cell, ...], *, by_rule: bool = False
) -> None:
    words = {"name": name, "label": label, "title": title}
    found = Experiment(**words, kind="figure", priority=priority, draw=draw, drawn_cells=cells, by_rule=by_rule)
    EXPERIMENTS.add(name, found)


_title = "Feature norm against confidence"
_add_figure("cls_norm", "fig:cls_norm_maxprob", _title, 1, draw_norms, norm_cells(), by_rule=True)
for _name, _label, _table, _metric, _shown in (
    ("delta_ece", "fig:delta", "ece", "ece", "ECE"),
    ("delta_smece", "fig:delta_smECE", "smece", "smooth_ece", "smECE"),
    ("delta_adaece", "fig:delta_AdaECE", "adaece", "adaptive_ece", "AdaECE"),
):
    _draw = draw_changes(_name, _table, _metric, _shown)
    _add_figure(_name, _label, f"Relative change of {_shown} that CalAttn makes", 1, _draw, change_cells())
_add_figure(
    "dynamics", "fig:temporal_dynamics_calattn", "The scale during training", 3, draw_dynamics, dynamics_cells()
)
_title = "Reliability diagrams before scaling"
_add_figure("reliability", "fig:reliad_c10_300", _title, 3, draw_reliability, reliability_cells(), by_rule=True)
