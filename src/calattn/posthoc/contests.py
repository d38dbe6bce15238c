"""A contest of calibrators: each fitted, judged on samples it has not seen, ranked by NLL, and told from chance."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from calattn.errors import InputWarning
from calattn.metrics.evaluation import Difference, Evaluation, compare, evaluate
from calattn.metrics.resampling.bootstrap import afresh
from calattn.posthoc.base import CALIBRATORS, AbsentClassWarning, Calibrator, FitWarning, SameDataWarning
from calattn.posthoc.crossfit import cross_fit, drawn_folds
from calattn.posthoc.overlap import Overlap, overlap
from calattn.types import Predictions

ALL = "all"
RANKED_BY = "nll"  # a proper score, which no method can improve by saying less than it knows
COMPARED = (RANKED_BY, "ece")
BRIEF = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece")
# One fit, 5,000 samples of 200 classes, one core: 0.02 s for the first, 2 s for the last; "?" is for other people's.
_BY_COST = (
    *("histogram", "temperature", "temperature_ece", "venn_abers", "structured_vector", "ensemble", "isotonic"),
    *("structured_matrix", "sats", "?", "vector", "frozen_calattn", "dirichlet", "matrix"),
)
# A fit of C × C numbers. 5,000 samples of 400 classes, one core: dirichlet 12 s, matrix 9 s.
_FULL_MATRIX, _MOST_CLASSES = ("matrix", "dirichlet", "structured_matrix"), 400
_PRINTED = 5e-4  # nats: less than that is no difference to a reader of three places
_SLOW = 30.0  # seconds of one fit that a note should announce

Stage = Literal["fit", "apply", "folds"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Methods:
    """Names in the order given, and those of them that were named by themselves and not by "all" alone."""

    names: tuple[str, ...]
    named: frozenset[str]

    @classmethod
    def of(cls, methods: str | Iterable[str], skip: str | Iterable[str] = ()) -> Methods:
        """Names of `CALIBRATORS`, or "all", without those to skip.

        >>> Methods.of(["vector", "sats", "vector"], skip="sats").names
        ('vector',)
        """
        given, skipped = (list(dict.fromkeys([it] if isinstance(it, str) else it)) for it in (methods, skip))
        for name in (*given, *skipped):
            if name != ALL or name in skipped:
                CALIBRATORS[name]
        named = [name for name in given if name != ALL]
        names = list(CALIBRATORS) if ALL in given else named
        if unused := [name for name in skipped if name not in names]:
            raise ValueError(
                f"skip names {unused[0]}, which is not among the methods ({', '.join(names)}); leave it out"
            )
        if not (left := [name for name in names if name not in skipped]):
            raise ValueError(f"skip leaves no method of {', '.join(names) or 'none'}; skip fewer")
        return cls(names=tuple(left), named=frozenset(named))

    def left_out(self, num_classes: int) -> dict[str, str]:
        """Method → why it does not take part unless it is named itself."""
        if len(self.names) == 1 or num_classes <= _MOST_CLASSES:
            return {}
        why = f"with {num_classes:,} classes (more than {_MOST_CLASSES}) one fit can take minutes; name it beside all to have it"
        return {name: why for name in _FULL_MATRIX if name in self.names and name not in self.named}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContestRow:
    """A method: its calibrator fitted on all that may be fitted on, its calibrated predictions and what they measure.

    `from_before` and `from_best` are paired differences from the predictions as they are and from the best method's.
    """

    method: str
    seconds: float
    calibrator: Calibrator
    predictions: Predictions
    evaluation: Evaluation
    warnings: tuple[InputWarning, ...]
    from_before: dict[str, Difference] | None = None
    from_best: dict[str, Difference] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skipped:
    """A method without a row, and why. `made`: the calibrator, or what makes one. `stage`: where `error` came from."""

    method: str
    reason: str
    error: Exception | None = None
    made: object = None
    stage: Stage = "fit"

    @property
    def failed(self) -> bool:
        """Whether its own code broke. A ValueError that says something is an answer: no features, zeros."""
        return self.error is not None and not (isinstance(self.error, ValueError) and bool(str(self.error).strip()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contest:
    """The predictions as they are (`before`), a row per method, best first, and what has none.

    Judged `in_sample` there is no best method, and rows stay in the order in which methods were named. `folds` is 0 where
    other predictions were fitted on; `not_run` are the methods that Ctrl-C kept from it.
    """

    before: Evaluation
    rows: list[ContestRow]
    skipped: list[Skipped]
    not_run: list[str]
    fitted_on: int
    folds: int
    overlap: Overlap

    @property
    def single(self) -> bool:
        """Whether it was asked for one method alone."""
        return len(self.rows) + len(self.skipped) + len(self.not_run) == 1

    @property
    def in_sample(self) -> bool:
        """Whether methods are judged on samples they are fitted on, or hardly any others: that says nothing about new data."""
        return self.overlap.nearly_all

    @property
    def best(self) -> ContestRow | None:
        return self.rows[0] if self.rows and not self.in_sample else None

    @property
    def ranking(self) -> list[str]:
        """The methods, best first; empty where there is no best."""
        return [row.method for row in self.rows] if self.best else []

    @property
    def tied(self) -> list[str] | None:
        """Methods as good as the best by NLL, as far as the samples tell; None where the resamples do not say."""
        if self.best is None or self.best.from_before is None:
            return None
        rest = {row.method: row.from_best[RANKED_BY] for row in self.rows if row.from_best is not None}
        if any(each.too_few for each in rest.values()):
            return None
        return [method for method, each in rest.items() if as_good(each, highest=self.highest)]

    @property
    def highest(self) -> float:
        """The NLL that the best method itself might have: the upper end of its interval."""
        least = self.rows[0].evaluation[RANKED_BY]
        return least.value if least.high is None or math.isnan(least.high) else least.high


def as_good(from_best: Difference, *, highest: float = math.inf) -> bool:
    """Whether a difference from the best is too small to print, or within chance, and leads to no more than the `highest` NLL.

    Beside a few samples of huge loss no difference is beyond chance: that does not make 2,350 nats as good as 0.68.
    """
    return abs(from_best.difference) < _PRINTED or (not from_best.significant and from_best.b <= highest)


class Watcher:
    """Told how a contest goes on; what it raises ends the contest. This one is silent."""

    def start(self, overlap: Overlap, steps: int) -> None:
        """Before the first fit: how many judged samples are fitted on too, and how many steps there are at most."""

    def step(self, text: str) -> None:
        """A step begins."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def broke(self, error: Exception) -> None:
        """A method's code raised this; it is skipped."""


