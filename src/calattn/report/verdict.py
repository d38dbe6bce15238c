"""The verdict in words: over- or under-confident, shifted, mixed, calibrated, or too few samples to tell."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.files.text import visible
from calattn.metrics.binning import GAP_BINS, gap_sums
from calattn.metrics.columns import Columns
from calattn.metrics.sources import PredictionSource, columns_in, parts_of, target_of
from calattn.types import Predictions

NEGLIGIBLE = 0.005  # half a point between confidence and accuracy: nobody acts on less
_OPEN = 6  # times what is negligible, 3 points: an interval that is wider leaves too much open to call it calibrated
_SLIGHT, _STRONG = 4, 20  # times what is negligible: 2 points and 10 points
_RARE = 0.01
_NO_TEMPERATURE = (
    "A temperature cannot fix an offset, only trade it for other errors; vector scaling (calattn calibrate --method "
    "vector), with its bias, can."
)
_COMPARE = "calattn calibrate --method all compares all methods."
_EFFECT = "The slider shows the effect of one temperature."
_ONE_SAMPLE = {
    "kind": "none",
    "words": "one sample is too few",
    "headline": "one sample is too few",
    "detail": "Calibration is about how often predictions of the same confidence are correct. Use more samples.",
    "hint": "",
}


@dataclasses.dataclass(frozen=True)
class Gaps:
    """Sums that a verdict rests on (`gap_sums`), of confidence c and correctness y.

    Per bin: samples, Σ (c − y), and Σ c (1 − c), the variance that calibration implies. A surprise is that the less
    probable side came true.
    """

    sums: Float[Tensor, "8 m"]

    @classmethod
    def of(cls, columns: Columns) -> Self:
        """Of samples."""
        return cls(gap_sums(columns.confidence, columns.correct))

    @classmethod
    def of_bins(cls, count: Tensor, confidence: Tensor, correct: Tensor) -> Self:
        """Of the sums of fine bins, whose samples count as their mean; `GAP_BINS` divides their number."""
        index, size = torch.arange(len(count)) * GAP_BINS // len(count), count.clamp_min(1)
        return cls(gap_sums(confidence / size, correct / size, count.double(), index))

    @property
    def count(self) -> Float[Tensor, " m"]:
        return self.sums[0]

    @property
    def gap(self) -> Float[Tensor, " m"]:
        return self.sums[1]

    @property
    def variance(self) -> Float[Tensor, " m"]:
        return self.sums[2]

    @property
    def samples(self) -> int:
        return round(float(self.count.sum()))

    @property
    def means(self) -> tuple[float, float]:
        """Mean confidence and accuracy."""
        confidence, correct = (self.sums[3:5].sum(dim=1) / self.samples).tolist()
        return confidence, correct

    def mean_gap(self) -> tuple[float, float]:
        """Mean of c − y, and its standard error: the larger of the observed and of what calibration implies.

        The observed one is zero where all are right, although a calibrated model with confidence 0.99 is right 100 times in
        a row every third time; were the confidences true, the variance of the mean would be Σ c (1 − c) / n².
        """
        n, (said, right) = self.samples, self.means
        mean, squares = said - right, float(self.sums[5].sum())
        observed = max(0.0, squares - n * mean * mean) / (n - 1) / n
        implied = float(self.variance.sum()) / n**2
        return mean, math.sqrt(max(observed, implied))

    def ece(self) -> float:
        return float(self.gap.abs().sum()) / self.samples

    def chance(self) -> float:
        """How often calibrated predictions would show gaps as large: P(χ² ≥ Σ gap² / variance) over the bins.

        Bins whose variance is below 1, where the normal law does not hold, go to a neighbour. Where that leaves fewer than
        two, predictions are sure of themselves: surprises exceed their expected number less often than a Poisson number.
        """
        from scipy.stats import chi2, poisson

        pooled: list[list[float]] = []
        for gap, variance in zip(self.gap.tolist(), self.variance.tolist(), strict=True):
            if pooled and (pooled[-1][1] < 1 or variance < 1):
                pooled[-1][0] += gap
                pooled[-1][1] += variance
            else:
                pooled.append([gap, variance])
        if len(pooled) > 1 and pooled[-1][1] < 1:
            rest = pooled.pop()
            pooled[-1] = [pooled[-1][0] + rest[0], pooled[-1][1] + rest[1]]
        if len(pooled) < 2 or min(v for _, v in pooled) < 1:
            surprises, expected = self.sums[6:].sum(dim=1).tolist()
            return float(poisson.sf(round(surprises) - 1, expected))
        return float(chi2.sf(sum(g * g / v for g, v in pooled), len(pooled)))

    def matters(self) -> float:
        """Half a point, or a tenth of the rarer outcome's share: of what happens once in a hundred, half a point is much."""
        share = self.means[1]
        return min(NEGLIGIBLE, 0.1 * min(share, 1 - share))


