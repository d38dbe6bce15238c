"""`calattn calibrate`: fit calibrators, show what they change on samples they have not seen, keep the result."""

from __future__ import annotations

import contextlib
import json as json_format
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import json_text, note, print_json, results_to
from calattn.cli.errors import examples
from calattn.cli.evaluate import check_output

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from calattn import Predictions
    from calattn.cli.contest import Contest, Entry, Material
    from calattn.cli.subjects import Subject

_BRIEF = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece"]
_FOLDS = 5
_REPORT, _EARLIER_REPORT = "report.json", "calibration.json"
_CELL = 17  # characters that a number with its interval takes in a table
_WRITTEN = (".npz", ".csv", ".parquet")


@options.flat
def calibrate(
    path: Annotated[Path, typer.Argument(help="Predictions to calibrate: a file, predictions folder or run folder.")],
    choice: options.Choice,
    measure: options.Measure,
    method: Annotated[
        str, typer.Option("--method", help="One of calattn list calibrators, or all for a leaderboard.")
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

    A run folder is fitted on its validation split. A single file is cross-fitted: each fifth is calibrated by a fit on the
    other four, and the calibrator that is kept is fitted on all of it. [bold]--method all[/bold] ranks every calibrator
    by NLL, and says which differences are more than chance.
    """
    from calattn.cli import contest
    from calattn.posthoc import CALIBRATORS

    methods = list(CALIBRATORS) if method == "all" else [method]
    CALIBRATORS[methods[0]]
    check_output(write, _WRITTEN, "--write")
    if out is not None:
        _check_folder(out, overwrite)
    metrics = _metrics(measure, brief=method == "all")
    material = _material(path, validation, choice=choice, reader=reader, folds=folds, fraction=fraction, seed=seed)
    found = contest.held(methods, material, lambda: measure.arguments() | {"metrics": metrics})
    if found.leader is None:
        raise ValueError("; ".join(f"{', '.join(names)}: {reason}" for reason, names in _reasons(found).items()))
    report = contest.document(found, material)
    if out is not None:
        _save(out, found, report, overwrite=overwrite, single=method != "all")
    if write is not None:
        _write(write, found.leader)
    if json:
        print_json(report)
    else:
        _show(found, material, single=method != "all")


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
    from calattn.cli.contest import Material

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
    fold_of = _folds_of(whole, _FOLDS if folds is None else folds, seed)
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


def _folds_of(whole: Predictions, folds: int, seed: int) -> Tensor:
    from calattn.posthoc import stratified_folds

    if not 2 <= folds <= len(whole):
        raise ValueError(
            f"--folds must be between 2 and {len(whole)}, the number of samples, got {folds}; "
            "each sample needs a fit on others"
        )
    return stratified_folds(whole.labels, folds=folds, seed=seed)


def _reasons(found: Contest) -> dict[str, list[str]]:
    """Reason → the methods skipped for it."""
    reasons: dict[str, list[str]] = {}
    for name, reason in found.skipped.items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def _show(found: Contest, material: Material, *, single: bool) -> None:
    from calattn.cli.contest import verdict_lines
    from calattn.report import evaluation_table

    console = results_to()
    if single:
        console.print(evaluation_table({"before": found.before, found.entries[0].method: found.entries[0].evaluation}))
    else:
        for table in _boards(found, console.width):
            console.print(table)
    for line in verdict_lines(found):
        console.print(line, markup=False, soft_wrap=True)
    for line in _remarks(found, material, single=single):
        console.print(line, style="dim", markup=False, soft_wrap=True)


def _boards(found: Contest, width: int) -> Iterator[Table]:
    """The leaderboard, in several tables where the terminal is too narrow for one, and the table of differences."""
    from calattn.report import leaderboard
    from calattn.report.ranking import ranking_table

    entries = found.entries
    evaluations = {"(as it is)": found.before} | {each.method: each.evaluation for each in entries}
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


def _remarks(found: Contest, material: Material, *, single: bool) -> Iterator[str]:
    """What was left out, what the numbers are of, and what is kept."""
    for reason, names in _reasons(found).items():
        yield f"skipped {', '.join(names)}: {reason}"
    infinite = [each.method for each in found.entries if each.evaluation["nll"].value == float("inf")]
    if infinite and not material.floor:
        yield f"NLL is infinite where a label has the probability 0 ({', '.join(infinite)}); --floor 1e-6 forbids that"
    if not found.before.num_bootstrap:
        yield "without resamples (--bootstrap 0) nothing is said about chance"
    elif not single and len(found.entries) > 1:
        yield "the leader was chosen on the samples that it is judged on, so its own numbers are a little too good"
    yield from _fitting(material)
    if single:
        yield f"{found.entries[0].calibrator}"


def _fitting(material: Material) -> Iterator[str]:
    if material.folds is None:
        where = material.origin["validation"]
        yield f"fitted on {len(material.fit):,} samples: {where}; judged on {len(material.judge):,} others"
        return
    folds, n = material.num_folds, f"{len(material.judge):,}"
    yield (
        f"numbers are of {n} out-of-fold predictions: {folds} folds, stratified by label, seed {material.seed}; "
        "each sample was calibrated by a fit that had not seen it"
    )
    yield f"the calibrator itself (--out) is one more fit, on all {n} samples"


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse early what could not be written in the end."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not _is_ours(folder):
        raise ValueError(f"--out {folder} holds other things; choose a folder of its own")
    if not overwrite:
        raise FileExistsError(f"{folder} already holds a calibration; pass --overwrite to replace it")


def _is_ours(folder: Path) -> bool:
    """Whether an earlier --out wrote the folder: others write a report.json too, so its content has to say so."""
    if (folder / _EARLIER_REPORT).is_file():
        return True
    try:
        found = json_format.loads((folder / _REPORT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not there; not JSON, or not text at all
        return False
    return isinstance(found, dict) and found.get("command") == "calibrate"


def _save(out: Path, found: Contest, report: dict[str, Any], *, overwrite: bool, single: bool) -> None:
    """`out`/predictions, calibrator.safetensors and report.json; for several methods, a folder each."""
    from calattn.store import save_predictions

    with atomic_folder(out) as partial:
        for entry in found.entries:
            place = partial if single else partial / entry.method
            save_predictions(entry.predictions, place / "predictions")
            entry.calibrator.save(place / "calibrator.safetensors")
        (partial / _REPORT).write_text(json_text(report), encoding="utf-8")
        _check_folder(out, overwrite)  # again: somebody may have been quicker
    leader = found.entries[0].method
    what = "predictions, calibrator.safetensors" if single else f"a folder a method (the leader's is {leader})"
    note(f"wrote {out}: {what}, {_REPORT}")


def _write(path: Path, entry: Entry) -> None:
    """Calibrated probabilities with their labels, in names that every reader here knows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from calattn.atomic import atomic_write

    found = entry.predictions
    names = found.class_names or tuple(str(k) for k in range(found.num_classes))
    probs, labels = found.probs.cpu().numpy(), found.labels.cpu().numpy()
    index: dict[str, Any] = {} if found.indices is None else {"index": found.indices.cpu().numpy()}
    with atomic_write(path) as partial:
        if path.suffix == ".npz":
            np.savez(partial, probs=probs, labels=labels, class_names=np.array(names), **index)
        else:
            # The label in the words of the column names: an index beside p_1, p_2, p_3 could be read in two ways.
            own = labels if found.class_names is None else np.array(names)[labels]
            table = pa.table({**index, "label": own} | {f"p_{name}": probs[:, k] for k, name in enumerate(names)})
            (pa.parquet.write_table if path.suffix == ".parquet" else pa.csv.write_csv)(table, partial)
    note(f"wrote {path}: probabilities by {entry.method}")


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
