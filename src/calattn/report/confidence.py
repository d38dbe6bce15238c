"""The confidence histogram: how sure a model is, and how often it is right to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from calattn import checks
from calattn.metrics.binning import BinSums, bin_edges
from calattn.metrics.sources import PredictionSource
from calattn.report.canvas import canvas, figure_of, headline, headroom, upright
from calattn.report.gather import gather
from calattn.report.style import BLUE, INK, ORANGE, figure_style
from calattn.types import check_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def confidence_histogram(
    predictions: PredictionSource, *labels: Never, num_bins: int = 15, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Samples by confidence, the wrong ones stacked on the right ones, with the mean confidence and the accuracy."""
    check_source(predictions, *labels)
    sums = BinSums.empty(checks.positive_int(num_bins, "num_bins"))
    gather(predictions, sums)
    total = float(sums.count.sum())
    accuracy, confidence = float(sums.correct.sum()) / total, float(sums.confidence.sum()) / total
    edges = bin_edges(num_bins).numpy()
    centre, width = (edges[:-1] + edges[1:]) / 2, 0.94 / num_bins
    right, wrong = (100 * (part / total).numpy() for part in (sums.correct, sums.count - sums.correct))
    with figure_style():
        ax = canvas(ax, height=2.6)
        ax.bar(centre, right, width, color=BLUE, alpha=0.85, label="right")
        ax.bar(centre, wrong, width, bottom=right, facecolor="white", edgecolor=ORANGE, hatch="////", label="wrong")
        upright(ax, accuracy, color=INK, linewidth=1.2, label="accuracy")
        upright(ax, confidence, color=INK, linewidth=1.2, linestyle="--", label="mean confidence")
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="% of samples")
        headroom(ax, 2)
        ax.legend(loc="upper left", ncols=2)
        headline(ax, title, f"says {100 * confidence:.1f} %, right {100 * accuracy:.1f} %")
    return figure_of(ax)
