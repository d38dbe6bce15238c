"""Reliability diagrams: accuracy against confidence, bin by bin, with what chance would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from calattn.atomic import PathArg, atomic_write
from calattn.metrics.binning import bin_edges
from calattn.metrics.bins import BinSums
from calattn.metrics.columns import columns_of
from calattn.report.style import BLUE, GREY, INK, ORANGE, figure_style
from calattn.types import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Source = Predictions | Iterable[Predictions]

_SIDE = 3.4  # inches of one diagram
_FORMATS = (".png", ".pdf", ".svg")


def bin_sums(predictions: Source, *, num_bins: int = 15) -> BinSums:
    """Count, confidence and accuracy of every bin: the sums that ECE is made of."""
    sums = BinSums.empty(num_bins)
    for part in [predictions] if isinstance(predictions, Predictions) else predictions:
        stated = part.stated_probs
        if stated is not None:
            sums.add(columns_of(stated, part.labels, "probs"))
        else:
            sums.add(columns_of(part.logits, part.labels, "logits", scale=part.scale))
    return sums


def consistency(sums: BinSums, *, level: float = 0.95) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """The accuracies that a calibrated model would show in each bin, `level` of the time.

    Quantiles of Binomial(|B|, mean confidence) / |B| (the consistency bars of Bröcker and Smith 2007, without resampling).
    The bin's confidences differ a little, which makes the true range a little narrower. Empty bins have none (NaN).
    """
    import torch
    from scipy.stats import binom

    count = sums.count.cpu().numpy()
    mean = np.clip(sums.confidence.cpu().numpy() / np.maximum(count, 1), 0.0, 1.0)
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = (binom.ppf(q, count, mean) / count for q in (tail, 1 - tail))
    low, high = (np.where(count > 0, ends, np.nan) for ends in (low, high))
    return torch.from_numpy(low), torch.from_numpy(high)


def reliability_diagram(
    predictions: Source, *, num_bins: int = 15, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """One diagram: accuracy bars, the gap to the confidence, what chance allows, and how the confidences lie.

    With `ax`, the diagram is drawn there, and the histogram below it within the same space.
    """
    with figure_style():
        if ax is None:
            from matplotlib.figure import Figure

            figure = Figure(figsize=(_SIDE, _SIDE * 1.3), layout="constrained")
            ax = figure.add_subplot()
        _draw(ax, bin_sums(predictions, num_bins=num_bins), title)
        found = ax.get_figure(root=True)
    assert found is not None
    return found


def reliability_diagrams(predictions: Mapping[str, Source], *, num_bins: int = 15, columns: int = 4) -> Figure:
    """Several diagrams beside each other, on the same axes so that they can be compared by eye."""
    from matplotlib.figure import Figure

    if not predictions:
        raise ValueError("predictions is empty: there is nothing to draw")
    wide = min(columns, len(predictions))
    high = -(-len(predictions) // wide)
    with figure_style():
        figure = Figure(figsize=(_SIDE * wide, _SIDE * 1.3 * high), layout="constrained")
        axes = figure.subplots(high, wide, squeeze=False).flatten()
        for place, (title, source) in enumerate(predictions.items()):
            _draw(axes[place], bin_sums(source, num_bins=num_bins), title, legend=place == 0)
        for ax in axes[len(predictions) :]:
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


def _draw(ax: Axes, sums: BinSums, title: str | None, *, legend: bool = True) -> None:
    from matplotlib.colors import to_rgba

    filled = sums.count.numpy() > 0
    edges = bin_edges(len(filled)).numpy()
    centre, width = (edges[:-1] + edges[1:])[filled] / 2, 1 / len(filled)
    accuracy, confidence = sums.accuracy.numpy()[filled], (sums.confidence / sums.count.clamp_min(1)).numpy()[filled]
    low, high = (ends.numpy()[filled] for ends in consistency(sums))
    ax.bar(centre, accuracy, width * 0.94, color=BLUE, alpha=0.85, label="accuracy", zorder=2)
    ax.bar(
        centre,
        confidence - accuracy,
        width * 0.94,
        bottom=accuracy,
        facecolor=to_rgba("white", 0.55),
        edgecolor=ORANGE,
        hatch="////",
        linewidth=0.8,
        label="gap to confidence",
        zorder=3,
    )
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", zorder=4)
    middle = (low + high) / 2
    bars = np.stack([middle - low, high - middle])
    style: Any = {"ecolor": INK, "elinewidth": 0.9, "capsize": 2, "zorder": 5, "clip_on": False}
    ax.errorbar(centre, middle, yerr=bars, fmt="none", label="if calibrated (95 %)", **style)
    if legend:
        ax.legend(loc="upper left", fontsize=7.5, frameon=False, handlelength=1.4, borderaxespad=0.2)
    _decorate(ax, sums, title)
    _histogram(ax, sums, edges)


def _decorate(ax: Axes, sums: BinSums, title: str | None) -> None:
    total = float(sums.count.sum())
    accuracy, confidence = float(sums.correct.sum()) / total, float(sums.confidence.sum()) / total
    numbers = f"ECE {100 * sums.error():.2f} · accuracy {100 * accuracy:.1f} · confidence {100 * confidence:.1f} %"
    ax.text(0.5, 1.03, numbers, transform=ax.transAxes, ha="center", fontsize=8, color=INK)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", aspect="equal", xticks=[0, 0.25, 0.5, 0.75, 1])
    ax.tick_params(labelbottom=False)
    if title:
        ax.set_title(title, fontsize=10, fontweight="bold", pad=17)


def _histogram(ax: Axes, sums: BinSums, edges: np.ndarray) -> None:
    """Where the confidences lie, underneath on the same horizontal axis."""
    below = ax.inset_axes((0, -0.28, 1, 0.2), sharex=ax)
    share = 100 * (sums.count / sums.count.sum()).numpy()
    below.bar((edges[:-1] + edges[1:]) / 2, share, 0.94 / len(share), color=GREY)
    top = max(1.0, float(share.max()) * 1.1)
    below.set(xlabel="confidence", ylabel="% of\nsamples", ylim=(0, top))
    below.tick_params(labelbottom=True)
