"""A ranking in words: how far each method is from what was there before and from the first, and what is chance."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from calattn.metrics import METRICS
from calattn.metrics.evaluation import Difference
from calattn.report.style import between, number, percent, title_of, unit_of
from calattn.report.tables import Differences, sentence

# What methods are ranked by: a proper score, which no method can improve by saying less than it knows.
RANKED_BY = "nll"


def ranking_table(
    from_before: Mapping[str, Differences],
    from_leader: Mapping[str, Differences],
    *,
    seconds: Mapping[str, float],
    level: float,
) -> Table:
    """Methods as rows, best first; paired differences from "as it is" and from the leader, each with its verdict."""
    caption = (
        f"differences with paired {percent(level)} intervals, each on its own; NLL in nats, the others in points of "
        "per cent; seconds for one fit"
    )
    table = Table(caption=caption, caption_style="dim", caption_justify="left")
    table.add_column("", no_wrap=True)
    metrics = list(next(iter(from_before.values())))
    for other in ("as it is", "the leader") if from_leader else ("as it is",):
        for metric in metrics:
            table.add_column(f"{title_of(metric)} from\n{other}", justify="right")
    table.add_column("fit, s", justify="right")
    for name, differences in from_before.items():
        cells = [_cell(differences[metric]) for metric in metrics]
        if from_leader:
            leads = name not in from_leader
            cells += ["leads" if leads else _cell(from_leader[name][metric]) for metric in metrics]
        table.add_row(escape(name), *cells, f"{seconds[name]:.2f}")
    return table


def verdict(
    leader: str, from_before: Mapping[str, Differences], from_leader: Mapping[str, Differences], *, level: float
) -> list[str]:
    """The winner, those that cannot be told from it, and whether it is better than doing nothing."""
    own = from_before[leader]
    first = own[RANKED_BY]
    lines = []
    if not math.isfinite(first.b):
        lines.append(
            f"no method has a finite NLL: each gives some label the probability 0; {leader} comes first by name"
        )
    elif from_leader:
        lines.append(f"best by NLL: {leader}, {number(RANKED_BY, first.b)} nats; {_ties(from_leader, level)}")
    if math.isinf(first.a) and math.isfinite(first.b):
        lines.append(
            "as it is, some label has the probability 0 and NLL is infinite, which the calibrated one's is not"
        )
    elif math.isfinite(first.difference) and not first.too_few and not (first.significant and first.difference < 0):
        lines.append(f"{leader} does not improve NLL by more than chance: the predictions may stay as they are")
    lines += [f"{leader} against as it is: {sentence(each)}" for each in own.values() if math.isfinite(each.difference)]
    return lines


def _ties(from_leader: Mapping[str, Differences], level: float) -> str:
    if too_few := next((found for each in from_leader.values() if (found := each[RANKED_BY].too_few)), None):
        return f"whether others are as good: {too_few}"
    tied = [name for name, differences in from_leader.items() if not differences[RANKED_BY].significant]
    if not tied:
        return f"every other method is worse by more than chance (paired {percent(level)} interval)"
    return f"cannot be told from it by NLL (paired {percent(level)} interval): {', '.join(tied)}"


def _cell(difference: Difference) -> str:
    """The difference and its verdict, the interval dim underneath."""
    name = difference.name
    if math.isnan(difference.difference):
        return "–"
    ends = between(name, difference.low, difference.high, signed=True)
    value, word = _size(difference), _word(difference)
    colour = {"better": "green", "worse": "red"}.get(word, "default")
    value = f"[{colour}]{value} {word}[/]"
    return f"{value}\n[dim]\\{ends}[/dim]" if math.isfinite(difference.difference) else value


def _size(difference: Difference) -> str:
    """The signed number; of a real difference that rounds to zero, a bound: "+0.000 worse" is no answer."""
    name = difference.name
    if difference.significant and number(name, abs(difference.difference)) == number(name, 0.0):
        places = unit_of(name)[1]
        return f"<{10**-places:.{places}f}"
    return number(name, difference.difference, signed=True)


def _word(difference: Difference) -> str:
    if not difference.significant:
        return "untold" if difference.too_few else "chance"
    return "better" if (difference.difference < 0) == (METRICS[difference.name].better == "lower") else "worse"
