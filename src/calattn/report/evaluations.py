"""Tables of evaluations: metrics as rows, or as columns of a leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calattn.metrics import METRICS
from calattn.metrics.evaluation import Evaluation
from calattn.report.style import between, number, percent, title_of
from calattn.report.table import Cell, Table

Evaluations = Mapping[str, Evaluation]


def evaluation_table(evaluations: Evaluations) -> Table:
    """Metrics as rows, evaluations as columns, per cent (NLL in nats). Its records: one for each number, as fractions."""
    first = next(iter(evaluations.values()))
    rows: list[list[str | Cell]] = [
        [title_of(metric, first.options), *(_cell(each, metric) for each in evaluations.values())]
        for metric in first.rows
    ]
    records = [
        {"title": title.replace("\n", " "), "metric": row.name, "value": row.value, "low": row.low, "high": row.high}
        | {"samples": evaluation.num_samples}
        | ({} if evaluation.options.target is None else {"target": evaluation.options.target})
        for title, evaluation in evaluations.items()
        for row in evaluation.rows.values()
    ]
    return Table(header=["", *evaluations], rows=rows, caption=_caption(evaluations), records=records)


def leaderboard(evaluations: Evaluations, *, metrics: Sequence[str] | None = None, bold_best: bool = True) -> Table:
    """Evaluations as rows in the order given, metrics (some, or all) as columns; the best of each metric is bold."""
    first = next(iter(evaluations.values()))
    metrics = list(first.rows) if metrics is None else metrics
    best = {metric: _best(metric, [each[metric].value for each in evaluations.values()]) for metric in metrics}
    rows: list[list[str | Cell]] = [
        [name, *(_cell(each, metric, best=bold_best and each[metric].value == best[metric]) for metric in metrics)]
        for name, each in evaluations.items()
    ]
    header = ["", *(title_of(metric, first.options) for metric in metrics)]
    return Table(header=header, rows=rows, caption=_caption(evaluations), whole_names=True)


def _best(metric: str, values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return (max if METRICS[metric].better == "higher" else min)(known, default=float("nan"))


def _cell(evaluation: Evaluation, metric: str, *, best: bool = False) -> Cell:
    row = evaluation[metric]
    return Cell(number(metric, row.value), between(metric, row.low, row.high), "best" if best else "")


def _caption(evaluations: Evaluations) -> str:
    first = next(iter(evaluations.values()))
    samples = {each.num_samples for each in evaluations.values()}
    count = f"{samples.pop():,} samples" if len(samples) == 1 else f"{min(samples):,} to {max(samples):,} samples"
    intervals = (
        f"; {percent(first.level)} intervals from {first.num_bootstrap:,} resamples" if first.num_bootstrap else ""
    )
    readings = {each.reading for each in evaluations.values()} - {""}
    return f"per cent (NLL in nats) of {count}{intervals}" + "".join(f"; {each}" for each in sorted(readings))
