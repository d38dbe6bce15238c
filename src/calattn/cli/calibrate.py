"""`calattn calibrate`: fit a calibrator on held-out predictions, show what it changes, keep the result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import errors_to, json_text, note, print_json, results_to
from calattn.cli.errors import as_flags, examples

if TYPE_CHECKING:
    from calattn import Evaluation, Predictions
    from calattn.posthoc import Calibrator

_BRIEF = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "smooth_ece"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """A method's calibrator, its calibrated predictions and what they measure; or why there is none."""

    method: str
    seconds: float
    calibrator: Calibrator | None = None
    predictions: Predictions | None = None
    evaluation: Evaluation | None = None
    skipped: str | None = None


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
        typer.Option(
            "--validation", help="Fit on this file; empty: a run's validation split, or a random part of PATH."
        ),
    ] = None,
    fraction: Annotated[
        float, typer.Option("--fraction", help="Share of PATH to fit on where there is no validation file.")
    ] = 0.5,
    seed: Annotated[int, typer.Option("--seed", help="Draws that share, and seeds the fits.")] = 0,
    reader: options.Reader = options.READER,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the calibrated predictions and calibrator.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier --out wrote.", rich_help_panel=options.OUTPUT)
    ] = False,
    json: options.Json = False,
) -> None:
    """Fit a post-hoc calibrator, and show metrics before and after on predictions that it has not seen.

    A run folder is fitted on its validation split; a single file on a random half, and judged on the other.
    [bold]--method all[/bold] ranks every calibrator that fits these predictions by NLL.
    """
    import calattn
    from calattn.posthoc import CALIBRATORS

    methods = list(CALIBRATORS) if method == "all" else [method]
    CALIBRATORS[methods[0]]
    if out is not None:
        _check_folder(out, overwrite)
    arguments = measure.arguments()
    arguments["metrics"] = arguments["metrics"] or (_BRIEF if method == "all" else None)
    held_out, test, origin = _parts(path, validation, choice=choice, reader=reader, fraction=fraction, seed=seed)
    before = calattn.evaluate(test, **arguments)
    fits = []
    for name in methods:
        with errors_to().status(f"fitting {name}"):
            fits.append(_fit(name, held_out, test, measure.arguments() | {"metrics": arguments["metrics"]}, seed))
    if method != "all" and (reason := fits[0].skipped):
        raise ValueError(reason)
    fits = sorted(fits, key=_nll)
    report = document(before, fits, origin=origin | {"fitted_on": len(held_out), "seed": seed})
    if out is not None:
        _save(out, fits, report, overwrite=overwrite, single=method != "all")
    if json:
        print_json(report)
    else:
        _show(before, fits, origin["validation"], single=method != "all")


calibrate.epilog = examples(  # type: ignore[attr-defined]
    "calattn calibrate runs/calattn --method temperature_nll",
    "calattn calibrate test.npz --validation validation.npz --method vector --out calibrated",
    "calattn calibrate test.npz --method all",
)


def _parts(
    path: Path, validation: Path | None, *, choice: options.Choice, reader: options.Reader, fraction: float, seed: int
) -> tuple[Predictions, Predictions, dict[str, Any]]:
    """What to fit on, what to judge on, and where the two come from."""
    import torch

    from calattn.cli import subjects

    found = subjects.find([path], reader=reader, choice=choice)
    if len(found) > 1:
        raise ValueError("--split names several splits; calibrate takes one at a time")
    subject = found[0]
    origin = subject.described()
    del origin["temperature"]
    if validation is None and subject.run is None:
        if not 0 < fraction < 1:
            raise ValueError(f"--fraction must be between 0 and 1, got {fraction:g}")
        first, second = subject.predictions().shuffle_split(fraction, torch.Generator().manual_seed(seed))
        share = f"a random {100 * fraction:g} % of {path} (seed {seed}); judged on the rest"
        return first, second, origin | {"validation": share}
    if validation is None:
        fitted_on = subject.validation()
    else:
        fitted_on = subjects.find([validation], reader=reader, choice=options.Choice(split=["validation"]))[0]
    held_out, test = fitted_on.predictions(), subject.predictions()
    if held_out.num_classes != test.num_classes:
        raise ValueError(
            f"{fitted_on.path} has {held_out.num_classes} classes and {subject.path} has {test.num_classes}; "
            "give validation predictions of the same model"
        )
    return held_out, test, origin | {"validation": str(fitted_on.path)}