class Finding(NamedTuple):
    """What the sums say: `kind` is over, under, mixed, calibrated or unclear; `much` is how large the gap is, in words."""

    kind: str
    much: str


def finding(gaps: Gaps, matters: float = NEGLIGIBLE) -> Finding:
    """Over, under: the mean gap exceeds 1.96 standard errors and `matters`. Mixed: it does not, but the gaps of the bins do
    (χ² at 1 %), and the ECE exceeds 2 `matters`. Unclear: the interval of the mean gap, or the rule of three (3/n), allows
    for six times what matters.
    """
    gap, error = gaps.mean_gap()
    if abs(gap) > max(matters, 1.96 * error):
        size = abs(gap) / matters if matters else math.inf
        much = "slightly" if size < _SLIGHT else "strongly" if size >= _STRONG else ""
        return Finding("over" if gap > 0 else "under", much)
    if gaps.chance() < _RARE and gaps.ece() > 2 * matters:
        return Finding("mixed", "")
    return Finding("unclear" if max(1.96 * error, 3 / gaps.samples) > _OPEN * matters else "calibrated", "")


def words_of(found: Finding) -> str:
    """A finding about confidence, without numbers.

    >>> words_of(Finding("over", "slightly")), words_of(Finding("unclear", ""))
    ('slightly over-confident', 'too few samples to tell')
    """
    plain = {
        "over": "over-confident",
        "under": "under-confident",
        "mixed": "calibrated on average, not everywhere",
        "calibrated": "calibrated, as far as these samples show",
        "unclear": "too few samples to tell",
    }
    return f"{found.much} {plain[found.kind]}".strip()


def event_words(found: Finding, name: str) -> str:
    """A finding about P(class), without numbers.

    >>> event_words(Finding("under", "strongly"), "fraud")
    'P(fraud) is much too low'
    """
    much = {"": "too", "slightly": "slightly too", "strongly": "much too"}[found.much]
    plain = {"over": f"is {much} high", "under": f"is {much} low", "unclear": "cannot be judged by so few samples"}
    return f"P({name}) {plain.get(found.kind) or f'is {words_of(found)}'}"


class ClassOne(NamedTuple):
    """Class 1 of two: its name, the gaps of P(1) against "the label is 1", and whether no temperature would close them."""

    name: str
    gaps: Gaps
    biased: bool

    @classmethod
    def of(cls, predictions: Predictions) -> Self | None:
        """None of more classes."""
        if predictions.num_classes != 2:
            return None
        name = "1" if predictions.class_names is None else predictions.class_names[1]
        columns = columns_in(predictions, target=1).cpu()
        return cls(short(name), Gaps.of(columns), p_of_bias(columns) < _RARE)


def verdict_of(
    source: PredictionSource, *, target: int | str | None = None, gaps: Tensor | None = None
) -> dict[str, str]:
    """The verdict on predictions, in memory or block by block; of two classes in memory, on P(1) as well.

    `gaps` are those of an evaluation of the same predictions and target: then blocks are not read again.

    >>> p = Predictions(logits=torch.tensor([[4.0, 0.0]] * 900), labels=torch.tensor([0, 1, 1] * 300))
    >>> verdict_of(p)["headline"]
    'strongly over-confident: confidence 98.2 %, accuracy 33.3 %'
    """
    number, name = target_of(target, source)
    whole = source if isinstance(source, Predictions) else None
    if gaps is None:
        columns = (columns_in(part, number).cpu() for part in parts_of(source))
        gaps = torch.stack([Gaps.of(part).sums for part in columns]).sum(dim=0)
    if number is None:
        return verdict(Gaps(gaps), event=None if whole is None else ClassOne.of(whole))
    # Of more than two classes a temperature is no factor of the log-odds, which the test of a bias rests on.
    biased = whole is not None and whole.num_classes == 2 and p_of_bias(columns_in(whole, number).cpu()) < _RARE
    return event_verdict(Gaps(gaps), short(str(number) if name is None else name), biased=biased)


def short(name: str) -> str:
    """A class name that fits on an axis."""
    name = visible(name).replace("\n", " ")
    return name if len(name) <= 16 else f"{name[:15]}…"


