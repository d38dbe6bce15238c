"""A contest of calibrators: each fitted, judged on samples it has not seen, ranked by NLL, and told from chance."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calattn.cli import failures
from calattn.cli.console import note, progress
from calattn.cli.errors import words_of
from calattn.cli.failures import Failure
from calattn.cli.overlap import Overlap, overlap

if TYPE_CHECKING:
    from torch import Tensor

    from calattn import Difference, Evaluation, Predictions
    from calattn.posthoc import Calibrator
    from calattn.readers.stream import Rows

COMPARED = ("nll", "ece")
_IN_SAMPLE = "judged on the samples it was fitted on, where"
# One fit, 5,000 samples of 200 classes, one core: the others below 1 s, these 1.6, 2.8, 5, 3 and 18 s.
_LAST = ("vector", "isotonic", "frozen_calattn", "matrix", "dirichlet")
_SLOW = 30.0  # seconds of silence, where there is no progress bar, that a line should announce


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
    """What is fitted on and what is judged, with the rows of their files that they are; `folds` (the fold of each sample) where
    that is one set, cross-fitted.
    """

    fit: Predictions
    fit_rows: Rows
    judge: Predictions
    judge_rows: Rows
    folds: Tensor | None
    seed: int
    floor: float
    origin: dict[str, Any]

    @property
    def num_folds(self) -> int:
        return 0 if self.folds is None else len(self.folds.unique())

    @functools.cached_property
    def overlap(self) -> Overlap:
        """How many samples are both fitted on and judged; of a set in folds, none by the same fit."""
        if self.folds is not None:
            return Overlap(shared=0, judged=len(self.judge))
        return overlap(self.fit, self.judge)

    @property
    def in_sample(self) -> bool:
        """Whether methods are judged on samples they are fitted on, or hardly any others: that says nothing about new data."""
        return self.overlap.nearly_all

    @property
    def caveat(self) -> str | None:
        """What is to be said where some of the judged samples, not all, were fitted on."""
        if self.in_sample or not self.overlap.shared:
            return None
        return (
            f"about {self.overlap.shared:,} of the {len(self.judge):,} judged samples are not others but were fitted on too: "
            "the numbers are too good, most for the most flexible method"
        )

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
    """The predictions as they are, the entries, best first, why others could not take part, and which Ctrl-C kept from it.

    Judged `in_sample` there is no leader, and the entries stay in the order in which they were named. `failed` are those of
    `skipped` whose own code broke.
    """

    before: Evaluation
    entries: list[Entry]
    skipped: dict[str, str]
    in_sample: bool = False
    caveat: str | None = None
    not_run: tuple[str, ...] = ()
    failed: dict[str, Failure] = dataclasses.field(default_factory=dict)

    @property
    def no_leader(self) -> str | None:
        """Why no method is called best."""
        if not self.in_sample:
            return None
        if len(self.entries) + len(self.skipped) + len(self.not_run) > 1:
            return f"no method is called best: each was {_IN_SAMPLE} the most flexible one looks best"
        return f"{self.entries[0].method} was {_IN_SAMPLE} any method looks better than it is"

    @property
    def leader(self) -> Entry | None:
        return self.entries[0] if self.entries and not self.in_sample else None


def held(
    methods: Sequence[str],
    material: Material,
    arguments: Callable[[], dict[str, Any]],
    left_out: Mapping[str, str] | None = None,
) -> Contest:
    """The contest of these methods; `arguments` gives those of `calattn.evaluate`, its generator in its first state.

    Quick methods go first, and Ctrl-C ends it with those that are done. `left_out` are methods that do not take part, and why.
    """
    import calattn

    entries: list[Entry] = []
    skipped, failed = dict(left_out or {}), {}
    todo = sorted((name for name in methods if name not in skipped), key=_cost)
    with progress() as bar:
        task = bar.add_task("as it is", total=len(todo) * (material.num_folds + 2))
        before = calattn.evaluate(material.judge, **arguments())
        while todo:
            name = todo[0]
            try:
                entry = _entered(
                    name, material, arguments(), lambda text: bar.update(task, description=text, advance=1)
                )
            except KeyboardInterrupt:
                if not entries:
                    raise
                note(
                    f"stopped; ranking what is done ({len(entries)} of {len(entries) + len(todo)}), Ctrl-C ends that too"
                )
                break
            todo.pop(0)
            if isinstance(entry, Entry):
                entries.append(entry)
            elif isinstance(entry, Failure):
                skipped[name], failed[name] = entry.text, entry
            else:
                skipped[name] = entry
            bar.update(task, completed=(len(entries) + len(skipped) - len(left_out or ())) * (material.num_folds + 2))
        bar.update(task, visible=False)
        as_named = list(methods).index
        entries.sort(key=lambda e: as_named(e.method) if material.in_sample else e.evaluation["nll"].value)
        found = Contest(
            before=before,
            entries=entries,
            skipped={name: skipped[name] for name in sorted(skipped, key=as_named)},
            in_sample=material.in_sample,
            caveat=material.caveat,
            not_run=tuple(sorted(todo, key=as_named)),
            failed={name: failed[name] for name in sorted(failed, key=as_named)},
        )
        return dataclasses.replace(found, entries=_compared(found, material.judge, arguments, bar))


def _entered(
    name: str, material: Material, arguments: dict[str, Any], step: Callable[[str], None]
) -> Entry | str | Failure:
    """The method's entry, or the reason why it has none, or what broke in its code."""
    import calattn
    from calattn.posthoc import CALIBRATORS, AbsentClassWarning, SameDataWarning, cross_fit
    from calattn.readers.stream import naming_rows_of_file

    make = _factory(name, material)
    fold = iter(range(1, material.num_folds + 1))

    def for_a_fold() -> Calibrator:
        step(f"{name}, fold {next(fold)} of {material.num_folds}")
        return make()

    calibrator: Calibrator | None = None
    # In-sample one sentence says it for all methods.
    with _gathered(without=(SameDataWarning,) if material.in_sample else ()) as texts:
        try:
            calibrator = make()
            _warm_up(make)
            step(f"{name}, {'on all' if material.folds is not None else 'fitting'}")
            start = time.perf_counter()
            # All samples first: an error then names the row of the file, not of a fold.
            with naming_rows_of_file(material.fit_rows):
                calibrator.fit(material.fit)
            seconds = time.perf_counter() - start
            if seconds * material.num_folds > _SLOW:
                note(f"{name}: one fit took {seconds:.0f} s, and {material.num_folds} more follow")
            if material.folds is None:
                with naming_rows_of_file(material.judge_rows):
                    calibrated = calibrator(material.judge)
            else:
                with warnings.catch_warnings():
                    # Of all samples the fit before has said it; that a class is alone in its fold, `folds_of`.
                    warnings.simplefilter("ignore", AbsentClassWarning)
                    calibrated = cross_fit(for_a_fold, material.judge, folds=material.folds)
        except Exception as error:  # it may be anybody's code, and one mistake must not cost the others their results
            failures.reraise_if_stopped(error)
            if isinstance(error, ValueError) and str(error).strip():
                return words_of(error)  # features that are not there, zeros that cannot be mixed
            return failures.of(error, calibrator or CALIBRATORS[name])
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
    """Fit a few made-up samples: what a first fit imports (scikit-learn takes a second) is not the method's time.

    A method may refuse them (too few, too few classes, no such features), which says nothing of the samples it is for.
    """
    import torch

    from calattn import Predictions

    drawn = torch.Generator().manual_seed(0)
    logits, features = torch.randn(30, 3, generator=drawn), torch.randn(30, 4, generator=drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make().fit(Predictions(logits=logits, labels=torch.arange(30) % 3, features=features))
        except Exception as error:
            failures.reraise_if_stopped(error)


@contextlib.contextmanager
def _gathered(*, without: tuple[type[Warning], ...]) -> Iterator[list[str]]:
    """Our own warnings of several fits, one of a kind, with how often; other packages' are about their code."""
    from calattn.posthoc import FitWarning, SameDataWarning

    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    alike: dict[type[Warning], list[str]] = {}
    for each in caught:
        if issubclass(each.category, FitWarning | SameDataWarning) and not issubclass(each.category, without):
            assert isinstance(each.message, Warning)  # a str only where somebody shows one without its category
            alike.setdefault(each.category, []).append(words_of(each.message))
    texts += [same[0] + (f" ({len(same)} fits)" if len(same) > 1 else "") for same in alike.values()]


def _cost(method: str) -> int:
    """How late a method's turn comes: the slow ones last, so that all others are done when somebody stops it."""
    return _LAST.index(method) + 1 if method in _LAST else 0


def _compared(contest: Contest, before: Predictions, arguments: Callable[[], dict[str, Any]], bar: Any) -> list[Entry]:
    """The entries with their paired differences from the predictions as they are, and from the leader."""
    import calattn

    entries, leader = contest.entries, contest.leader
    if arguments()["num_bootstrap"] == 0 or not entries:
        return entries

    def difference(a: Predictions, b: Predictions) -> dict[str, Difference]:
        return calattn.compare(a, b, **(arguments() | {"metrics": COMPARED}))

    result = []
    for entry in bar.track(entries, description="comparing"):
        own = difference(before, entry.predictions)
        rest = None if leader is None or entry is leader else difference(leader.predictions, entry.predictions)
        result.append(dataclasses.replace(entry, from_before=own, from_leader=rest))
    return result
