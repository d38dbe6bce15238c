"""The HTML page of what a command has judged: all that is known about each, gathered into exhibits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from calattn.cli.console import note, progress
from calattn.cli.judgement import plain
from calattn.cli.subjects import Blocks, PredictionSet, text_of
from calattn.readers import PredictionFileError, PredictionFileMissing
from calattn.report.page import Exhibit, build_document, page_html, write_page
from calattn.report.page.document import sampled
from calattn.runs.facts import RunFacts
from calattn.types import Predictions

if TYPE_CHECKING:
    from calattn import Difference, Evaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A set of predictions, read and evaluated; its differences from the first, and what T* may be fitted on, if known."""

    subject: PredictionSet
    source: Predictions | Blocks
    evaluation: Evaluation
    differences: Mapping[str, Difference] | None = None
    validation: Predictions | None = None


def all_judged(
    found: Sequence[PredictionSet],
    sources: Mapping[str, Predictions | Blocks],
    evaluations: Mapping[str, Evaluation],
    differences: Mapping[str, Mapping[str, Difference]],
) -> list[Judged]:
    """The sets of predictions with what was found about each, by title."""
    return [
        Judged(
            subject=each,
            source=sources[each.title],
            evaluation=evaluations[each.title],
            differences=differences.get(each.title),
        )
        for each in found
    ]


def write(
    path: Path,
    judged: Sequence[Judged],
    *,
    data_root: Path | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Writes the page of what was judged; `more` are entries of its document: title, home, warnings, remark, contest."""
    read = [
        (each.source, None) if isinstance(each.source, Predictions) else sampled(each.source, each.source.count())
        for each in judged
    ]
    with progress() as bar:
        task = bar.add_task("page", total=2 * len(judged) + 1)
        exhibits = []
        for each, (predictions, rows) in zip(judged, read, strict=True):
            bar.update(task, description=escape(f"page: gathering {plain(each.subject.title)}"))
            made = exhibit(each.subject, predictions, each.evaluation, each.validation, data_root)
            exhibits.append(dataclasses.replace(made, rows=rows))
            bar.advance(task)

        def step(text: str) -> None:
            bar.update(task, description=escape(text))
            bar.advance(task)

        differences = {place: each.differences for place, each in enumerate(judged) if each.differences is not None}
        document = build_document(exhibits, comparisons=differences, step=step)
        write_page(page_html(document | dict(more or {})), path)
        bar.advance(task)
    note(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def exhibit(
    subject: PredictionSet,
    predictions: Predictions,
    evaluation: Evaluation,
    validation: Predictions | None = None,
    data_root: Path | None = None,
) -> Exhibit:
    """All that is known: of a file its name and content, of a run its spec, log, machine and, if at hand, images."""
    facts: dict[str, Any] = {}
    provenance = [("file", text_of(subject.path)), ("content", predictions.fingerprint())]
    if subject.reader.floor:
        provenance.append(("floor", f"probabilities below {subject.reader.floor:g} were raised to it"))
    if subject.run is not None:
        run = RunFacts(subject.run, say=note)
        with_mistakes = evaluation.options.target is None
        chosen = [("run", text_of(subject.run)), ("split", str(subject.split)), ("checkpoint", str(subject.checkpoint))]
        provenance = [*chosen, *provenance[1:], *run.provenance()]
        facts = {
            "spec": run.spec_text(),
            "images": run.pictures(subject.split, predictions, data_root) if with_mistakes else None,
            "log": run.epochs(),
            "marks": run.marks(),
        }
        validation = _validation(subject) if validation is None else validation
    if subject.temperature is not None:
        provenance.append(("temperature", f"{subject.temperature:.4g}, applied before anything was computed"))
        validation = None  # its T* is 1 by construction
    return Exhibit(
        title=plain(subject.title),
        predictions=predictions,
        evaluation=evaluation,
        validation=validation,
        provenance=provenance,
        **facts,
    )


def _validation(subject: PredictionSet) -> Predictions | None:
    if subject.split == "validation":
        return None
    try:
        return subject.validation().predictions()
    except PredictionFileMissing:
        return None
    except PredictionFileError as error:
        note(f"T* is not fitted on validation: {error}")
        return None
