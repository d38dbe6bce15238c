"""`calattn calibrate`: fit calibrators, show what they change on samples they have not seen, keep the result."""

from __future__ import annotations

import contextlib
import json as json_format
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import completion, options
from calattn.cli.console import json_text, note, print_json, results_to
from calattn.cli.errors import examples
from calattn.cli.evaluate import check_output

if TYPE_CHECKING:
    from rich.table import Table

    from calattn import Predictions
    from calattn.cli.contest import Contest, Entry, Material
    from calattn.cli.subjects import Subject

_BRIEF = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece"]
_FOLDS = 5
_PREDICTIONS, _CALIBRATOR, _REPORT = "predictions", "calibrator.safetensors", "report.json"
_REPORTS = (_REPORT, "calibration.json")  # the latter is an earlier version's
_CELL = 17  # characters that a number with its interval takes in a table
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # line breaks, control characters, half letters
_WRITTEN = (".npz", ".csv", ".parquet")


@options.flat
def calibrate(
    path: Annotated[Path, typer.Argument(help="Predictions to calibrate: a file, predictions folder or run folder.")],
    choice: options.Choice,
    measure: options.Measure,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="One of calattn list calibrators, or all for a leaderboard.",
            autocompletion=completion.names("calattn.posthoc:CALIBRATORS", "all"),
        ),
    ] = "temperature",
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
            help=f"Calibrated probabilities for other tools ({' '.join(_WRITTEN)}); of all, the leader's.",
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
    calibrator by NLL, and says which differences are more than chance.
    """
    from calattn.cli import contest
    from calattn.posthoc import CALIBRATORS

    methods = list(CALIBRATORS) if method == "all" else [method]
    CALIBRATORS[methods[0]]
    _check_outputs(out, write, _inputs(path, validation, reader), overwrite=overwrite)
    metrics = _metrics(measure, brief=method == "all")
    material = _material(path, validation, choice=choice, reader=reader, folds=folds, fraction=fraction, seed=seed)
    found = contest.held(methods, material, lambda: measure.arguments() | {"metrics": metrics})
    if found.leader is None:
        raise ValueError("; ".join(f"{', '.join(names)}: {reason}" for reason, names in contest.reasons(found).items()))
    report = contest.document(found, material)
    single = method != "all"
    # Printed first, written on the way out (the last callback comes first): a full disk does not throw the numbers
    # away, and a reader who has left (`| head`) does not keep the files from being written.
    with contextlib.ExitStack() as then:
        if write is not None:
            then.callback(_write, write, found.leader)
        if out is not None:
            then.callback(_save, out, found, report, overwrite=overwrite, single=single, write=write)
        if json:
            print_json(report)
        else:
            _show(found, material, single=single)


calibrate.epilog = examples(  # type: ignore[attr-defined]
    "calattn calibrate runs/calattn --method temperature_nll",
    "calattn calibrate test.npz --validation validation.npz --method vector --out calibrated",
    "calattn calibrate test.csv --method all",
    "calattn calibrate forest.csv --floor 1e-6 --method all --write calibrated.csv",
)


def _metrics(measure: options.Measure, *, brief: bool) -> list[str] | None:
    """What is shown; NLL always, because methods are ranked by it."""
    asked: list[str] | None = measure.arguments()["metrics"]
    if asked is None:
        return _BRIEF if brief else None
    return asked if "nll" in asked else [*asked, "nll"]


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
    from calattn.cli.contest import Material, folds_of

    found = subjects.find([path], reader=reader, choice=choice)
    if len(found) > 1:
        raise ValueError("--split names several splits; calibrate takes one at a time")
    subject = found[0]
    origin = subject.described()
    del origin["temperature"]
    common: dict[str, Any] = {"seed": seed, "floor": reader.floor}
    if validation is not None or subject.run is not None:
        _refuse_partition(folds, fraction, validation)
        fitted_on = _validation_of(subject, validation, reader)
        fit, judge = fitted_on.predictions(), subject.predictions()
        if fit.num_classes != judge.num_classes:
            raise ValueError(
                f"{fitted_on.path} has {fit.num_classes} classes and {subject.path} has {judge.num_classes}; "
                "give validation predictions of the same model"
            )
        return Material(fit=fit, judge=judge, folds=None, origin=origin | {"validation": str(fitted_on.path)}, **common)
    if fraction is not None:
        fit, judge = _halves(subject, folds, fraction, seed)
        share = f"a random {100 * fraction:g} % of {path} (seed {seed})"
        return Material(fit=fit, judge=judge, folds=None, origin=origin | {"validation": share}, **common)
    whole = subject.predictions()
    fold_of = folds_of(whole, _FOLDS if folds is None else folds, seed)
    return Material(fit=whole, judge=whole, folds=fold_of, origin=origin | {"validation": None}, **common)


def _validation_of(subject: Subject, validation: Path | None, reader: options.Reader) -> Subject:
    from calattn.cli import subjects

    if validation is None:
        return subject.validation()
    return subjects.find([validation], reader=reader, choice=options.Choice(split=["validation"]))[0]


def _refuse_partition(folds: int | None, fraction: float | None, validation: Path | None) -> None:
    """Flags that would do nothing are somebody's misunderstanding."""
    for flag, value in (("--folds", folds), ("--fraction", fraction)):
        if value is not None:
            why = "with --validation there is" if validation is not None else "a run folder has"
            raise ValueError(f"{flag} parts a single file, and {why} something to fit on already; leave {flag} out")


