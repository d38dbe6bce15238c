"""Intervals and p-values from bootstrap replicates."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def interval(value: float, replicates: Float[Tensor, " r"], level: float, *, moved: bool = True) -> tuple[float, float]:
    """The replicates' central `level` range, if `moved` so that their mean lies on the value.

    Resampling adds noise to |gap|, so replicates of a calibration error sit above the value by about the bias that the value
    itself has; plain quantiles would miss the value altogether for classwise ECE. Moved, the interval is one for the metric's
    expectation at this sample size, bias included: what two models evaluated on equally many samples can be compared by. NaN
    replicates (an empty denominator) are left out.
    """
    finite = replicates[~torch.isnan(replicates)]
    if len(finite) == 0 or math.isnan(value):
        return math.nan, math.nan
    tail = (1 - level) / 2
    low, high = (float(q) for q in quantiles(finite, (tail, 1 - tail)))
    if math.isinf(value) or not moved:
        return low, high
    shift = value - float(finite[finite.isfinite()].mean())
    return low + shift, high + shift


def spread_for_few(draws: Float[Tensor, " r"], clusters: int, level: float) -> Float[Tensor, " r"]:
    """Replicates of few clusters moved apart, by what an interval of Student's t is wider than their plain quantiles.

    Resampled, k clusters vary by (k − 1)/k of what k others would, and a normal quantile takes that variance for known.
    """
    from scipy import stats

    if clusters < 2:
        return draws
    wider = stats.t.ppf((1 + level) / 2, clusters - 1) / stats.norm.ppf((1 + level) / 2)
    middle = draws[draws.isfinite()].mean()
    return middle + (draws - middle) * wider * math.sqrt(clusters / (clusters - 1))


def two_sided(difference: float, draws: Tensor, *, moved: bool) -> float:
    """Twice the smaller share of (moved) resamples on either side of zero; the data count once, so never exactly 0.

    A resample without any difference counts on both sides. Infinite differences (a label of probability zero on one
    side) cannot be moved and count by their sign; an undefined difference has no p-value.
    """
    known = draws[~draws.isnan()]
    if len(known) == 0 or math.isnan(difference):
        return math.nan
    movable = moved and math.isfinite(difference) and bool(known.isfinite().all())
    placed = known + (difference - known.mean()) if movable else known
    equal = known == 0
    smaller = min(int(((placed <= 0) | equal).sum()), int(((placed >= 0) | equal).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(known) + 1))


def quantiles(values: Float[Tensor, " r"], at: tuple[float, ...]) -> Float[Tensor, " q"]:
    """Order statistics with linear interpolation; written out because torch.quantile makes NaN of infinite neighbours."""
    ordered = values.sort().values
    place = torch.tensor(at, dtype=torch.float64) * (len(ordered) - 1)
    low, high = ordered[place.floor().long()], ordered[place.ceil().long()]
    return torch.where(low == high, low, low + (high - low) * (place - place.floor()))


def afresh(measure: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `evaluate` and `compare` for one of several calls: a generator gives each of them the same resamples."""
    generator = measure.get("generator")
    if not isinstance(generator, torch.Generator):
        return measure
    return measure | {"generator": torch.Generator().set_state(generator.get_state())}
