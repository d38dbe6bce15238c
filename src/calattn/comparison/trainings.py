"""Several trainings: which of them are of one method, and the difference between two methods over their seeds."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calattn.metrics.evaluation import Difference, compare
from calattn.metrics.resampling.bootstrap import afresh
from calattn.metrics.sources import PredictionSource

FEWEST = 2  # seeds, and methods


class Training(NamedTuple):
    """`method` is equal for trainings that differ in their seed alone."""

    method: str
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """The trainings of one method: seed → title."""

    title: str
    runs: dict[int, str]


def methods_of(trainings: Mapping[str, Training], *, after: str = "") -> list[Method]:
    """The methods, in the order in which the first run of each is named, their runs in the order of seeds.

    A method's title is what the titles of its runs have in common, what was done `after` training, and how many there are.

    >>> found = methods_of({"ce-s0": Training("x", 0), "ours-s0": Training("y", 0), "ce-s1": Training("x", 1)})
    >>> [(method.title, method.runs) for method in found]
    [('ce (2 seeds)', {0: 'ce-s0', 1: 'ce-s1'}), ('ours-s0 (1 seed)', {0: 'ours-s0'})]
    """
    methods: dict[str, dict[int, str]] = {}
    for title, (method, seed) in trainings.items():
        runs = methods.setdefault(method, {})
        if seed in runs:
            raise ValueError(
                f"{runs[seed]} and {title} are the same method with the same seed {seed}; name one of them"
            )
        runs[seed] = title
    if len(methods) < FEWEST:
        raise ValueError(
            "all of these runs are of one method: their specs differ in their seed alone; name those of another too"
        )
    found: dict[str, Method] = {}
    for runs in methods.values():
        count = f"({len(runs)} seed{'s' * (len(runs) > 1)})"
        begin, number, title = f"{_in_common(list(runs.values()))}{after}", 1, ""
        while not title or title in found:  # runs that are numbered through have the same names in common
            title, number = f"{begin}{f' no. {number}' * (number > 1)} {count}", number + 1
        found[title] = Method(title=title, runs=dict(sorted(runs.items())))
    return list(found.values())


def _in_common(titles: Sequence[str]) -> str:
    """The beginning, without what is left of a seed at its end, and the folders at the end.

    >>> [_in_common([name.format(seed) for seed in (1, 10)]) for name in ("ce-loss-s{}", "calibrated/ce-s{}/vector", "seed{}/ce")]
    ['ce-loss', 'calibrated/ce/vector', 'ce']
    """
    if len(set(titles)) == 1:
        return titles[0]
    letters = os.path.commonprefix(titles)  # noqa: RUF071  (of names, not of folders)
    shared = re.sub(r"(?:(?:^|[\W_]+)s(?:eed)?)?[\W_]*\d*$", "", letters)
    rest = os.path.commonprefix([title[len(letters) :][::-1] for title in titles])[::-1]  # noqa: RUF071
    _, slash, folders = rest.partition("/")
    return f"{shared}{slash}{folders}".strip("/") or titles[0]


def common_seeds(a: Method, b: Method) -> list[int]:
    """The seeds of both methods; what only one of them has is left out, with a warning."""
    common = [seed for seed in a.runs if seed in b.runs]
    if len(common) < FEWEST:
        seeds = (", ".join(map(str, each.runs)) for each in (a, b))
        raise ValueError(
            f"{a.title} and {b.title} have {len(common)} seed{'s' * (len(common) != 1)} in common ({' and '.join(seeds)}); "
            f"a comparison over seeds needs at least {FEWEST}: train more with calattn train … --seed N"
        )
    for each in (a, b):
        if alone := [str(seed) for seed in each.runs if seed not in common]:
            missing = ", ".join(alone)
            warnings.warn(f"{each.title}: left out, because the other side has no such seed: {missing}", stacklevel=2)
    return common


def remark_on(trainings: Mapping[str, Training]) -> str:
    """What the interval of a comparison of single trainings does not cover."""
    seen: dict[str, str] = {}
    for title, (method, seed) in trainings.items():
        shown = f"{title} (seed {seed})"
        if method in seen:
            return (
                f"{seen[method]} and {shown} are trainings of one method: what they differ by is another training, not another "
                "method"
            )
        seen[method] = shown
    return (
        "one training each: the intervals are for other samples, not for another training; train several seeds of each and "
        "compare them over seeds"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedsDifference(Difference):
    """The mean of b − a over pairs of trainings. `std_a`, `std_b`: standard deviations over the trainings of each side."""

    std_a: float
    std_b: float
    num_seeds: int


def over_seeds(differences: Sequence[Difference]) -> SeedsDifference:
    """One difference of several, each between two trainings of the same seed on the same samples.

    The interval covers another training and other samples: the arm of the mean over seeds, by Student's t, and that of the
    samples, which all seeds share, are added in quadrature. It holds at least what it promises, with two seeds too (with two,
    Welch and Satterthwaite's degrees of freedom hold 88 %).

    >>> def one(b): return Difference(name="ece", a=0.03, b=b, difference=b - 0.03, low=b - 0.032, high=b - 0.028, p_value=0.01)
    >>> found = over_seeds([one(0.01), one(0.02), one(0.03)])
    >>> round(found.difference, 4), round(found.std_b, 4), found.significant
    (-0.01, 0.01, False)
    """
    from scipy import special

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
        seeds = Error(statistics.stdev(values) / math.sqrt(len(values)), len(values) - 1)
        below, above = (Error(arm / float(special.ndtri((1 + level) / 2))) for arm in samples)
        ends = (effect - reach(below, seeds, 1 - level), effect + reach(above, seeds, 1 - level))
        p_value = chance_of(effect, below if effect > 0 else above, seeds)
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


def compare_over_seeds(
    pairs: Iterable[tuple[PredictionSource, PredictionSource]], **measure: Any
) -> dict[str, SeedsDifference]:
    """`calattn.compare` of two methods, from a pair of predictions for each seed; `measure` takes its arguments.

    A metric that cannot be compared in every seed is left out, with a warning.

    >>> import torch
    >>> from calattn import Predictions
    >>> def trained(seed, factor):
    ...     logits = torch.randn(500, 3, generator=torch.Generator().manual_seed(seed))
    ...     return Predictions(logits=factor * logits, labels=torch.arange(500) % 3)
    >>> found = compare_over_seeds([(trained(s, 1.0), trained(s, 2.0)) for s in range(3)], metrics="nll", num_bootstrap=100)
    >>> found["nll"].num_seeds, found["nll"].difference > 0, found["nll"].significant
    (3, True, True)
    """
    parts = [compare(a, b, **afresh(measure)) for a, b in pairs]
    names = list(dict.fromkeys(name for part in parts for name in part))
    shared = [name for name in names if all(name in part for part in parts)]
    for name in names:
        if name not in shared:
            warnings.warn(f"{name} is left out: not every seed has it", stacklevel=2)
    return {name: over_seeds([part[name] for part in parts]) for name in shared}


class Error(NamedTuple):
    """A standard error, and the degrees of freedom it is known with."""

    size: float
    freedom: float = math.inf


def reach(samples: Error, seeds: Error, chance: float) -> float:
    """How far an interval reaches that leaves out so much, for both errors."""
    from scipy import stats

    return math.hypot(*(float(stats.t.isf(chance / 2, each.freedom)) * each.size for each in (samples, seeds)))


def chance_of(effect: float, samples: Error, seeds: Error) -> float:
    """The p-value: what the interval leaves out that just reaches zero."""
    from scipy import optimize

    def left(logarithm: float) -> float:
        return reach(samples, seeds, math.exp(logarithm)) - abs(effect)

    if effect == 0 or samples.size == seeds.size == 0:
        return 0.0 if effect else 1.0
    return math.exp(optimize.brentq(left, -30, 0)) if left(-30) > 0 else 0.0


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
