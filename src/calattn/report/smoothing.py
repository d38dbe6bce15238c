"""The smooth curve of a reliability diagram: what smooth ECE integrates, as a line one can look at."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from calattn import checks
from calattn.metrics.smooth import SmoothGrid

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
