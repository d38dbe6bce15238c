"""A contest of calibrators: each fitted, judged on samples it has not seen, ranked by NLL, and told from chance."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from calattn.cli.console import note, progress
from calattn.cli.errors import as_flags

if TYPE_CHECKING:
    from torch import Tensor

    from calattn import Difference, Evaluation, Predictions
    from calattn.posthoc import Calibrator

COMPARED = ("nll", "ece")
_BOOKKEEPING = ("num_classes_", "fitted_on_")  # learned by every calibrator, and of no interest to who fitted it
_SLOW = 30.0  # seconds of silence, where there is no progress bar, that a line should announce


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
    """What is fitted on and what is judged; `folds` (the fold of each sample) where that is one set, cross-fitted."""

    fit: Predictions
    judge: Predictions
    folds: Tensor | None
    seed: int
    floor: float
    origin: dict[str, Any]

    @property
    def num_folds(self) -> int:
        return 0 if self.folds is None else len(self.folds.unique())

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


def folds_of(whole: Predictions, folds: int, seed: int) -> Tensor:
    """The fold of each sample of a set that is fitted on and judged at once."""
    from calattn.posthoc import stratified_folds

    if len(whole) < 2:
        raise ValueError("cross-fitting needs at least 2 samples, and there is 1; pass --validation FILE to fit on")
    if not 2 <= folds <= len(whole):
        raise ValueError(
            f"--folds must be between 2 and {len(whole)}, the number of samples, got {folds}; "
            "each sample needs a fit on others"
        )
    return stratified_folds(whole.labels, folds=folds, seed=seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A method's calibrator, its calibrated predictions and what they measure."""

    method: str
    seconds: float
    calibrator: Calibrator
    predictions: Predictions
    evaluation: Evaluation
    warnings: tuple[str, ...]
    from_before: dict[str, Difference] | None = None
    from_leader: dict[str, Difference] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contest:
    """The predictions as they are, the entries, best first, and why others could not take part."""

    before: Evaluation
    entries: list[Entry]
    skipped: dict[str, str]

    @property
    def leader(self) -> Entry | None:
        return self.entries[0] if self.entries else None


def held(methods: Sequence[str], material: Material, arguments: Callable[[], dict[str, Any]]) -> Contest:
    """The contest of these methods; `arguments` gives those of `calattn.evaluate`, its generator in its first state."""
    import calattn

    entries: list[Entry] = []
    skipped: dict[str, str] = {}
    with progress() as bar:
        task = bar.add_task("as it is", total=len(methods) * (material.num_folds + 2))
        before = calattn.evaluate(material.judge, **arguments())
        for place, name in enumerate(methods):
            entry = _entered(name, material, arguments(), lambda text: bar.update(task, description=text, advance=1))
            if isinstance(entry, Entry):
                entries.append(entry)
            else:
                skipped[name] = entry
            bar.update(task, completed=(place + 1) * (material.num_folds + 2))
        bar.update(task, visible=False)
        entries = _compared(sorted(entries, key=_rank), material.judge, arguments, bar)
    return Contest(before=before, entries=entries, skipped=skipped)


def _entered(name: str, material: Material, arguments: dict[str, Any], step: Callable[[str], None]) -> Entry | str:
    """The method's entry, or the reason why it has none."""
    import calattn
    from calattn.posthoc import cross_fit

    make = _factory(name, material)
    fold = iter(range(1, material.num_folds + 1))

    def for_a_fold() -> Calibrator:
        step(f"{name}, fold {next(fold)} of {material.num_folds}")
        return make()

    calibrator = make()
    _warm_up(make)
    with _gathered() as texts:
        try:
            step(f"{name}, {'on all' if material.folds is not None else 'fitting'}")
            start = time.perf_counter()
            # All samples first: an error then names the row of the file, not of a fold.
            calibrator.fit(material.fit)
            seconds = time.perf_counter() - start
            if seconds * material.num_folds > _SLOW:
                note(f"{name}: one fit took {seconds:.0f} s, and {material.num_folds} more follow")
            if material.folds is None:
                calibrated = calibrator(material.judge)
            else:
                calibrated = cross_fit(for_a_fold, material.judge, folds=material.folds)
        except ValueError as error:  # features that are not there, zero probabilities that cannot be mixed
            return _reason(error, calibrator)
    for text in texts:
        warnings.warn(f"{name}: {text}", stacklevel=1)
    step(f"{name}, intervals")
    return Entry(
        method=name,
        seconds=seconds,
        calibrator=calibrator,
        predictions=calibrated,
        evaluation=calattn.evaluate(calibrated, **arguments),
        warnings=tuple(texts),
    )


