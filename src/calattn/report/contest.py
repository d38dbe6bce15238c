"""A contest of calibrators in tables, in words and as JSON: who leads, by how much, and what is chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from calattn.metrics import METRICS
from calattn.metrics.evaluation import Difference
from calattn.posthoc import Calibrator, Contest, ContestRow, PredictionSets, SetReport, Skipped, TemperatureScaling
from calattn.posthoc.contests import RANKED_BY, as_good
from calattn.report.evaluations import Differences, described, leaderboard, mark_of, sentence
from calattn.report.style import between, number, percent, unit_of
from calattn.report.table import Cell, Table

# Learned by every calibrator, and of no interest to who fitted it.
_BOOKKEEPING = ("num_classes_", "num_samples_", "fitted_on_")
_IN_SAMPLE = "judged on the samples it was fitted on, where"


def contest_tables(contest: Contest, *, as_it_is: str = "(as it is)") -> list[Table]:
    """The leaderboard of a contest of calibrators and, with resamples, the differences between them."""
    evaluations = {as_it_is: contest.before} | {row.method: row.evaluation for row in contest.rows}
    board = leaderboard(evaluations, bold_best=not contest.in_sample)
    from_before, from_best = _differences(contest)
    if not from_before:
        return [board]
    seconds = {row.method: row.seconds for row in contest.rows}
    return [board, ranking_table(from_before, from_best, seconds=seconds, level=contest.before.level)]


def contest_verdict(contest: Contest) -> list[str]:
    """What the differences say, in words, and whether samples are shared; in-sample only why nothing is said."""
    if contest.in_sample:
        if not contest.single:
            return [f"no method is called best: each was {_IN_SAMPLE} the most flexible one looks best"]
        return [f"{contest.rows[0].method} was {_IN_SAMPLE} any method looks better than it is"]
    shared, judged = contest.overlap.shared, contest.overlap.judged
    caveat = (
        f"about {shared:,} of the {judged:,} judged samples are not others but were fitted on too: the numbers are too good, "
        "most for the most flexible method"
    )
    from_before, from_best = _differences(contest)
    seconds = {row.method: row.seconds for row in contest.rows}
    lines = []
    if from_before:
        level, highest = contest.before.level, contest.highest
        lines = words_of_differences(
            contest.ranking[0], from_before, from_best, level=level, highest=highest, seconds=seconds
        )
    return [*lines, caveat] if shared else lines


def _differences(contest: Contest) -> tuple[dict[str, Differences], dict[str, Differences]]:
    return (
        {row.method: row.from_before for row in contest.rows if row.from_before is not None},
        {row.method: row.from_best for row in contest.rows if row.from_best is not None},
    )


def contest_document(
    contest: Contest, *, words: Callable[[BaseException], str] = str, reason: Callable[[Skipped], str] | None = None
) -> dict[str, Any]:
    """The contest as JSON has it, fractions in full precision; `words` says a warning, `reason` why a method was skipped."""
    best, verdicts = contest.best, contest_verdict(contest)
    return {
        "fitted_on": contest.fitted_on,
        "folds": contest.folds or None,
        "samples": contest.before.num_samples,
        "level": contest.before.level,
        "resamples": contest.before.num_bootstrap,
        "before": contest.before.as_dict(),
        "leader": None if best is None else best.method,
        "no_leader": verdicts[0] if contest.in_sample else None,
        "shared": contest.overlap.shared,
        "tied_with_leader": contest.tied,
        "verdict": verdicts,
        "methods": [_row_document(row, words) for row in contest.rows],
        "skipped": [
            {"method": each.method, "reason": reason(each) if reason else each.reason, "failed": each.failed}
            for each in contest.skipped
        ],
        "not_run": contest.not_run,
    }


def _row_document(row: ContestRow, words: Callable[[BaseException], str]) -> dict[str, Any]:
    values = {name: getattr(row.calibrator, name) for name in row.calibrator.learned_names()}
    return {
        "method": row.method,
        "after": row.evaluation.as_dict(),
        "seconds": row.seconds,
        # Numbers only; tensors are in the calibrator's file.
        "learned": {name: value for name, value in values.items() if isinstance(value, float | int | str)},
        "from_before": _without_sides(row.from_before),
        "from_leader": _without_sides(row.from_best),
        "warnings": [words(each) for each in row.warnings],
    }


def _without_sides(found: Differences | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        metric: {key: value for key, value in described(each).items() if key not in ("a", "b")}
        for metric, each in found.items()
    }


def learned(calibrator: Calibrator) -> str:
    """What a fit has learned, in words: the temperature, or the numbers, and which tensors there are."""
    if isinstance(calibrator, TemperatureScaling):
        t = calibrator.temperature_
        shown = f"{t:.2f}" if 0.1 <= t < 1000 else f"{t:.3g}"
        why = f"lowest {calibrator.objective.upper()}" if calibrator.converged_ else "the end of its range"
        return f"T = {shown} ({why})"
    values = {name: getattr(calibrator, name) for name in calibrator.learned_names()}
    of_fit = {name.rstrip("_").replace("_", " "): value for name, value in values.items() if name not in _BOOKKEEPING}
    numbers = [f"{name} = {_in_words(it)}" for name, it in of_fit.items() if isinstance(it, float | int | str)]
    tensors = [name for name, value in of_fit.items() if not isinstance(value, float | int | str)]
    kept = f"tensors ({', '.join(tensors)}) are in the calibrator's file (--out)"
    return f"learned: {', '.join(numbers)}; {kept}" if numbers else f"learned: {kept}"


def _in_words(value: float | int | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sets_document(method: str, sets: PredictionSets, report: SetReport) -> dict[str, Any]:
    """What prediction sets after a method are worth, in numbers and in words."""
    found = {name: getattr(report, name)._asdict() for name in ("coverage", "size")}
    parts = {
        name: {str(each): estimate._asdict() for each, estimate in getattr(report, name).items()}
        for name in ("by_class", "by_group")
    }
    by_size = [each._asdict() | {"coverage": each.coverage._asdict()} for each in report.by_size]
    asked = {"method": method, "asked": sets.coverage, "score": sets.score, "samples": report.samples}
    coverage, size, worst = report.coverage, report.size, report.by_class[report.worst_class]
    words = (
        f"prediction sets after {method} ({sets.score}, asked {percent(sets.coverage)}): coverage {100 * coverage.value:.1f} % "
        f"[{100 * coverage.low:.1f}, {100 * coverage.high:.1f}], mean size {size.value:.2f} [{size.low:.2f}, {size.high:.2f}], "
        f"{100 * report.empty:.1f} % empty; class {report.worst_class} is covered least, {100 * worst.value:.1f} %"
    )
    return asked | found | {"empty": report.empty, "by_size": by_size} | parts | {"words": words}


def ranking_table(
    from_before: Mapping[str, Differences],
    from_best: Mapping[str, Differences],
    *,
    seconds: Mapping[str, float],
    level: float,
) -> Table:
    """Methods as rows, best first; paired differences from "as it is" and from the best, each with its verdict."""
    metrics = list(next(iter(from_before.values())))
    others = ("as it is", "the leader") if from_best else ("as it is",)
    rows = []
    for name, differences in from_before.items():
        cells: list[str | Cell] = [_cell(differences[metric]) for metric in metrics]
        if from_best:
            rest = from_best.get(name)
            cells += ["leads" if rest is None else _cell(rest[metric]) for metric in metrics]
        rows.append([name, *cells, f"{seconds[name]:.2f}"])
    return Table(
        header=["", *(f"{METRICS.title(metric)} from\n{other}" for other in others for metric in metrics), "fit, s"],
        rows=rows,
        caption=f"differences with paired {percent(level)} intervals, each on its own; NLL in nats, the others in points of "
        "per cent; seconds for one fit",
        whole_names=True,
    )


def words_of_differences(
    leader: str,
    from_before: Mapping[str, Differences],
    from_best: Mapping[str, Differences],
    *,
    level: float,
    highest: float = math.inf,
    seconds: Mapping[str, float] | None = None,
) -> list[str]:
    """The winner, those that are as good and how much faster they are, and whether it is better than doing nothing.

    `highest` is the upper end of the winner's NLL.
    """
    own = from_before[leader]
    first, lines = own[RANKED_BY], []
    faster = {name: seconds[leader] / max(spent, 1e-9) for name, spent in seconds.items()} if seconds else {}
    if not math.isfinite(first.b):
        lines.append(
            f"no method has a finite NLL: each gives some label the probability 0; {leader} comes first by name"
        )
    elif from_best:
        lines.append(
            f"best by NLL: {leader}, {number(RANKED_BY, first.b)} nats; " + _ties(from_best, level, highest, faster)
        )
    if math.isinf(first.a) and math.isfinite(first.b):
        lines.append(
            "as it is, some label has the probability 0 and NLL is infinite, which the calibrated one's is not"
        )
    elif math.isfinite(first.difference) and not first.too_few and not (first.significant and first.difference < 0):
        others = [METRICS.title(name) for name, each in own.items() if mark_of(each) == "better"]
        then = f", but it does improve {' and '.join(others)}" if others else ""
        lines.append(f"{leader} does not improve NLL by more than chance{then}")
    lines += [f"{leader} against as it is: {sentence(each)}" for each in own.values() if math.isfinite(each.difference)]
    return lines


def _ties(from_best: Mapping[str, Differences], level: float, highest: float, faster: Mapping[str, float]) -> str:
    if too_few := next((found for each in from_best.values() if (found := each[RANKED_BY].too_few)), None):
        return f"whether others are as good: {too_few}"
    by_nll = {name: each[RANKED_BY] for name, each in from_best.items()}
    tied = [name for name, each in by_nll.items() if as_good(each, highest=highest)]
    unclear = [name for name, each in by_nll.items() if name not in tied and not each.significant]
    interval = f"paired {percent(level)} interval"
    parts = [f"worse by a few samples with a huge loss: {', '.join(unclear)}"] if unclear else []
    if tied:
        named = (f"{name} ({faster[name]:,.0f} × faster)" if faster.get(name, 0) >= 2 else name for name in tied)
        parts.insert(0, f"as good, no clear difference in NLL ({interval}): {', '.join(named)}")
    elif len(unclear) < len(by_nll):
        others = "every other method" if not unclear else "the others"
        parts.insert(0, f"{others} {'are' if unclear else 'is'} worse by more than chance ({interval})")
    return "; ".join(parts)


def _cell(difference: Difference) -> Cell:
    """The difference and its verdict, and the interval."""
    if math.isnan(difference.difference):
        return Cell("–")
    name, mark = difference.name, mark_of(difference)
    ends = between(name, difference.low, difference.high, signed=True) if math.isfinite(difference.difference) else ""
    word = mark or ("unclear" if difference.too_few else "chance")
    return Cell(f"{_size(difference)} {word}", ends, mark)


def _size(difference: Difference) -> str:
    """The signed number; of a real difference that rounds to zero, a bound: "+0.000 worse" is no answer."""
    name = difference.name
    if difference.significant and number(name, abs(difference.difference)) == number(name, 0.0):
        places = unit_of(name)[1]
        return f"<{10**-places:.{places}f}"
    return number(name, difference.difference, signed=True)
