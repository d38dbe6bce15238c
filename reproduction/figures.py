"""The paper's figures, drawn from result documents alone; what is missing is said in the caption."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from calattn.report.reliability import save_figure
from calattn.report.style import figure_style
from reproduction import panels, paper
from reproduction.cells import CIFARS, LOSSES, TRANSFORMERS, Cell
from reproduction.panels import Change
from reproduction.render import csv_text, write_texts
from reproduction.results import RULES, CellResult, Hole, Phase, Rule
from reproduction.tables import BACKBONES, DATASETS, LOSS_TITLES, MODELS, RULE_TITLES, Found, fraction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = ("none", "calattn")
METHODS = (("ce", "none", "CE"), ("ce_brier", "none", "CE+BS"), ("ce_brier", "calattn", "CE+BS + CalAttn"))
NORM_CELLS = tuple(Cell(dataset=d, model="deit", head=head) for d, head in product(CIFARS, HEADS))
CHANGE_CELLS = tuple(
    Cell(dataset=d, model=model, loss=loss, head=head)
    for d, model, loss, head in product(CIFARS, TRANSFORMERS, LOSSES, HEADS)
)
DYNAMICS_CELLS = tuple(Cell(dataset=d, model=model, head="calattn") for model, d in product(TRANSFORMERS, CIFARS))
RELIABILITY_CELLS = tuple(
    Cell(dataset=d, model=model, loss=loss, head=head)
    for model, d, (loss, head, _) in product(TRANSFORMERS, CIFARS, METHODS)
)
CAPTIONS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("captions.yaml").read_text(encoding="utf-8"))
_SUFFIXES = ("png", "pdf", "svg")
_NAMES = 6  # in a caption


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure with the name of its files and its caption; `data` is a CSV of what it shows, where it shows sums."""

    name: str
    figure: Figure
    caption: str
    data: str | None = None

    def write(self, out: Path) -> list[Path]:
        """PNG, PDF and SVG, the caption as Markdown, and the data."""
        out.mkdir(parents=True, exist_ok=True)
        with figure_style():
            self.figure.draw_without_rendering()  # the layout once, not for each of the three formats
        self.figure.set_layout_engine("none")
        paths = [out / f"{self.name}.{suffix}" for suffix in _SUFFIXES]
        for path in paths:
            save_figure(self.figure, path)
        texts = {out / f"{self.name}.md": f"{self.caption}\n"}
        texts |= {} if self.data is None else {out / f"{self.name}.csv": self.data}
        return [*paths, *write_texts(texts)]


Draw = Callable[[Found], list[Drawn]]


# --- feature norm against confidence -----------------------------------------------------------------------------------


def draw_norms(found: Found) -> list[Drawn]:
    """‖z‖ of the classifier's input against the largest probability, before and after the head divides the logits."""
    shown = (
        ("none", "scaled_max_prob", "CE+BS"),
        ("calattn", "max_prob", "CE+BS + CalAttn, before s"),
        ("calattn", "scaled_max_prob", "CE+BS + CalAttn"),
    )
    drawn = []
    for rule in RULES:
        figure = _figure(2, 3, width=3.0, height=2.6)
        with figure_style():
            for i, dataset in enumerate(CIFARS):
                for j, (head, column, method) in enumerate(shown):
                    result = found[Cell(dataset=dataset, model="deit", head=head)]
                    title = f"{DATASETS[dataset]}, {method}"
                    panels.norms(figure.axes[3 * i + j], result, rule=rule, title=title, column=column, first=j == 0)
        drawn.append(_drawn("cls_norm", figure, CAPTIONS["norms"], rule, found, NORM_CELLS))
    return drawn


# --- relative changes --------------------------------------------------------------------------------------------------


def draw_changes(name: str, table: str, metric: str, title: str) -> Draw:
    """Bars of the relative change that the head makes, per loss and network, ours and the paper's."""

    def draw(found: Found) -> list[Drawn]:
        phases: tuple[Phase, ...] = ("pre", "post")
        rows = [(dataset, phase) for dataset in CIFARS for phase in phases]
        changes: list[Change] = []
        figure = _figure(len(rows), len(TRANSFORMERS), width=3.9, height=2.0)
        with figure_style():
            for i, (dataset, phase) in enumerate(rows):
                for j, model in enumerate(TRANSFORMERS):
                    head = Cell(dataset=dataset, model=model, head="calattn")
                    here = [
                        change_of(table, metric, dataclasses.replace(head, loss=loss), phase, found) for loss in LOSSES
                    ]
                    after = "before TS" if phase == "pre" else "after TS"
                    heading = f"{DATASETS[dataset]}, {MODELS[model]}, {after}"
                    panels.changes(
                        figure.axes[i * len(TRANSFORMERS) + j],
                        here,
                        title=heading,
                        ticks=[LOSS_TITLES[loss] for loss in LOSSES],
                        label=f"change of\n{title} (%)" if j == 0 else "",
                        legend=i == j == 0,
                    )
                    changes += here
        shown = 2 * len({each.cell for each in changes if each.last is not None})
        return [
            _drawn(
                name,
                figure,
                CAPTIONS["changes"].format(title=title),
                None,
                found,
                CHANGE_CELLS,
                data=csv_text(_change_rows(changes)),
                shown=shown,
            )
        ]

    return draw


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


