"""`calattn predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calattn.cli.console import print_json, progress, results_to
from calattn.cli.errors import examples


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A trained run's folder.")],
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(help="last, best-nll, best-ece or best-accuracy; may be repeated. Default: last."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Another data set (svhn, imagefolder:PATH, …); default: the run's own.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Default: validation and test; of another data set, test.")
    ] = None,
    ood: Annotated[
        bool, typer.Option("--ood", help="The labels mean nothing to the model: only its confidence matters.")
    ] = False,
    features: Annotated[bool, typer.Option(help="Keep the features beside the logits.")] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images a batch.")] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    devices: Annotated[str, typer.Option(help="How many devices, or which.")] = "1",
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode data sets too large for memory.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data sets lie; default: $CALATTN_DATA.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the predictions of a trained run into its folder: predictions/<split>, or <split>.<checkpoint> for the best-… ones.

    Logits and the per-image scale are kept apart, so that everything to the right (calibrate, evaluate, compare) works from
    these files alone. Images of another data set are normalised and resized as the run's own were.
    """
    from calattn.workbench.predicting import predict_folder
    from calattn.workbench.runtime import Runtime

    runtime = Runtime(accelerator=accelerator, devices=devices, threads=threads, workers=workers, data_root=data_root)
    with progress(quiet=json) as bar:
        task = bar.add_task("predicting", total=None)
        written = predict_folder(
            run,
            rules=checkpoint or ["last"],
            data_name=data,
            splits=split,
            ood=ood,
            features=features,
            batch_size=batch_size,
            runtime=runtime,
            on_batch=lambda count: bar.advance(task, count),
        )
    if json:
        print_json({"run": str(run), "written": [str(path) for path in written]})
        return
    for path in written:
        results_to().print(str(path), markup=False)


predict.epilog = examples(  # type: ignore[attr-defined]
    "calattn predict runs/a --checkpoint best-ece                    validation and test, at the lowest validation ECE",
    "calattn predict runs/a --data svhn --ood                        out of distribution",
    "calattn predict runs/a --data cifar10_c --split fog-5           corrupted images",
    "calattn predict runs/a --features                               for SATS and the head on frozen features",
)
