"""Training dynamics: loss, accuracy, calibration and scale over the epochs of a run's log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calattn.report.canvas import figure_of, headline, stacked
from calattn.report.style import BLUE, GREY, INK, ORANGE, figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


class Line(NamedTuple):
    """One line of a panel: where its numbers are in a row, its name, and what they are multiplied by."""

    path: str
    label: str
    factor: float = 1.0


_PANELS: tuple[tuple[str, tuple[Line, ...]], ...] = (
    ("loss (nats)", (Line("train.loss", "training loss"), Line("validation.nll", "validation NLL"))),
    ("accuracy (%)", (Line("train.accuracy", "training", 100), Line("validation.accuracy", "validation", 100))),
    ("ECE (%)", (Line("validation.ece", "validation", 100),)),
)


def series(log_rows: Sequence[Row], path: str) -> np.ndarray:
    """The numbers at a dotted path in each row; NaN where a row has none.

    >>> series([{"train": {"loss": 2.0}}, {"train": {"loss": None}}], "train.loss").tolist()
    [2.0, nan]
    """

    def at(row: Row) -> float:
        value: Any = row
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) else float("nan")

    return np.array([at(row) for row in log_rows])


def training_dynamics(log_rows: Sequence[Row], *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Loss, accuracy, validation ECE and, for a CalAttn run, the scale s, against the epoch.

    `log_rows` are the rows of a run's `log.jsonl`, as `RunLog(path).rows()` or `json.loads` of each line gives them. The
    lowest validation NLL and ECE are marked. The band of s holds the middle 90 % of the validation samples.
    """
    rows = [row for row in log_rows if row.get("epoch") is not None and "validation" in row]
    if not rows:
        raise ValueError(
            f"log_rows has {len(log_rows)} rows and none of an epoch (with 'epoch' and 'validation'); "
            "pass the rows of a run's log.jsonl"
        )
    epochs = series(rows, "epoch")
    draws: list[Callable[[Axes], None]] = [_panel(epochs, rows, label, lines) for label, lines in _PANELS]
    if np.nanmax(series(rows, "validation.scale.std"), initial=0.0) > 0:
        draws.append(lambda panel: _scale(panel, epochs, rows))
    with figure_style():
        panels = stacked(ax, len(draws), height=1.35 * len(draws) + 0.4)
        for panel, draw in zip(panels, draws, strict=True):
            draw(panel)
        panels[-1].set(xlabel="epoch", xlim=(epochs.min(), max(epochs.max(), epochs.min() + 1)))
        headline(panels[0], title)
    return figure_of(panels[0])


def _panel(epochs: np.ndarray, rows: Sequence[Row], label: str, lines: Sequence[Line]) -> Callable[[Axes], None]:
    styles = ((GREY, "--"), (BLUE, "-")) if len(lines) == 2 else ((BLUE, "-"),)

    def draw(panel: Axes) -> None:
        for line, (colour, dashes) in zip(lines, styles, strict=True):
            values = line.factor * series(rows, line.path)
            panel.plot(epochs, values, color=colour, linestyle=dashes, linewidth=1.4, label=line.label)
            if line.path in ("validation.nll", "validation.ece") and not np.isnan(values).all():
                lowest = int(np.nanargmin(values))
                name = f"lowest: epoch {epochs[lowest]:.0f}"
                panel.plot(epochs[lowest], values[lowest], "o", color=ORANGE, markeredgecolor=INK, label=name, zorder=5)
        panel.set_ylabel(label)
        panel.legend(loc="best", fontsize=7)

    return draw


def _scale(panel: Axes, epochs: np.ndarray, rows: Sequence[Row]) -> None:
    low, high = (_quantile(rows, name) for name in ("0.05", "0.95"))
    panel.axhline(1, color=GREY, linewidth=0.9, linestyle=":")
    panel.fill_between(epochs, low, high, color=BLUE, alpha=0.2, linewidth=0, label="middle 90 %")
    panel.plot(epochs, series(rows, "validation.scale.mean"), color=BLUE, linewidth=1.4, label="mean")
    panel.set_ylabel("scale s")
    panel.legend(loc="best", fontsize=7)


def _quantile(rows: Sequence[Row], name: str) -> np.ndarray:
    """Quantiles have names with a dot in them, which a path would split."""
    scales = [row["validation"].get("scale") or {} for row in rows]
    return series([{"at": scale.get("quantiles", {}).get(name)} for scale in scales], "at")