def _fit(name: str, held_out: Predictions, test: Predictions, arguments: dict[str, Any], seed: int) -> Fitted:
    import inspect

    import torch

    import calattn
    from calattn.posthoc import CALIBRATORS

    start = time.perf_counter()
    factory = CALIBRATORS[name]
    seeded = "generator" in inspect.signature(factory).parameters
    try:
        calibrator = factory(**({"generator": torch.Generator().manual_seed(seed)} if seeded else {})).fit(held_out)
        calibrated = calibrator(test)
    except ValueError as error:  # features that are not there, zero probabilities that cannot be mixed
        return Fitted(method=name, seconds=time.perf_counter() - start, skipped=as_flags(f"{name}: {error}"))
    seconds = time.perf_counter() - start
    evaluation = calattn.evaluate(calibrated, **arguments)
    return Fitted(method=name, seconds=seconds, calibrator=calibrator, predictions=calibrated, evaluation=evaluation)


def _nll(fit: Fitted) -> float:
    """Best first; what was not measured last."""
    if fit.evaluation is None:
        return float("inf")
    return fit.evaluation.rows["nll"].value if "nll" in fit.evaluation.rows else 0.0


def _show(before: Evaluation, fits: list[Fitted], validation: str, *, single: bool) -> None:
    from calattn.report import evaluation_table, leaderboard

    console = results_to()
    done = {fit.method: fit.evaluation for fit in fits if fit.evaluation is not None}
    if single:
        console.print(evaluation_table({"before": before} | done))
        console.print(f"{fits[0].calibrator}", markup=False, soft_wrap=True)
    else:
        console.print(leaderboard({"(as it is)": before} | done))
        for fit in fits:
            if fit.skipped:
                console.print(f"skipped {fit.skipped}", style="dim", markup=False, soft_wrap=True)
    console.print(f"fitted on {validation}", style="dim", markup=False, soft_wrap=True)


def document(before: Evaluation, fits: list[Fitted], *, origin: dict[str, Any]) -> dict[str, Any]:
    """The stable JSON form (schema 1)."""
    return {
        "schema": 1,
        "command": "calibrate",
        **origin,
        "samples": before.num_samples,
        "level": before.level,
        "before": before.as_dict(),
        "methods": [
            {"method": fit.method, "after": fit.evaluation.as_dict(), "seconds": fit.seconds}
            | {"learned": _learned(fit.calibrator)}
            for fit in fits
            if fit.evaluation is not None
        ],
        "skipped": [{"method": fit.method, "reason": fit.skipped} for fit in fits if fit.skipped],
    }


def _learned(calibrator: Calibrator | None) -> dict[str, Any]:
    """The learned numbers; tensors are in the calibrator's file."""
    assert calibrator is not None
    values = {name: getattr(calibrator, name) for name in calibrator.learned_names()}
    return {name: value for name, value in values.items() if isinstance(value, float | int | str)}


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse early what could not be written in the end."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / _REPORT).is_file():
        raise ValueError(f"--out {folder} holds other things; choose a folder of its own")
    if not overwrite:
        raise FileExistsError(f"{folder} already holds a calibration; pass --overwrite to replace it")


_REPORT = "calibration.json"


def _save(out: Path, fits: list[Fitted], report: dict[str, Any], *, overwrite: bool, single: bool) -> None:
    """`out`/predictions, calibrator.safetensors and calibration.json; for several methods, a folder each."""
    from calattn.store import save_predictions

    with atomic_folder(out) as partial:
        for fit in fits:
            if fit.calibrator is None or fit.predictions is None:
                continue
            place = partial if single else partial / fit.method
            save_predictions(fit.predictions, place / "predictions")
            fit.calibrator.save(place / "calibrator.safetensors")
        (partial / _REPORT).write_text(json_text(report), encoding="utf-8")
        _check_folder(out, overwrite)  # again: somebody may have been quicker
    note(f"wrote {out}: " + ("predictions, calibrator.safetensors" if single else "a folder a method") + f", {_REPORT}")


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
