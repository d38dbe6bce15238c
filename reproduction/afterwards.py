"""The central thesis: the head trained jointly against a head fitted afterwards, from the documents of `benchmarks.head`.

All are DeiT-S with mixup, 60 epochs, judged on clean test images. The heads fitted afterwards stand on three networks (seeds) of
a data set, the joint one is one network of the same recipe, followed by temperature scaling. Is it outside what three seeds
let us expect of a fourth? The interval is Student's for one new value: t(2) · sd · √(1 + 1/3). This rule was written when the
results were known.
"""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path

from calattn.comparison.trainings import student
from calattn.runs.folder import read_json
from reproduction.cells import CIFARS, Cell
from reproduction.evidence import LEVEL, Outcome, decide, two_sided
from reproduction.render import markdown_table, shown
from reproduction.tables import DATASETS

RIVALS = {"frozen_calattn": "the same head fitted on validation images", "taught": "the taught head"}
METHODS = {
    "none": "as trained",
    "ts": "one temperature (NLL)",
    **RIVALS,
    "joint_ts": "trained jointly, then one temperature",
}
SEEDS = (0, 1, 2)


def table(folder: Path) -> str:
    """NLL and ECE of each way to calibrate, means over the networks that have it; CIFAR-10-C's kind at severity 5."""
    groups = {"clean": "", "severity 5": ", corrupted"}
    header = ["NLL, ECE", *(f"{DATASETS[dataset]}{where}" for dataset in CIFARS for where in groups.values())]
    rows = []
    for method, title in METHODS.items():
        rows.append([title])
        for dataset, group in itertools.product(CIFARS, groups):
            found = [_values(folder, dataset, method, metric, group) for metric in ("nll", "ece")]
            means = zip(("nll", "ece"), found, strict=True)
            rows[-1].append(
                ", ".join(shown(name, statistics.fmean(values)) if values else "–" for name, values in means)
            )
    return markdown_table(header, rows)


def outcomes(folder: Path, metric: str = "ece") -> tuple[Outcome, ...]:
    """Joint + TS minus each rival on each data set; none where the documents are not there."""
    found = []
    for dataset, (rival, title) in itertools.product(CIFARS, RIVALS.items()):
        joint, values = (_values(folder, dataset, method, metric) for method in ("joint_ts", rival))
        if not joint or not values:
            continue
        a, (b,), freedom = statistics.fmean(values), joint, len(values) - 1.0
        error = statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
        arm = student(freedom, 1 - LEVEL) * error
        found.append(
            Outcome(
                family=f"{dataset} deit: joint + TS against {title}",
                cell=Cell(dataset=dataset, model="deit", head="calattn", recipe="mixup"),
                metric=metric,
                a=a,
                b=b,
                effect=b - a,
                low=b - a - arm,
                high=b - a + arm,
                p_value=two_sided(b - a, error, freedom),
                seeds=SEEDS,
                cells=(*_files(dataset, rival), *_files(dataset, "joint_ts")),
            )
        )
    return decide(found)


def _files(dataset: str, method: str) -> list[str]:
    """The joint network is one, the others three."""
    return (
        [f"{dataset}-deit-joint-0.json"] if method == "joint_ts" else [f"{dataset}-deit-{seed}.json" for seed in SEEDS]
    )


def _values(folder: Path, dataset: str, method: str, metric: str, group: str = "clean") -> list[float]:
    """Of every network; none where a document is not there."""
    paths = [folder / name for name in _files(dataset, method)]
    if not all(path.is_file() for path in paths):
        return []
    return [float(read_json(path)["values"][method][group][metric]["value"]) for path in paths]
