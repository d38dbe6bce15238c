"""Evaluations and paired differences, as tables and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from calattn.comparison.trainings import SeedsDifference
from calattn.metrics import METRICS
from calattn.metrics.evaluation import Difference, Evaluation, paired
from calattn.metrics.groups import GroupEvaluation
from calattn.metrics.state import Options
from calattn.report.style import between, number, percent, unit_of
from calattn.report.table import Cell, Table

Evaluations = Mapping[str, Evaluation]


def evaluation_table(evaluations: Evaluations, *, metrics: Sequence[str] | None = None) -> Table:
    """Metrics (some, or all) as rows, evaluations as columns, per cent (NLL in nats)."""
    first = next(iter(evaluations.values()))
    rows: list[list[str | Cell]] = [
        [METRICS.title(metric, first.options), *(_cell(each, metric) for each in evaluations.values())]
        for metric in (first.rows if metrics is None else metrics)
    ]
    return Table(header=["", *evaluations], rows=rows, caption=_caption(evaluations))


def group_table(evaluations: Evaluations, *, metrics: Sequence[str] | None = None) -> Table:
    """Groups as rows, worst first after all samples, metrics (some, or all) as columns.

    A star stands where a group differs from random groups of its size by more than chance. Its records: one for each number of
    all metrics, as fractions.
    """
    first = next(iter(evaluations.values()))
    metrics = list(first.rows) if metrics is None else metrics
    rows: list[list[str | Cell]] = []
    records: list[dict[str, Any]] = []
    for title, whole in evaluations.items():
        before = f"{title.splitlines()[0]}: " if len(evaluations) > 1 else ""
        rows.append([f"{before}all", f"{whole.num_samples:,}", *(_cell(whole, metric) for metric in metrics)])
        for name, group in whole.groups.items():
            cells = [_cell(group.evaluation, metric) for metric in metrics]
            marks = [group.differences[m].mark if m in group.differences else "" for m in metrics]
            starred = [
                cell._replace(text=f"{cell.text}*", mark=mark) if mark else cell
                for cell, mark in zip(cells, marks, strict=True)
            ]
            rows.append([f"{before}{name}", f"{group.evaluation.num_samples:,}", *starred])
            records += [
                {"title": title.replace("\n", " "), "group": name, "samples": group.evaluation.num_samples}
                | {"metric": row.name, "value": row.value, "low": row.low, "high": row.high}
                | _apart(group, row.name)
                for row in group.evaluation.rows.values()
            ]
    header = ["", "samples", *(METRICS.title(metric, first.options) for metric in metrics)]
    stars = "; worst group first; * differs from as many samples of all groups, more than chance (Holm)"
    caption = f"{_caption(evaluations)}{stars if first.num_bootstrap else '; worst group first'}"
    return Table(header=header, rows=rows, caption=caption, records=records, lead=2, whole_names=True)


def _apart(group: GroupEvaluation, metric: str) -> dict[str, float | None]:
    found = group.differences.get(metric)
    return {"expected": None if found is None else found.expected, "p_value": None if found is None else found.p_value}


def described_groups(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The groups as JSON and the page have them, worst first; `mark`: better or worse, more than chance."""
    return [
        {"group": name, "samples": each.evaluation.num_samples, "clusters": each.evaluation.num_clusters}
        | {
            "metrics": {
                metric: row | _apart(each, metric) | {"mark": getattr(each.differences.get(metric), "mark", "")}
                for metric, row in each.evaluation.as_dict().items()
            }
        }
        for name, each in evaluation.groups.items()
    ]


def leaderboard(evaluations: Evaluations, *, metrics: Sequence[str] | None = None, bold_best: bool = True) -> Table:
    """Evaluations as rows in the order given, metrics (some, or all) as columns; bold where the best is more than chance.

    Its records: one for each evaluation, with every metric and the ends of its interval, as fractions.
    """
    first = next(iter(evaluations.values()))
    metrics = list(first.rows) if metrics is None else metrics
    best = {metric: clear_best(metric, evaluations) if bold_best else None for metric in metrics}
    rows: list[list[str | Cell]] = [
        [name.replace("\n", " "), *(_cell(each, metric, best=best[metric] == name) for metric in metrics)]
        for name, each in evaluations.items()
    ]
    header = ["", *(METRICS.title(metric, first.options) for metric in metrics)]
    marked = "; bold: the best, by more than chance" if any(best.values()) else ""
    return Table(
        header=header,
        rows=rows,
        caption=_caption(evaluations) + marked,
        records=[_record(name, each) for name, each in evaluations.items()],
        whole_names=True,
    )


