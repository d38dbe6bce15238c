"""At the epoch of the lowest validation NLL: what the logs of older runs allow, which predicted no test images there.

Means over families of differences on the validation images, which also chose the epoch, with Student's interval over families.
No interval of a single family can be had from a log, so these rules are other than those of `evidence`: a gain holds if the
interval lies on the good side of zero and is contradicted if it lies on the bad side; accuracy is kept if its lower end is above
−1 point, and is not if its upper end is below. They were written when the results were known.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from calattn.report.style import between, number
from reproduction.claims import CLAIMS, Claim
from reproduction.evidence import SMALLEST, Results, mean_interval
from reproduction.render import markdown_table, shown
from reproduction.results import CellResult
from reproduction.verdicts import State

JUDGED = ("ece_falls", "accuracy_kept", "reliability")
TEXT = "# At the lowest validation NLL\n\nCalAttn minus its twin, validation images, points (NLL: nats).\n\n"
TITLES = {"ece": "ECE", "accuracy": "accuracy", "nll": "NLL", "brier": "Brier"}


class Course(NamedTuple):
    """A claim at this epoch: family → metric → mean difference over its seeds, with the head minus without."""

    metric: str
    families: dict[str, dict[str, float]]

    def mean(self, metric: str) -> tuple[float, float, float]:
        """With its interval; NaN of fewer than two families."""
        return mean_interval([each[metric] for each in self.families.values()]) or (math.nan,) * 3

    def text(self, metric: str) -> str:
        value, *ends = self.mean(metric)
        return f"{number(metric, value, signed=True)} {between(metric, *ends, signed=True)}".strip()

    @property
    def state(self) -> State:
        _, low, high = self.mean(self.metric)
        if math.isnan(low):
            return "not tested"
        if self.metric == "accuracy":
            low, high, limit = -high, -low, SMALLEST["accuracy"]
        else:
            limit = 0.0
        return "holds" if high < limit else "contradicted" if low > limit else "undecided"


def course_of(name: str, results: Results) -> Course:
    """Of a claim that compares networks before temperature scaling."""
    claim = CLAIMS[name]
    assert isinstance(claim, Claim)
    pairs, found = claim.comparisons(results.scale), dict[str, list[dict[str, float]]]()
    for pair in pairs:
        rows = [each.lowest_nll for arm in (pair.a, pair.b) if isinstance(each := results.get(arm.cell), CellResult)]
        if len(rows) == 2 and rows[0] and rows[1]:
            difference = {metric: rows[1][metric] - rows[0][metric] for metric in TITLES}
            found.setdefault(pair.family, []).append(difference)
    means = {k: {m: statistics.fmean(seed[m] for seed in seeds) for m in TITLES} for k, seeds in sorted(found.items())}
    return Course(pairs[0].metric, means)


def page(results: Results) -> str:
    """Every family, as Markdown."""
    course = course_of("ece_falls", results)
    rows = [[family, *(shown(metric, each[metric]) for metric in TITLES)] for family, each in course.families.items()]
    rows.append(["**mean**", *(course.text(metric) for metric in TITLES)])
    return TEXT + markdown_table(["family", *TITLES.values()], rows) + "\n"
