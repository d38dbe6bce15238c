"""What `calattn calibrate` says of a contest: its progress, the JSON document, and remarks on what the numbers are of."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

from calattn.cli import failures
from calattn.cli.console import note
from calattn.cli.errors import MethodFailed, words_of
from calattn.cli.failures import Failure
from calattn.errors import InputError
from calattn.metrics.evaluation import Difference
from calattn.posthoc import Calibrator, Contest, ContestRow, Skipped, TemperatureScaling, Watcher
from calattn.posthoc.overlap import Overlap
from calattn.readers.stream import Rows
from calattn.report import sentence
from calattn.report.ranking import contest_verdict
from calattn.types import Predictions

_BOOKKEEPING = (
    "num_classes_",
    "num_samples_",
    "fitted_on_",
)  # learned by every calibrator, and of no interest to who fitted it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
    """What is fitted on (None: what is judged, in folds) and what is judged, with the rows of their files that they are."""

    fit: Predictions | None
    fit_rows: Rows
    judge: Predictions
    judge_rows: Rows
    seed: int
    floor: float
    origin: dict[str, Any]

    @functools.cached_property
    def raised(self) -> tuple[int, int]:
        """How many probabilities of `judge` stand at the floor, where reading put them, and how many are the label's.

        Nothing is below a floor that was applied; logits, to which it does nothing, do not stop there.
        """
        above = self.judge.logits - math.log(self.floor) if self.floor else None
        if above is None or float(above.min()) < -1e-5:
            return 0, 0
        at_floor = above < 1e-5
        of_labels = at_floor.gather(1, self.judge.labels[:, None])
        return int(at_floor.sum()), int(of_labels.sum())

    @property
    def floor_text(self) -> str:
        """What a title adds for predictions that the floor has changed; empty where it has not."""
        return f", floor {self.floor:g}" if self.raised[0] else ""


class Bar(Watcher):
    """The progress bar; it refuses a contest without a leader where one is needed, and knows Ctrl-C in disguise."""

    def __init__(self, bar: Any, *, leader_needed: bool) -> None:
        self._bar, self._task, self._leader_needed = bar, bar.add_task(""), leader_needed

    def start(self, overlap: Overlap, steps: int) -> None:
        self._bar.update(self._task, total=steps)
        if self._leader_needed and overlap.nearly_all:
            raise ValueError(
                "--write takes the leader's probabilities, and there is no leader where methods are judged on the samples they "
                "were fitted on; name one --method, or fit on other samples"
            )

    def step(self, text: str) -> None:
        self._bar.update(self._task, description=text, advance=1)

    def note(self, text: str) -> None:
        note(text)

    def broke(self, error: Exception) -> None:
        failures.reraise_if_stopped(error)


def document(contest: Contest, material: Material) -> dict[str, Any]:
    """The stable JSON form (schema 1): fractions in full precision."""
    best, verdict = contest.best, contest_verdict(contest)
    return {
        "schema": 1,
        "command": "calibrate",
        **material.origin,
        "fitted_on": contest.fitted_on,
        "folds": contest.folds or None,
        "seed": material.seed,
        "floor": material.floor,
        "labels_at_floor": material.raised[1],
        "samples": contest.before.num_samples,
        "level": contest.before.level,
        "resamples": contest.before.num_bootstrap,
        "before": contest.before.as_dict(),
        "leader": None if best is None else best.method,
        "no_leader": verdict[0] if contest.in_sample else None,
        "shared": contest.overlap.shared,
        "tied_with_leader": contest.tied,
        "verdict": verdict,
        "methods": [_described(row) for row in contest.rows],
        "skipped": [
            {"method": each.method, "reason": _reason(each, material), "failed": each.failed}
            for each in contest.skipped
        ],
        "not_run": contest.not_run,
    }


def _described(row: ContestRow) -> dict[str, Any]:
    learned = {name: getattr(row.calibrator, name) for name in row.calibrator.learned_names()}
    return {
        "method": row.method,
        "after": row.evaluation.as_dict(),
        "seconds": row.seconds,
        # Numbers only; tensors are in the calibrator's file.
        "learned": {name: value for name, value in learned.items() if isinstance(value, float | int | str)},
        "from_before": _differences(row.from_before),
        "from_leader": _differences(row.from_best),
        "warnings": [words_of(each) for each in row.warnings],
    }


def _differences(found: dict[str, Difference] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    names = ("difference", "low", "high", "p_value", "significant")
    return {
        metric: {name: getattr(each, name) for name in names} | {"sentence": sentence(each)}
        for metric, each in found.items()
    }


def remarks(contest: Contest, material: Material, *, single: bool) -> Iterator[str]:
    """What was left out, what the numbers are of, and what is kept."""
    if contest.not_run:
        yield f"not run, because it was stopped: {', '.join(contest.not_run)}"
    for reason, names in _by_reason(contest, material).items():
        yield f"skipped {', '.join(names)}: {reason}"
    infinite = [each.method for each in contest.rows if each.evaluation["nll"].value == math.inf]
    if infinite and not material.floor:
        yield f"NLL is infinite where a label has the probability 0 ({', '.join(infinite)}); --floor 1e-6 forbids that"
    if material.floor:
        yield _about_floor(material)
    if not contest.before.num_bootstrap:
        yield "without resamples (--bootstrap 0) nothing is said about chance"
    elif contest.best is not None and len(contest.rows) > 1:
        yield "the leader was chosen on the samples that it is judged on, so its own numbers are a little too good"
    yield from _fitting(contest, material)
    if single:
        yield learned(contest.rows[0].calibrator)


def _by_reason(contest: Contest, material: Material) -> dict[str, list[str]]:
    """Reason → the methods skipped for it."""
    found: dict[str, list[str]] = {}
    for each in contest.skipped:
        found.setdefault(_reason(each, material), []).append(each.method)
    return found


def _reason(skipped: Skipped, material: Material) -> str:
    """In the words of the command line, with the row of the file."""
    if skipped.failed:
        return _failure(skipped).text
    rows = {"fit": material.fit_rows, "apply": material.judge_rows}.get(skipped.stage)
    if isinstance(skipped.error, InputError) and rows is not None:
        return words_of(skipped.error.at(rows))
    return skipped.reason if skipped.error is None else words_of(skipped.error)


def _failure(skipped: Skipped) -> Failure:
    assert skipped.error is not None
    return failures.of(skipped.error, skipped.made)


def nothing_done(contest: Contest, material: Material) -> Exception:
    """The error of a contest without rows: why each method has none."""
    text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in _by_reason(contest, material).items())
    return _failed(text, contest) if any(each.failed for each in contest.skipped) else ValueError(text)


def failure(contest: Contest) -> MethodFailed:
    """The error of a contest in which methods broke, after all that the others gave was shown and kept."""
    failed = [each for each in contest.skipped if each.failed]
    told = ", ".join(f"{each.method} ({type(each.error).__name__})" for each in failed)
    count = f"{len(failed)} of {len(contest.rows) + len(contest.skipped)} methods failed"
    return _failed(f"{count}, and the results are without: {told}", contest)


def _failed(text: str, contest: Contest) -> MethodFailed:
    found = [_failure(each) for each in contest.skipped if each.failed]
    error = MethodFailed(text, code=max(each.code for each in found))  # 70, a bug of ours, above 1
    error.__cause__ = found[0].error  # for --debug
    return error


def _about_floor(material: Material) -> str:
    count, of_labels = material.raised
    if not count:
        return (
            f"--floor {material.floor:g} raised no probability of these predictions: they are as the file states them"
        )
    return (
        f"--floor {material.floor:g} raised {count:,} probabilities before anything was measured, {of_labels:,} of "
        "them a label's: what is shown as it is has these changes too"
    )


def _fitting(contest: Contest, material: Material) -> Iterator[str]:
    judged = f"{len(material.judge):,}"
    if contest.folds:
        yield (
            f"numbers are of {judged} out-of-fold predictions: {contest.folds} folds, stratified by label, seed {material.seed}; "
            "each sample was calibrated by a fit that had not seen it"
        )
        yield f"the calibrator itself (--out) is one more fit, on all {judged} samples"
        return
    which = f"{judged} {'samples' if contest.overlap.shared else 'others'}"
    if contest.in_sample:
        same = contest.fitted_on == len(material.judge) == contest.overlap.shared
        which = "the same ones" if same else f"{judged}, all or nearly all of them among these"
        which += ": the numbers say nothing about new data"
    yield f"fitted on {contest.fitted_on:,} samples: {material.origin['validation']}; judged on {which}"


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
