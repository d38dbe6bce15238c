"""The verdict in words: over-confident, under-confident, or calibrated as far as the samples can tell."""

from __future__ import annotations

import math

import torch

from calattn.metrics.bins import BinSums
from calattn.metrics.columns import Columns

NEGLIGIBLE = 0.005  # half a point between what is said and what is right: nobody acts on less
_RARE = 0.01


def verdict(columns: Columns, *, num_bins: int = 15) -> dict[str, str]:
    """kind (over, under, mixed, calibrated), a headline and what it rests on.

    Over- and under-confident: the mean of confidence − correct is further from zero than 1.96 standard errors and than half
    a point. Mixed: the mean is not, but the bins are (χ² of their gaps at 1 %), and the ECE exceeds a point.
    """
    if len(columns) < 2:
        return {
            "kind": "calibrated",
            "headline": "one sample tells nothing",
            "detail": "Calibration is about how often predictions of the same confidence are right. Bring more samples.",
        }
    gap, error = mean_gap(columns)
    said, right = float(columns.confidence.double().mean()), float(columns.correct.double().mean())
    numbers = f"says {100 * said:.1f} %, right {100 * right:.1f} %"
    between = f"{100 * (gap - 1.96 * error):+.1f} to {100 * (gap + 1.96 * error):+.1f} points".replace("-", "−")
    if abs(gap) > max(NEGLIGIBLE, 1.96 * error):
        kind, word = ("over", "over-confident") if gap > 0 else ("under", "under-confident")
        detail = f"On average the confidence differs from the accuracy by {between} (95 %)."
        return {"kind": kind, "headline": f"{word}: {numbers}", "detail": f"{detail} {_advice(kind)}"}
    sums = BinSums.empty(num_bins).add(columns)
    chance = p_of_bins(columns, num_bins)
    if chance < _RARE and sums.error() > 0.01:
        return {
            "kind": "mixed",
            "headline": f"right on average, not everywhere: {numbers}",
            "detail": _mixed(sums, chance),
        }
    larger = "no larger than" if chance >= _RARE else "hardly larger than"
    detail = (
        f"With {len(columns):,} samples, the difference between confidence and accuracy is {between} (95 %), "
        f"and the gaps of the {num_bins} bins are {larger} chance makes them."
    )
    return {"kind": "calibrated", "headline": f"calibrated, as far as these samples tell: {numbers}", "detail": detail}


def mean_gap(columns: Columns) -> tuple[float, float]:
    """Mean of confidence − correct, and its standard error."""
    residual = columns.confidence.double() - columns.correct.double()
    n = len(columns)
    return float(residual.mean()), float(residual.std(correction=1)) / math.sqrt(n) if n > 1 else math.inf


def p_of_bins(columns: Columns, num_bins: int) -> float:
    """How often calibrated predictions would show gaps as large: P(χ² ≥ Σ gap² / variance) over the bins.

    The gap of a bin sums confidence − correct; were the confidences true, its variance would be Σ p (1 − p). Bins whose
    variance is below 1 go to their neighbour first, where the normal law does not hold.
    """
    from scipy.stats import chi2

    from calattn.metrics.binning import bin_index

    confidence = columns.confidence.double()
    index = bin_index(columns.confidence, num_bins)
    gap = torch.bincount(index, confidence - columns.correct.double(), minlength=num_bins)
    variance = torch.bincount(index, confidence * (1 - confidence), minlength=num_bins)
    pooled: list[list[float]] = []
    for each_gap, each_variance in zip(gap.tolist(), variance.tolist(), strict=True):
        if pooled and (pooled[-1][1] < 1 or each_variance < 1):
            pooled[-1][0] += each_gap
            pooled[-1][1] += each_variance
        else:
            pooled.append([each_gap, each_variance])
    statistic = sum(g * g / v for g, v in pooled if v > 0)
    if not any(v > 0 for _, v in pooled):
        return 1.0 if all(g == 0 for g, _ in pooled) else 0.0
    return float(chi2.sf(statistic, len(pooled)))


def _mixed(sums: BinSums, chance: float) -> str:
    worst = int((sums.gap.abs() * sums.count).argmax())
    low, high = worst / len(sums.count), (worst + 1) / len(sums.count)
    direction = "too high" if float(sums.gap[worst]) > 0 else "too low"
    often = "less than once in a million" if chance < 1e-6 else f"with probability {chance:.2g}"
    return (
        f"Gaps of opposite sign cancel: the bins' gaps would be as large by chance {often}. Most weighs the bin from "
        f"{low:.2f} to {high:.2f}, where the confidence is {direction} by {abs(100 * float(sums.gap[worst])):.1f} points."
    )


def _advice(kind: str) -> str:
    move = "above 1 makes the probabilities more modest" if kind == "over" else "below 1 makes the probabilities bolder"
    return f"A temperature {move}; the slider shows how far one number goes."
