"""Tables of evaluations and differences: for terminals, for Markdown, and as plain rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from calattn.metrics import METRICS
from calattn.metrics.evaluation import Difference, Evaluation
from calattn.metrics.over_seeds import SeedsDifference
from calattn.metrics.state import Options
from calattn.report.style import between, number, percent, title_of, unit_of

Evaluations = Mapping[str, Evaluation]
# One comparison: metric → difference.
Differences = Mapping[str, Difference]


class Grid(NamedTuple):
    """A table as plain text: what Markdown and LaTeX are made of."""

    header: list[str]
    rows: list[list[str]]
    caption: str


def evaluation_table(evaluations: Evaluations, *, title: str | None = None) -> Table:
    """Metrics as rows, evaluations as columns, per cent (NLL in nats), intervals dim underneath."""
    table = Table(title=title, caption=_caption(evaluations), caption_style="dim", caption_justify="left")
    table.add_column("")
    for name in evaluations:
        table.add_column(escape(name), justify="right", overflow="fold")
    for metric in _metrics(evaluations):
        cells = [_cell(evaluation, metric, "\n[dim]{}[/dim]") for evaluation in evaluations.values()]
        table.add_row(escape(_row_title(metric, evaluations)), *cells)
    return table


def leaderboard(
    evaluations: Evaluations,
    *,
    title: str | None = None,
    metrics: Sequence[str] | None = None,
    bold_best: bool = True,
) -> Table:
    """Evaluations as rows in the order given, metrics (some, or all) as columns; the best of each metric is bold."""
    table = Table(title=title, caption=_caption(evaluations), caption_style="dim", caption_justify="left")
    table.add_column("", no_wrap=True)  # two names cut to the same letters would be one
    metrics = _metrics(evaluations) if metrics is None else metrics
    for metric in metrics:
        table.add_column(escape(_row_title(metric, evaluations)), justify="right")
    best = {metric: _best(metric, [each[metric].value for each in evaluations.values()]) for metric in metrics}
    for name, evaluation in evaluations.items():
        cells = [_cell(evaluation, metric, "\n[dim]{}[/dim]") for metric in metrics]
        bold = [bold_best and evaluation[metric].value == best[metric] for metric in metrics]
        table.add_row(escape(name), *(f"[bold]{c}[/bold]" if b else c for c, b in zip(cells, bold, strict=True)))
    return table


def evaluation_grid(evaluations: Evaluations) -> Grid:
    """The same table as plain text, intervals beside the values."""
    rows = [
        [_row_title(metric, evaluations), *(_cell(each, metric, " {}") for each in evaluations.values())]
        for metric in _metrics(evaluations)
    ]
    return Grid(["", *evaluations], rows, f"{_caption(evaluations)}.")


def evaluation_markdown(evaluations: Evaluations) -> str:
    """The same table in Markdown."""
    return _markdown(evaluation_grid(evaluations))


def evaluation_rows(evaluations: Evaluations) -> list[dict[str, Any]]:
    """One row a number, as fractions: title, metric, value, low, high, samples; and the target where there is one."""
    return [
        {"title": title, "metric": row.name, "value": row.value, "low": row.low, "high": row.high}
        | {"samples": evaluation.num_samples}
        | ({} if evaluation.options.target is None else {"target": evaluation.options.target})
        for title, evaluation in evaluations.items()
        for row in evaluation.rows.values()
    ]


def difference_table(
    comparisons: Mapping[str, Differences], *, baseline: str, level: float, options: Options | None = None
) -> Table:
    """Each comparison's difference from the baseline; green and red are better and worse, where more than chance."""
    caption = f"differences from {baseline} with paired {percent(level)} intervals; points of per cent, NLL in nats"
    table = Table(caption=escape(caption), caption_style="dim", caption_justify="left")
    table.add_column("")
    table.add_column(escape(baseline), justify="right")
    for name in comparisons:
        table.add_column(escape(name), justify="right")
        table.add_column("difference", justify="right")
        table.add_column("p", justify="right")
    for metric, found in _by_metric(comparisons):
        cells = [part for each in found for part in _parts(each, _coloured)]
        table.add_row(escape(title_of(metric, options)), _side(found, "a"), *cells)
    return table


def difference_grid(
    comparisons: Mapping[str, Differences], *, baseline: str, level: float, options: Options | None = None
) -> Grid:
    """The same table as plain text; of differences over seeds, with the deviations and with what their intervals cover."""
    header = ["", baseline, *(part for name in comparisons for part in (name, "difference", "p"))]
    rows = [
        [title_of(metric, options), _side(found, "a"), *(part for each in found for part in _parts(each, _spelt))]
        for metric, found in _by_metric(comparisons)
    ]
    seeds = any(isinstance(each, SeedsDifference) for part in comparisons.values() for each in part.values())
    what = (
        f"Mean ± standard deviation over seeds; {percent(level)} intervals cover other trainings and other samples"
        if seeds
        else f"Paired {percent(level)} intervals"
    )
    return Grid(header, rows, f"{what}; per cent and points of it, NLL in nats.")


def difference_markdown(
    comparisons: Mapping[str, Differences], *, baseline: str, level: float, options: Options | None = None
) -> str:
    """The same table in Markdown."""
    return _markdown(difference_grid(comparisons, baseline=baseline, level=level, options=options))


def difference_rows(comparisons: Mapping[str, Differences], *, baseline: str) -> list[dict[str, Any]]:
    """One row a difference, as fractions; with the target where there is one."""
    return [
        {"baseline": baseline, "title": title, "metric": each.name, "a": each.a, "b": each.b}
        | {"difference": each.difference, "low": each.low, "high": each.high, "p_value": each.p_value}
        | ({} if each.options is None or each.options.target is None else {"target": each.options.target})
        for title, differences in comparisons.items()
        for each in differences.values()
    ]


