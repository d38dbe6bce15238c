"""The pages beside the report: the baselines, the lowest validation NLL, the paper's schedule, the size of the checkpoint."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calattn.report.style import between, number
from calattn.rules import Rule
from reproduction import paper
from reproduction.cells import BACKBONES, CIFARS, TRANSFORMERS, GridCell, rules_of
from reproduction.claims import CLAIMS, Claim
from reproduction.counted import cost_of
from reproduction.evidence import SMALLEST, mean_interval
from reproduction.paper_tables import DATASETS, LOSS_TITLES, MODELS
from reproduction.planned import ordered_cells
from reproduction.render import markdown_table, shown
from reproduction.results import RULES, CellResult, ResultStore
from reproduction.verdicts import State

TEMPLATES = Path(__file__).parent / "templates"


def filled(template: str, numbers: Mapping[str, object]) -> str:
    """A page: numbers in the sentences of `templates/<template>.md`."""
    text = (TEMPLATES / f"{template}.md").read_text(encoding="utf-8")
    return string.Template(text).substitute(numbers)


# --- are the baselines reproduced? -------------------------------------------------------------------------------------

RULES_SHOWN: tuple[Rule, ...] = (*RULES, "best-nll")
FACTOR = 2.0
"""A baseline counts as reproduced if its ECE is within this factor of the paper's."""


def baselines(store: ResultStore) -> list[dict[str, Any]]:
    """One for each transformer of the paper's table without the head that has a result; None: not stored or not printed."""
    found = []
    for cell in ordered_cells(store.scale):
        result, keys = store.get(cell), {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "head": "none"}
        plain = GridCell(dataset=cell.dataset, model=cell.model, loss=cell.loss) == cell and cell.model in TRANSFORMERS
        before, after = (paper.find("ece", loss=cell.loss, phase=phase, **keys) for phase in ("pre", "post"))
        if not plain or before is None or after is None or not isinstance(result, CellResult):
            continue
        top1 = paper.find("accuracy", **keys) if cell.loss == "ce" else None
        row: dict[str, Any] = {"cell": cell, "paper": (before["value"], after["temperature"], top1 and top1["value"])}
        for rule in RULES_SHOWN:
            values = [result.metric(name, rule=rule) for name in ("ece", "accuracy")]
            ece, accuracy = (None if each is None else 100 * each.value for each in values)
            row[rule] = (ece, result.temperature(rule=rule), accuracy)
        if row["best-nll"][0] is None and (lowest := result.lowest_nll):
            row["best-nll"] = (100 * lowest["ece"], None, 100 * lowest["accuracy"])
        found.append(row)
    return found


def reproduced(found: list[dict[str, Any]], rule: str) -> int:
    """How many are within `FACTOR` of the paper's ECE."""
    pairs = [(row[rule][0], row["paper"][0]) for row in found]
    return sum(1 / FACTOR <= ours / theirs <= FACTOR for ours, theirs in pairs if ours is not None)


def baselines_page(store: ResultStore) -> str:
    found, places = baselines(store), ("paper", *RULES_SHOWN)
    cells = [(DATASETS[row["cell"].dataset], MODELS[row["cell"].model], LOSS_TITLES[row["cell"].loss]) for row in found]
    lines = [[*cell, *(_three(row[place]) for place in places)] for cell, row in zip(cells, found, strict=True)]
    counts = "; ".join(f"at `{rule}` {reproduced(found, rule)}" for rule in RULES_SHOWN)
    header = ["data set", "network", "loss", *(f"{place}: ECE, T*, accuracy" for place in places)]
    table = markdown_table(header, lines)
    return filled("baselines", {"count": len(found), "factor": f"{FACTOR:g}", "counts": counts, "table": table})


def _three(values: tuple[float | None, ...]) -> str:
    """
    >>> _three((4.381, 1.2, None))
    '4.38, 1.2, –'
    """
    parts = zip(values, (2, 1, 1), strict=True)
    return ", ".join("–" if value is None else f"{value:.{digits}f}" for value, digits in parts)


# --- at the lowest validation NLL --------------------------------------------------------------------------------------
# What the logs of older runs allow, which predicted no test images there: means over families of differences on the validation
# images, which also chose the epoch, with Student's interval over families. No interval of a single family can be had from a
# log, so these rules are other than those of `evidence`: a gain holds if the interval lies on the good side of zero and is
# contradicted if it lies on the bad side; accuracy is kept if its lower end is above −1 point, and is not if its upper end is
# below. They were written when the results were known.

