"""Single panels of the figures, each from one result document; one without a result says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calattn.metrics.binning import bin_edges
from calattn.report.style import BLUE, GREEN, GREY, INK, ORANGE, number
from calattn.rules import Rule
from reproduction.cells import GridCell
from reproduction.results import CellResult, Hole, Phase

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = CellResult | Hole

_NORM_BINS = 10
_TOP, _BOTTOM = 150.0, -100.0  # per cent; a change below −100 cannot be
_SERIES = (
    ("last", "ours, last epoch", BLUE),
    ("best-ece", "ours, lowest validation ECE", GREEN),
    ("paper", "paper", GREY),
)
_PALE = 0.15
FEW = 20  # images; the accuracy of so few says little
_EPOCHS = (GREY, BLUE, ORANGE)
_PAPER: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}


def empty(ax: Axes, reason: str) -> None:
    """A panel without a result: the reason in its place."""
    ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color=GREY, fontsize=8, wrap=True)
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_edgecolor("#DDDDDD")


def norms(ax: Axes, result: Result, *, rule: Rule, title: str, column: str, first: bool) -> None:
    """Feature norm against the largest probability: dots, and means of bins of equal count."""
    from scipy.stats import spearmanr

    ax.set_title(title, fontsize=8)
    points = _part(result, rule, "scatter")
    if points is None:
        return empty(ax, _reason(result, "no sample of images"))
    norm, prob, right = (np.array(points[name]) for name in ("feature_norm", column, "correct"))
    for chosen, colour, label in ((right == 1, BLUE, "right"), (right != 1, ORANGE, "wrong")):
        ax.scatter(norm[chosen], prob[chosen], s=6, color=colour, alpha=0.4, linewidths=0, rasterized=True, label=label)
    ax.plot(*equal_count_means(norm, prob, _NORM_BINS), color=INK, linewidth=1.6, marker="o", markersize=3)
    ax.set(ylim=(0, 1.03), xlabel="‖z‖", ylabel="largest probability" if first else "")
    correlation = f"ρ = {float(spearmanr(norm, prob).statistic):.2f}".replace("-", "−")
    ax.set_title(f"{title}; {correlation}", fontsize=8)
    if first:
        ax.legend(fontsize=7.5, loc="lower left", handletextpad=0.1, borderaxespad=0.3, frameon=True, edgecolor=GREY)
    return None


def equal_count_means(x: np.ndarray, y: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean of x and of y in bins of (nearly) equal count along x; equal x are never divided."""
    edges = np.unique(np.quantile(x, np.arange(1, num_bins) / num_bins, method="closest_observation"))
    places = np.searchsorted(edges, x)
    parts = [part for place in range(len(edges) + 1) if (part := places == place).any()]
    return np.array([x[part].mean() for part in parts]), np.array([y[part].mean() for part in parts])


class Change(NamedTuple):
    """(with − without) / without of one metric, by checkpoint rule and in the "paper"; None where a side is missing, or where
    without is zero. `sure`: the rules under which the paired difference has an interval without zero."""

    cell: GridCell
    metric: str
    phase: Phase
    values: Mapping[str, float | None]
    sure: tuple[str, ...]


def changes(ax: Axes, found: Sequence[Change], *, title: str, ticks: Sequence[str], label: str, legend: bool) -> None:
    """Three bars a loss: ours under both rules, the paper's. Pale: the difference may be chance. Bars beyond the axis carry
    their value."""
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    width = 0.27
    for k, (name, _, colour) in enumerate(_SERIES):
        places = np.arange(len(found)) + (k - 1) * width
        values = [change.values[name] for change in found]
        heights = [0.0 if value is None else min(100 * value, _TOP) for value in values]
        bars = ax.bar(places, heights, width * 0.92, color=colour, edgecolor=colour, linewidth=0.6, zorder=2)
        for bar, change in zip(bars, found, strict=True):
            if name != "paper" and name not in change.sure:
                bar.set_facecolor(to_rgba(colour, _PALE))
        for place, value in zip(places, values, strict=True):
            if value is None:
                ax.plot(place, 0, marker="x", markersize=2.5, color=colour, zorder=4)
            elif 100 * value > _TOP:
                ax.text(place, _TOP, f"+{100 * value:.0f}", ha="center", va="bottom", fontsize=6, color=colour)
    ax.axhline(0, color=INK, linewidth=0.8, zorder=3)
    ax.set(ylim=(_BOTTOM, _TOP), xlim=(-0.6, len(found) - 0.4), ylabel=label)
    ax.set_xticks(range(len(ticks)), ticks, fontsize=7.5)
    ax.tick_params(axis="x", length=0)
    ax.set_title(title, fontsize=8.5, pad=12)
    if legend:
        handles: list[Any] = [Patch(color=colour, label=series) for _, series, colour in _SERIES]
        handles.append(Patch(facecolor=to_rgba(BLUE, _PALE), edgecolor=BLUE, label="pale: interval has 0 in it"))
        handles.append(Line2D([], [], color=INK, linestyle="", marker="x", markersize=3, label="no such pair"))
        ax.legend(handles=handles, fontsize=6.5, frameon=False, loc="upper left", handlelength=1.2, ncols=2)


