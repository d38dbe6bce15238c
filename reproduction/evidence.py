"""Evidence: the difference of a metric between two cells, over seeds, with an interval and a decision.

The rules, fixed before any cell of the grid was trained, and the same in both directions:

1. A difference is b − a at one checkpoint rule. Where b is a cell with a head and a its twin, it is the paired bootstrap
   difference that the result file holds (the same resampled test images on both sides). Otherwise the two cells' own 95 %
   intervals are joined by the squares of their arms, as for independent samples; the images are in truth the same, which
   makes this interval too wide as a rule. Of ECE it can be a tenth too narrow.
2. Seeds of a family are averaged. The interval's arms are the mean arms over seeds (the test images are the same, so more
   seeds do not shrink them) joined by squares with Student's interval for the mean over seeds. With one seed the interval
   speaks of these networks on other images, not of other trainings; the number of seeds stands beside it.
3. p-values follow from the intervals (normal), not from counted resamples: their least value, 2 in the number of
   resamples, would be used up by the correction. Holm's correction runs over the families of a claim at one rule.
4. "better" or "worse" needs all three: an interval that leaves zero out, a corrected p of at most 0.05, and an effect of
   at least the smallest that matters (`SMALLEST`). A real effect below that is "too small"; the rest is "within chance".
5. A calibration gain with more than one point of accuracy lost is no gain, and a calibration loss with more than one
   point of accuracy won is no loss: both are "traded", neither for nor against.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from scipy import stats

from calattn.metrics import METRICS
from calattn.metrics.groups import holm
from calattn.rules import Rule
from reproduction.cells import GridCell
from reproduction.results import Phase, ResultStore

Decision = Literal["better", "worse", "within chance", "too small", "traded", "undecided"]

LEVEL = 0.05
ACCURACY_PRICE = 0.01
"""More accuracy than this, lost for a gain of calibration, is too dear."""
_DEAR = ACCURACY_PRICE + 1e-9  # a point lost is not more than a point, however it was rounded
_NORMAL = statistics.NormalDist().inv_cdf(1 - LEVEL / 2)

SMALLEST: dict[str, float] = {
    "accuracy": 0.01,
    "nll": 0.01,
    "brier": 0.002,
    "ece": 0.0025,
    "smooth_ece": 0.0025,
    "adaptive_ece": 0.0025,
    "classwise_ece": 0.0005,
    "high_confidence_error_rate": 0.005,
    "high_confidence_error_share": 0.01,
    "misclassification_auroc": 0.01,
    "ood_svhn": 0.01,
    "ood_cifar10_c": 0.01,
}
"""The smallest effect that matters, as a fraction (NLL in nats): about the noise of the metric on 10,000 images."""

PHASE_TITLES: dict[str, str] = {"pre": "", "post": " + TS", "post_nll": " + TS (NLL)", "sats": " + SATS"}


class Arm(NamedTuple):
    """One side of a comparison: a cell, as it stands or after a post-hoc step."""

    cell: GridCell
    phase: Phase = "pre"

    @property
    def name(self) -> str:
        return self.cell.name + PHASE_TITLES[self.phase]

    @property
    def method(self) -> str:
        return ("CalAttn" if self.cell.head == "calattn" else self.cell.loss) + PHASE_TITLES[self.phase]


class Comparison(NamedTuple):
    """b against a; comparisons that differ only in their seed share a family."""

    family: str
    metric: str
    a: Arm
    b: Arm

    def with_temperature_by_nll(self) -> Comparison:
        """The same, where a side has a temperature, with that of the lowest validation NLL."""
        a, b = (arm._replace(phase="post_nll") if arm.phase == "post" else arm for arm in (self.a, self.b))
        return self._replace(a=a, b=b)


class SeedDifference(NamedTuple):
    """One comparison at one rule: both values, their difference and what it cost in accuracy (all b − a). `counted`: the p-value
    of the paired test itself, of resamples or DeLong's."""

    comparison: Comparison
    a: float
    b: float
    value: float
    low: float | None
    high: float | None
    accuracy: float | None
    paired: bool = False
    counted: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """A family's difference over its seeds, and what it was decided to be. `cell` is the tested one of the first seed."""

    family: str
    cell: GridCell
    metric: str
    a: float
    b: float
    effect: float
    seeds: tuple[int, ...]
    cells: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    accuracy: float | None = None
    paired: bool = False
    decision: Decision = "within chance"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of decision. The defaults are those fixed beforehand; others show what hangs on them (`ledger`).

    `correct`: Holm's correction. `smallest`: effects have to matter. `welch`: standard errors of images and seeds are added
    and judged by Student's t with Welch and Satterthwaite's degrees of freedom. `pooled_seeds`: so, and families with one
    seed get the variance over seeds of those that have several. `scaled`: references that have no temperature of their own
    are left out where the tested side has one. `like_accuracy`: families whose accuracies differ by more
    than a point, in whichever direction, are left out. `most`: "in every setting" is read as "in most". `counted`: pairs with
    one seed keep the p-value of their paired test. `by_nll`: temperatures are those of the lowest validation NLL.
    """

    correct: bool = True
    smallest: bool = True
    welch: bool = False
    pooled_seeds: bool = False
    like_accuracy: bool = False
    scaled: bool = False
    most: bool = False
    counted: bool = False
    by_nll: bool = False


REGISTERED = Rules()


def better_sign(metric: str) -> int:
    """+1 where more is better.

    >>> better_sign("ece"), better_sign("accuracy"), better_sign("ood_svhn")
    (-1, 1, 1)
    """
    if metric.startswith("ood_"):
        return 1
    return 1 if METRICS[metric].better == "higher" else -1


def outcomes_of(
    comparisons: Sequence[Comparison],
    *,
    rule: Rule,
    store: ResultStore,
    guard: bool = True,
    rules: Rules = REGISTERED,
) -> tuple[Outcome, ...]:
    """The families that have results, decided together (Holm over all of them), in the order of their names."""
    families: dict[tuple[str, str], list[SeedDifference]] = {}
    for comparison in comparisons:
        found = seed_difference(comparison, rule=rule, store=store)
        if found is not None:
            families.setdefault((comparison.family, comparison.metric), []).append(found)
    pooled = _pooled(families.values()) if rules.pooled_seeds else None
    joined = [_over_seeds(*family, families[family], rules, pooled) for family in sorted(families)]
    if rules.like_accuracy:
        joined = [each for each in joined if each.metric == "accuracy" or abs(each.accuracy or 0.0) <= _DEAR]
    return decide(joined, guard=guard, rules=rules)


def seed_difference(comparison: Comparison, *, rule: Rule, store: ResultStore) -> SeedDifference | None:
    """The difference of one pair of networks (rule 1 of this file); None where either side was not measured."""
    a, b = comparison.a, comparison.b
    sides = [(store.get(arm.cell), arm.phase) for arm in (a, b)]
    row_a, row_b = (side.metric(comparison.metric, rule=rule, phase=phase) for side, phase in sides)
    if row_a is None or row_b is None:
        return None
    prices = [side.metric("accuracy", rule=rule, phase=phase) for side, phase in sides]
    before, after = (None if row is None else row.value for row in prices)
    accuracy = None if before is None or after is None else after - before
    made = functools.partial(SeedDifference, comparison=comparison, a=row_a.value, b=row_b.value, accuracy=accuracy)
    if b.cell.twin == a.cell and a.phase == b.phase:
        pair = sides[1][0].paired(comparison.metric, rule=rule, phase=b.phase)
        if pair is not None:
            return made(value=pair.difference, low=pair.low, high=pair.high, paired=True, counted=pair.p_value)
    value = row_b.value - row_a.value
    if row_a.low is None or row_a.high is None or row_b.low is None or row_b.high is None:
        return made(value=value, low=None, high=None)
    low = value - math.hypot(row_b.value - row_b.low, row_a.high - row_a.value)
    high = value + math.hypot(row_b.high - row_b.value, row_a.value - row_a.low)
    return made(value=value, low=low, high=high)


def decide(outcomes: Sequence[Outcome], *, guard: bool = True, rules: Rules = REGISTERED) -> tuple[Outcome, ...]:
    """Rules 3 to 5 of this file: each outcome with its decision and its corrected p-value."""
    if rules.correct:  # a comparison without an interval is neither corrected nor counted
        p_values = holm([math.nan if each.p_value is None else each.p_value for each in outcomes])
        known = [None if math.isnan(p_value) else p_value for p_value in p_values]
        outcomes = [dataclasses.replace(each, p_value=p) for each, p in zip(outcomes, known, strict=True)]
    decisions = (_decision(each, guard=guard, smallest=rules.smallest) for each in outcomes)
    return tuple(dataclasses.replace(each, decision=found) for each, found in zip(outcomes, decisions, strict=True))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and Student's 95 % interval for it; None for fewer than two values.

    >>> mean, low, high = mean_interval([1.0, 3.0])
    >>> round(mean, 1), round(low, 1), round(high, 1)
    (2.0, -10.7, 14.7)
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    arm = student(float(len(values) - 1), 1 - LEVEL) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - arm, mean + arm


def _over_seeds(
    family: str, metric: str, found: Sequence[SeedDifference], rules: Rules, pooled: _Variance | None
) -> Outcome:
    found = sorted(found, key=lambda each: each.comparison.b.cell)  # or the order of reading shows in the last digit
    effect = statistics.fmean(each.value for each in found)
    low, high, p_value = _interval_over_seeds(effect, found, rules, pooled)
    prices = [each.accuracy for each in found if each.accuracy is not None]
    return Outcome(
        family=family,
        cell=found[0].comparison.b.cell,
        metric=metric,
        a=statistics.fmean(each.a for each in found),
        b=statistics.fmean(each.b for each in found),
        effect=effect,
        low=low,
        high=high,
        p_value=p_value,
        accuracy=statistics.fmean(prices) if prices else None,
        paired=all(each.paired for each in found),
        seeds=tuple(each.comparison.b.cell.seed for each in found),
        cells=tuple(name for each in found for name in (each.comparison.a.name, each.comparison.b.name)),
    )


class _Variance(NamedTuple):
    """Over seeds, with its degrees of freedom."""

    value: float
    freedom: float


def _interval_over_seeds(
    effect: float, found: Sequence[SeedDifference], rules: Rules, pooled: _Variance | None
) -> tuple[float | None, float | None, float | None]:
    """Low, high and p: rules 2 and 3 of this file; one seed keeps its interval to the last digit."""
    known = [(each.value, each.low, each.high) for each in found if each.low is not None and each.high is not None]
    if len(known) < len(found):
        return None, None, None
    below = statistics.fmean(value - low for value, low, _ in known)
    above = statistics.fmean(high - value for value, _, high in known)
    own = _variance([value for value, _, _ in known])
    variance = own or pooled
    if variance is not None and (rules.welch or rules.pooled_seeds):
        sides = [welch(arm / _NORMAL, variance.value / len(known), variance.freedom) for arm in (below, above)]
        error, freedom = sides[0] if effect > 0 else sides[1]
        low, high = (student(each[1], 1 - LEVEL) * each[0] for each in sides)
        return effect - low, effect + high, two_sided(effect, error, freedom)
    if own is None:
        low, high = known[0][1], known[0][2]
        if rules.counted and found[0].counted is not None:
            return low, high, found[0].counted
    else:
        seeds = student(own.freedom, 1 - LEVEL) * math.sqrt(own.value / len(known))
        low, high = effect - math.hypot(below, seeds), effect + math.hypot(above, seeds)
    arm = effect - low if effect > 0 else high - effect
    return low, high, two_sided(effect, arm / _NORMAL, math.inf)


def _variance(values: Sequence[float]) -> _Variance | None:
    return _Variance(statistics.variance(values), float(len(values) - 1)) if len(values) > 1 else None


def _pooled(families: Iterable[Sequence[SeedDifference]]) -> _Variance | None:
    """One variance over seeds for all families, from those that have several; None if none has."""
    each = [_variance([seed.value for seed in family]) for family in families]
    found = [variance for variance in each if variance is not None]
    freedom = math.fsum(variance.freedom for variance in found)
    return _Variance(sum(v.value * v.freedom for v in found) / freedom, freedom) if found else None


def _decision(outcome: Outcome, *, guard: bool, smallest: bool) -> Decision:
    good = outcome.effect * better_sign(outcome.metric) > 0
    if outcome.low is None or outcome.high is None or outcome.p_value is None:
        return "undecided"  # an effect without an interval proves nothing, however large
    if outcome.low <= 0 <= outcome.high or outcome.p_value > LEVEL:
        return "within chance"
    if smallest and abs(outcome.effect) < SMALLEST[outcome.metric]:
        return "too small"
    if guard and outcome.accuracy is not None and outcome.metric != "accuracy":
        price = outcome.accuracy if good else -outcome.accuracy
        if price < -_DEAR:
            return "traded"
    return "better" if good else "worse"


def welch(error: float, variance: float, freedom: float) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum: of an error that is known well, and of a variance that is estimated
    with few degrees of freedom."""
    total = error**2 + variance
    return math.sqrt(total), freedom * (total / variance) ** 2 if variance else math.inf


def two_sided(effect: float, error: float, freedom: float) -> float:
    """The p-value by Student's t; with infinite freedom by the normal distribution."""
    if error <= 0:
        return 0.0 if effect else 1.0
    return float(2 * stats.t.sf(abs(effect) / error, freedom))


def student(freedom: float, level: float) -> float:
    """How many standard errors an interval reaches to each side; with infinite freedom by the normal distribution.

    >>> round(student(2.0, 0.95), 2), round(student(math.inf, 0.95), 2)
    (4.3, 1.96)
    """
    return float(stats.t.ppf((1 + level) / 2, freedom))
