"""The leaderboard: runs as rows that a page sorts and filters, as plain data (schema 1)."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any

from calattn.comparison import data_warning
from calattn.comparison.trainings import Training, remark_on
from calattn.distribution import version
from calattn.metrics.evaluation import Evaluation
from calattn.report.evaluations import beats
from calattn.report.page.document import finite, printed

_FIRST = ("accuracy", "nll", "nll_ts", "ece", "ece_ts", "brier")
# What is shown after temperature scaling too: column → metric and heading.
SCALED = {"ece_ts": ("ece", "ECE + TS"), "nll_ts": ("nll", "NLL + TS")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One line of the leaderboard: measured, with a page, or the reason why not.

    `labels` is a hash of all labels in their order, `data` what the predictions were made of, where that is known.
    """

    title: str
    facts: dict[str, Any]
    page: str | None = None
    evaluation: Evaluation | None = None
    scaled: Evaluation | None = None
    temperature: float | None = None
    reason: str | None = None
    damaged: bool = False
    training: Training | None = None
    labels: str | None = None
    data: str | None = None


def leaderboard_document(rows: Sequence[Standing], *, title: str, split: str, checkpoint: str) -> dict[str, Any]:
    """What the leaderboard page shows (schema 1), and what `--json` says.

    A row's `better_than` has, by column, the numbers of the rows that it beats by more than chance: a paired difference.
    """
    groups = _groups(rows)
    trainings = {row.title: row.training for row in rows if row.training is not None}
    return {
        "schema": 1,
        "version": version(),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "title": title,
        "note": f"runs: {split} predictions of the checkpoint “{checkpoint}”; TS: a temperature fitted by NLL on validation",
        "warnings": _warnings(rows),
        "remark": remark_on(trainings) if len(trainings) > 1 else None,
        "metrics": _metrics(rows),
        "rows": [
            {
                "title": row.title,
                "href": row.page,
                "values": _values(row),
                "facts": row.facts | ({} if row.temperature is None else {"T": round(row.temperature, 3)}),
                "group": group,
                "better_than": _better_than(row, [i for i, other in enumerate(groups) if other == group], rows),
                "note": row.reason,
            }
            for row, group in zip(rows, groups, strict=True)
        ],
    }


def _warnings(rows: Sequence[Standing]) -> list[str]:
    """Where runs on different data have the same labels: they look alike, and are not ranked together."""
    alike: dict[str, list[tuple[str, str | None]]] = {}
    for row in rows:
        if row.labels is not None:
            alike.setdefault(row.labels, []).append((row.title, row.data))
    return [doubt for named in alike.values() if (doubt := data_warning(named, ranked=True)) is not None]


def _groups(rows: Sequence[Standing]) -> list[str | None]:
    """The same text for predictions of the same samples, which alone can be ranked: of equal labels and of the same data.

    Files do not say what they are of: they count as the data of the runs with their labels, where all those name one.
    """
    known: dict[str | None, set[str]] = {}
    for row in rows:
        known.setdefault(row.labels, set()).update([row.data] if row.data is not None else [])
    found: list[str | None] = []
    for row in rows:
        others = known[row.labels]
        data = row.data or (next(iter(others)) if len(others) == 1 else "")
        found.append(None if row.labels is None else f"{row.labels} {data}".strip())
    return found


def _metrics(rows: Sequence[Standing]) -> list[dict[str, Any]]:
    """The columns: the most asked for first, each after scaling beside what it is compared with."""
    measured = next((row.evaluation for row in rows if row.evaluation is not None), None)
    if measured is None:
        return []
    metrics: dict[str, dict[str, Any]] = {}
    for name in measured.rows:
        metrics[name] = {"name": name, **printed(name, measured.options)}
        for scaled, (metric, heading) in SCALED.items():
            if metric == name and any(row.scaled is not None for row in rows):
                metrics[scaled] = metrics[name] | {"name": scaled, "title": heading}
    first = [name for name in _FIRST if name in metrics]
    return [metrics[name] for name in dict.fromkeys([*first, *metrics])]


def _columns(row: Standing) -> dict[str, tuple[Evaluation, str]]:
    """Where each column of a row comes from: an evaluation, and the metric of it."""
    found = {} if row.evaluation is None else {name: (row.evaluation, name) for name in row.evaluation}
    if row.scaled is not None:
        found |= {name: (row.scaled, metric) for name, (metric, _) in SCALED.items()}
    return found


def _values(row: Standing) -> dict[str, Any]:
    """A row's numbers with their intervals, by column."""
    found = {name: evaluation[metric] for name, (evaluation, metric) in _columns(row).items()}
    return {
        name: {key: finite(getattr(each, key)) for key in ("value", "low", "high")}
        | ({"infinite": True} if math.isinf(each.value) else {})
        for name, each in found.items()
    }


def _better_than(row: Standing, numbers: Sequence[int], rows: Sequence[Standing]) -> dict[str, list[int]]:
    """By column, which of the rows of the same samples it beats."""
    others = {number: _columns(rows[number]) for number in numbers}
    return {
        name: [i for i, other in others.items() if name in other and beats(mine, other[name][0], metric)]
        for name, (mine, metric) in _columns(row).items()
    }
