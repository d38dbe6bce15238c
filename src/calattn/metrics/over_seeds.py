"""Over seeds: a difference between two ways to train, from several trainings of each."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from calattn.metrics.evaluation import Difference


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedsDifference(Difference):
    """The mean of b − a over pairs of trainings. `std_a`, `std_b`: standard deviations over the trainings of each side."""

    std_a: float
    std_b: float
    num_seeds: int


def over_seeds(differences: Sequence[Difference]) -> SeedsDifference:
    """One difference of several, each between two trainings of the same seed on the same samples.

    The interval covers another training and other samples: the error of the mean over seeds, and that of the samples, which
    all seeds share, are added, and judged by Student's t with Welch and Satterthwaite's degrees of freedom.

    >>> def one(b): return Difference(name="ece", a=0.03, b=b, difference=b - 0.03, low=b - 0.032, high=b - 0.028, p_value=0.01)
    >>> found = over_seeds([one(0.01), one(0.02), one(0.03)])
    >>> round(found.difference, 4), round(found.std_b, 4), found.significant
    (-0.01, 0.01, False)
    """
    kinds = {(each.name, each.options, each.level) for each in differences}
    if len(differences) < 2 or len(kinds) > 1:
        names = ", ".join(sorted({each.name for each in differences})) or "nothing"
        raise ValueError(
            "over_seeds needs differences of one metric, with the same options and at one level, from two or more seeds, got "
            f"{len(differences)} of {names}"
        )
    values = [each.difference for each in differences]
    effect, ((name, options, level),) = statistics.fmean(values), kinds
    known = [number for each in differences for number in (each.difference, each.low, each.high)]
    if all(map(math.isfinite, known)):
        samples = (
            statistics.fmean(each.difference - each.low for each in differences),
            statistics.fmean(each.high - each.difference for each in differences),
        )
        variance, freedom = statistics.variance(values) / len(values), float(len(values) - 1)
        below, above = (welch(arm / student(math.inf, level), variance, freedom) for arm in samples)
        low, high = (sign * student(each[1], level) * each[0] for sign, each in ((-1, below), (1, above)))
        ends, p_value = (effect + low, effect + high), two_sided(effect, *(below if effect > 0 else above))
    else:
        ends, p_value = (math.nan, math.nan), math.nan
    return SeedsDifference(
        name=name,
        a=statistics.fmean(each.a for each in differences),
        b=statistics.fmean(each.b for each in differences),
        difference=effect,
        low=ends[0],
        high=ends[1],
        p_value=p_value,
        level=level,
        options=options,
        std_a=_deviation([each.a for each in differences]),
        std_b=_deviation([each.b for each in differences]),
        num_seeds=len(differences),
    )


def welch(error: float, variance: float, freedom: float) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum: of an error that is known well, and of a variance that is estimated
    with few degrees of freedom."""
    total = error**2 + variance
    return math.sqrt(total), freedom * (total / variance) ** 2 if variance else math.inf


def student(freedom: float, level: float) -> float:
    """How many standard errors an interval reaches to each side; with infinite freedom by the normal distribution.

    >>> round(student(2.0, 0.95), 2), round(student(math.inf, 0.95), 2)
    (4.3, 1.96)
    """
    from scipy import stats

    return float(stats.t.ppf((1 + level) / 2, freedom))


def two_sided(effect: float, error: float, freedom: float) -> float:
    """The p-value by Student's t; with infinite freedom by the normal distribution."""
    from scipy import stats

    if error <= 0:
        return 0.0 if effect else 1.0
    return float(2 * stats.t.sf(abs(effect) / error, freedom))


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