def _record(name: str, evaluation: Evaluation) -> dict[str, Any]:
    target = evaluation.options.target
    found: dict[str, Any] = {"title": name.replace("\n", " "), "samples": evaluation.num_samples}
    found |= {} if target is None else {"target": target}
    for row in evaluation.rows.values():
        found |= {row.name: row.value, f"{row.name}_low": row.low, f"{row.name}_high": row.high}
    return found


def clear_best(metric: str, evaluations: Evaluations) -> str | None:
    """The title of the best, where its paired difference from every other is beyond chance; None where one is not, or unknown."""
    sign = 1 if METRICS[metric].better == "lower" else -1
    known = {title: each for title, each in evaluations.items() if not math.isnan(each[metric].value)}
    if len(known) < 2:
        return None
    best = min(known, key=lambda title: sign * known[title][metric].value)
    mine = known.pop(best)
    return best if all(beats(mine, each, metric) for each in known.values()) else None


def beats(one: Evaluation, other: Evaluation, metric: str) -> bool:
    """Whether one is better than another of the same samples, by more than chance."""
    found = paired(other, one, metric)
    return found is not None and improved(found) is True


def _cell(evaluation: Evaluation, metric: str, *, best: bool = False) -> Cell:
    row = evaluation[metric]
    return Cell(number(metric, row.value), between(metric, row.low, row.high), "best" if best else "")


def _caption(evaluations: Evaluations) -> str:
    first = next(iter(evaluations.values()))
    samples = {each.num_samples for each in evaluations.values()}
    count = f"{samples.pop():,} samples" if len(samples) == 1 else f"{min(samples):,} to {max(samples):,} samples"
    count += "" if first.num_clusters is None else f" in {first.num_clusters:,} clusters"
    intervals = (
        f"; {percent(first.level)} intervals from {first.num_bootstrap:,} resamples" if first.num_bootstrap else ""
    )
    readings = {each.reading for each in evaluations.values()} - {""}
    return f"per cent (NLL in nats) of {count}{intervals}" + "".join(f"; {each}" for each in sorted(readings))


# One comparison: metric → difference.
Differences = Mapping[str, Difference]


def difference_table(
    comparisons: Mapping[str, Differences],
    *,
    baseline: str,
    level: float,
    options: Options | None = None,
    samples: int | None = None,
) -> Table:
    """Each comparison's difference from the baseline; green and red are better and worse, where more than chance.

    Of differences over seeds, with the deviations and with what their intervals cover.
    """
    rows = []
    for metric in dict.fromkeys(metric for differences in comparisons.values() for metric in differences):
        found = [differences.get(metric) for differences in comparisons.values()]
        row: list[str | Cell] = [METRICS.title(metric, options), _side(found, "a")]
        rows.append(row + [part for each in found for part in _parts(each)])
    return Table(
        header=["", baseline, *(part for name in comparisons for part in (name, "difference", "p"))],
        rows=rows,
        caption=f"{_covered(comparisons, level)}; {_samples(samples)}per cent and points of it, NLL in nats",
        lead=2,
        group=3,
    )


def difference_rows(
    comparisons: Mapping[str, Differences],
    *,
    baseline: str,
    level: float,
    options: Options | None = None,
    samples: int | None = None,
) -> Table:
    """The baseline and what is compared with it as rows, metrics as columns: for files. Bold is better, by more than chance.

    Its records: one for each row, as fractions, with differences, their intervals and p.
    """
    metrics = list(dict.fromkeys(metric for differences in comparisons.values() for metric in differences))
    first: list[str | Cell] = [baseline.replace("\n", " ")]
    record: dict[str, Any] = {"title": first[0]}
    for metric in metrics:
        found = [part[metric] for part in comparisons.values() if metric in part]
        first.append(_side(found, "a"))
        record |= {metric: found[0].a} | dict.fromkeys(f"{metric}_{name}" for name in _COMPARED)
        if isinstance(found[0], SeedsDifference):
            record |= {f"{metric}_std": found[0].std_a, f"{metric}_seeds": None}
    rows, records = [first], [record]
    for title, part in comparisons.items():
        rows.append([title.replace("\n", " "), *(_beside(part.get(metric)) for metric in metrics)])
        records.append(dict.fromkeys(record) | {"title": title.replace("\n", " ")} | _numbers_of(part))
    if options is not None and options.target is not None:
        records = [{**each, "target": options.target} for each in records]
    marked = "; bold: better, by more than chance" if any(mark_of(d) == "better" for d in _each(comparisons)) else ""
    return Table(
        header=["", *(METRICS.title(metric, options) for metric in metrics)],
        rows=rows,
        caption=f"{_covered(comparisons, level)}; {_samples(samples)}per cent (NLL in nats); in parentheses, the difference from "
        f"{first[0]}{marked}",
        records=records,
        whole_names=True,
    )


def _each(comparisons: Mapping[str, Differences]) -> list[Difference]:
    return [each for part in comparisons.values() for each in part.values()]


