"""What claims count or read off networks one by one: parameters, phases of the scale s, CLS norms, heads fitted afterwards."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from calattn.models.attach import Overhead, overhead
from calattn.runs.build import build_model
from calattn.runs.folder import read_json
from reproduction.cells import CIFARS, TRANSFORMERS, GridCell, spec_of
from reproduction.evidence import LEVEL, Outcome, decide, student, two_sided
from reproduction.paper_tables import DATASETS
from reproduction.render import markdown_table, shown
from reproduction.results import CellResult, ResultStore

HEADS = tuple(GridCell(dataset=data, model=model, head="calattn") for data in CIFARS for model in TRANSFORMERS)
OF_CIFAR10 = tuple(cell for cell in HEADS if cell.dataset == "cifar10")
NORMED = tuple(GridCell(dataset="cifar10", model="vit", head=head, seed=1) for head in ("none", "calattn"))
"""The second seed: the norm is measured in networks that are trained now."""
PARAMETER_LIMIT = 0.001
MODERATE = (0.3, 0.7)
"""A rank correlation between these is called moderate."""
_CLASSES = {"cifar10": 10, "cifar100": 100}


def shares(_store: ResultStore, _metric: str) -> Iterator[Outcome]:
    """Of the paper's networks, which need not be trained to be counted."""
    for cell in HEADS:
        cost = cost_of(cell.dataset, cell.model)
        ends = {"a": cost.backbone_params, "b": cost.added_params}
        yield _counted(cell, "parameters", cost.fraction, **ends, good=cost.fraction < PARAMETER_LIMIT)


def phased(store: ResultStore, _metric: str) -> Iterator[Outcome]:
    for cell in OF_CIFAR10:
        found = store.get(cell)
        phases = find_phases(found.log) if isinstance(found, CellResult) else None
        if phases is not None:
            before, after = phases.cv_in_the_middle, phases.cv_at_the_end
            yield _counted(cell, "cv", after - before, a=before, b=after, good=phases.all)


def correlated(store: ResultStore, _metric: str) -> Iterator[Outcome]:
    low, high = MODERATE
    for cell in NORMED:
        found = store.get(cell)
        value = found.rules["last"].get("cls_norm_correlation") if isinstance(found, CellResult) else None
        if value is not None:
            yield _counted(cell, "correlation", value, a=low, b=high, good=low <= value <= high)


def _counted(cell: GridCell, metric: str, effect: float, *, a: float, b: float, good: bool) -> Outcome:
    """An outcome without an interval, decided by what was counted; parameters have no seed."""
    return Outcome(
        family=cell.name,
        cell=cell,
        metric=metric,
        a=float(a),
        b=float(b),
        effect=effect,
        seeds=() if metric == "parameters" else (cell.seed,),
        cells=(cell.name,),
        decision="better" if good else "worse",
    )


@functools.cache
def cost_of(dataset: str, model: str) -> Overhead:
    """What the head adds to the paper's network at 224 px; built without memory for its weights."""
    spec = spec_of(GridCell(dataset=dataset, model=model, head="calattn"), "paper")
    assert spec.data.size is not None
    with torch.device("meta"):
        built = build_model(spec, num_classes=_CLASSES[dataset], channels=3, size=spec.data.size)
    return overhead(built)


# --- three phases of the scale s ---------------------------------------------------------------------------------------

FIRST_CUT, SECOND_CUT = 30 / 350, 150 / 350
"""The paper's boundaries (epochs 30 and 150 of 350) as shares of a run, so that shorter runs are asked the same."""
FEWEST_EPOCHS = 20
RISE = 1.1
"""The coefficient of variation has risen when it ends at least a tenth above its mean in the second phase."""


class ScalePhases(NamedTuple):
    """What a log shows. `alignment`: mean and spread fall. `uniform`: the spread stays below where it began. `diverse`: it rises
    again. `crossing`: the mean is above 1 in the second phase and below 1 at the end. Spreads are coefficients of variation."""

    alignment: bool
    uniform: bool
    diverse: bool
    crossing: bool
    cv_in_the_middle: float
    cv_at_the_end: float

    @property
    def all(self) -> bool:
        return all(self[:4])