def contest(
    predictions: Predictions,
    validation: Predictions | None = None,
    *,
    methods: str | Iterable[str] | Methods = ALL,
    folds: int = 5,
    seed: int = 0,
    floor: float = 0.0,
    watcher: Watcher | None = None,
    **measure: Any,
) -> Contest:
    """Calibrators by name, ranked by the NLL of `predictions` after each of them.

    They are fitted on `validation`, or without it in `folds`: each sample is calibrated by a fit on the other folds. `floor`
    is for calibrators that state zeros. `measure` takes the arguments of `calattn.evaluate`; metrics default to the main ones,
    and NLL is always among them. Quick methods go first; Ctrl-C ends it with those that are done. A method that breaks is
    skipped.

    >>> logits = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.multinomial(logits.softmax(dim=1), 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
    >>> sharp = Predictions(logits=3 * logits, labels=labels)
    >>> found = contest(sharp, methods=["histogram", "temperature"], floor=1e-3, num_bootstrap=100)
    >>> found.ranking, found.tied, round(found.best.calibrator.temperature_)
    (['temperature', 'histogram'], [], 3)
    """
    chosen = methods if isinstance(methods, Methods) else Methods.of(methods)
    if validation is not None and validation.num_classes != predictions.num_classes:
        raise ValueError(
            f"validation has {validation.num_classes} classes and predictions has {predictions.num_classes}; give validation "
            "predictions of the same model"
        )
    if validation is None:
        fold_of, shared = _folds(predictions, folds, seed), Overlap(shared=0, judged=len(predictions))
    else:
        fold_of, shared = None, overlap(validation, predictions)
    running = _Running(
        judge=predictions,
        fit=predictions if validation is None else validation,
        fold_of=fold_of,
        overlap=shared,
        options={"floor": floor, "seed": seed},
        measure=_with_metrics(measure, brief=len(chosen.names) > 1),
        watcher=watcher or Watcher(),
    )
    return running.contest(chosen)


