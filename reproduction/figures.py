"""The paper's figures, drawn from result documents alone; what is missing is said in the caption."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from calattn.report.reliability import save_figure
from calattn.report.style import figure_style
from calattn.rules import Rule
from reproduction import drawing, paper
from reproduction.cells import BACKBONES, CIFARS, LOSSES, TRANSFORMERS, GridCell
from reproduction.drawing import Change
from reproduction.paper_tables import DATASETS, LOSS_TITLES, MODELS, RULE_TITLES, Found, fraction
from reproduction.render import csv_text, write_texts
from reproduction.results import RULES, CellResult, Phase, missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = {("ce", "none"): "CE", ("ce_brier", "none"): "CE+BS", ("ce_brier", "calattn"): "CE+BS + CalAttn"}
NORMS = (("none", "scaled_max_prob", ""), ("calattn", "max_prob", ", before s"), ("calattn", "scaled_max_prob", ""))
NORM_CELLS = tuple(GridCell(dataset=d, model="deit", head=head) for d, (head, *_) in product(CIFARS, NORMS))
CHANGE_CELLS = tuple(
    GridCell(dataset=d, model=model, loss=loss, head=head)
    for d, model, loss, head in product(CIFARS, TRANSFORMERS, LOSSES, ("none", "calattn"))
)
DYNAMICS_CELLS = tuple(GridCell(dataset=d, model=model, head="calattn") for model, d in product(TRANSFORMERS, CIFARS))
RELIABILITY_CELLS = tuple(
    GridCell(dataset=d, model=model, loss=loss, head=head)
    for model, d, (loss, head) in product(TRANSFORMERS, CIFARS, METHODS)
)
CAPTIONS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("captions.yaml").read_text(encoding="utf-8"))
_SUFFIXES = ("png", "pdf", "svg")


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


Fill = Callable[[Sequence["Axes"], Found, Rule], Sequence[Change]]
"""Draws into the panels of a figure, row by row; the changes that it shows, if it is of changes."""


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """One of the paper's figures: the cells that it shows, `shape` (rows, columns), the size of a panel in inches, and what
    draws it. `by_rule`: one for each checkpoint rule."""

    name: str
    cells: tuple[GridCell, ...]
    shape: tuple[int, int]
    panel: tuple[float, float]
    fill: Fill
    caption: str
    by_rule: bool = False

    def draw(self, found: Found) -> list[Drawn]:
        return [self._draw(found, rule) for rule in (RULES if self.by_rule else RULES[:1])]

    def _draw(self, found: Found, rule: Rule) -> Drawn:
        from matplotlib.figure import Figure

        (rows, columns), (width, height) = self.shape, self.panel
        with figure_style():
            figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
            figure.subplots(rows, columns)
            changes = self.fill(figure.axes, found, rule)
        results = [result for cell in dict.fromkeys(self.cells) if isinstance(result := found[cell], CellResult)]
        # A result alone does not show a change: its twin's is needed too.
        count = 2 * len({each.cell for each in changes if each.values["last"] is not None}) if changes else len(results)
        lacks = missing(found[cell] for cell in dict.fromkeys(self.cells))
        parts = [
            self.caption,
            f"Checkpoint: {RULE_TITLES[rule]}." if self.by_rule else "",
            f"Scale {results[0].scale}." if results else "",
            f"Runs shown: {count} of {len(set(self.cells))}.",
            f"Missing: {lacks}." if lacks else "",
        ]
        return Drawn(
            name=f"{self.name}-{rule}" if self.by_rule else self.name,
            figure=figure,
            caption=" ".join(filter(None, parts)),
            data=csv_text(_change_rows(changes)) if changes else None,
        )


# --- what is drawn -----------------------------------------------------------------------------------------------------


def fill_norms(axes: Sequence[Axes], found: Found, rule: Rule) -> Sequence[Change]:
    """‖z‖ of the classifier's input against the largest probability, before and after the head divides the logits."""
    for ax, cell, (_, column, when) in zip(axes, NORM_CELLS, NORMS * len(CIFARS), strict=True):
        title = f"{DATASETS[cell.dataset]}, {METHODS[cell.loss, cell.head]}{when}"
        drawing.norms(ax, found[cell], rule=rule, title=title, column=column, first=cell.head == "none")
    return ()