def find_phases(log: Sequence[dict[str, Any]]) -> ScalePhases | None:
    """The phases of a log with a row an epoch; None where it is shorter than 20 epochs or has no scale.

    Values at the end are means over the last tenth of the epochs, because a single epoch is noisy.
    """
    logged = [(row["epoch"], row["validation"]["scale"]) for row in log if "scale" in row["validation"]]
    moments = [(epoch, scale["mean"], scale["cv"]) for epoch, scale in logged]
    rows = sorted(each for each in moments if None not in each)  # NaN is null in a log
    if len(rows) < FEWEST_EPOCHS:
        return None
    epochs = rows[-1][0]
    first, second = math.ceil(epochs * FIRST_CUT), round(epochs * SECOND_CUT)
    start = rows[0]
    aligned = max((row for row in rows if row[0] <= first), default=start)
    middle = [row for row in rows if first < row[0] <= second]
    if not middle:
        return None
    end = rows[-max(1, len(rows) // 10) :]
    (mean, cv), (last_mean, last_cv) = (
        [statistics.fmean(row[i] for row in part) for i in (1, 2)] for part in (middle, end)
    )
    return ScalePhases(
        alignment=aligned[1] < start[1] and aligned[2] < start[2],
        uniform=max(row[2] for row in middle) <= start[2],
        diverse=last_cv >= RISE * cv,
        crossing=mean > 1 > last_mean,
        cv_in_the_middle=cv,
        cv_at_the_end=last_cv,
    )


# --- the head trained jointly against a head fitted afterwards ---------------------------------------------------------
# From the documents of `benchmarks.head`: DeiT-S with mixup, 60 epochs, judged on clean test images. The heads fitted afterwards
# stand on three networks (seeds) of a data set, the joint one is one network of the same recipe, followed by temperature
# scaling. Is it outside what three seeds let us expect of a fourth? The interval is Student's for one new value:
# t(2) · sd · √(1 + 1/3). This rule was written when the results were known.

RIVALS = {"frozen_calattn": "the same head fitted on validation images", "taught": "the taught head"}
METHODS = {
    "none": "as trained",
    "ts": "one temperature (NLL)",
    **RIVALS,
    "joint_ts": "trained jointly, then one temperature",
}
SEEDS = (0, 1, 2)


def heads_table(store: ResultStore) -> str:
    """NLL and ECE of each way to calibrate, means over the networks that have it; CIFAR-10-C's kind at severity 5."""
    groups = {"clean": "", "severity 5": ", corrupted"}
    header = ["NLL, ECE", *(f"{DATASETS[dataset]}{where}" for dataset in CIFARS for where in groups.values())]
    rows = []
    for method, title in METHODS.items():
        rows.append([title])
        for dataset, group in itertools.product(CIFARS, groups):
            found = {metric: _values(store, dataset, method, metric, group) for metric in ("nll", "ece")}
            means = [shown(name, statistics.fmean(values)) if values else "–" for name, values in found.items()]
            rows[-1].append(", ".join(means))
    return markdown_table(header, rows)


def joint(store: ResultStore, metric: str) -> tuple[Outcome, ...]:
    """Joint + TS minus each rival on each data set; none where the documents are not there."""
    found = []
    for dataset, (rival, title) in itertools.product(CIFARS, RIVALS.items()):
        alone, values = (_values(store, dataset, method, metric) for method in ("joint_ts", rival))
        if not alone or not values:
            continue
        a, (b,), freedom = statistics.fmean(values), alone, len(values) - 1.0
        error = statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
        arm = student(freedom, 1 - LEVEL) * error
        found.append(
            Outcome(
                family=f"{dataset} deit: joint + TS against {title}",
                cell=GridCell(dataset=dataset, model="deit", head="calattn", recipe="mixup"),
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
    numbers = ["joint-0"] if method == "joint_ts" else SEEDS
    return [f"{dataset}-deit-{number}.json" for number in numbers]


def _values(store: ResultStore, dataset: str, method: str, metric: str, group: str = "clean") -> list[float]:
    """Of every network; none where a document is not there."""
    paths = [store.heads / name for name in _files(dataset, method)]
    if not all(path.is_file() for path in paths):
        return []
    return [float(read_json(path)["values"][method][group][metric]["value"]) for path in paths]
