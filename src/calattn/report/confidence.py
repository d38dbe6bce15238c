"""Figures of confidence: how sure a model is, and how often it is right where it is sure enough to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Never

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.metrics.binning import BinSums, bin_edges
from calattn.metrics.ranks import Groups, RankSums, aurc_of, risk_coverage_of
from calattn.metrics.sources import PredictionSource
from calattn.report.canvas import (
    DASHES,
    Sources,
    canvas,
    figure_of,
    gather,
    headline,
    headroom,
    line_label,
    named,
    upright,
)
from calattn.report.style import BLUE, GREY, INK, ORANGE, figure_style
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
        ax.bar(centre, right, width, color=BLUE, alpha=0.85, label="correct")
        ax.bar(centre, wrong, width, bottom=right, facecolor="white", edgecolor=ORANGE, hatch="////", label="wrong")
        upright(ax, accuracy, color=INK, linewidth=1.2, label="accuracy")
        upright(ax, confidence, color=INK, linewidth=1.2, linestyle="--", label="mean confidence")
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="% of samples")
        headroom(ax, 2)
        ax.legend(loc="upper left", ncols=2)
        headline(ax, title, f"confidence {100 * confidence:.1f} %, accuracy {100 * accuracy:.1f} %")
    return figure_of(ax)


FEWEST = 20  # samples a drawn rate rests on: rates of the first two or three are 0 or 100 % and hide the rest
_POINTS = 1000
_THRESHOLDS = 501
_KEPT: Any = {"linewidth": 1.1, "linestyle": "-."}


class Selection(NamedTuple):
    """Samples with confidence ≥ each threshold: their share, how often they are right, and their mean confidence."""

    threshold: Float[Tensor, " t"]
    kept: Float[Tensor, " t"]
    accuracy: Float[Tensor, " t"]  # NaN where nothing is kept
    confidence: Float[Tensor, " t"]
    samples: Float[Tensor, " t"]


def selection(predictions: PredictionSource, thresholds: Float[Tensor, " t"] | None = None) -> Selection:
    """What is left when a model answers only with confidence ≥ t, for each threshold t.

    Compared in float32, in which most confidences come: a float32 0.9 is at the threshold 0.9, not below it.
    """
    return _selection(_groups(predictions), torch.linspace(0, 1, _THRESHOLDS) if thresholds is None else thresholds)


def risk_coverage_curve(
    predictions: Sources, *labels: Never, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Error rate when only the most confident share of the samples is answered, with the area under it (AURC).

    A mapping of titles to predictions is overlaid. Drawn from the coverage that holds 20 samples on.
    """
    check_source(predictions, *labels)
    sources = named(predictions)
    with figure_style():
        ax = canvas(ax, height=2.6)
        top = 0.0
        for place, (name, source) in enumerate(sources.items()):
            groups = _groups(source)
            coverage, risk = (100 * values for values in risk_coverage_of(groups))
            shown = _thinned(groups.count.cumsum(0))
            area = f"AURC {100 * aurc_of(groups):.2f}"
            dashes, label = DASHES[place % len(DASHES)], line_label(name, area)
            ax.plot(coverage[shown], risk[shown], linestyle=dashes, label=label)
            top = max(top, float(risk[shown].max()))
        ax.set(xlim=(0, 100), ylim=(0, 1.03 * top or 1), xlabel="coverage (% answered)", ylabel="risk (error rate, %)")
        headroom(ax, len(sources))
        ax.legend(loc="upper left")
        headline(ax, title)
    return figure_of(ax)


def accuracy_above_confidence(
    predictions: Sources, *labels: Never, at: float = 0.9, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Accuracy of the samples above a confidence, and how many those are; the one reading at `at` in words.

    A single source also shows the mean confidence of what is kept, where the accuracy of a calibrated model would lie. A
    mapping is overlaid: solid the accuracy, thin the share that is kept. Drawn while 20 samples are left.
    """
    check_source(predictions, *labels)
    sources = named(predictions)
    numbers = None
    with figure_style():
        ax = canvas(ax, height=2.8)
        for name, source in sources.items():
            groups = _groups(source)
            found = _selection(groups, torch.linspace(0, 1, _THRESHOLDS))
            enough = found.samples >= min(FEWEST, float(found.samples[0]))
            _lines(ax, Selection(*(values[enough] for values in found)), name, alone=len(sources) == 1)
            if len(sources) == 1:
                numbers = _sentence(_selection(groups, torch.tensor([at])))
                ax.axvline(at, color=GREY, linewidth=0.8, linestyle="-", zorder=1)
        if len(sources) > 1:
            ax.plot([], [], color=GREY, label="share kept", **_KEPT)
        ax.set(xlim=(0, 1), ylim=(0, 102), xlabel="confidence at least", ylabel="%")
        ax.legend(loc="lower left")
        headline(ax, title, numbers)
    return figure_of(ax)


def _groups(source: PredictionSource) -> Groups:
    ranks = RankSums()
    gather(source, ranks)
    return ranks.groups()


def _selection(groups: Groups, thresholds: Float[Tensor, " t"]) -> Selection:
    # Groups stand with the most confident first; tied odds are tied confidences, up to rounding, which the sort mends.
    confidence, order = (groups.confidence / groups.count).float().sort(descending=True, stable=True)
    # the number of groups at or above each threshold
    place = len(confidence) - torch.searchsorted(confidence.flip(0), thresholds.float(), right=False)

    def above(values: Tensor) -> Tensor:
        return torch.cat([values.new_zeros(1), values[order].cumsum(0)])[place]

    count = above(groups.count)
    return Selection(
        threshold=thresholds.double(),
        kept=count / groups.count.sum(),
        accuracy=above(groups.correct) / count,
        confidence=above(groups.confidence) / count,
        samples=count,
    )


def _lines(ax: Axes, found: Selection, name: str, *, alone: bool) -> None:
    accuracy = "accuracy of the kept" if alone else name
    # The colour is the style's next, taken while the style holds: "C0" would be looked up when the figure is saved.
    (line,) = ax.plot(found.threshold, 100 * found.accuracy, linewidth=1.8, label=accuracy)
    if alone:
        label = "their mean confidence"
        ax.plot(found.threshold, 100 * found.confidence, color=INK, linewidth=1.1, linestyle="--", label=label)
    kept, label = (ORANGE, "share kept") if alone else (line.get_color(), "")
    ax.plot(found.threshold, 100 * found.kept, color=kept, label=label, **_KEPT)


def _sentence(found: Selection) -> str:
    threshold, kept, accuracy = (float(values[0]) for values in found[:3])
    if kept == 0:
        return f"at {threshold:g} or above: no samples"
    return f"at {threshold:g} or above: {100 * kept:.1f} % kept, accuracy {100 * accuracy:.1f} %"


def _thinned(covered: Float[Tensor, " g"]) -> np.ndarray:
    """Places of at most a thousand points evenly over the samples, the last one included."""
    first = int(torch.searchsorted(covered, min(FEWEST, float(covered[-1]))))
    wanted = torch.linspace(float(covered[first]), float(covered[-1]), _POINTS, dtype=torch.float64)
    return np.unique(torch.searchsorted(covered, wanted).clamp_max(len(covered) - 1).numpy())