JUDGED_BY_LOG = ("ece_falls", "accuracy_kept", "reliability")
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


def course_of(name: str, store: ResultStore) -> Course:
    """Of a claim that compares networks before temperature scaling."""
    claim = CLAIMS[name]
    assert isinstance(claim, Claim)
    pairs, found = claim.comparisons(store.scale), dict[str, list[dict[str, float]]]()
    for pair in pairs:
        rows = [each.lowest_nll for arm in (pair.a, pair.b) if isinstance(each := store.get(arm.cell), CellResult)]
        if len(rows) == 2 and rows[0] and rows[1]:
            difference = {metric: rows[1][metric] - rows[0][metric] for metric in TITLES}
            found.setdefault(pair.family, []).append(difference)
    means = {k: {m: statistics.fmean(seed[m] for seed in seeds) for m in TITLES} for k, seeds in sorted(found.items())}
    return Course(pairs[0].metric, means)


def best_nll_page(store: ResultStore) -> str:
    course = course_of("ece_falls", store)
    rows = [[family, *(shown(metric, each[metric]) for metric in TITLES)] for family, each in course.families.items()]
    rows.append(["**mean**", *(course.text(metric) for metric in TITLES)])
    return filled("best_nll", {"table": markdown_table(["family", *TITLES.values()], rows)})


# --- the paper's own schedule: networks trained with it, whole or as far as they came ----------------------------------

PAIR = tuple(GridCell(dataset="cifar10", model="deit", head=head, recipe="350") for head in ("none", "calattn"))
WITH = {"none": "without", "calattn": "with CalAttn"}
EVERY = 25
"""Epochs from one row of the course to the next."""
HEADER = ["network", "checkpoint", "epoch", "accuracy", "ECE", "T*", "ECE after TS", "NLL"]


def schedule_table(store: ResultStore) -> str:
    """For the report: both in the mean over the last epochs that both have logged, and the paper's."""
    found = _as_far_as_they_came(PAIR, store)
    end = min((result.log[-1]["epoch"] for result in found), default=0)
    rows = []
    for result in found:
        logged = [row for row in result.log if end - EVERY < row["epoch"] <= end]
        columns = [
            (row["validation"]["accuracy"], row["train"]["accuracy"], row["validation"]["ece"]) for row in logged
        ]
        means = [shown("accuracy", statistics.fmean(column)) for column in zip(*columns, strict=True)]
        scale = statistics.fmean(_scale(row["validation"]) for row in logged)
        epochs = f"{len(logged)} logged epochs from {end - EVERY + 1} to {end}"
        rows.append([f"ours, {WITH[result.cell.head]}, {epochs}", *means, f"{scale:.2f}"])
    for cell in PAIR:
        accuracy, before, _ = _printed(cell)
        rows.append([f"paper, {WITH[cell.head]}", f"{accuracy['value']:.2f}", "–", f"{before['value']:.2f}", "–"])
    return markdown_table(["", "validation accuracy", "training accuracy", "ECE", "mean s"], rows)


def schedule_page(store: ResultStore) -> str:
    full = ResultStore(store.folder.parent, "paper")
    pair = _as_far_as_they_came([dataclasses.replace(cell, recipe="paper") for cell in PAIR], full)
    both = list(zip(*(found.log for found in pair), strict=False)) if len(pair) == len(PAIR) else []
    rows = [(epochs[0]["epoch"], *(epoch["validation"]["accuracy"] for epoch in epochs)) for epochs in both]
    numbers = {
        "judged": markdown_table(HEADER, [row for cell in PAIR for row in _by_rule(store.get(cell), cell)]),
        "course": _course(_as_far_as_they_came(PAIR, store)),
        "ahead": sum(with_head > plain for _, plain, with_head in rows),
        "epochs": len(rows),
        "pair": markdown_table(
            ["epoch", "without", "with CalAttn"],
            [[str(epoch), *(shown("accuracy", each) for each in values)] for epoch, *values in rows],
        ),
    }
    return filled("schedule", numbers)