def _halves(subject: Subject, folds: int | None, fraction: float, seed: int) -> tuple[Predictions, Predictions]:
    import torch

    if folds is not None:
        raise ValueError("--folds and --fraction exclude each other: many parts that change roles, or two that do not")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction:g}")
    whole = subject.predictions()
    if whole.indices is None:  # which rows of the file the shuffled part holds
        whole = whole.replace(indices=torch.arange(len(whole)))
    return whole.shuffle_split(fraction, torch.Generator().manual_seed(seed))


def _show(found: Contest, material: Material, *, single: bool) -> None:
    from calattn.cli.contest import remarks, verdict_lines
    from calattn.report import evaluation_table

    console = results_to()
    if single:
        entry = found.entries[0]
        console.print(evaluation_table({f"before{material.floor_text}": found.before, entry.method: entry.evaluation}))
    else:
        for table in _boards(found, console.width, as_it_is=f"(as it is{material.floor_text})"):
            console.print(table)
    for line in verdict_lines(found):
        console.print(line, markup=False, soft_wrap=True)
    for line in remarks(found, material, single=single):
        console.print(line, style="dim", markup=False, soft_wrap=True)


def _boards(found: Contest, width: int, *, as_it_is: str) -> Iterator[Table]:
    """The leaderboard, in several tables where the terminal is too narrow for one, and the table of differences."""
    from calattn.report import leaderboard
    from calattn.report.ranking import ranking_table

    entries = found.entries
    evaluations = {as_it_is: found.before} | {each.method: each.evaluation for each in entries}
    metrics = list(found.before.rows)
    names = max(map(len, evaluations)) + 4
    tables = -(-len(metrics) // max(1, (width - names) // _CELL))
    size = -(-len(metrics) // tables)
    for start in range(0, len(metrics), size):
        yield leaderboard(evaluations, metrics=metrics[start : start + size])
    from_before = {each.method: each.from_before for each in entries if each.from_before is not None}
    from_leader = {each.method: each.from_leader for each in entries if each.from_leader is not None}
    if from_before:
        seconds = {each.method: each.seconds for each in entries}
        yield ranking_table(from_before, from_leader, seconds=seconds, level=found.before.level)


def _inputs(path: Path, validation: Path | None, reader: options.Reader) -> list[Path]:
    """The files and folders that are read; results may not replace them."""
    labels = None if reader.labels is None else Path(reader.labels)
    return [each for each in (path, validation, labels) if each is not None and each.exists()]


def _check_outputs(out: Path | None, write: Path | None, inputs: list[Path], *, overwrite: bool) -> None:
    """Refuse early what could not be written in the end, and what would replace an input."""
    check_output(write, _WRITTEN, "--write")
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    if out is not None and write is not None and out.resolve() == write.resolve():
        raise ValueError(f"--out and --write are both {out}; --out is a folder and --write a file, name two")
    for each in inputs:
        if write is not None and write.exists() and write.samefile(each):
            raise ValueError(f"--write {write} is the input {each}, which it would replace; name another file")
        if out is not None and each.resolve().is_relative_to(out.resolve()):
            raise ValueError(f"--out {out} holds the input {each}, which it would replace; name another folder")
    if out is not None:
        _check_folder(out, overwrite, write)


def _check_folder(folder: Path, overwrite: bool, write: Path | None) -> None:
    """Only a folder that holds an earlier result and nothing else is replaced; the file of --write is to be, anyway."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not any(_is_report(folder / name) for name in _REPORTS):
        raise ValueError(f"--out {folder} holds other things; choose a folder of its own")
    spared = None if write is None else write.resolve()
    other = next((each for each in _strangers(folder) if each.resolve() != spared), None)
    if other is not None:
        raise ValueError(
            f"--out {folder} holds other things beside a calibration: {other.relative_to(folder)}; "
            "move it, or choose a folder of its own"
        )
    if not overwrite:
        raise FileExistsError(f"{folder} already holds a calibration; pass --overwrite to replace it")


def _strangers(folder: Path) -> Iterator[Path]:
    """What is in an earlier --out, or in a method's folder there, that it did not write."""
    from calattn.posthoc import CALIBRATORS

    for place in sorted(folder.iterdir()):
        is_folder = place.is_dir() and not place.is_symlink()
        if is_folder and place.name == _PREDICTIONS:
            yield from _not_of_predictions(place)
        elif is_folder and place.name in CALIBRATORS:
            yield from _strangers(place)
        elif is_folder or not (place.name == _CALIBRATOR or (place.name in _REPORTS and _is_report(place))):
            yield place


def _not_of_predictions(folder: Path) -> Iterator[Path]:
    from calattn.store import MANIFEST, PredictionFileError, read_manifest

    try:
        files = read_manifest(folder)["files"].values()
    except PredictionFileError:  # none, another program's, or damaged: not for us to say what the files are
        yield folder
        return
    names = {MANIFEST} | {file["name"] for file in files}
    yield from (place for place in sorted(folder.iterdir()) if place.name not in names)


def _is_report(path: Path) -> bool:
    """Whether an earlier --out wrote the file: others write a report.json too, so its content has to say so."""
    try:
        found = json_format.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError):  # not there; not JSON, or not text at all
        return False
    return isinstance(found, dict) and found.get("command") == "calibrate"


def _save(
    out: Path, found: Contest, report: dict[str, Any], *, overwrite: bool, single: bool, write: Path | None
) -> None:
    """`out`/predictions, calibrator.safetensors and report.json; for several methods, a folder each."""
    from safetensors import SafetensorError

    from calattn.store import save_predictions

    with atomic_folder(out) as partial:
        for entry in found.entries:
            place = partial if single else partial / entry.method
            save_predictions(entry.predictions, place / _PREDICTIONS)
            try:
                entry.calibrator.save(place / _CALIBRATOR)
            except SafetensorError as error:  # of a full disk; it is no OSError
                raise OSError(f"cannot write {out}: {error}; free some space, or write elsewhere") from error
        (partial / _REPORT).write_text(json_text(report), encoding="utf-8")
        _check_folder(out, overwrite, write)  # again: somebody may have been quicker
    leader = found.entries[0].method
    what = f"{_PREDICTIONS}, {_CALIBRATOR}" if single else f"a folder a method (the leader's is {leader})"
    note(f"wrote {out}: {what}, {_REPORT}")


def _write(path: Path, entry: Entry) -> None:
    """Calibrated probabilities with their labels, in names that every reader here knows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from calattn.atomic import atomic_write

    found = entry.predictions
    numbers = tuple(str(k) for k in range(found.num_classes))
    names = found.class_names or numbers
    probs, labels = found.probs.cpu().numpy(), found.labels.cpu().numpy()
    index: dict[str, Any] = {} if found.indices is None else {"index": found.indices.cpu().numpy()}
    with atomic_write(path) as partial:
        if path.suffix == ".npz":
            np.savez(partial, probs=probs, labels=labels, class_names=np.array(names), **index)
        else:
            if names != numbers and (why := _unfit(names)):
                note(f"{why}: the columns of {path} are p_0, p_1, … in class order, and labels are counted from 0")
                names = numbers
            # The label in the words of the column names, so that no reader has to count classes.
            own = labels if names == numbers else np.array(names)[labels]
            table = pa.table({**index, "label": own} | {f"p_{name}": probs[:, k] for k, name in enumerate(names)})
            (pa.parquet.write_table if path.suffix == ".parquet" else pa.csv.write_csv)(table, partial)
    note(f"wrote {path}: probabilities by {entry.method}")


def _unfit(names: tuple[str, ...]) -> str:
    """Why class names cannot name columns, and labels, that any reader takes back; empty if they can."""
    import pyarrow.csv as pa_csv

    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return f"several classes are named {twice!r}"
    missing = pa_csv.ConvertOptions().null_values  # NA, null, nan, …: a label of that name would read as none
    for name in names:
        if not name.strip() or name in missing or _NO_TEXT.search(name):
            return f"the class name {name!r} is no plain text"
        with contextlib.suppress(ValueError):
            float(name)
            return f"the class name {name!r} is a number, which readers take for a position"
    return ""


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its name when the block ends without an error."""
    target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".part-{secrets.token_hex(6)}"
    old = target.parent / f".part-old-{secrets.token_hex(6)}"
    partial.mkdir()
    try:
        yield partial
        if target.exists():
            target.rename(old)
        partial.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)  # the second rename failed: what was there comes back
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)