def fill_changes(table: str, metric: str, title: str) -> Fill:
    """Bars of the relative change that the head makes, per loss and network, ours and the paper's."""

    def fill(axes: Sequence[Axes], found: Found, _rule: Rule) -> Sequence[Change]:
        changes: list[Change] = []
        phases: tuple[Phase, ...] = ("pre", "post")
        for i, (dataset, phase, model) in enumerate(product(CIFARS, phases, TRANSFORMERS)):
            head = GridCell(dataset=dataset, model=model, head="calattn")
            here = [change_of(table, metric, dataclasses.replace(head, loss=loss), phase, found) for loss in LOSSES]
            drawing.changes(
                axes[i],
                here,
                title=f"{DATASETS[dataset]}, {MODELS[model]}, {'before' if phase == 'pre' else 'after'} TS",
                ticks=[LOSS_TITLES[loss] for loss in LOSSES],
                label=f"change of\n{title} (%)" if model == TRANSFORMERS[0] else "",
                legend=i == 0,
            )
            changes += here
        return changes

    return fill


def fill_dynamics(axes: Sequence[Axes], found: Found, _rule: Rule) -> Sequence[Change]:
    """1/s over the epochs, and how it and the feature norm are spread at three of them."""
    columns = len(DYNAMICS_CELLS)
    for i, cell in enumerate(DYNAMICS_CELLS):
        course, scales, norms = axes[i::columns]
        drawing.course(course, found[cell], title=f"{DATASETS[cell.dataset]}, {MODELS[cell.model]} + CalAttn")
        drawing.densities(scales, found[cell], "inverse_scale", label="1/s")
        drawing.densities(norms, found[cell], "feature_norm", label="‖z‖")
    return ()


def fill_reliability(axes: Sequence[Axes], found: Found, rule: Rule) -> Sequence[Change]:
    """Accuracy against confidence before temperature scaling, the baselines beside CalAttn."""
    for i, cell in enumerate(RELIABILITY_CELLS):
        title = f"{DATASETS[cell.dataset]}, {MODELS[cell.model]}\n{METHODS[cell.loss, cell.head]}"
        drawing.reliability(axes[i], found[cell], rule=rule, title=title, first=i % 6 == 0, last=i >= 12)
    return ()


def change_of(table: str, metric: str, cell: GridCell, phase: Phase, found: Found) -> Change:
    """The change from a cell's twin to the cell, which has a head."""
    keys = {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "loss": cell.loss, "phase": phase}
    printed = [paper.find(table, head=head, **keys) for head in ("none", cell.head)]
    values = {"paper": relative(*(None if row is None else fraction(row) for row in printed))}
    pair, sure = [found[each] for each in (cell.twin, cell)], []
    for rule in RULES:
        rows = [result.metric(metric, rule=rule, phase=phase) for result in pair]
        values[rule] = relative(*(None if row is None else row.value for row in rows))
        paired = pair[1].paired(metric, rule=rule, phase=phase)
        sure += [rule] if paired is not None and not paired.low <= 0 <= paired.high else []
    return Change(cell=cell, metric=metric, phase=phase, values=values, sure=tuple(sure))


def relative(before: float | None, after: float | None) -> float | None:
    """(after − before) / before.

    >>> relative(0.5, 0.25), relative(0.0, 0.1), relative(None, 0.1)
    (-0.5, None, None)
    """
    return None if before is None or after is None or before == 0 else (after - before) / before


def _change_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """One change a row, as fractions."""
    return [
        {"data_set": each.cell.dataset, "network": each.cell.model, "loss": each.cell.loss}
        | {"metric": each.metric, "phase": each.phase}
        | {name.replace("-", "_"): each.values[name] for name in (*RULES, "paper")}
        | {"cell": each.cell.name, "sure": " ".join(each.sure)}
        for each in changes
    ]


# --- the figures -------------------------------------------------------------------------------------------------------


def _changes(name: str, table: str, metric: str, title: str) -> PaperFigure:
    fill, caption = fill_changes(table, metric, title), CAPTIONS["changes"].format(title=title)
    return PaperFigure(name, CHANGE_CELLS, (4, 3), (3.9, 2.0), fill, caption)


_FEW = CAPTIONS["reliability"].format(few=drawing.FEW)
_ALL = (
    PaperFigure("cls_norm", NORM_CELLS, (2, 3), (3.0, 2.6), fill_norms, CAPTIONS["norms"], by_rule=True),
    _changes("delta_ece", "ece", "ece", "ECE"),
    _changes("delta_smece", "smece", "smooth_ece", "smECE"),
    _changes("delta_adaece", "adaece", "adaptive_ece", "AdaECE"),
    PaperFigure("dynamics", DYNAMICS_CELLS, (3, 6), (3.4, 2.3), fill_dynamics, CAPTIONS["dynamics"]),
    PaperFigure("reliability", RELIABILITY_CELLS, (3, 6), (2.1, 2.3), fill_reliability, _FEW, by_rule=True),
)
FIGURES = {figure.name: figure for figure in _ALL}
