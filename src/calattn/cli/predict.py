"""`calattn predict`."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import note, only_helps, print_json, progress, results_to
from calattn.cli.errors import examples
from calattn.rules import RULES

_images = functools.partial(options.option, options.IMAGES)


@options.flat
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A trained run's folder; for PATHS also a saved model's.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATHS]...", help="New images: files, folders, patterns; they need no labels."),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        _images(
            "--checkpoint", text=f"{', '.join(RULES)}; may be repeated. Default: last.", complete=options.RULE_NAMES
        ),
    ] = None,
    data: Annotated[
        str | None,
        _images(
            "--data",
            text="Another data set (svhn, imagefolder:PATH, parquet:PATH, …); default: the run's own.",
            complete=options.DATASETS,
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        _images("--split", text="May be repeated. Default: validation and test; of another data set, its last (test)."),
    ] = None,
    ood: Annotated[
        bool,
        _images("--ood", text="With --data: other classes than the run's. Predictions then have no labels."),
    ] = False,
    corrupt: Annotated[
        list[str] | None,
        _images(
            "--corrupt",
            text="The run's test images under a corruption of CIFAR-10-C, such as fog-5, or under all fifteen, all-5. "
            "May be repeated.",
        ),
    ] = None,
    calibrator: Annotated[
        Path | None,
        _images("--calibrator", text="With PATHS: what `calattn calibrate --out` wrote, to go behind the head."),
    ] = None,
    write: Annotated[
        Path | None,
        options.option(
            options.OUTPUT, "--write", text="With PATHS: a file, .csv, .parquet or .json; default: print them."
        ),
    ] = None,
    top: Annotated[
        int, options.option(options.OUTPUT, "--top", text="With PATHS: how many classes of each image.", least=1)
    ] = 5,
    features: Annotated[
        bool,
        options.option(
            options.OUTPUT,
            "--features",
            text="Keep the features beside the logits, as some calibrators need (and wherever they are kept already).",
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        options.option(
            options.WHERE, "--batch-size", text="Images per batch; default: the spec's evaluation.batch_size.", least=1
        ),
    ] = None,
    where: options.Devices = options.DEVICES,
    json: options.Json = False,
) -> None:
    """Predict new images; or write a run's predictions into its folder, for evaluate, compare and calibrate.

    With PATHS, each image gets its likeliest classes with their calibrated
    probabilities, and its temperature. Files that cannot be read are named
    and left out, and the exit code is then 1.

    Without PATHS, predictions lie in predictions/SPLIT, or SPLIT.CHECKPOINT for the best-… ones; of
    another data set in predictions/DATA-SPLIT, of corrupted test images in
    predictions/test-CORRUPTION. Another data set's images are normalised and
    resized as the run's own, and its classes matched with the run's by name.
    """
    if paths:
        beside = {"--data": data, "--split": split, "--ood": ood, "--corrupt": corrupt, "--features": features}
        for flag, value in beside.items():
            if value:
                raise ValueError(f"{flag} is about data sets; leave it out, or leave out the paths of new images")
        if checkpoint is not None and len(checkpoint) > 1:
            raise ValueError("--checkpoint: name one for new images")
        device = "cuda" if where.runtime().uses_gpu else "cpu"
        model = _classifier(run, (checkpoint or ["last"])[0], calibrator, device)
        _predict_new(model, paths, write=write, top=top, batch_size=batch_size or 64, as_json=json)
        return
    if write is not None or calibrator is not None:
        raise ValueError("--write and --calibrator are for new images; name some: calattn predict RUN PATHS…")
    from calattn.runs.predict import PredictOptions, predict_folder

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    runtime = where.runtime()
    with progress(quiet=json) as bar:
        task = bar.add_task("predicting", total=None)
        wanted = PredictOptions(
            rules=checkpoint or ["last"],
            data=data,
            splits=split or (),
            ood=ood,
            corruptions=corrupt or (),
            features=features,
            batch_size=batch_size,
        )
        written = predict_folder(run, wanted, runtime=runtime, on_batch=lambda count: bar.advance(task, count))
    if only_helps(runtime.num_devices):
        return
    if json:
        print_json({"schema": 1, "command": "predict", "run": str(run), "written": [str(path) for path in written]})
        return
    for path in written:
        results_to().print(str(path), markup=False, soft_wrap=True)


def _classifier(run: str, checkpoint: str, calibrator: Path | None, device: str) -> Any:
    from calattn.runs.load import load

    return load(run, checkpoint, calibrator=calibrator, device=device)


def _predict_new(model: Any, paths: list[str], *, write: Path | None, top: int, batch_size: int, as_json: bool) -> None:
    with progress(quiet=as_json) as bar:
        task = bar.add_task("predicting", total=None)
        found = model.predict(
            paths, batch_size=batch_size, on_batch=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if write is not None:
        found.write(write, top=top)
    rows = found.rows(top=top)
    if as_json:
        skipped = [{"file": name, "problem": problem} for name, problem in found.skipped]
        print_json(
            {"schema": 1, "command": "predict", "images": rows, "skipped": skipped, "written": write and str(write)}
        )
    elif write is None:
        for row in rows:
            best = "  ".join(f"{each['class']} {each['probability']:.1%}" for each in row["top"])
            results_to().print(f"{row['file']}  {best}  T {row['temperature']:.2f}", markup=False, soft_wrap=True)
    else:
        results_to().print(str(write), markup=False, soft_wrap=True)
    for _, problem in found.skipped:
        note(problem)
    if found.skipped:
        note(f"{len(found.skipped)} of {len(found.skipped) + len(found)} files could not be read and are left out")
        raise typer.Exit(1)


predict.epilog = examples(  # type: ignore[attr-defined]
    "calattn predict runs/a photos/ --write probs.csv        new images, no labels",
    "calattn predict runs/a --checkpoint best-ece            at the lowest validation ECE",
    "calattn predict runs/a --data svhn --ood                out of distribution",
    "calattn predict runs/a --corrupt all-5                  its test images under 15 corruptions",
    "calattn predict runs/a --features                       for calibrate --method frozen_calattn",
)
