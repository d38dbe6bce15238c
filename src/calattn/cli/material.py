"""What calibrators are fitted on and what they are judged on, with the rows of the files that these are."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calattn.cli import options
from calattn.cli.errors import MethodFailed, failure_of, words_of
from calattn.errors import InputError

if TYPE_CHECKING:
    from calattn import Predictions
    from calattn.cli.subjects import PredictionSet
    from calattn.posthoc import Contest, Skipped
    from calattn.readers.stream import Rows


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

    def document(self, contest: Contest) -> dict[str, Any]:
        """The stable JSON form (schema 1)."""
        from calattn.report.contest import contest_document

        return {
            "schema": 1,
            "command": "calibrate",
            **self.origin,
            "seed": self.seed,
            "floor": self.floor,
            "labels_at_floor": self.raised[1],
            **contest_document(contest, words=words_of, reason=self.reason),
        }

    def reason(self, skipped: Skipped) -> str:
        """Why a method was skipped, in the words of the command line, with the row of the file."""
        if skipped.failed:
            return str(failure_in(skipped))
        rows = {"fit": self.fit_rows, "apply": self.judge_rows}.get(skipped.stage)
        if isinstance(skipped.error, InputError) and rows is not None:
            return words_of(skipped.error.at(rows))
        return skipped.reason if skipped.error is None else words_of(skipped.error)


def material_of(
    subject: PredictionSet, validation: Path | None, *, folds: int | None, fraction: float | None, seed: int
) -> Material:
    """What to fit on, what to judge on, and where the two come from."""
    from calattn.cli import subjects

    reader = subject.reader
    origin = subject.described() | {"training": _training(subject) if validation is None else None}
    del origin["temperature"]
    if validation is not None or subject.run is not None:
        there = "with --validation there is" if validation is not None else "a run folder has"
        why = f"parts a single file, and {there} something to fit on already"
        options.unused(why, folds=folds, fraction=fraction)
        fitted_on = subject.validation() if validation is None else subjects.of_file(validation, reader)
        (fit, fit_rows), (judge, judge_rows) = fitted_on.with_rows(), subject.with_rows()
        if fit.num_classes != judge.num_classes:
            raise ValueError(
                f"{fitted_on.path} has {fit.num_classes} classes and {subject.path} has {judge.num_classes}; "
                "give validation predictions of the same model"
            )
        origin |= {"validation": str(fitted_on.path)}
    elif fraction is not None:
        (fit, fit_rows), (judge, judge_rows) = _halves(subject, folds, fraction, seed)
        origin |= {"validation": f"a random {100 * fraction:g} % of {subject.named} (seed {seed})"}
    else:
        fit = None
        judge, judge_rows = subject.with_rows()
        fit_rows = judge_rows
        origin |= {"validation": None}
    rows = {"fit_rows": fit_rows, "judge_rows": judge_rows}
    return Material(fit=fit, judge=judge, **rows, seed=seed, floor=reader.floor, origin=origin)


def _training(subject: PredictionSet) -> dict[str, Any] | None:
    """What the report keeps of the run that the predictions are of; None where there is none, or no spec that can be read."""
    try:
        return None if subject.run is None else subject.training()._asdict()
    except (OSError, ValueError):
        return None


def _halves(
    subject: PredictionSet, folds: int | None, fraction: float, seed: int
) -> Iterator[tuple[Predictions, Rows]]:
    """Two random parts, each with its rows of the file."""
    import torch

    if folds is not None:
        raise ValueError("--folds and --fraction exclude each other: many parts that change roles, or two that do not")
    if not 0 < fraction < 1:
        raise ValueError(f"--fraction must be between 0 and 1, got {fraction:g}")
    whole, rows = subject.with_rows()
    numbered = whole.replace(indices=torch.arange(len(whole)))
    for part in numbered.shuffle_split(fraction, torch.Generator().manual_seed(seed)):
        assert part.indices is not None
        of_file = torch.as_tensor(rows)[part.indices]
        yield part.replace(indices=of_file if whole.indices is None else whole.indices[part.indices]), of_file.numpy()


def failure_in(skipped: Skipped) -> MethodFailed:
    """The error of a method that broke."""
    assert skipped.error is not None
    return failure_of(skipped.error, skipped.made)
