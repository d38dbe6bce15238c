"""Reliability diagrams: accuracy against confidence, bin by bin and smoothly, with what chance would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from calattn import checks
from calattn.files.atomic import PathArg, atomic_write
from calattn.metrics.binning import BinSums, bin_edges
from calattn.metrics.ranks import RankSums, equal_count_bins
from calattn.metrics.smooth import SmoothGrid
from calattn.metrics.sources import PredictionSource, target_of
from calattn.report.canvas import COLUMN, canvas, figure_of, gather, headline, named
from calattn.report.style import BLUE, GREY, INK, ORANGE, PURPLE, figure_style
from calattn.report.verdict import short
from calattn.types import check_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BANDWIDTH = 0.05  # smooth ECE's default
_REACH = 9.0  # exp(−9²/2) < 3e-18: images further away do not matter


class SmoothCurve(NamedTuple):
    """Kernel averages at the points `at`, with K the Gaussian reflected at 0 and 1; NaN where no sample is near.

    Drawn as `accuracy` over `confidence`, not over `at`: both are averages of the same samples, so a calibrated model lies on
    the diagonal wherever its confidences crowd. Over `at` it would not: with p ~ Beta(8, 1) and σ = 0.05 it ends 4 points
    below. ∫ |confidence − accuracy| · density dt is the smooth ECE.
    """

    at: Float[Tensor, " k"]
    confidence: Float[Tensor, " k"]  # Σ p K / Σ K
    accuracy: Float[Tensor, " k"]  # Σ correct K / Σ K
    density: Float[Tensor, " k"]  # (1/n) Σ K, of integral 1
    samples: Float[Tensor, " k"]  # (Σ K)² / Σ K²: how many equally weighted samples would be as certain


def smooth_curve(
    confidence: Float[Tensor, " n"],
    correct: Bool[Tensor, " n"] | Float[Tensor, " n"],
    *,
    at: Float[Tensor, " k"] | None = None,
    bandwidth: float = BANDWIDTH,
    weight: Float[Tensor, " n"] | None = None,
) -> SmoothCurve:
    """Kernel regression of correctness on confidence, with the reflected Gaussian kernel of smooth ECE.

    `weight` counts a row so many times. Without `at`, the curve has ten points a bandwidth, from 0 to 1.

    >>> curve = smooth_curve(torch.tensor([0.6, 0.6]), torch.tensor([True, False]), at=torch.tensor([0.6]))
    >>> round(float(curve.confidence), 4), round(float(curve.accuracy), 4), round(float(curve.samples), 4)
    (0.6, 0.5, 2.0)
    """
    checks.positive(bandwidth, "bandwidth")
    if at is None:
        at = torch.linspace(0, 1, 10 * math.ceil(1 / bandwidth) + 1, dtype=torch.float64)
    places, points, right = at.double(), confidence.double(), correct.double()
    times = torch.ones_like(points) if weight is None else weight.double()
    kernel = reflected_gaussian(places, points, bandwidth)
    mass = kernel @ times
    return SmoothCurve(
        at=places,
        confidence=kernel @ (times * points) / mass,
        accuracy=kernel @ (times * right) / mass,
        density=mass / times.sum(),
        samples=mass.square() / (kernel.square() @ times),
    )


def smooth_curve_of(grid: SmoothGrid, *, bandwidth: float | None = BANDWIDTH) -> SmoothCurve:
    """The curve of smooth ECE's own state, for streams; `bandwidth=None` takes the σ at which smECE_σ = σ.

    Each cell counts as one place, the mean of its confidences: 4096 cells are fine enough for any line that can be drawn.
    """
    sigma = grid.automatic()[1] if bandwidth is None else checks.positive(bandwidth, "bandwidth")
    if sigma < grid.min_bandwidth:
        raise ValueError(f"bandwidth {sigma} is finer than a curve resolves; take {grid.min_bandwidth:.2g} or more")
    cells = grid.weight[0] > 0
    count = grid.weight[0, cells]
    confidence = grid.centres[cells] + grid.weight[1, cells] / count
    return smooth_curve(confidence, confidence - grid.residual[0, cells] / count, bandwidth=sigma, weight=count)


def reflected_gaussian(at: Float[Tensor, " k"], points: Float[Tensor, " n"], bandwidth: float) -> Float[Tensor, "k n"]:
    """K(t, p) = Σ_m φ(t − p − 2m) + φ(t + p − 2m): a Gaussian whose mass beyond 0 and 1 is folded back."""
    images = math.ceil((_REACH * bandwidth + 1) / 2)
    kernel = torch.zeros(len(at), len(points), dtype=torch.float64)
    for m in range(-images, images + 1):
        for image in (points, -points):
            z = (at.unsqueeze(1) - image - 2 * m) / bandwidth
            if float(z.abs().min()) < _REACH:
                kernel += torch.exp(-z.square() / 2)
    return kernel / (bandwidth * math.sqrt(2 * math.pi))


Binning = Literal["equal_width", "equal_count"]

ENOUGH = 20.0  # samples that a point of the smooth curve must rest on: one standard error is then 11 points at most
_FORMATS = (".png", ".pdf", ".svg")


class Words(NamedTuple):
    """What the two axes are called, and their means in the headline."""

    confidence: str = "confidence"
    accuracy: str = "accuracy"
    mean_confidence: str = "confidence"
    mean_accuracy: str = "accuracy"

    @classmethod
    def of(cls, target: int | None, name: str | None) -> Words:
        if target is None:
            return cls()
        event = short(str(target) if name is None else name)
        return cls(f"P({event})", f"share of class {event}", "mean P", "share")


class Shown(NamedTuple):
    """What one diagram shows: the bins, the equal-width bins of the histogram below, and the curve where one is asked for."""

    binning: Binning
    bins: BinSums
    histogram: BinSums
    curve: SmoothCurve | None
    words: Words


def bin_sums(predictions: PredictionSource, *, num_bins: int = 15, binning: Binning = "equal_width") -> BinSums:
    """Count, confidence and accuracy of every bin: the sums that ECE is made of (AdaECE with equal counts)."""
    return _shown(predictions, num_bins, binning, smooth=False, bandwidth=None).bins


def consistency(sums: BinSums, *, level: float = 0.95) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """The accuracies that a calibrated model would show in each bin, `level` of the time.

    Quantiles of Binomial(|B|, mean confidence) / |B| (the consistency bars of Bröcker and Smith 2007, without resampling).
    The bin's confidences differ a little, which makes the true range a little narrower. Empty bins have none (NaN).
    """
    from scipy.stats import binom

    count = sums.count.cpu().numpy()
    mean = np.clip(sums.confidence.cpu().numpy() / np.maximum(count, 1), 0.0, 1.0)
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = (binom.ppf(q, count, mean) / count for q in (tail, 1 - tail))
    low, high = (np.where(count > 0, ends, np.nan) for ends in (low, high))
    return torch.from_numpy(low), torch.from_numpy(high)


def reliability_diagram(
    predictions: PredictionSource,
    *labels: Never,
    num_bins: int = 15,
    target: int | str | None = None,
    binning: Binning = "equal_width",
    smooth: bool = True,
    bandwidth: float | None = BANDWIDTH,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """One diagram: accuracy by bin, the gap to the confidence, what chance allows, and how the confidences lie.

    `smooth` adds the curve that smooth ECE integrates (`bandwidth` as there), thicker where there are more samples and only
    where there are enough. Bins of equal count are drawn as dots at their mean confidence: as bars most would be hairlines.
    With `ax`, the diagram is drawn there, and the histogram below it within the same space. With a `target`, the
    number or the name of a class, P(class) is held against how often the label is that class.
    """
    check_source(predictions, *labels)
    with figure_style():
        ax = canvas(ax, height=COLUMN * 1.3)
        _draw(ax, _shown(predictions, num_bins, binning, smooth=smooth, bandwidth=bandwidth, target=target), title)
    return figure_of(ax)


def reliability_diagrams(
    predictions: Mapping[str, PredictionSource],
    *labels: Never,
    num_bins: int = 15,
    target: int | str | None = None,
    binning: Binning = "equal_width",
    smooth: bool = True,
    bandwidth: float | None = BANDWIDTH,
    columns: int = 4,
) -> Figure:
    """Several diagrams beside each other, on the same axes so that they can be compared by eye."""
    from matplotlib.figure import Figure

    check_source(predictions, *labels)
    sources = named(predictions)
    wide = min(columns, len(sources))
    high = -(-len(sources) // wide)
    with figure_style():
        figure = Figure(figsize=(COLUMN * wide, COLUMN * 1.3 * high), layout="constrained")
        axes = figure.subplots(high, wide, squeeze=False).flatten()
        for place, (title, source) in enumerate(sources.items()):
            shown = _shown(source, num_bins, binning, smooth=smooth, bandwidth=bandwidth, target=target)
            _draw(axes[place], shown, title, legend=place == 0)
        for ax in axes[len(sources) :]:
            ax.remove()
    return figure


def save_figure(figure: Figure, path: PathArg) -> None:
    """Write a figure as .png, .pdf or .svg, whole or not at all; equal figures give equal files."""
    with atomic_write(path) as partial:
        kind = partial.suffix.lower()
        if kind not in _FORMATS:
            raise ValueError(f"{path} must end in {', '.join(_FORMATS)}, got {kind or 'no suffix'!r}")
        dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}[kind]
        with figure_style():
            figure.savefig(partial, dpi=200, metadata=dates, facecolor="white")


def _shown(
    source: PredictionSource,
    num_bins: int,
    binning: Binning,
    *,
    smooth: bool,
    bandwidth: float | None,
    target: int | str | None = None,
) -> Shown:
    if binning not in ("equal_width", "equal_count"):
        raise ValueError(f'binning must be "equal_width" or "equal_count", got {binning!r}')
    histogram, ranks, grid = BinSums.empty(checks.positive_int(num_bins, "num_bins")), RankSums(), SmoothGrid.empty()
    by_count = binning == "equal_count"
    number, name = target_of(target, source)
    gather(source, histogram, *([ranks] if by_count else []), *([grid] if smooth else []), target=number)
    bins = equal_count_bins(ranks.groups(), num_bins) if by_count else histogram
    curve = smooth_curve_of(grid, bandwidth=bandwidth) if smooth else None
    return Shown(binning, bins, histogram, curve, Words.of(number, name))


def _draw(ax: Axes, shown: Shown, title: str | None, *, legend: bool = True) -> None:
    sums = shown.bins
    filled = sums.count.numpy() > 0
    accuracy, confidence = (values.numpy()[filled] for values in (sums.accuracy, sums.gap + sums.accuracy))
    low, high = (ends.numpy()[filled] for ends in consistency(sums))
    if shown.binning == "equal_width":
        edges = bin_edges(len(filled)).numpy()
        place = (edges[:-1] + edges[1:])[filled] / 2
        _bars(ax, place, accuracy, confidence, 0.94 / len(filled), shown.words)
    else:
        place = confidence
        _dots(ax, accuracy, confidence, shown.words)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", zorder=4)
    middle = (low + high) / 2
    chance: Any = {"ecolor": INK, "elinewidth": 0.9, "capsize": 2, "zorder": 5, "clip_on": False}
    ax.errorbar(
        place, middle, yerr=np.stack([middle - low, high - middle]), fmt="none", label="if calibrated (95 %)", **chance
    )
    if shown.curve is not None:
        _curve(ax, shown.curve)
    if legend:
        _legend(ax)
    _decorate(ax, shown, title)
    _histogram(ax, shown.histogram, shown.words)


def _legend(ax: Axes) -> None:
    """On paper of its own: a bin with one sample may reach up there."""
    handles, labels = ax.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] == "smooth")
    shown = [handles[i] for i in order], [labels[i] for i in order]
    legend = ax.legend(
        *shown, loc="upper left", borderaxespad=0.2, borderpad=0.2, frameon=True, edgecolor="none", framealpha=0.85
    )
    legend.set_zorder(10)


def _bars(
    ax: Axes, centre: np.ndarray, accuracy: np.ndarray, confidence: np.ndarray, width: float, words: Words
) -> None:
    from matplotlib.colors import to_rgba

    ax.bar(centre, accuracy, width, color=BLUE, alpha=0.85, label=words.accuracy, zorder=2)
    hatched: Any = {
        "facecolor": to_rgba("white", 0.55),
        "edgecolor": ORANGE,
        "hatch": "////",
        "linewidth": 0.8,
        "zorder": 3,
    }
    ax.bar(centre, confidence - accuracy, width, bottom=accuracy, label=f"gap to {words.confidence}", **hatched)


def _dots(ax: Axes, accuracy: np.ndarray, confidence: np.ndarray, words: Words) -> None:
    gap = f"gap to {words.confidence}"
    ax.plot(confidence, accuracy, "o", color=BLUE, markersize=4.5, label=words.accuracy, zorder=8, clip_on=False)
    ax.vlines(confidence, accuracy, confidence, color=ORANGE, linewidth=2, label=gap, zorder=3)


def _curve(ax: Axes, curve: SmoothCurve) -> None:
    """The smooth curve, as wide as its samples are dense, on a white rim that lifts it off the bars."""
    from matplotlib.collections import LineCollection

    enough = (curve.samples >= ENOUGH).numpy()  # NaN is not
    if not enough.any():
        return
    points = np.stack([curve.confidence.numpy(), curve.accuracy.numpy()], axis=1)
    both = enough[:-1] & enough[1:]
    segments = np.stack([points[:-1], points[1:]], axis=1)[both]
    share = (curve.density / curve.density[torch.from_numpy(enough)].max()).sqrt().numpy()
    width = 1.0 + 1.6 * (share[:-1] + share[1:])[both] / 2
    rim = LineCollection(segments, linewidths=width + 1.6, colors="white", capstyle="round", zorder=6.9)
    line = LineCollection(segments, linewidths=width, colors=PURPLE, capstyle="round", zorder=7)
    for each in (rim, line):
        each.set_clip_on(False)
        ax.add_collection(each, autolim=False)
    ax.plot([], [], color=PURPLE, linewidth=2, label="smooth")


def _decorate(ax: Axes, shown: Shown, title: str | None) -> None:
    sums = shown.bins
    total = float(sums.count.sum())
    accuracy, confidence = float(sums.correct.sum()) / total, float(sums.confidence.sum()) / total
    name = "ECE" if shown.binning == "equal_width" else "AdaECE"
    said, right = shown.words.mean_confidence, shown.words.mean_accuracy
    numbers = f"{name} {100 * sums.error():.2f} · {right} {100 * accuracy:.1f} · {said} {100 * confidence:.1f} %"
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel=shown.words.accuracy, aspect="equal", xticks=[0, 0.25, 0.5, 0.75, 1])
    ax.yaxis.label.set_parse_math(False)
    ax.tick_params(labelbottom=False)
    headline(ax, title, numbers)


def _histogram(ax: Axes, sums: BinSums, words: Words) -> None:
    """Where the confidences lie, underneath on the same horizontal axis."""
    edges = bin_edges(len(sums.count)).numpy()
    below = ax.inset_axes((0, -0.28, 1, 0.2), sharex=ax)
    share = 100 * (sums.count / sums.count.sum()).numpy()
    below.bar((edges[:-1] + edges[1:]) / 2, share, 0.94 / len(share), color=GREY)
    top = max(1.0, float(share.max()) * 1.1)
    below.set(xlabel=words.confidence, ylabel="% of\nsamples", ylim=(0, top))
    below.tick_params(labelbottom=True)