def _factory(name: str, material: Material) -> Callable[[], Calibrator]:
    """A maker of fresh calibrators, seeded alike; those that can state zeros take the floor of the file."""
    import torch

    from calattn.posthoc import CALIBRATORS

    maker = CALIBRATORS[name]
    known = inspect.signature(maker).parameters

    def make() -> Calibrator:
        options: dict[str, Any] = {}
        if "generator" in known:
            options["generator"] = torch.Generator().manual_seed(material.seed)
        if "floor" in known:
            options["floor"] = material.floor
        return maker(**options)

    return make


def _warm_up(make: Callable[[], Calibrator]) -> None:
    """Fit a few made-up samples: what a first fit imports (scikit-learn takes a second) is not the method's time."""
    import torch

    from calattn import Predictions

    drawn = torch.Generator().manual_seed(0)
    logits, features = torch.randn(30, 3, generator=drawn), torch.randn(30, 4, generator=drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make().fit(Predictions(logits=logits, labels=torch.arange(30) % 3, features=features))


def _reason(error: ValueError, calibrator: Calibrator) -> str:
    """An error in the words of the command line, the same for all methods that stumble over the same thing."""
    text = str(error).replace(type(calibrator).__name__, "the method")
    return as_flags(
        text.replace("build the predictions with Predictions.from_probs(..., floor=1e-6)", "pass --floor 1e-6")
    )


@contextlib.contextmanager
def _gathered() -> Iterator[list[str]]:
    """Our own warnings of several fits, each said once, with how often; other packages' are about their code."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    alike: dict[str, list[str]] = {}
    for each in caught:
        if each.category.__module__.startswith("calattn"):
            text = as_flags(" ".join(str(each.message).split()))
            alike.setdefault(re.sub(r"[\d.]+", "", text), []).append(text)
    texts += [same[0] + (f" ({len(same)} fits)" if len(same) > 1 else "") for same in alike.values()]


def _rank(entry: Entry) -> float:
    value = entry.evaluation["nll"].value
    return math.inf if math.isnan(value) else value


def _compared(
    entries: list[Entry], before: Predictions, arguments: Callable[[], dict[str, Any]], bar: Any
) -> list[Entry]:
    """The entries with their paired differences from the predictions as they are, and from the first."""
    import calattn

    if arguments()["num_bootstrap"] == 0 or not entries:
        return entries

    def difference(a: Predictions, b: Predictions) -> dict[str, Difference]:
        return calattn.compare(a, b, **(arguments() | {"metrics": COMPARED}))

    leader = entries[0].predictions
    result = []
    for entry in bar.track(entries, description="comparing"):
        own = difference(before, entry.predictions)
        rest = None if entry is entries[0] else difference(leader, entry.predictions)
        result.append(dataclasses.replace(entry, from_before=own, from_leader=rest))
    return result


def document(contest: Contest, material: Material) -> dict[str, Any]:
    """The stable JSON form (schema 1): fractions in full precision."""
    leader = contest.leader
    tied = [e.method for e in contest.entries if e.from_leader is not None and not e.from_leader["nll"].significant]
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
        "tied_with_leader": None if leader is None or leader.from_before is None else tied,
        "verdict": verdict_lines(contest),
        "methods": [_described(entry) for entry in contest.entries],
        "skipped": [{"method": method, "reason": reason} for method, reason in contest.skipped.items()],
    }


def verdict_lines(contest: Contest) -> list[str]:
    """What the differences say, in words; none without resamples."""
    from calattn.report.ranking import verdict

    leader = contest.leader
    if leader is None or leader.from_before is None:
        return []
    from_before = {e.method: e.from_before for e in contest.entries if e.from_before is not None}
    from_leader = {e.method: e.from_leader for e in contest.entries if e.from_leader is not None}
    return verdict(leader.method, from_before, from_leader, level=contest.before.level)


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
    for reason, names in reasons(contest).items():
        yield f"skipped {', '.join(names)}: {reason}"
    infinite = [each.method for each in contest.entries if each.evaluation["nll"].value == math.inf]
    if infinite and not material.floor:
        yield f"NLL is infinite where a label has the probability 0 ({', '.join(infinite)}); --floor 1e-6 forbids that"
    if material.floor:
        yield _about_floor(material)
    if not contest.before.num_bootstrap:
        yield "without resamples (--bootstrap 0) nothing is said about chance"
    elif not single and len(contest.entries) > 1:
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
        same = material.fit.fingerprint() == material.judge.fingerprint()
        judged = "the same ones: the numbers say nothing about new data" if same else f"{len(material.judge):,} others"
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
