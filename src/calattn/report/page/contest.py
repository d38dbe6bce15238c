"""What the page of a contest of calibrators shows beside its predictions: every method, its numbers and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calattn.posthoc import Contest, Skipped
from calattn.report.contest import contest_verdict
from calattn.report.page.document import difference_entry, finite, printed


def contest_entry(contest: Contest, *, reason: Callable[[Skipped], str] | None = None) -> dict[str, Any]:
    """The entry "contest" of a page's document; `reason` says why a method was skipped."""
    options = contest.before.options
    first = next((row.from_before for row in contest.rows if row.from_before), None)
    metrics = list(first or contest.before.rows)
    before = {"method": "(as it is)", "seconds": None, "after": contest.before, "from_before": None}
    rows = [before, *(vars(row) | {"after": row.evaluation} for row in contest.rows)]
    return {
        "leader": None if contest.best is None else contest.best.method,
        "verdict": contest_verdict(contest),
        "metrics": [{"name": name, **printed(name, options)} for name in metrics],
        "rows": [
            {
                "method": row["method"],
                "seconds": row["seconds"],
                "after": {name: _value(row["after"][name].value) for name in metrics},
                "from_before": row["from_before"]
                and {name: difference_entry(each, options) for name, each in row["from_before"].items()},
            }
            for row in rows
        ],
        "skipped": [
            {"method": each.method, "reason": reason(each) if reason else each.reason} for each in contest.skipped
        ],
    }


def _value(value: float) -> dict[str, Any]:
    return {"value": finite(value), "infinite": value == float("inf")}
