"""`calattn predict`."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Annotated

import typer

from calattn.cli import options
from calattn.cli.console import only_helps, print_json, progress, results_to
from calattn.cli.errors import examples
from calattn.rules import RULES

_images = functools.partial(options.option, options.IMAGES)


@options.flat
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A trained run's folder.")],
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
        _images("--ood", text="With --data: other classes than the run's. Labels become 0; only confidence counts."),
    ] = False,
    corrupt: Annotated[
        list[str] | None,
        _images(
            "--corrupt",
            text="The run's test images under a corruption of CIFAR-10-C, such as fog-5, or under all fifteen, all-5. "
            "May be repeated.",
        ),
    ] = None,
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
    """Write a trained run's predictions into its folder, for evaluate, compare and calibrate.

    They lie in predictions/SPLIT, or SPLIT.CHECKPOINT for the best-… ones; of
    another data set in predictions/DATA-SPLIT, of corrupted test images in
    predictions/test-CORRUPTION. Another data set's images are normalised and
    resized as the run's own, and its classes matched with the run's by name.
    """
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


predict.epilog = examples(  # type: ignore[attr-defined]
    "calattn predict runs/a --checkpoint best-ece            at the lowest validation ECE",
    "calattn predict runs/a --data svhn --ood                out of distribution",
    "calattn predict runs/a --corrupt all-5                  its test images under 15 corruptions",
    "calattn predict runs/a --features                       for calibrate --method frozen_calattn",
)
