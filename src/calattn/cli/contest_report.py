"""What is said of a contest of calibrators: the JSON document, the verdict, and remarks on what the numbers are of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calattn.cli.errors import MethodFailed

if TYPE_CHECKING:
    from calattn import Difference
    from calattn.cli.contest import Contest, Entry, Material
    from calattn.posthoc import Calibrator

_BOOKKEEPING = (
    "num_classes_",
    "num_samples_",
    "fitted_on_",
)  # learned by every calibrator, and of no interest to who fitted it


def document(contest: Contest, material: Material) -> dict[str, Any]:
    """The stable JSON form (schema 1): fractions in full precision."""
    leader = contest.leader
    return {
        "schema": 1,
        "command": "calibrate",
        **material.origin,
        "fitted_on": len(material.fit),
        "folds": material.num_folds or None,
        "seed": material.seed,
        "floor": material.floor,
        "labels_at_floor": material.raised[1],
        "samples": contest.before.num_samples,
        "level": contest.before.level,
        "resamples": contest.before.num_bootstrap,
        "before": contest.before.as_dict(),
        "leader": None if leader is None else leader.method,
        "no_leader": contest.no_leader,
        "shared": material.overlap.shared,
        "tied_with_leader": _tied(contest),
        "verdict": verdict_lines(contest),
        "methods": [_described(entry) for entry in contest.entries],
        "skipped": [
            {"method": method, "reason": reason, "failed": method in contest.failed}
            for method, reason in contest.skipped.items()
        ],
        "not_run": list(contest.not_run),
    }


def _tied(contest: Contest) -> list[str] | None:
    """Methods that cannot be told from the leader by NLL; None where the resamples do not say."""
    if contest.leader is None or contest.leader.from_before is None:
        return None
    rest = {each.method: each.from_leader["nll"] for each in contest.entries if each.from_leader is not None}
    if any(each.too_few for each in rest.values()):
        return None
    return [method for method, each in rest.items() if not each.significant]


def verdict_lines(contest: Contest) -> list[str]:
    """What the differences say, in words, and whether samples are shared; in-sample only why nothing is said."""
    from calattn.report.ranking import verdict

    if contest.no_leader is not None:
        return [contest.no_leader]
    caveat = [contest.caveat] if contest.caveat else []
    leader = contest.leader
    if leader is None or leader.from_before is None:
        return caveat
    from_before = {e.method: e.from_before for e in contest.entries if e.from_before is not None}
    from_leader = {e.method: e.from_leader for e in contest.entries if e.from_leader is not None}
    return verdict(leader.method, from_before, from_leader, level=contest.before.level) + caveat


def _described(entry: Entry) -> dict[str, Any]:
    learned = {name: getattr(entry.calibrator, name) for name in entry.calibrator.learned_names()}
    return {
        "method": entry.method,
        "after": entry.evaluation.as_dict(),
        "seconds": entry.seconds,
        # Numbers only; tensors are in the calibrator's file.
        "learned": {name: value for name, value in learned.items() if isinstance(value, float | int | str)},
        "from_before": _differences(entry.from_before),
        "from_leader": _differences(entry.from_leader),
        "warnings": list(entry.warnings),
    }


def _differences(found: dict[str, Difference] | None) -> dict[str, Any] | None:
    from calattn.report import sentence

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
    for reason, names in reasons(contest).items():
        yield f"skipped {', '.join(names)}: {reason}"
    infinite = [each.method for each in contest.entries if each.evaluation["nll"].value == math.inf]
    if infinite and not material.floor:
        yield f"NLL is infinite where a label has the probability 0 ({', '.join(infinite)}); --floor 1e-6 forbids that"
    if material.floor:
        yield _about_floor(material)
    if not contest.before.num_bootstrap:
        yield "without resamples (--bootstrap 0) nothing is said about chance"
    elif contest.leader is not None and len(contest.entries) > 1:
        yield "the leader was chosen on the samples that it is judged on, so its own numbers are a little too good"
    yield from _fitting(material)
    if single:
        yield learned(contest.entries[0].calibrator)


def reasons(contest: Contest) -> dict[str, list[str]]:
    """Reason → the methods skipped for it."""
    found: dict[str, list[str]] = {}
    for name, reason in contest.skipped.items():
        found.setdefault(reason, []).append(name)
    return found


def nothing_done(contest: Contest) -> Exception:
    """The error of a contest without entries: why each method has none."""
    text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons(contest).items())
    return _failed(text, contest) if contest.failed else ValueError(text)


def failure(contest: Contest) -> MethodFailed:
    """The error of a contest in which methods broke, after all that the others gave was shown and kept."""
    told = ", ".join(f"{name} ({type(each.error).__name__})" for name, each in contest.failed.items())
    count = f"{len(contest.failed)} of {len(contest.entries) + len(contest.skipped)} methods failed"
    return _failed(f"{count}, and the results are without: {told}", contest)


def _failed(text: str, contest: Contest) -> MethodFailed:
    failures = list(contest.failed.values())
    error = MethodFailed(text, code=max(each.code for each in failures))  # 70, a bug of ours, above 1
    error.__cause__ = failures[0].error  # for --debug
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


def _fitting(material: Material) -> Iterator[str]:
    if material.folds is None:
        where = material.origin["validation"]
        judged = f"{len(material.judge):,} {'samples' if material.caveat else 'others'}"
        if material.in_sample:
            same = len(material.fit) == len(material.judge) == material.overlap.shared
            which = "the same ones" if same else f"{len(material.judge):,}, all or nearly all of them among these"
            judged = f"{which}: the numbers say nothing about new data"
        yield f"fitted on {len(material.fit):,} samples: {where}; judged on {judged}"
        return
    folds, n = material.num_folds, f"{len(material.judge):,}"
    yield (
        f"numbers are of {n} out-of-fold predictions: {folds} folds, stratified by label, seed {material.seed}; "
        "each sample was calibrated by a fit that had not seen it"
    )
    yield f"the calibrator itself (--out) is one more fit, on all {n} samples"


def learned(calibrator: Calibrator) -> str:
    """What a fit has learned, in words: the temperature, or the numbers, and which tensors there are."""
    from calattn.posthoc import TemperatureScaling

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
