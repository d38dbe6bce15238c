"""The scale s of a CalAttn model, image by image: how it is spread, and whether it knows right from wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from calattn import checks
from calattn.metrics.ranks import two_sample_auroc
from calattn.metrics.sources import PredictionSource, columns_in, parts_of
from calattn.report.canvas import canvas, figure_of, headline, headroom, stacked, upright
from calattn.report.style import BLUE, GREY, INK, ORANGE, figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Scales(NamedTuple):
    """Each sample's scale, with whether it was right and how sure it was."""

    scale: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    confidence: Float[Tensor, " n"]


def scales_of(predictions: PredictionSource) -> Scales:
    """The scales of all blocks; predictions without a scale are refused."""
    found = []
    for part in parts_of(predictions):
        if part.scale is None:
            raise ValueError(
                "predictions has no scale: only a CalAttn model (or a file with a scale column, scale=…) has an s to draw; "
                "use confidence_histogram for any other"
            )
        columns = columns_in(part).cpu()
        found.append(Scales(part.scale.double().cpu(), columns.correct, columns.confidence.double()))
    return Scales(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def scale_groups(scales: Scales, *, num_groups: int = 10) -> list[Scales]:
    """Groups of (nearly) equal count along s, the smallest first."""
    order = scales.scale.argsort(stable=True)
    parts = [part for part in order.tensor_split(checks.positive_int(num_groups, "num_groups")) if len(part)]
    return [Scales(*(values[part] for values in scales)) for part in parts]


def scale_histogram(
    predictions: PredictionSource, *, num_bins: int = 40, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """How the scale s is spread over the samples: below 1 it sharpens the prediction, above 1 it softens it."""
    scale = scales_of(predictions).scale.numpy()
    edges = _edges(scale, num_bins)
    counts, _ = np.histogram(scale, bins=edges)
    mean, spread = scale.mean(), scale.std()
    with figure_style():
        ax = canvas(ax, height=2.6)
        ax.stairs(100 * counts / len(scale), edges, fill=True, color=BLUE, alpha=0.85)
        ax.set_ylim(0, None)
        upright(ax, mean, color=INK, linewidth=1.2, label=f"mean {mean:.3g}")
        upright(ax, np.median(scale), color=INK, linewidth=1.2, linestyle="--", label=f"median {np.median(scale):.3g}")
        if edges[0] <= 1 <= edges[-1]:
            upright(ax, 1.0, color=GREY, linewidth=0.9, linestyle=":", label="s = 1: no change")
        ax.set(xlabel="scale s", ylabel="% of samples")
        headroom(ax, 2)
        ax.legend(loc="upper left", ncols=2)
        headline(
            ax, title, f"from {scale.min():.3g} to {scale.max():.3g} · coefficient of variation {spread / mean:.2g}"
        )
    return figure_of(ax)


def scale_against_correctness(
    predictions: PredictionSource,
    *,
    num_bins: int = 40,
    num_groups: int = 10,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Above, s of the right and of the wrong samples; below, accuracy and confidence along s.

    The AUROC is P(a wrong sample has the larger s): 0.5 where s does not tell them apart. Groups have equal counts.
    """
    found = scales_of(predictions)
    groups = scale_groups(found, num_groups=num_groups)
    along, accuracy, confidence = (
        [float(part.double().mean()) for part in parts] for parts in zip(*groups, strict=True)
    )
    right, wrong = (found.scale[mask] for mask in (found.correct, ~found.correct))
    edges = _edges(found.scale.numpy(), num_bins)
    with figure_style():
        above, below = stacked(ax, 2, height=4.0)
        for values, label, fill in ((right, "correct", BLUE), (wrong, "wrong", ORANGE)):
            if len(values):
                _density(above, values.numpy(), edges, f"{label} ({len(values):,})", fill)
        above.set(ylabel="density", ylim=(0, None))
        headroom(above, 1)
        above.legend(loc="upper left", ncols=2)
        below.plot(along, [100 * value for value in accuracy], "o-", color=BLUE, markersize=4, label="accuracy")
        below.plot(along, [100 * value for value in confidence], "s--", color=INK, markersize=3.5, label="confidence")
        below.set(xlabel=f"scale s ({len(groups)} groups of equal count)", ylabel="% of the group")
        headroom(below, 1)
        below.legend(loc="upper left", ncols=2)
        both = len(right) > 0 and len(wrong) > 0
        headline(
            above, title, f"AUROC of s for errors {two_sample_auroc(right, wrong):.3f}" if both else "AUROC not defined"
        )
    return figure_of(above)


def _density(ax: Axes, values: np.ndarray, edges: np.ndarray, label: str, colour: str) -> None:
    density, _ = np.histogram(values, bins=edges, density=True)
    ax.stairs(density, edges, fill=True, color=colour, alpha=0.25)
    ax.stairs(density, edges, color=colour, linewidth=1.4, linestyle="-" if colour == BLUE else "--", label=label)


def _edges(scale: np.ndarray, num_bins: int) -> np.ndarray:
    """Equal bins between the extremes; a scale that does not vary still gets bins."""
    low, high = float(scale.min()), float(scale.max())
    margin = 0.0 if high > low else 0.05 * low
    return np.linspace(low - margin, high + margin, checks.positive_int(num_bins, "num_bins") + 1)
