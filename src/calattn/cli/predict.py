"""`calattn predict`."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli import options
from calattn.cli.console import note, only_helps, print_json, progress, say
from calattn.cli.errors import examples
from calattn.rules import RULES

_images = functools.partial(options.flag, options.IMAGES)


@options.flat
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A trained run's folder; for PATHS also a saved model's.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATHS]...", help="New images: files, folders, patterns; they need no labels."),
    ] = None,
    checkpoint: list[str] | None = _images(
        "--checkpoint", text=f"{', '.join(RULES)}; may be repeated. Default: last.", complete=options.RULE_NAMES
    ),
    data: str | None = _images(
        "--data",
        text="Another data set (svhn, imagefolder:PATH, parquet:PATH, …); default: the run's own.",
        complete=options.DATASETS,
    ),
    split: list[str] | None = _images(
        "--split", text="May be repeated. Default: validation and test; of another data set, its last (test)."
    ),
    ood: bool = _images(
        "--ood", default=False, text="With --data: other classes than the run's. Predictions then have no labels."
    ),
    corrupt: list[str] | None = _images(
        "--corrupt",
        text="The run's test images under a corruption of CIFAR-10-C, such as fog-5, or under all fifteen, all-5. "
        "May be repeated.",
    ),
    calibrator: Path | None = _images(
        "--calibrator", text="With PATHS: what `calattn calibrate --out` wrote, to go behind the head."
    ),
    write: Path | None = options.flag(
        options.OUTPUT, "--write", text="With PATHS: a file, .csv, .parquet or .json; default: print them."
    ),
    top: int = options.flag(
        options.OUTPUT, "--top", default=5, text="With PATHS: how many classes of each image.", least=1
    ),
    features: bool = options.flag(
        options.OUTPUT,
        "--features",
        default=False,
        text="Keep the features beside the logits, as some calibrators need (and wherever they are kept already).",
    ),
    batch_size: int | None = options.flag(
        options.WHERE, "--batch-size", text="Images per batch; default: the spec's evaluation.batch_size.", least=1
    ),
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
    rules = checkpoint or ["last"]
    if paths:
        why = "is about data sets, not about new images"
        options.unused(why, data=data, split=split or None, ood=ood, corrupt=corrupt or None, features=features)
        if len(rules) > 1:
            raise ValueError("--checkpoint: name one for new images")
        from calattn.runs.load import load

        model = load(run, rules[0], calibrator=calibrator, device="cuda" if where.runtime().uses_gpu else "cpu")
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
            rules=rules,
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
        say(str(path))


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
            among = f"  {{{', '.join(row['set'])}}}" if "set" in row else ""
            line = f"{row['file']}  {best}  T {row['temperature']:.2f}{among}"
            say(line)
    else:
        say(str(write))
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
