"""`calattn calibrate`: fit calibrators, show what they change on samples they have not seen, keep the result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import calibration_files, options
from calattn.cli.calibration_files import WRITTEN, Outputs
from calattn.cli.console import note, print_json, print_table, progress, say
from calattn.cli.errors import MethodFailed, examples, reraise_if_stopped
from calattn.cli.judgement import PAGES, TABLES, check_output, write_table
from calattn.cli.material import Material, failure_in, material_of

if TYPE_CHECKING:
    import numpy as np

    from calattn.cli.subjects import PredictionSet
    from calattn.posthoc import Contest, PredictionSets, Watcher
    from calattn.posthoc.overlap import Overlap

_FOLDS = 5
_CALIBRATORS = "calattn.posthoc:CALIBRATORS"
_fit, _output = (functools.partial(options.flag, panel) for panel in (options.FITTING, options.OUTPUT))


@options.flat
def calibrate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Predictions: a file, predictions folder or run folder.")
    ],
    part: options.RunPart,
    measure: options.Measure,
    method: list[str] | None = _fit(
        "--method",
        text="Of calattn list calibrators; several (a,b, or repeated) or all for a leaderboard.",
        show_default="temperature",
        complete=options.names(_CALIBRATORS, "all"),
    ),
    skip: list[str] | None = _fit(
        "--skip", text="Methods to leave out of --method all: a,b.", complete=options.names(_CALIBRATORS)
    ),
    apply: Path | None = _fit(
        "--apply", text="Fit nothing: apply this saved calibrator to PATH, which needs no labels."
    ),
    validation: Path | None = _fit(
        "--validation", text="Fit on this file; empty: a run's validation split, or PATH in folds."
    ),
    folds: int | None = _fit("--folds", text="Cross-fit a single file in so many parts.", show_default=str(_FOLDS)),
    fraction: float | None = _fit(
        "--fraction", text="No folds: fit on this random share of a single file, judge on the rest."
    ),
    seed: int = _fit("--seed", default=0, text="Draws the folds or the share, and seeds the fits."),
    sets: float | None = _fit(
        "--sets", text="Prediction sets too, which hold the true class this often: 0.9; of all, after the leader."
    ),
    group: str | None = _fit(
        "--group", metavar="COLUMN", text="How --sets cover each group of rows, such as --group camera."
    ),
    reader: options.FileFlags = options.FILE_FLAGS,
    out: Path | None = _output("--out", text="Folder for the calibrated predictions and calibrator."),
    write: Path | None = _output(
        "--write", text=f"Calibrated probabilities for other tools ({' '.join(WRITTEN)}); of all, the leader's."
    ),
    table: options.TableFile = None,
    html: options.Html = None,
    overwrite: bool = _output(
        "--overwrite", default=False, text="Replace what an earlier --out wrote, or any file by --html."
    ),
    json: options.Json = False,
) -> None:
    """Fit a post-hoc calibrator, and show metrics before and after on predictions that it has not seen.

    A run folder is fitted on its validation split. A single file is cross-fitted: each fifth is calibrated by a fit on
    the other four, and the calibrator that is kept is fitted on all of it. [bold]--method all[/bold] ranks every
    calibrator by NLL, and shows which differences are more than chance; Ctrl-C ranks those that are done.
    """
    from calattn.cli import subjects
    from calattn.posthoc import Methods, PredictionSets, contest
    from calattn.report import contest_tables, contest_verdict
    from calattn.report.page.writing import check_page

    part.check_one_split("calibrate")
    check_output(table, TABLES, "--table")
    check_output(html, PAGES, "--html")
    if html is not None:
        check_page(html, "--html", overwrite=overwrite)
    if out is None:
        options.unused("is about --out and --html", overwrite=overwrite and html is None)
    labels = None if reader.labels is None else Path(reader.labels)
    outputs = Outputs(out=out, write=write, overwrite=overwrite)
    outputs.check([path, validation, apply, labels])
    if apply is not None:
        if out is None and write is None:
            raise ValueError(
                f"--apply needs to know where the probabilities go: --write calibrated.npz ({' '.join(WRITTEN)})"
            )
        why = "is about fitting, and --apply takes a calibrator that was fitted"
        options.unused(why, method=method, skip=skip, validation=validation, folds=folds, fraction=fraction)
        options.unused(why, sets=sets, group=group, seed=seed or None)
        nothing = "is about metrics, and --apply measures nothing"
        options.unused(nothing, **options.changed(measure), table=table, html=html)
        (subject,) = subjects.find([path], reader=reader, part=part)
        calibration_files.apply(apply, subject, outputs, json=json)
        return
    if sets is None:
        options.unused("is about prediction sets, and there is no --sets", group=group)
    if fraction is not None:
        options.unused("is of every row of PATH, and --fraction judges a part", group=group)
    wanted = Methods.of(options.each(method or ["temperature"]), options.each(skip))
    arguments = measure.arguments()  # finds an unknown metric before anything is read
    unfitted = None if sets is None else PredictionSets(sets, seed=seed)
    (subject,) = subjects.find([path], reader=reader, part=part)
    material = material_of(subject, validation, folds=folds, fraction=fraction, seed=seed)
    with progress() as bar:
        found = contest(
            material.judge,
            material.fit,
            methods=wanted,
            folds=_FOLDS if folds is None else folds,
            seed=seed,
            floor=reader.floor,
            watcher=_watcher(bar, leader_needed=write is not None and len(wanted.names) > 1),
            **arguments,
        )
    if not found.rows:
        raise _nothing_done(found, material)
    report = material.document(found)
    groups = None if group is None else subject.with_columns(groups=group)[1]["groups"]
    if unfitted is not None:
        report["sets"] = _sets(found, material, unfitted, groups)
    # Printed first, written on the way out (the last callback comes first): a full disk does not throw the numbers
    # away, and a reader who has left (`| head`) does not keep the files from being written.
    with contextlib.ExitStack() as then:
        then.callback(outputs.keep_probabilities, found.rows[0].predictions, found.rows[0].method)
        then.callback(outputs.keep_contest, found, report, unfitted)
        if table is not None:
            then.callback(write_table, contest_tables(found)[0], table, said=contest_verdict(found))
        if html is not None:
            then.callback(_write_page, html, found, material, subject, report)
        if json:
            print_json(report)
        else:
            _show(found, material)
            if unfitted is not None:
                say(report["sets"]["words"])
    if found.not_run:
        raise KeyboardInterrupt
    if any(each.failed for each in found.skipped):
        raise _failure(found)


calibrate.epilog = examples(  # type: ignore[attr-defined]
    "calattn calibrate runs/calattn",
    "calattn calibrate test.npz --validation validation.npz --method vector --out calibrated",
    "calattn calibrate test.csv --method all --skip sats",
    "calattn calibrate new.npz --apply calibrated/calibrator.safetensors --write probabilities.csv",
    "calattn calibrate forest.csv --floor 1e-6 --method all --write calibrated.csv",
)


def _sets(found: Contest, material: Material, sets: PredictionSets, groups: np.ndarray | None) -> dict[str, Any]:
    """`sets` fitted on top of the first method, and what they and those of the other scores are worth."""
    from calattn.posthoc import SCORES, sets_after
    from calattn.report.contest import sets_document

    row = found.rows[0]
    several = [sets, *(dataclasses.replace(sets, score=score) for score in SCORES if score != sets.score)]
    folds = found.folds or _FOLDS
    reports = sets_after(row, material.fit, several, folds=folds, seed=material.seed, groups=groups)
    first, *others = (sets_document(row.method, *each) for each in zip(several, reports, strict=True))
    return first | {"others": others}


def _watcher(bar: Any, *, leader_needed: bool) -> Watcher:
    """Shows the progress of a contest, refuses one without a leader where one is needed, and knows Ctrl-C in disguise."""
    from calattn.posthoc import Watcher

    task = bar.add_task("")

    class Bar(Watcher):
        def start(self, overlap: Overlap, steps: int) -> None:
            bar.update(task, total=steps)
            if leader_needed and overlap.nearly_all:
                raise ValueError(
                    "--write takes the leader's probabilities, and there is no leader where methods are judged on the samples "
                    "they were fitted on; name one --method, or fit on other samples"
                )

        def step(self, text: str) -> None:
            bar.update(task, description=text, advance=1)

        def note(self, text: str) -> None:
            note(text)

        def broke(self, error: Exception) -> None:
            reraise_if_stopped(error)

    return Bar()


def _show(found: Contest, material: Material) -> None:
    from calattn.report import contest_tables, contest_verdict, evaluation_table

    if found.single:
        row = found.rows[0]
        print_table(evaluation_table({f"before{material.floor_text}": found.before, row.method: row.evaluation}))
    else:
        for table in contest_tables(found, as_it_is=f"(as it is{material.floor_text})"):
            print_table(table)
    for line in contest_verdict(found):
        say(line)
    for line in _remarks(found, material):
        say(line, style="dim")


def _write_page(path: Path, found: Contest, material: Material, subject: PredictionSet, report: dict[str, Any]) -> None:
    """The contest as a page: every method, and in full the predictions as they are, the leader's and temperature scaling's."""
    from calattn.cli.judgement import plain
    from calattn.report.page import Exhibit, build_document, page_html, write_page
    from calattn.report.page.document import contest_entry, finite

    rows = [row for place, row in enumerate(found.rows) if place == 0 or row.method == "temperature"]
    origin = [(name, str(value)) for name, value in material.origin.items() if value is not None]
    exhibits = [Exhibit(title="as it is", predictions=material.judge, evaluation=found.before, provenance=origin)]
    exhibits += [
        Exhibit(
            title=row.method,
            predictions=row.predictions,
            evaluation=row.evaluation,
            provenance=[("method", row.method), *origin],
        )
        for row in rows
    ]
    compared = {place: row.from_before for place, row in enumerate(rows, start=1) if row.from_before is not None}
    document = build_document(exhibits, comparisons=compared, title=f"Calibration of {plain(subject.title)}")
    more = {"contest": contest_entry(report, found.before.options), "sets": finite(report.get("sets"))}
    write_page(page_html(document | more), path)
    note(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _remarks(contest: Contest, material: Material) -> Iterator[str]:
    """What was left out, what the numbers are of, and what is kept."""
    from calattn.report.contest import learned

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
        yield "without resamples (--bootstrap 0) there are no intervals"
    elif contest.best is not None and len(contest.rows) > 1:
        yield "the leader was chosen on the samples that it is judged on, so its own numbers are a little too good"
    yield from _fitting(contest, material)
    if contest.single:
        yield learned(contest.rows[0].calibrator)


def _by_reason(contest: Contest, material: Material) -> dict[str, list[str]]:
    """Reason → the methods skipped for it."""
    found: dict[str, list[str]] = {}
    for each in contest.skipped:
        found.setdefault(material.reason(each), []).append(each.method)
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


def _fitting(contest: Contest, material: Material) -> Iterator[str]:
    judged = f"{len(material.judge):,}"
    if contest.folds:
        yield (
            f"numbers are of {judged} out-of-fold predictions: {contest.folds} random folds, seed {material.seed}; "
            "each sample was calibrated by a fit that had not seen it"
        )
        yield f"the calibrator itself (--out) is one more fit, on all {judged} samples"
        return
    which = f"{judged} {'samples' if contest.overlap.shared else 'others'}"
    if contest.in_sample:
        same = contest.fitted_on == len(material.judge) == contest.overlap.shared
        which = "the same ones" if same else f"{judged}, all or nearly all of them among these"
        which += ": the numbers do not hold for new data"
    yield f"fitted on {contest.fitted_on:,} samples: {material.origin['validation']}; judged on {which}"


def _nothing_done(contest: Contest, material: Material) -> Exception:
    """The error of a contest without rows: why each method has none."""
    text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in _by_reason(contest, material).items())
    return _failure(contest, text) if any(each.failed for each in contest.skipped) else ValueError(text)


def _failure(contest: Contest, text: str = "") -> MethodFailed:
    """The error of a contest in which methods broke, after all that the others gave was shown and kept."""
    failed = [each for each in contest.skipped if each.failed]
    told = ", ".join(f"{each.method} ({type(each.error).__name__})" for each in failed)
    count = f"{len(failed)} of {len(contest.rows) + len(contest.skipped)} methods failed"
    code = max(failure_in(each).code for each in failed)  # 70, a bug of ours, above 1
    error = MethodFailed(text or f"{count}, and the results are without: {told}", code=code)
    error.__cause__ = failed[0].error  # for --debug
    return error
