"""The central thesis: the head trained jointly against a head fitted afterwards, from the documents of `benchmarks.head`.

All are DeiT-S with mixup, 60 epochs, judged on clean test images. The heads fitted afterwards stand on three networks (seeds) of
a data set, the joint one is one network of the same recipe, followed by temperature scaling. Is it outside what three seeds
let us expect of a fourth? The interval is Student's for one new value: t(2) · sd · √(1 + 1/3). This rule was written when the
results were known.
"""

from __future__ import annotations

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
        cells = [_cell(folder, dataset, method, group) for dataset in CIFARS for group in groups]
        rows.append([title, *cells])
    return markdown_table(header, rows)


def _cell(folder: Path, dataset: str, method: str, group: str) -> str:
    paths = _joint(folder, dataset) if method == "joint_ts" else _seeds(folder, dataset)
    if not all(path.is_file() for path in paths):
        return "–"
    means = {m: statistics.fmean(_value(path, method, m, group) for path in paths) for m in ("nll", "ece")}
    return ", ".join(shown(metric, value) for metric, value in means.items())


def _joint(folder: Path, dataset: str) -> list[Path]:
    return [folder / f"{dataset}-deit-joint-0.json"]


def _seeds(folder: Path, dataset: str) -> list[Path]:
    return [folder / f"{dataset}-deit-{seed}.json" for seed in SEEDS]


def outcomes(folder: Path, metric: str = "ece") -> tuple[Outcome, ...]:
    """Joint + TS minus each rival on each data set; none where the documents are not there."""
    found = []
    for dataset in CIFARS:
        (joint,), paths = _joint(folder, dataset), _seeds(folder, dataset)
        if not all(path.is_file() for path in (joint, *paths)):
            continue
        b = _value(joint, "joint_ts", metric)
        for rival, title in RIVALS.items():
            values = [_value(path, rival, metric) for path in paths]
            a, freedom = statistics.fmean(values), len(values) - 1.0
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
                    cells=tuple(path.name for path in (*paths, joint)),
                )
            )
    return decide(found)


def _value(path: Path, method: str, metric: str, group: str = "clean") -> float:
    return float(read_json(path)["values"][method][group][metric]["value"])
