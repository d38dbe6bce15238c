"""Reports: tables and figures of evaluations. The only part that speaks in per cent."""

from calattn.report.tables import (
    difference_markdown,
    difference_rows,
    difference_table,
    evaluation_markdown,
    evaluation_rows,
    evaluation_table,
    leaderboard,
    rows_to_csv,
    sentence,
)

__all__ = [
    "difference_markdown",
    "difference_rows",
    "difference_table",
    "evaluation_markdown",
    "evaluation_rows",
    "evaluation_table",
    "leaderboard",
    "rows_to_csv",
    "sentence",
]
