"""At the epoch of the lowest validation NLL: what the logs of older runs allow, which predicted no test images there.

Means over families of differences on the validation images, which also chose the epoch, with Student's interval over families.
No interval of a single family can be had from a log, so these rules are other than those of `evidence`: a gain holds if the
interval lies on the good side of zero and is contradicted if it lies on the bad side; accuracy is kept if its lower end is above
−1 point, and is not if its upper end is below. They were written when the results were known.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from calattn.report.style import between, number
from reproduction.claims import CLAIMS, Claim
from reproduction.evidence import SMALLEST, Results, mean_interval
from reproduction.render import markdown_table, shown
from reproduction.results import CellResult
from reproduction.verdicts import State

JUDGED = ("ece_falls", "accuracy_kept", "reliability")
METRICS = ("ece", "accuracy", "nll", "brier")
TITLES = {"ece": "ECE", "accuracy": "accuracy", "nll": "NLL", "brier": "Brier"}


class Course(NamedTuple):
    """A claim at this epoch: family → metric → mean difference over its seeds, with the head minus without."""

    metric: str
    families: dict[str, dict[str, float]]

    def mean(self, metric: str) -> tuple[float, float, float] | None:
        return mean_interval([each[metric] for each in self.families.values()])

    def text(self, metric: str) -> str:
        found = self.mean(metric)
        if found is None:
            return "–"
        return f"{number(metric, found[0], signed=True)} {between(metric, *found[1:], signed=True)}"

    @property
    def state(self) -> State:
        found = self.mean(self.metric)
        if found is None:
            return "not tested"
        _, low, high = found
        limit = SMALLEST["accuracy"] if self.metric == "accuracy" else 0.0
        if self.metric == "accuracy":
            low, high = -high, -low
        return "holds" if high < limit else "contradicted" if low > limit else "undecided"


def course_of(name: str, results: Results) -> Course:
    """Of a claim that compares networks before temperature scaling."""
    claim = CLAIMS[name]
    assert isinstance(claim, Claim)
    pairs = claim.comparisons(results.scale)
    found: dict[str, list[dict[str, float]]] = {}
    for pair in pairs:
        a, b = results.get(pair.a.cell), results.get(pair.b.cell)
        if isinstance(a, CellResult) and isinstance(b, CellResult) and (x := a.lowest_nll) and (y := b.lowest_nll):
            found.setdefault(pair.family, []).append({metric: y[metric] - x[metric] for metric in METRICS})
    families = {
        family: {metric: statistics.fmean(seed[metric] for seed in seeds) for metric in METRICS}
        for family, seeds in sorted(found.items())
    }
    return Course(pairs[0].metric, families)


def page(results: Results) -> str:
    """Every family, as Markdown."""
    course = course_of("ece_falls", results)
    rows = [[family, *(shown(metric, each[metric]) for metric in METRICS)] for family, each in course.families.items()]
    rows.append(["**mean**", *(course.text(metric) for metric in METRICS)])
    table = markdown_table(["family", *TITLES.values()], rows)
    return (
        f"# At the lowest validation NLL\n\nCalAttn minus its twin, validation images, points (NLL: nats).\n\n{table}\n"
    )