def _as_far_as_they_came(cells: Sequence[GridCell], store: ResultStore) -> list[CellResult]:
    found = [each if isinstance(each := store.get(cell), CellResult) else store.unfinished(cell) for cell in cells]
    return [result for result in found if result is not None]


def _printed(cell: GridCell) -> list[Mapping[str, paper.Value]]:
    """The paper's accuracy, and its ECE before and after temperature scaling."""
    keys = {"dataset": cell.dataset, "backbone": BACKBONES[cell.model], "head": cell.head}
    rows = [paper.find("ece", loss=cell.loss, phase=phase, **keys) for phase in ("pre", "post")]
    return [row for row in (paper.find("accuracy", **keys), *rows) if row is not None]


def _scale(row: dict[str, Any]) -> float:
    """The mean scale s of a row of the log; 1 of a network without a head."""
    return float(row["scale"]["mean"]) if "scale" in row else 1.0


def _by_rule(result: object, cell: GridCell) -> list[list[str]]:
    """A row for each checkpoint rule, then the paper's."""
    top1, before, after = _printed(cell)
    theirs = [f"{top1['value']:.2f}", f"{before['value']:.2f}", f"{after['temperature']:.1f}", f"{after['value']:.2f}"]
    rows = []
    for rule in rules_of(cell):
        if not isinstance(result, CellResult) or rule not in result.rules:
            continue
        accuracy, ece, nll = (_text(result.metric(name, rule=rule)) for name in ("accuracy", "ece", "nll"))
        scaled = _text(result.metric("ece", rule=rule, phase="post"))
        epoch, temperature = str(result.rules[rule]["epoch"]), f"{result.temperature(rule=rule):.1f}"
        rows.append([f"`{cell.name}`", f"`{rule}`", epoch, accuracy, ece, temperature, scaled, nll])
    return [*rows, [f"`{cell.name}`", "paper", "–", *theirs, "–"]]


def _text(row: Any) -> str:
    return "–" if row is None else shown(row.name, row.value)


def _course(stored: Sequence[CellResult]) -> str:
    """Validation accuracy, ECE and scale: a row for each stretch of epochs, a column for each network."""
    logs = [{row["epoch"]: row["validation"] for row in result.log} for result in stored]
    last = max((max(log) for log in logs), default=0)
    lines = []
    for start in range(0, last, EVERY):
        # Long logs are thinned: the last epoch of each stretch that is there.
        ends = [max((epoch for epoch in log if start < epoch <= start + EVERY), default=None) for log in logs]
        parts = ["–" if end is None else _epoch(end, log[end]) for end, log in zip(ends, logs, strict=True)]
        lines.append([f"{start + 1}–{start + EVERY}", *parts])
    names = [f"`{result.cell.name}`: epoch, accuracy, ECE, s" for result in stored]
    return markdown_table(["last of epochs", *names], lines)


def _epoch(epoch: int, row: dict[str, Any]) -> str:
    return f"{epoch}, {shown('accuracy', row['accuracy'])}, {shown('ece', row['ece'])}, {_scale(row):.2f}"


# --- the size of the checkpoint, of the paper's networks: counted, with nothing trained --------------------------------

_MIB = 2**20


def sizes_page(_store: object) -> str:
    rows = []
    for dataset, model in itertools.product(CIFARS, TRANSFORMERS):
        cost, keys = cost_of(dataset, model), {"dataset": dataset, "backbone": BACKBONES[model]}
        base, head = (paper.find("checkpoint_size", head=head, **keys) or {} for head in ("none", "calattn"))
        ours = (cost.backbone_bytes, cost.backbone_bytes + cost.added_bytes, cost.added_bytes)
        theirs = (base["value"], head["value"], head["change"])
        pairs = [f"{mine / _MIB:.2f}, {printed:.2f}" for mine, printed in zip(ours, theirs, strict=True)]
        rows.append([DATASETS[dataset], MODELS[model], *pairs, f"{100 * cost.fraction:.3f}"])
    header = ["data set", "network", "backbone", "+ CalAttn", "added", "parameters added, %"]
    return filled("checkpoint_size", {"table": markdown_table(header, rows)})


PAGES = {
    "baselines": baselines_page,
    "best_nll": best_nll_page,
    "schedule": schedule_page,
    "checkpoint_size": sizes_page,
}
"""By the names of their files."""