def _change_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """One change a row, as fractions."""
    names = ("metric", "phase", "last", "best_ece", "paper")
    return [
        {"data_set": each.cell.dataset, "network": each.cell.model, "loss": each.cell.loss}
        | {name: getattr(each, name) for name in names}
        | {"cell": each.cell.name, "sure": " ".join(each.sure)}
        for each in changes
    ]


# --- dynamics ----------------------------------------------------------------------------------------------------------


def draw_dynamics(found: Found) -> list[Drawn]:
    """1/s over the epochs, and how it and the feature norm are spread at three of them."""
    cells = DYNAMICS_CELLS
    figure = _figure(3, len(cells), width=3.4, height=2.3)
    with figure_style():
        for cell, course, scales, norms in zip(cells, *_rows(figure, len(cells)), strict=True):
            result, heading = found[cell], f"{DATASETS[cell.dataset]}, {MODELS[cell.model]} + CalAttn"
            panels.course(course, result, title=heading)
            panels.densities(scales, result, "inverse_scale", label="1/s")
            panels.densities(norms, result, "feature_norm", label="‖z‖")
    return [_drawn("dynamics", figure, CAPTIONS["dynamics"], None, found, DYNAMICS_CELLS)]


# --- reliability -------------------------------------------------------------------------------------------------------


def draw_reliability(found: Found) -> list[Drawn]:
    """Accuracy against confidence before temperature scaling, the baselines beside CalAttn."""
    drawn = []
    for rule in RULES:
        figure = _figure(3, 6, width=2.1, height=2.3)
        with figure_style():
            for i, (ax, cell) in enumerate(zip(figure.axes, RELIABILITY_CELLS, strict=True)):
                panels.reliability(ax, found[cell], rule=rule, title=_title(cell), first=i % 6 == 0, last=i >= 12)
        drawn.append(
            _drawn(
                "reliability", figure, CAPTIONS["reliability"].format(few=panels.FEW), rule, found, RELIABILITY_CELLS
            )
        )
    return drawn


# --- common ------------------------------------------------------------------------------------------------------------


def _figure(rows: int, columns: int, *, width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        figure.subplots(rows, columns)
    return figure


def _rows(figure: Figure, columns: int) -> list[list[Axes]]:
    """The axes of each row."""
    return [figure.axes[start : start + columns] for start in range(0, len(figure.axes), columns)]


def _title(cell: Cell) -> str:
    method = next(title for loss, head, title in METHODS if (loss, head) == (cell.loss, cell.head))
    return f"{DATASETS[cell.dataset]}, {MODELS[cell.model]}\n{method}"


def missing(found: Found, cells: Iterable[Cell]) -> str:
    """Which cells have no result, by reason; empty where all have."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        result = found[cell]
        if isinstance(result, Hole):
            reasons.setdefault(result.reason, []).append(cell.name)
    return "; ".join(f"{reason}: {_named(names)}" for reason, names in reasons.items())


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMES else f"{', '.join(names[:_NAMES])} and {len(names) - _NAMES} others"


def _drawn(
    name: str,
    figure: Figure,
    caption: str,
    rule: Rule | None,
    found: Found,
    cells: Sequence[Cell],
    data: str | None = None,
    shown: int | None = None,
) -> Drawn:
    """`shown`: how many cells are, where a result alone does not put a cell into the figure."""
    stem = name if rule is None else f"{name}-{rule}"
    results = [result for cell in cells if isinstance(result := found[cell], CellResult)]
    if rule is not None:
        caption += f" Checkpoint: {RULE_TITLES[rule]}."
    scale = f" Scale {results[0].scale}." if results else ""
    lacks = missing(found, cells)
    count = len(results) if shown is None else shown
    caption += f"{scale} Runs shown: {count} of {len(cells)}.{f' Missing ({lacks}).' if lacks else ''}"
    return Drawn(name=stem, figure=figure, caption=caption, data=data)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """What draws one of the paper's figures, and the cells that it shows."""

    draw: Draw
    cells: tuple[Cell, ...]


FIGURES = {
    "cls_norm": Figures(draw=draw_norms, cells=NORM_CELLS),
    "delta_ece": Figures(draw=draw_changes("delta_ece", "ece", "ece", "ECE"), cells=CHANGE_CELLS),
    "delta_smece": Figures(draw=draw_changes("delta_smece", "smece", "smooth_ece", "smECE"), cells=CHANGE_CELLS),
    "delta_adaece": Figures(draw=draw_changes("delta_adaece", "adaece", "adaptive_ece", "AdaECE"), cells=CHANGE_CELLS),
    "dynamics": Figures(draw=draw_dynamics, cells=DYNAMICS_CELLS),
    "reliability": Figures(draw=draw_reliability, cells=RELIABILITY_CELLS),
}
