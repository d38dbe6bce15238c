"""Temperature curves: ECE and NLL as one temperature divides all logits, and where each is lowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.posthoc.newton import check_labels_possible
from calattn.posthoc.temperature import TemperatureScaling, ece_curve, temperature_blocks
from calattn.report.canvas import DASHES, figure_of, headline, headroom, line_label, stacked, upright, with_validation
from calattn.report.style import GREY, INK, figure_style
from calattn.types import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
_POINTS = 65
_CHOSEN = "\nT* chosen on the samples shown"


def errors_at(
    predictions: Predictions, temperatures: Sequence[float], *, num_bins: int = 15
) -> tuple[Float[Tensor, " t"], Float[Tensor, " t"]]:
    """ECE and NLL of softmax(ℓ/T) at each temperature.

    >>> p = Predictions(logits=torch.tensor([[1.0, 0.0], [1.0, 0.0]]), labels=torch.tensor([0, 1]))
    >>> ece, nll = errors_at(p, [1.0, 1e6])
    >>> ece.numpy().round(4).tolist(), nll.numpy().round(4).tolist()
    ([0.2311, 0.0], [0.8133, 0.6931])
    """
    check_labels_possible(predictions)
    temperatures = [checks.positive(value, "temperatures") for value in temperatures]
    inverse = 1 / torch.tensor(temperatures, dtype=torch.float64).unsqueeze(1)
    nll = torch.zeros(len(temperatures), dtype=torch.float64)
    for block in temperature_blocks(predictions, temperatures):
        # −log softmax of the label: log Σ exp(d/T) − d_y/T, with d the logits less the largest
        nll += (block.sums.double().log() - block.label.double() * inverse.to(block.label.device)).sum(dim=1).cpu()
    return ece_curve(predictions, temperatures, num_bins=num_bins), nll / len(predictions)


def best_temperature(predictions: Predictions) -> float | None:
    """T*, of the lowest NLL; None where there is no optimum."""
    fit = TemperatureScaling().fit(predictions)
    return fit.temperature_ if fit.converged_ else None


def temperature_curve(
    predictions: Predictions | Mapping[str, Predictions],
    *,
    validation: Predictions | Mapping[str, Predictions] | None = None,
    temperatures: Sequence[float] | None = None,
    num_bins: int = 15,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """ECE above and NLL below against the temperature T that divides the logits, with T* marked; a mapping is overlaid.

    T*, of the lowest NLL, is fitted on `validation` (for a mapping, one of the same titles). Without it T* is chosen on the very
    predictions that are shown, which flatters it, and the figure says so.
    """
    pairs = with_validation({"": predictions} if isinstance(predictions, Predictions) else predictions, validation)
    best = {
        name: best_temperature(shown if held_out is None else held_out) for name, (shown, held_out) in pairs.items()
    }
    marks = [1.0, *(value for value in best.values() if value is not None)]
    if temperatures is None:
        temperatures = np.geomspace(0.5 * min(marks), 2 * max(marks), _POINTS).tolist()
    grid = sorted({*temperatures, *(mark for mark in marks if min(temperatures) <= mark <= max(temperatures))})
    curves = {name: errors_at(shown, grid, num_bins=num_bins) for name, (shown, _) in pairs.items()}
    with figure_style():
        panels = stacked(ax, 2, height=3.5 + 0.3 * len(curves))
        for number, label in enumerate(("ECE (%)", "NLL (nats)")):
            panel, factor = panels[number], (100, 1)[number]
            for place, (name, curve) in enumerate(curves.items()):
                _draw(panel, grid, factor * curve[number].numpy(), best[name], name, DASHES[place % len(DASHES)])
            panel.set_ylabel(label)
            upright(panel, 1.0, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
            headroom(panel, len(curves))
            panel.legend(loc="upper center")
        _temperature_axis(
            panels[-1], temperatures, _CHOSEN if None in (held_out for _, held_out in pairs.values()) else ""
        )
        headline(panels[0], title)
    return figure_of(panels[0])


def _draw(panel: Axes, grid: list[float], values: np.ndarray, best: float | None, name: str, dashes: str) -> None:
    label = line_label(name, "no T*" if best is None else f"T* = {best:.3g}")
    (line,) = panel.plot(grid, values, linestyle=dashes, label=label)
    if best in grid:
        mark: Any = {"color": line.get_color(), "markeredgecolor": INK, "markersize": 5.5, "zorder": 5}
        panel.plot([best], [values[grid.index(best)]], "o", **mark)


def _temperature_axis(panel: Axes, temperatures: Sequence[float], note: str) -> None:
    from matplotlib.ticker import NullLocator

    low, high = min(temperatures), max(temperatures)
    ticks = [tick for tick in _TICKS if low <= tick <= high] or [low, high]
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel(f"temperature T (1: as given){note}")
