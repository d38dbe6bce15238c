"""`calattn calibrate`: fit calibrators, show what they change on samples they have not seen, keep the result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import calibration_files, completion, options
from calattn.cli.calibration_files import WRITTEN, check_outputs, save_contest
from calattn.cli.console import print_json, print_table, progress, results_to
from calattn.cli.errors import examples

if TYPE_CHECKING:
    from calattn import Predictions
    from calattn.cli.contest_report import Material
    from calattn.cli.subjects import Subject
    from calattn.posthoc import Contest
    from calattn.readers.stream import Rows

_FOLDS = 5


@options.flat
def calibrate(
    path: Annotated[Path, typer.Argument(help="Predictions to calibrate: a file, predictions folder or run folder.")],
    choice: options.Choice,
    measure: options.Measure,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Of calattn list calibrators; several (a,b, or repeated) or all for a leaderboard.",
            show_default="temperature",
            autocompletion=completion.names("calattn.posthoc:CALIBRATORS", "all"),
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            help="Methods to leave out of --method all: a,b.",
            autocompletion=completion.names("calattn.posthoc:CALIBRATORS"),
        ),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option("--apply", help="Fit nothing: apply this saved calibrator to PATH, which needs no labels."),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option("--validation", help="Fit on this file; empty: a run's validation split, or PATH in folds."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option("--folds", help="Cross-fit a single file in so many parts.", show_default=str(_FOLDS)),
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option("--fraction", help="No folds: fit on this random share of a single file, judge on the rest."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Draws the folds or the share, and seeds the fits.")] = 0,
    reader: options.Reader = options.READER,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the calibrated predictions and calibrator.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            help=f"Calibrated probabilities for other tools ({' '.join(WRITTEN)}); of all, the leader's.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier --out wrote.", rich_help_panel=options.OUTPUT)
    ] = False,
    json: options.Json = False,
) -> None:
    """Fit a post-hoc calibrator, and show metrics before and after on predictions that it has not seen.

    A run folder is fitted on its validation split. A single file is cross-fitted: each fifth is calibrated by a fit on
    the other four, and the calibrator that is kept is fitted on all of it. [bold]--method all[/bold] ranks every
    calibrator by NLL, and says which differences are more than chance; Ctrl-C ranks those that are done.
    """
    from calattn.cli import contest_report
    from calattn.posthoc import Methods, contest

    check_outputs(out, write, _inputs(path, validation, apply, reader), overwrite=overwrite)
    if apply is not None:
        _refuse_with_apply(method=method, skip=skip, validation=validation, folds=folds, fraction=fraction)
        from calattn.cli import applying

        applying.apply(apply, path, choice=choice, reader=reader, out=out, write=write, overwrite=overwrite, json=json)
        return
    wanted = Methods.of(_each(method or ["temperature"]), _each(skip))
    single = len(wanted.names) == 1
    arguments = measure.arguments()  # finds an unknown metric before anything is read
    material = _material(path, validation, choice=choice, reader=reader, folds=folds, fraction=fraction, seed=seed)
    with progress() as bar:
        found = contest(
            material.judge,
            material.fit,
            methods=wanted,
            folds=_FOLDS if folds is None else folds,
            seed=seed,
            floor=reader.floor,
            watcher=contest_report.Bar(bar, leader_needed=write is not None and not single),
            **arguments,
        )
    if not found.rows:
        raise contest_report.nothing_done(found, material)
    report = contest_report.document(found, material)
    # Printed first, written on the way out (the last callback comes first): a full disk does not throw the numbers
    # away, and a reader who has left (`| head`) does not keep the files from being written.
    with contextlib.ExitStack() as then:
        if write is not None:
            then.callback(calibration_files.write, write, found.rows[0].predictions, found.rows[0].method)
        if out is not None:
            then.callback(save_contest, out, found, report, overwrite=overwrite, single=single, write=write)
        if json:
            print_json(report)
        else:
            _show(found, material, single=single)
    if found.not_run:
        raise KeyboardInterrupt
    if any(each.failed for each in found.skipped):
        raise contest_report.failure(found)


calibrate.epilog = examples(  # type: ignore[attr-defined]
    "calattn calibrate runs/calattn --method temperature_nll",
    "calattn calibrate test.npz --validation validation.npz --method vector --out calibrated",
    "calattn calibrate test.csv --method all --skip sats",
    "calattn calibrate new.npz --apply calibrated/calibrator.safetensors --write probabilities.csv",
    "calattn calibrate forest.csv --floor 1e-6 --method all --write calibrated.csv",
)


def _each(texts: list[str] | None) -> list[str]:
    return [name for text in texts or () for name in options.listed(text) or ()]


def _material(
    path: Path,
    validation: Path | None,
    *,
    choice: options.Choice,
    reader: options.Reader,
    folds: int | None,
    fraction: float | None,
    seed: int,
) -> Material:
    """What to fit on, what to judge on, and where the two come from."""
    from calattn.cli import subjects
    from calattn.cli.contest_report import Material

    found = subjects.find([path], reader=reader, choice=choice)
    if len(found) > 1:
        raise ValueError("--split names several splits; calibrate takes one at a time")
    subject = found[0]
    origin = subject.described() | {"training": _training(subject) if validation is None else None}
    del origin["temperature"]
    if validation is not None or subject.run is not None:
        _refuse_partition(folds, fraction, validation)
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
        origin |= {"validation": f"a random {100 * fraction:g} % of {path} (seed {seed})"}
    else:
        fit = None
        judge, judge_rows = subject.with_rows()
        fit_rows = judge_rows
        origin |= {"validation": None}
    return Material(
        fit=fit,
        fit_rows=fit_rows,
        judge=judge,
        judge_rows=judge_rows,
        seed=seed,
        floor=reader.floor,
        origin=origin,
    )


def _training(subject: Subject) -> dict[str, Any] | None:
    """What the report keeps of the run that the predictions are of; None where there is none, or no spec that can be read."""
    try:
        return None if subject.run is None else subject.training()._asdict()
    except (OSError, ValueError):
        return None


def _refuse_partition(folds: int | None, fraction: float | None, validation: Path | None) -> None:
    """Flags that would do nothing are somebody's misunderstanding."""
    for flag, value in (("--folds", folds), ("--fraction", fraction)):
        if value is not None:
            why = "with --validation there is" if validation is not None else "a run folder has"
            raise ValueError(f"{flag} parts a single file, and {why} something to fit on already; leave {flag} out")