def _folds(whole: Predictions, folds: int, seed: int) -> Tensor:
    if len(whole) < 2:
        raise ValueError("cross-fitting needs at least 2 samples, and there is 1; fit on validation predictions")
    whole.check_labelled()
    return drawn_folds(whole.labels, folds=folds, seed=seed)


def _with_metrics(measure: dict[str, Any], *, brief: bool) -> dict[str, Any]:
    """What is measured; NLL always, because methods are ranked by it."""
    asked = measure.get("metrics")
    if asked is None:
        return measure | {"metrics": BRIEF if brief else None}
    names = [asked] if isinstance(asked, str) else list(asked)
    return measure | {"metrics": names if RANKED_BY in names else [*names, RANKED_BY]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Running:
    """A contest while it is held: what is fitted on and what is judged, and how."""

    judge: Predictions
    fit: Predictions
    fold_of: Tensor | None
    overlap: Overlap
    options: dict[str, Any]
    measure: dict[str, Any]
    watcher: Watcher

    @property
    def num_folds(self) -> int:
        return 0 if self.fold_of is None else len(self.fold_of.unique())

    def contest(self, methods: Methods) -> Contest:
        skipped = [Skipped(method=name, reason=why) for name, why in methods.left_out(self.judge.num_classes).items()]
        out = {each.method for each in skipped}
        todo = sorted((name for name in methods.names if name not in out), key=_cost)
        self.watcher.start(self.overlap, 1 + len(todo) * (self.num_folds + 3))
        self.watcher.step("as it is")
        before = evaluate(self.judge, **afresh(self.measure))
        rows: list[ContestRow] = []
        while todo:
            try:
                found = self._entered(todo[0])
            except KeyboardInterrupt:
                if not rows:
                    raise
                done = f"{len(rows)} of {len(rows) + len(todo)}"
                self.watcher.note(f"stopped; ranking what is done ({done}), Ctrl-C ends that too")
                break
            todo.pop(0)
            if isinstance(found, Skipped):
                skipped.append(found)
            else:
                rows.append(found)
        as_named = methods.names.index
        if self.overlap.nearly_all:
            rows.sort(key=lambda row: as_named(row.method))
        else:
            rows = _ranked(rows)
        return Contest(
            before=before,
            rows=self._compared(rows) if before.num_bootstrap else rows,
            skipped=sorted(skipped, key=lambda each: as_named(each.method)),
            not_run=sorted(todo, key=as_named),
            fitted_on=len(self.fit),
            folds=self.num_folds,
            overlap=self.overlap,
        )

    def _entered(self, name: str) -> ContestRow | Skipped:
        """The method's row, or the reason why it has none, or what broke in its code."""
        make = self._factory(name)
        fold = iter(range(1, self.num_folds + 1))

        def for_a_fold() -> Calibrator:
            self.watcher.step(f"{name}, fold {next(fold)} of {self.num_folds}")
            return make()

        calibrator: Calibrator | None = None
        stage: Stage = "fit"
        # In-sample one sentence says it for all methods.
        with _gathered(without=(SameDataWarning,) if self.overlap.nearly_all else ()) as told:
            try:
                calibrator = make()
                self._warm_up(make)
                self.watcher.step(f"{name}, {'fitting' if self.fold_of is None else 'on all'}")
                start = time.perf_counter()
                calibrator.fit(self.fit)  # all samples first: an error then names their row, not that of a fold
                seconds = time.perf_counter() - start
                if seconds * self.num_folds > _SLOW:
                    self.watcher.note(f"{name}: one fit took {seconds:.0f} s, and {self.num_folds} more follow")
                if self.fold_of is None:
                    stage = "apply"
                    calibrated = calibrator(self.judge)
                else:
                    stage = "folds"
                    with warnings.catch_warnings():
                        # Of all samples the fit before has said it; that a class is alone in its fold, `drawn_folds`.
                        warnings.simplefilter("ignore", AbsentClassWarning)
                        calibrated = cross_fit(for_a_fold, self.judge, folds=self.fold_of)
            except Exception as error:  # of anybody's code: one mistake must not cost the others their results
                self.watcher.broke(error)
                made = calibrator or CALIBRATORS[name]
                return Skipped(method=name, reason=_reason(error), error=error, made=made, stage=stage)
        for each in told:
            warnings.warn(type(each).of(each, subject=name), stacklevel=1)
        self.watcher.step(f"{name}, intervals")
        return ContestRow(
            method=name,
            seconds=seconds,
            calibrator=calibrator,
            predictions=calibrated,
            evaluation=evaluate(calibrated, **afresh(self.measure)),
            warnings=tuple(told),
        )

    def _compared(self, rows: list[ContestRow]) -> list[ContestRow]:
        """The rows with their paired differences from the predictions as they are, and from the best."""

        def difference(a: Predictions, b: Predictions) -> dict[str, Difference]:
            return compare(a, b, **(afresh(self.measure) | {"metrics": COMPARED}))

        best = None if self.overlap.nearly_all or not rows else rows[0]
        result = []
        for row in rows:
            self.watcher.step(f"comparing {row.method}")
            own = difference(self.judge, row.predictions)
            rest = None if best is None or row is best else difference(best.predictions, row.predictions)
            result.append(dataclasses.replace(row, from_before=own, from_best=rest))
        return result

    def _factory(self, name: str) -> Callable[[], Calibrator]:
        """A maker of fresh calibrators, seeded alike; those that can state zeros take the floor."""
        maker = CALIBRATORS[name]
        known = inspect.signature(maker).parameters

        def make() -> Calibrator:
            options: dict[str, Any] = {}
            if "generator" in known:
                options["generator"] = torch.Generator().manual_seed(self.options["seed"])
            if "floor" in known:
                options["floor"] = self.options["floor"]
            return maker(**options)

        return make

    def _warm_up(self, make: Callable[[], Calibrator]) -> None:
        """Fit a few made-up samples: what a first fit imports (scikit-learn takes a second) is not the method's time.

        A method may refuse them (too few, too few classes, no such features), which says nothing of the samples it is for.
        """
        drawn = torch.Generator().manual_seed(0)
        logits, features = torch.randn(30, 3, generator=drawn), torch.randn(30, 4, generator=drawn)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                make().fit(Predictions(logits=logits, labels=torch.arange(30) % 3, features=features))
            except Exception as error:  # the fit that counts says it again
                self.watcher.broke(error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _gathered(*, without: tuple[type[Warning], ...]) -> Iterator[list[InputWarning]]:
    """Our own warnings of several fits, one of a kind, with how often; other packages' are about their code."""
    found: list[InputWarning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    alike: dict[type[Warning], list[InputWarning]] = {}
    for each in caught:
        message = each.message
        if isinstance(message, FitWarning | SameDataWarning) and not isinstance(message, without):
            alike.setdefault(each.category, []).append(message)
    found += [_counted(same[0], len(same)) for same in alike.values()]


def _counted(warning: InputWarning, fits: int) -> InputWarning:
    if fits == 1:
        return warning
    last = "remedy" if warning.remedy else "problem"
    words = getattr(warning, last)
    more = f" ({fits} fits)"
    return type(warning).of(warning, **{last: words + more if isinstance(words, str) else (*words, more)})


def _ranked(rows: list[ContestRow]) -> list[ContestRow]:
    """By NLL; of those whose numbers print alike, the quickest method first."""
    rows = sorted(rows, key=lambda row: row.evaluation[RANKED_BY].value)
    found: list[ContestRow] = []
    while rows:
        limit = rows[0].evaluation[RANKED_BY].value + _PRINTED
        alike = [row for row in rows if row is rows[0] or row.evaluation[RANKED_BY].value < limit]
        found += sorted(alike, key=lambda row: _cost(row.method))
        rows = rows[len(alike) :]
    return found


def _cost(method: str) -> int:
    """How late a method's turn comes: the slow ones last, so that all others are done when somebody stops it."""
    return _BY_COST.index(method if method in _BY_COST else "?")
