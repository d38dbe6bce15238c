"""The verdict in words: over-confident, under-confident, off by an offset, or calibrated as far as the samples can tell."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from calattn.metrics.binning import BinSums, bin_index
from calattn.metrics.columns import Columns

NEGLIGIBLE = 0.005  # half a point between confidence and accuracy: nobody acts on less
_RARE, _SMALL = 0.01, 0.01
_BINS = 15
_NO_TEMPERATURE = (
    "A temperature cannot fix an offset, only trade it for other errors; vector scaling (calattn calibrate --method "
    "vector), with its bias, can."
)
_COMPARE = "The slider shows the effect of one temperature; calattn calibrate --method all compares all methods."
_ONE_SAMPLE = {
    "kind": "none",
    "headline": "one sample is too few",
    "detail": "Calibration is about how often predictions of the same confidence are correct. Use more samples.",
}


class Event(NamedTuple):
    """Class 1 of two: what it is called, and the columns of P(1) against "the label is 1"."""

    name: str
    columns: Columns


def verdict(columns: Columns, *, event: Event | None = None) -> dict[str, str]:
    """kind (over, under, mixed, calibrated, offset, none), a headline and what it rests on.

    Over- and under-confident: the mean of confidence − correct is further from zero than 1.96 standard errors and than half
    a point. Mixed: the mean is not, but the bins are (χ² of their gaps at 1 %), and the ECE exceeds a point. Of two classes
    (`event`), offset: see `_offset`; it is the headline unless the confidence is off by more than twice as much.
    """
    found = _of_confidence(columns)
    if event is None or found["kind"] == "none":
        return found
    gap, error = mean_gap(event.columns)
    said, happened = (float(part.double().mean()) for part in (event.columns.confidence, event.columns.correct))
    averages = f"averages {100 * said:.1f} %, class {event.name} is {100 * happened:.1f} % of the samples"
    numbers = f"P({event.name}) {averages}"
    if not _offset(event.columns):
        return found | {"detail": f"{found['detail']} {numbers}."}
    remedy = _NO_TEMPERATURE
    if abs(mean_gap(columns)[0]) > 2 * abs(gap):
        return found | {"detail": f"{found['detail']} But {numbers}: {_between(gap, error)} (95 %). {remedy}"}
    direction = "high" if gap > 0 else "low"
    return {
        "kind": "offset",
        "headline": f"P({event.name}) is too {direction}: {averages}",
        "detail": f"On average P({event.name}) is {_between(gap, error)} the share of class {event.name} (95 %). {remedy}",
    }


def _offset(event: Columns) -> bool:
    """Whether mean P(1) differs from the share of class 1 by more than chance, and no temperature would explain it.

    More than chance: further than 1.96 standard errors, and than half a point or a tenth of the rarer class's share.
    """
    gap, error = mean_gap(event)
    return abs(gap) > max(_matters(event), 1.96 * error) and p_of_bias(event) < _RARE


def _matters(event: Columns) -> float:
    """Half a point, or a tenth of the rarer class's share: of a class that happens once in a hundred, half a point is much."""
    share = float(event.correct.double().mean())
    return min(NEGLIGIBLE, 0.1 * min(share, 1 - share))


def event_verdict(event: Event, *, binary: bool) -> dict[str, str]:
    """The verdict on P(class) alone, whatever class is predicted: offset, mixed, calibrated or none.

    The tests are those of `verdict`; what is negligible is less where the class is rare.
    """
    columns, name = event.columns, event.name
    if len(columns) < 2:
        return _ONE_SAMPLE
    gap, error = mean_gap(columns)
    said, happened = (float(part.double().mean()) for part in (columns.confidence, columns.correct))
    averages = f"averages {100 * said:.1f} %, class {name} is {100 * happened:.1f} % of the samples"
    if abs(gap) > max(_matters(columns), 1.96 * error):
        detail = f"On average P({name}) is {_between(gap, error)} the share of class {name} (95 %)."
        # Of more than two classes a temperature is no factor of the log-odds, which the test of a bias rests on.
        remedy = _NO_TEMPERATURE if binary and p_of_bias(columns) < _RARE else _COMPARE
        headline = f"P({name}) is too {'high' if gap > 0 else 'low'}: {averages}"
        return {"kind": "offset", "headline": headline, "detail": f"{detail} {remedy}"}
    sums, chance = BinSums.empty(_BINS).add(columns), p_of_bins(columns, _BINS)
    if chance < _RARE and sums.error() > 2 * _matters(columns):
        headline = f"P({name}) is calibrated on average, not everywhere: {averages}"
        return {"kind": "mixed", "headline": headline, "detail": f"{_mixed(sums, chance, of=f'P({name})')} {_COMPARE}"}
    bins = "no larger than chance makes them" if chance >= _RARE else "more than chance makes, but small"
    detail = (
        f"With {len(columns):,} samples, P({name}) is {_between(gap, error)} the share of class {name} (95 %), and the gaps of "
        f"the {_BINS} bins are {bins} (ECE {100 * sums.error():.1f} %)."
    )
    headline = f"P({name}) is calibrated, as far as these samples show: {averages}"
    return {"kind": "calibrated", "headline": headline, "detail": detail}