def course(ax: Axes, result: Result, *, title: str) -> None:
    """Mean of 1/s and its coefficient of variation over the epochs, with T* of the last epoch."""
    ax.set_title(title, fontsize=9)
    rows = [] if isinstance(result, Hole) else _moving(result, "inverse_scale")
    if not rows or isinstance(result, Hole):
        return empty(ax, _reason(result, "the log has no scale"))
    epochs = [epoch for epoch, _ in rows]
    ax.plot(epochs, [part["mean"] for _, part in rows], color=ORANGE, linewidth=1.6, label="mean")
    temperature = result.temperature()
    if temperature is not None:
        ax.axhline(temperature, color=INK, linestyle="--", linewidth=1, label=f"T* = {temperature:.1f}")
    ax.axhline(1, color="#DDDDDD", linewidth=0.8, zorder=0)
    low, high = ax.get_ylim()
    ax.set(xlabel="epoch", ylabel="mean of 1/s", ylim=(low, high + 0.25 * (high - low)))  # room for the legend
    ax.yaxis.label.set_color(ORANGE)
    other = ax.twinx()
    other.plot(epochs, [part["cv"] for _, part in rows], color=BLUE, linewidth=1.4, label="CV")
    other.set(ylabel="coefficient of variation", ylim=(0, 1.25 * max(part["cv"] for _, part in rows) or 1.0))
    other.yaxis.label.set_color(BLUE)
    other.spines["right"].set_visible(True)
    handles = [handle for each in (ax, other) for handle in each.get_legend_handles_labels()[0]]
    other.legend(
        handles=handles, fontsize=7, frameon=False, loc="upper left", ncols=3, columnspacing=0.9, handlelength=1.4
    )
    return None


def densities(ax: Axes, result: Result, name: str, *, label: str) -> None:
    """Densities from the log's histograms, at the epochs that have them."""
    rows = [] if isinstance(result, Hole) else [each for each in _moving(result, name) if "histogram" in each[1]]
    if not rows:
        return empty(ax, _reason(result, f"the log has no histogram of {label}"))
    tops = []
    for (epoch, part), colour in zip(rows, _EPOCHS, strict=False):
        counts, ends = np.array(part["histogram"]["counts"], dtype=float), part["histogram"]["edges"]
        if ends[0] == ends[-1]:  # documents have five digits: a scale that has not moved has none to tell apart
            ax.axvline(part["mean"], color=colour, linewidth=1.3, label=f"epoch {epoch} (no spread)")
            continue
        edges = np.linspace(ends[0], ends[-1], len(ends))  # equal bins, without the rounding of each edge
        density = counts / (counts.sum() * (edges[1] - edges[0]))
        ax.stairs(density, edges, color=colour, linewidth=1.3, label=f"epoch {epoch}")
        tops.append(float(density.max()))
    if tops and max(tops) > 20 * min(tops):  # an epoch at which the scale has hardly moved is a spike beside the others
        ax.set_yscale("symlog", linthresh=min(tops))
    ax.set(xlabel=label, ylabel="density", ylim=(0, None))
    ax.legend(fontsize=7.5, frameon=False)
    return None


def reliability(ax: Axes, result: Result, *, rule: Rule, title: str, first: bool, last: bool) -> None:
    """Bars of accuracy, the gap to the confidence, and where the images lie."""
    from matplotlib.colors import to_rgba

    ax.set_title(title, fontsize=8)
    bins = _part(result, rule, "bins")
    if bins is None:
        ax.set_box_aspect(1)
        return empty(ax, _reason(result, "no bins"))
    bins = bins["pre"]
    counts = np.array(bins["counts"], dtype=float)
    filled = counts > 0
    edges = bin_edges(len(counts)).numpy()
    centre, width = (edges[:-1] + edges[1:])[filled] / 2, 0.94 / len(counts)
    accuracy, confidence = (np.array([v for v in bins[name] if v is not None]) for name in ("accuracy", "confidence"))
    strength = np.where(counts[filled] < FEW, 0.3, 1.0)
    ax.bar(centre, accuracy, width, color=[to_rgba(BLUE, 0.85 * each) for each in strength], zorder=2)
    gap: Any = {"facecolor": to_rgba("white", 0.55), "edgecolor": [to_rgba(ORANGE, each) for each in strength]}
    ax.bar(centre, confidence - accuracy, width, bottom=accuracy, hatch="/////", linewidth=0.7, zorder=3, **gap)
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle="--", zorder=4)
    ax.step(edges, np.append(counts, counts[-1]) / counts.sum(), where="post", color=INK, linewidth=0.8, zorder=5)
    ece = float((counts[filled] * np.abs(confidence - accuracy)).sum() / counts.sum())
    mean = float((counts[filled] * accuracy).sum() / counts.sum())
    text = f"ECE {number('ece', ece)} %\naccuracy {number('accuracy', mean)} %"
    ax.text(0.04, 0.96, text, transform=ax.transAxes, va="top", fontsize=7, zorder=6, bbox=_PAPER)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    ax.set(xlabel="confidence" if last else "", ylabel="accuracy" if first else "")
    return None


def _part(result: Result, rule: Rule, name: str) -> Any:
    return None if isinstance(result, Hole) else result.rules.get(rule, {}).get(name)


def _reason(result: Result, otherwise: str) -> str:
    return result.reason if isinstance(result, Hole) else otherwise


def _moving(result: CellResult, name: str) -> list[tuple[int, dict[str, Any]]]:
    """(epoch, distribution) of what the log follows."""
    return [(row["epoch"], row["validation"][name]) for row in result.log if name in row["validation"]]