_COMPARED = ("difference", "low", "high", "p_value")


def _numbers_of(part: Differences) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric, each in part.items():
        found |= {metric: each.b} | {f"{metric}_{name}": getattr(each, name) for name in _COMPARED}
        if isinstance(each, SeedsDifference):
            found |= {f"{metric}_std": each.std_b, f"{metric}_seeds": each.num_seeds}
    return found


def _beside(difference: Difference | None) -> str | Cell:
    """The value, and its difference with the interval."""
    if difference is None:
        return "–"
    name = difference.name
    signed = number(name, difference.difference, signed=True)
    interval = f"{signed} {between(name, difference.low, difference.high, signed=True)}".strip()
    return Cell(_side([difference], "b"), f"({interval})", mark_of(difference))


def _covered(comparisons: Mapping[str, Differences], level: float) -> str:
    """What the intervals are for."""
    if any(isinstance(each, SeedsDifference) for each in _each(comparisons)):
        return (
            f"Mean ± standard deviation over seeds; {percent(level)} intervals cover other trainings and other samples"
        )
    return f"Paired {percent(level)} intervals"


def _samples(count: int | None) -> str:
    return "" if count is None else f"{count:,} samples; "


def _parts(difference: Difference | None) -> tuple[str | Cell, ...]:
    """The cells of one comparison; dashes where it could not be resampled."""
    if difference is None:
        return "–", "–", "–"
    name, ends = difference.name, (difference.low, difference.high)
    signed = number(name, difference.difference, signed=True)
    cell = Cell(signed, between(name, *ends, signed=True), mark_of(difference))
    return _side([difference], "b"), cell, "–" if math.isnan(difference.p_value) else f"{difference.p_value:.2g}"


def _side(found: Sequence[Difference | None], side: str) -> str:
    """The value of `a` or `b`, and over seeds its deviation."""
    first = next(each for each in found if each is not None)
    value = number(first.name, getattr(first, side))
    if not isinstance(first, SeedsDifference):
        return value
    return f"{value} ± {number(first.name, getattr(first, f'std_{side}'))}"


def sentence(difference: Difference, options: Options | None = None) -> str:
    """A difference in words, its size without a sign.

    >>> sentence(Difference(name="ece", a=0.03, b=0.018, difference=-0.012, low=-0.02, high=-0.004, p_value=0.01))
    'ECE falls by 1.20 points [0.40, 2.00]: better, more than chance'
    """
    name, low, high = difference.name, difference.low, difference.high
    title = METRICS.title(name, options)
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
    mark = mark_of(difference)
    verdict = f"{mark}, more than chance" if mark else "within chance"
    change = f"{title} {'falls' if falls else 'rises'} by {size} {unit} {ends}".strip()
    return f"{change}: {difference.too_few or verdict}"


def described(difference: Difference, options: Options | None = None) -> dict[str, Any]:
    """A difference as JSON has it: numbers as fractions, its verdict, and its sentence."""
    names = ("a", "b", "difference", "low", "high", "p_value", "significant", "std_a", "std_b", "num_seeds")
    numbers = {name: getattr(difference, name) for name in names if hasattr(difference, name)}
    verdict = {"improved": improved(difference), "too_few": difference.too_few is not None}
    return numbers | verdict | {"sentence": sentence(difference, options)}


def improved(difference: Difference) -> bool | None:
    """Whether b is better; None where chance would explain the difference, or nothing can be told."""
    if not difference.significant:
        return None
    return (difference.difference < 0) == (METRICS[difference.name].better == "lower")


def mark_of(difference: Difference) -> Literal["", "better", "worse"]:
    good = improved(difference)
    return "" if good is None else "better" if good else "worse"


def summary(differences: Differences, *, a: str, b: str, options: Options | None = None) -> str:
    """Which differences are real and which may be noise, in one sentence.

    >>> real = Difference(name="ece", a=0.03, b=0.018, difference=-0.012, low=-0.02, high=-0.004, p_value=0.01)
    >>> noise = Difference(name="nll", a=0.5, b=0.51, difference=0.01, low=-0.02, high=0.04, p_value=0.4)
    >>> summary({"ece": real, "nll": noise}, a="CE", b="CalAttn")
    'CalAttn against CE: better in ECE; no clear difference in NLL.'
    """
    parts = []
    words = {True: "better", False: "worse", None: "no clear difference"}
    told = {name: each.too_few or words[improved(each)] for name, each in differences.items()}
    for word in dict.fromkeys((*words.values(), *told.values())):
        titles = [METRICS.title(name, options) for name in differences if told[name] == word]
        if titles:
            *most, last = titles
            parts.append(f"{word} in {', '.join(most) + ' and ' if most else ''}{last}")
    return f"{b} against {a}: {'; '.join(parts) or 'nothing could be compared'}."