def p_of_bias(event: Columns) -> float:
    """How often the best temperature would leave as large a mean gap if nothing but a temperature were wrong.

    Rao's score test of b = 0 in P(1) = σ(z/T + b) at the T of the lowest NLL: S = Σ (y − p) has the variance
    Σw − (Σwz)²/Σwz², w = p (1 − p). A mean gap alone does not tell: where class 1 is rare, a wrong temperature moves
    the mean as well.
    """
    logit = -event.odds.double().log().clamp(-50, 50)
    happened = event.correct.double()
    low, high = -7.0, 7.0  # of −ln T; the slope of the log-likelihood falls with it
    for _ in range(40):
        middle = (low + high) / 2
        rises = float((logit * (happened - torch.sigmoid(math.exp(middle) * logit))).sum()) > 0
        low, high = (middle, high) if rises else (low, middle)
    prob = torch.sigmoid(math.exp(low) * logit)
    weight = prob * (1 - prob)
    crossed, squared = float((weight * logit).sum()), float((weight * logit.square()).sum())
    variance = float(weight.sum()) - (crossed * crossed / squared if squared > 0 else 0.0)
    if variance < 1:  # the normal law does not hold
        return 1.0
    return math.erfc(abs(float((happened - prob).sum())) / math.sqrt(2 * variance))


def _of_confidence(columns: Columns) -> dict[str, str]:
    if len(columns) < 2:
        return _ONE_SAMPLE
    gap, error = mean_gap(columns)
    said, right = float(columns.confidence.double().mean()), float(columns.correct.double().mean())
    numbers = f"confidence {100 * said:.1f} %, accuracy {100 * right:.1f} %"
    if abs(gap) > max(NEGLIGIBLE, 1.96 * error):
        kind, word = ("over", "over-confident") if gap > 0 else ("under", "under-confident")
        detail = f"On average the confidence is {_between(gap, error)} the accuracy (95 %)."
        return {"kind": kind, "headline": f"{word}: {numbers}", "detail": f"{detail} {_advice(kind)}"}
    sums = BinSums.empty(_BINS).add(columns)
    chance = p_of_bins(columns, _BINS)
    if chance < _RARE and sums.error() > _SMALL:
        headline = f"calibrated on average, not everywhere: {numbers}"
        return {"kind": "mixed", "headline": headline, "detail": _mixed(sums, chance)}
    bins = (
        f"the gaps of the {_BINS} bins are no larger than chance makes them"
        if chance >= _RARE
        else f"the gaps of the {_BINS} bins are more than chance makes, but small (ECE {100 * sums.error():.1f} %)"
    )
    detail = f"With {len(columns):,} samples, the confidence is {_between(gap, error)} the accuracy (95 %), and {bins}."
    return {"kind": "calibrated", "headline": f"calibrated, as far as these samples show: {numbers}", "detail": detail}


def mean_gap(columns: Columns) -> tuple[float, float]:
    """Mean of confidence − correct, and its standard error: the larger of the observed and of what calibration implies.

    The observed one is zero where all are right, although a calibrated model with confidence 0.99 is right 100 times in a
    row every third time; were the confidences true, the variance of the mean would be Σ p (1 − p) / n².
    """
    confidence = columns.confidence.double()
    residual = confidence - columns.correct.double()
    n = len(columns)
    observed = float(residual.std(correction=1)) / math.sqrt(n)
    implied = math.sqrt(float((confidence * (1 - confidence)).sum())) / n
    return float(residual.mean()), max(observed, implied)


def p_of_bins(columns: Columns, num_bins: int) -> float:
    """How often calibrated predictions would show gaps as large: P(χ² ≥ Σ gap² / variance) over the bins.

    The gap of a bin sums confidence − correct; were the confidences true, its variance would be Σ p (1 − p). Bins whose
    variance is below 1, where the normal law does not hold, go to a neighbour. Where that leaves fewer than two, predictions
    are sure of themselves: counted is how often the less probable side came true, which exceeds Σ min(p, 1 − p) less often
    than a Poisson number does.
    """
    from scipy.stats import chi2, poisson

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
    if len(pooled) > 1 and pooled[-1][1] < 1:
        rest = pooled.pop()
        pooled[-1] = [pooled[-1][0] + rest[0], pooled[-1][1] + rest[1]]
    if len(pooled) < 2 or min(v for _, v in pooled) < 1:
        surprises = int(((confidence > 0.5) != columns.correct.bool()).sum())
        return float(poisson.sf(surprises - 1, float(torch.minimum(confidence, 1 - confidence).sum())))
    return float(chi2.sf(sum(g * g / v for g, v in pooled), len(pooled)))


def _between(gap: float, error: float) -> str:
    """Where the mean gap lies, in words.

    >>> _between(-0.02, 0.005), _between(0.001, 0.002)
    ('1.0 to 3.0 points below', 'between 0.3 points below and 0.5 points above')
    """
    low, high = 100 * (gap - 1.96 * error), 100 * (gap + 1.96 * error)
    if low > 0:
        return f"{low:.1f} to {high:.1f} points above"
    if high < 0:
        return f"{-high:.1f} to {-low:.1f} points below"
    return f"between {-low:.1f} points below and {high:.1f} points above"


def _mixed(sums: BinSums, chance: float, *, of: str = "its confidence") -> str:
    worst = int((sums.gap.abs() * sums.count).argmax())
    low, high = worst / len(sums.count), (worst + 1) / len(sums.count)
    direction = "too high" if float(sums.gap[worst]) > 0 else "too low"
    often = "less than once in a million" if chance < 1e-6 else f"with probability {chance:.2g}"
    return (
        f"Gaps of opposite sign cancel: by chance the bins' gaps would be as large {often}. The bin from {low:.2f} to "
        f"{high:.2f} weighs most: {of} is {direction} by {abs(100 * float(sums.gap[worst])):.1f} points."
    )


def _advice(kind: str) -> str:
    move = "above 1 lowers the confidence" if kind == "over" else "below 1 raises the confidence"
    return f"A temperature {move}; the slider shows by how much."
