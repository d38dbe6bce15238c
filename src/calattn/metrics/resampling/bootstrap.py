"""Intervals and p-values from bootstrap replicates."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def interval(
    value: float, replicates: Float[Tensor, " r"], level: float, *, moved: bool = True, wider: float = 1.0
) -> tuple[float, float]:
    """The replicates' central `level` range, if `moved` so that their mean lies on the value.

    Resampling adds noise to |gap|, so replicates of a calibration error sit above the value by about the bias that the value
    itself has; plain quantiles would miss the value altogether for classwise ECE. Moved, the interval is one for the metric's
    expectation at this sample size, bias included: what two models evaluated on equally many samples can be compared by. NaN
    replicates (an empty denominator) are left out. `wider`: see `wider_for_few`.
    """
    known = replicates[~replicates.isnan()]
    if len(known) == 0 or math.isnan(value):
        return math.nan, math.nan
    tail = (1 - level) / 2
    ends = quantiles(known, (tail, 1 - tail))
    if math.isfinite(value):
        middle = known[known.isfinite()].mean()
        ends = (value if moved else middle) + (ends - middle) * wider
    return float(ends[0]), float(ends[1])


def wider_for_few(units: int, level: float) -> float:
    """By what an interval of Student's t is wider than the quantiles of resamples of so many independent units.

    Resampled, n units vary by (n − 1)/n of what n others would, and a normal quantile takes that variance for known.
    """
    from scipy import special

    if units < 2:
        return 1.0
    end = (1 + min(max(level, 1e-6), 1 - 1e-6)) / 2
    return float(special.stdtrit(units - 1, end) / special.ndtri(end)) * math.sqrt(units / (units - 1))


def two_sided(difference: float, draws: Tensor, *, moved: bool, wider: float = 1.0) -> float:
    """Twice the smaller share of resamples, placed as in `interval`, on either side of zero; the data count once, so never 0.

    A resample without any difference counts on both sides. Infinite differences (a label of probability zero on one
    side) cannot be moved and count by their sign; an undefined difference has no p-value.
    """
    known = draws[~draws.isnan()]
    if len(known) == 0 or math.isnan(difference):
        return math.nan
    placed, equal = known, known == 0
    if math.isfinite(difference) and bool(known.isfinite().all()):
        middle = known.mean()
        placed = (difference if moved else middle) + (known - middle) * wider
    smaller = min(int(((placed <= 0) | equal).sum()), int(((placed >= 0) | equal).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(known) + 1))


def quantiles(values: Float[Tensor, " r"], at: tuple[float, ...]) -> Float[Tensor, " q"]:
    """Order statistics, linear between them; of r values, the k-th has k/(r + 1) of all others below it (Weibull).

    So the ends of an interval leave out zero where p says so too: with 39 resamples, the smallest and the largest are the
    ends at 95 %. Written out because torch.quantile makes NaN of infinite neighbours.
    """
    ordered = values.sort().values
    place = (torch.tensor(at, dtype=torch.float64) * (len(ordered) + 1) - 1).clamp(0, len(ordered) - 1)
    low, high = ordered[place.floor().long()], ordered[place.ceil().long()]
    return torch.where(low == high, low, low + (high - low) * (place - place.floor()))


def afresh(measure: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `evaluate` and `compare` for one of several calls: a generator gives each of them the same resamples."""
    generator = measure.get("generator")
    if not isinstance(generator, torch.Generator):
        return measure
    return measure | {"generator": torch.Generator().set_state(generator.get_state())}