def _refuse_with_apply(**flags: object) -> None:
    for name, value in flags.items():
        if value is not None:
            raise ValueError(
                f"--{name} is about fitting, and --apply takes a calibrator that was fitted; leave --{name} out"
            )


def _halves(subject: Subject, folds: int | None, fraction: float, seed: int) -> Iterator[tuple[Predictions, Rows]]:
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


def _show(found: Contest, material: Material, *, single: bool) -> None:
    from calattn.cli.contest_report import remarks
    from calattn.report import contest_tables, evaluation_table
    from calattn.report.ranking import contest_verdict

    console = results_to()
    if single:
        row = found.rows[0]
        print_table(evaluation_table({f"before{material.floor_text}": found.before, row.method: row.evaluation}))
    else:
        for table in contest_tables(found, as_it_is=f"(as it is{material.floor_text})"):
            print_table(table)
    for line in contest_verdict(found):
        console.print(line, markup=False, soft_wrap=True)
    for line in remarks(found, material, single=single):
        console.print(line, style="dim", markup=False, soft_wrap=True)


def _inputs(path: Path, validation: Path | None, apply: Path | None, reader: options.Reader) -> list[Path]:
    """The files and folders that are read; results may not replace them."""
    labels = None if reader.labels is None else Path(reader.labels)
    return [each for each in (path, validation, apply, labels) if each is not None and each.exists()]