def verdict(gaps: Gaps, *, event: ClassOne | None = None) -> dict[str, str]:
    """kind (over, under, mixed, calibrated, unclear, offset, none), words, the same with numbers as a headline, what it
    rests on, and a hint for screens.

    Of two classes (`event`), offset: mean P(1) differs from the share of class 1 by more than chance, and no temperature
    would explain it; that is the headline unless the confidence is off by more than twice as much.
    """
    if gaps.samples < 2:
        return _ONE_SAMPLE
    found = _of_confidence(gaps)
    if event is None:
        return found
    own = event.gaps
    gap, error = own.mean_gap()
    numbers = f"P({event.name}) {_averages(own, event.name)}"
    if finding(own, own.matters()).kind not in ("over", "under") or not event.biased:
        return found | {"detail": f"{found['detail']} {numbers}."}
    if abs(gaps.mean_gap()[0]) > 2 * abs(gap):
        detail = f"{found['detail']} But {numbers}: {_between(gap, error)} (95 %). {_NO_TEMPERATURE}"
        return found | {"detail": detail}
    return _of_event(own, event.name, remedy=_NO_TEMPERATURE)


def event_verdict(gaps: Gaps, name: str, *, biased: bool = False) -> dict[str, str]:
    """The verdict on P(class) alone, whatever class is predicted; `biased` where no temperature would close the gap."""
    return _ONE_SAMPLE if gaps.samples < 2 else _of_event(gaps, name, remedy=_NO_TEMPERATURE if biased else _COMPARE)


def _of_confidence(gaps: Gaps) -> dict[str, str]:
    found, (gap, error) = finding(gaps), gaps.mean_gap()
    said, right = gaps.means
    hint = ""
    if found.kind in ("over", "under"):
        move = "above 1 lowers the confidence" if gap > 0 else "below 1 raises the confidence"
        detail = f"On average the confidence is {_between(gap, error)} the accuracy (95 %). A temperature {move}."
        hint = "The slider shows by how much."
    elif found.kind == "mixed":
        detail = _mixed(gaps)
    else:
        detail = _calm(gaps, found, "the confidence", "the accuracy")
    numbers = f"confidence {100 * said:.1f} %, accuracy {100 * right:.1f} %"
    return _said(found.kind, words_of(found), numbers, detail, hint)


def _said(kind: str, words: str, numbers: str, detail: str, hint: str) -> dict[str, str]:
    return {"kind": kind, "words": words, "headline": f"{words}: {numbers}", "detail": detail, "hint": hint}


def _of_event(gaps: Gaps, name: str, *, remedy: str) -> dict[str, str]:
    found, (gap, error) = finding(gaps, gaps.matters()), gaps.mean_gap()
    hint = ""
    if found.kind in ("over", "under"):
        detail = f"On average P({name}) is {_between(gap, error)} the share of class {name} (95 %). {remedy}"
        hint = _EFFECT if remedy == _COMPARE else ""
    elif found.kind == "mixed":
        detail, hint = f"{_mixed(gaps, of=f'P({name})')} {_COMPARE}", _EFFECT
    else:
        detail = _calm(gaps, found, f"P({name})", f"the share of class {name}")
    kind = "offset" if found.kind in ("over", "under") else found.kind
    return _said(kind, event_words(found, name), _averages(gaps, name), detail, hint)


def _averages(gaps: Gaps, name: str) -> str:
    said, happened = gaps.means
    return f"averages {100 * said:.1f} %, class {name} is {100 * happened:.1f} % of the samples"


def _calm(gaps: Gaps, found: Finding, it: str, rate: str) -> str:
    """What is known where nothing was found."""
    where = f"With {gaps.samples:,} samples, {it} is {_between(*gaps.mean_gap())} {rate} (95 %)"
    if found.kind == "unclear":
        return f"{where}: this range is too wide for a verdict. Use more samples."
    small = gaps.chance() < _RARE
    size = (
        f"more than chance makes, but small (ECE {100 * gaps.ece():.1f} %)"
        if small
        else "no larger than chance makes them"
    )
    return f"{where}, and the gaps of the {GAP_BINS} bins are {size}."


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


def _mixed(gaps: Gaps, *, of: str = "its confidence") -> str:
    worst = int(gaps.gap.abs().argmax())
    size = float(gaps.gap[worst] / gaps.count[worst])
    chance = gaps.chance()
    often = "less than once in a million" if chance < 1e-6 else f"with probability {chance:.2g}"
    low, high = worst / GAP_BINS, (worst + 1) / GAP_BINS
    return (
        f"Gaps of opposite sign cancel: by chance the bins' gaps would be as large {often}. The bin from {low:.2f} to "
        f"{high:.2f} weighs most: {of} is {'too high' if size > 0 else 'too low'} by {abs(100 * size):.1f} points."
    )