def sentence(difference: Difference, options: Options | None = None) -> str:
    """A difference in words, its size without a sign.

    >>> sentence(Difference(name="ece", a=0.03, b=0.018, difference=-0.012, low=-0.02, high=-0.004, p_value=0.01))
    'ECE falls by 1.20 points [0.40, 2.00]: better, more than chance'
    """
    name, low, high = difference.name, difference.low, difference.high
    title = title_of(name, options)
    if math.isnan(difference.difference):
        return f"{title} is not defined for both"
    falls = difference.difference < 0
    size = number(name, abs(difference.difference))
    if difference.significant and not size.strip("0."):  # real, but below what is printed
        size = f"less than {size[:-1]}1"
    ends = between(name, -high, -low) if falls else between(name, low, high)
    unit = unit_of(name)[2]
    if difference.difference == 0:
        return f"{title} does not change"
    good = falls == (METRICS[name].better == "lower")
    verdict = f"{'better' if good else 'worse'}, more than chance" if difference.significant else "within chance"
    return f"{title} {'falls' if falls else 'rises'} by {size} {unit} {ends}: {difference.too_few or verdict}"


def improved(difference: Difference) -> bool | None:
    """Whether b is better; None where chance would explain the difference, or nothing can be told."""
    if not difference.significant:
        return None
    return (difference.difference < 0) == (METRICS[difference.name].better == "lower")


def summary(differences: Differences, *, a: str, b: str, options: Options | None = None) -> str:
    """Which differences are real and which may be noise, in one sentence.

    >>> real = Difference(name="ece", a=0.03, b=0.018, difference=-0.012, low=-0.02, high=-0.004, p_value=0.01)
    >>> noise = Difference(name="nll", a=0.5, b=0.51, difference=0.01, low=-0.02, high=0.04, p_value=0.4)
    >>> summary({"ece": real, "nll": noise}, a="CE", b="CalAttn")
    'CalAttn against CE: better in ECE; not told apart in NLL.'
    """
    parts = []
    words = {True: "better", False: "worse", None: "not told apart"}
    told = {name: each.too_few or words[improved(each)] for name, each in differences.items()}
    for word in dict.fromkeys((*words.values(), *told.values())):
        titles = [title_of(name, options) for name in differences if told[name] == word]
        if titles:
            *most, last = titles
            parts.append(f"{word} in {', '.join(most) + ' and ' if most else ''}{last}")
    return f"{b} against {a}: {'; '.join(parts) or 'nothing could be compared'}."


def rows_to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Plain rows as CSV, numbers in full precision and missing ones empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _metrics(evaluations: Evaluations) -> list[str]:
    return list(next(iter(evaluations.values())).rows)


def _best(metric: str, values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return (max if METRICS[metric].better == "higher" else min)(known, default=float("nan"))


def _row_title(metric: str, evaluations: Evaluations) -> str:
    return title_of(metric, next(iter(evaluations.values())).options)


def _cell(evaluation: Evaluation, metric: str, interval: str) -> str:
    row = evaluation[metric]
    ends = between(metric, row.low, row.high)
    # The square bracket of an interval would be markup to Rich; a Markdown table has no such trouble with it.
    return number(metric, row.value) + (
        interval.format(ends.replace("[", "\\[") if "dim" in interval else ends) if ends else ""
    )


def _by_metric(comparisons: Mapping[str, Differences]) -> Iterator[tuple[str, list[Difference | None]]]:
    """Each metric of any comparison, and its differences; None where one of them could not be resampled."""
    for metric in dict.fromkeys(metric for differences in comparisons.values() for metric in differences):
        yield metric, [differences.get(metric) for differences in comparisons.values()]


def _parts(difference: Difference | None, shown: Callable[[Difference], str]) -> tuple[str, str, str]:
    """The cells of one comparison."""
    if difference is None:
        return "–", "–", "–"
    return _side([difference], "b"), shown(difference), f"{difference.p_value:.2g}"


def _side(found: Sequence[Difference | None], side: str) -> str:
    """The value of `a` or `b`, and over seeds its deviation."""
    first = next(each for each in found if each is not None)
    value = number(first.name, getattr(first, side))
    if not isinstance(first, SeedsDifference):
        return value
    return f"{value} ± {number(first.name, getattr(first, f'std_{side}'))}"


def _spelt(difference: Difference) -> str:
    return _signed(difference, " {}")


def _signed(difference: Difference, interval: str) -> str:
    name = difference.name
    ends = between(name, difference.low, difference.high, signed=True)
    return number(name, difference.difference, signed=True) + interval.format(ends)


def _coloured(difference: Difference) -> str:
    text = _signed(difference, "\n[dim]\\{}[/dim]")
    if not difference.significant:
        return text
    good = (difference.difference < 0) == (METRICS[difference.name].better == "lower")
    return f"[{'green' if good else 'red'}]{text}[/]"


def _caption(evaluations: Evaluations) -> str:
    first = next(iter(evaluations.values()))
    samples = {each.num_samples for each in evaluations.values()}
    count = f"{samples.pop():,} samples" if len(samples) == 1 else f"{min(samples):,} to {max(samples):,} samples"
    intervals = (
        f"; {percent(first.level)} intervals from {first.num_bootstrap:,} resamples" if first.num_bootstrap else ""
    )
    readings = {each.reading for each in evaluations.values()} - {""}
    return f"per cent (NLL in nats) of {count}{intervals}" + "".join(f"; {each}" for each in sorted(readings))


def _markdown(grid: Grid) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"

    rule = "|---|" + "---:|" * (len(grid.header) - 1) + "\n"
    return line(grid.header) + rule + "".join(map(line, grid.rows)) + f"\n{grid.caption}\n"
