"""What figures are drawn from, predictions whole or in blocks, and what they are drawn on: axes in the house style."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calattn.files.text import visible
from calattn.metrics.sources import PredictionSource, columns_in, parts_of
from calattn.types import Predictions, check_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Sources = PredictionSource | Mapping[str, PredictionSource]


def gather(predictions: PredictionSource, *states: Any, target: int | None = None) -> None:
    """Fill metric states, which `add` columns, in one pass over the source, which may be a stream that can be read once."""
    check_source(predictions)
    for part in parts_of(predictions):
        columns = columns_in(part, target).cpu()
        for state in states:
            state.add(columns)


def named(predictions: Sources) -> dict[str, PredictionSource]:
    """Sources by title; a single one has the empty title."""
    if not isinstance(predictions, Mapping):
        return {"": predictions}
    if not predictions:
        raise ValueError("predictions is empty: there is nothing to draw")
    return dict(predictions)


def with_validation(
    predictions: Mapping[str, Predictions], validation: Predictions | Mapping[str, Predictions] | None
) -> dict[str, tuple[Predictions, Predictions | None]]:
    """Predictions by title, each with what T* is fitted on, where that is known."""
    if not isinstance(predictions, Mapping) or not all(isinstance(each, Predictions) for each in predictions.values()):
        raise ValueError("predictions must be calattn.Predictions: a temperature needs them whole, many times over")
    if not predictions:
        raise ValueError("predictions is empty: there is nothing to show")
    if isinstance(validation, Predictions):
        if len(predictions) > 1:
            raise ValueError("validation is one set for several predictions; pass those of each model by title")
        validation = dict.fromkeys(predictions, validation)
    held_out = validation or {}
    if strangers := held_out.keys() - predictions.keys():
        known = ", ".join(predictions)
        raise ValueError(f"validation has {min(strangers)!r}, which predictions has not; titles: {known}")
    return {title: (each, held_out.get(title)) for title, each in predictions.items()}


COLUMN = 3.4  # inches: one column of a two-column paper
DASHES = ("-", "--", "-.", ":")  # lines of several subjects differ in grey print too


def canvas(ax: Axes | None, *, height: float) -> Axes:
    """The caller's axes, or those of a new figure of its own, which no global state knows."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(COLUMN, height), layout="constrained").add_subplot()


def figure_of(ax: Axes) -> Figure:
    found = ax.get_figure(root=True)
    assert found is not None
    return found


def stacked(ax: Axes | None, count: int, *, height: float) -> list[Axes]:
    """`count` panels above each other on one horizontal axis: a new figure's, or the caller's axes divided, itself on top."""
    from matplotlib.figure import Figure

    if ax is None:
        figure = Figure(figsize=(COLUMN, height), layout="constrained")
        panels = [figure.add_subplot(count, 1, 1)]
        panels += [figure.add_subplot(count, 1, 1 + place, sharex=panels[0]) for place in range(1, count)]
    else:
        spec, parent = ax.get_subplotspec(), ax.get_figure()
        if spec is None or parent is None:
            raise ValueError(f"ax must come from subplots(): it is divided into {count} panels, and only a grid can be")
        inner = spec.subgridspec(count, 1)
        ax.set_subplotspec(inner[0])
        panels = [ax, *(parent.add_subplot(inner[place], sharex=ax) for place in range(1, count))]
    for panel in panels[:-1]:
        panel.tick_params(labelbottom=False)
    return panels


def upright(ax: Axes, x: float, *, label: str = "", **style: Any) -> None:
    """A vertical line over the height of what is drawn so far: unlike `axvline` it stays out of later headroom."""
    low, high = ax.get_ylim()
    ax.vlines(x, low, high, label=label, **style)
    ax.set_ylim(low, high)


def headroom(ax: Axes, lines: int) -> None:
    """Room above the data for so many lines of a legend, which then covers nothing."""
    low, high = ax.get_ylim()
    inches = ax.get_position().height * figure_of(ax).get_size_inches()[1]
    share = min(0.6, (0.16 * lines + 0.08) / max(inches, 1.0))
    ax.set_ylim(low, low + (high - low) / (1 - share))


def line_label(title: str, value: str) -> str:
    """What a legend says of a line; Matplotlib leaves out what starts with an underscore."""
    label = visible(f"{title}: {value}" if title else value)
    return f" {label}" if label.startswith("_") else label


def headline(ax: Axes, title: str | None, numbers: str | None = None) -> None:
    """A bold title, and under it one line of numbers."""
    if numbers:
        ax.text(0.5, 1.03, numbers, transform=ax.transAxes, ha="center", fontsize=8)
    if title:
        ax.title.set_parse_math(False)  # of the caller's axes
        ax.set_title(visible(title), fontsize=10, fontweight="bold", pad=17 if numbers else 6)
