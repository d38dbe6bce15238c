"""`calattn train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli.console import errors_to, note, print_json, results_to
from calattn.cli.errors import examples

_RUN, _WHERE = "The run", "Where it runs"


def train(
    source: Annotated[
        str, typer.Argument(metavar="RECIPE|SPEC", help="A recipe (`calattn list recipes`) or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the spec; may be repeated.", rich_help_panel=_RUN
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The run's folder; default: runs/<data>-<backbone>-<head>-<hash>.", rich_help_panel=_RUN
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Side of the images the network sees: 32, 224, …; short for --set data.size=…", rich_help_panel=_RUN
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Short for --set train.epochs=…", rich_help_panel=_RUN)] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=…", rich_help_panel=_RUN)] = None,
    overwrite: Annotated[
        bool, typer.Option(help="Start again, whatever the folder holds of a run.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the resolved spec, parameters, steps and an estimate of time; train nothing.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=_WHERE)] = "auto",
    devices: Annotated[
        str, typer.Option(help="How many devices (4), which (0,2), or auto.", rich_help_panel=_WHERE)
    ] = "1",
    nodes: Annotated[int, typer.Option(help="How many machines.", rich_help_panel=_WHERE)] = 1,
    strategy: Annotated[
        str, typer.Option(help="auto, ddp, fsdp, … (Lightning Fabric's).", rich_help_panel=_WHERE)
    ] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads of torch.", rich_help_panel=_WHERE)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode data sets too large for memory.", rich_help_panel=_WHERE)
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Where the data sets lie; default: $CALATTN_DATA.", rich_help_panel=_WHERE)
    ] = None,
    save_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds between checkpoints.", rich_help_panel=_WHERE)
    ] = 60.0,
    tensorboard: Annotated[
        bool, typer.Option(help="Also write the log for TensorBoard.", rich_help_panel=_WHERE)
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary (or the plan of a dry run) as JSON.")] = False,
) -> None:
    """Train a run, or go on with one that was interrupted: the same command resumes it, bit for bit on a CPU.

    The run folder gets spec.yaml, environment.json, log.jsonl, checkpoints, predictions of the validation and test images, and
    summary.json. Everything that decides the result is in the spec; the options under "Where it runs" do not change it.
    """
    from calattn.workbench.resolving import resolve
    from calattn.workbench.runtime import Runtime

    shortcuts = {"data.size": size, "train.epochs": epochs, "seed": seed}
    changes = [*(overrides or []), *(f"{key}={value}" for key, value in shortcuts.items() if value is not None)]
    spec = resolve(source, changes)
    runtime = Runtime(
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        strategy=strategy,
        threads=threads,
        workers=workers,
        data_root=data_root,
        save_seconds=save_seconds,
        tensorboard=tensorboard,
    )
    if dry_run:
        _show_plan(spec, runtime, run, as_json=json)
    else:
        _train(spec, runtime, run, overwrite=overwrite, as_json=json)


def _show_plan(spec: Any, runtime: Any, run: Path | None, *, as_json: bool) -> None:
    from calattn.workbench.planning import plan_run

    plan = plan_run(spec, runtime, run)
    if as_json:
        print_json(plan.as_dict())
        return
    out = results_to()
    out.print(plan.yaml.rstrip(), markup=False)
    out.print(plan.text, markup=False)


def _train(spec: Any, runtime: Any, run: Path | None, *, overwrite: bool, as_json: bool) -> None:
    from calattn.cli.training_progress import TrainingProgress
    from calattn.engine.errors import Interrupted
    from calattn.workbench.planning import run_path
    from calattn.workbench.runtime import settled
    from calattn.workbench.summary import read_summary
    from calattn.workbench.training import train_run

    path = run or run_path(settled(spec, runtime))
    try:
        with TrainingProgress(errors_to()) as reporter:
            folder = train_run(spec, path, runtime=runtime, overwrite=overwrite, reporter=reporter)
    except Interrupted as stop:
        note(f"{stop}: {path}")
        raise typer.Exit(128 + int(stop.signal)) from None
    if not reporter.is_main:
        return
    summary = read_summary(folder)
    if as_json:
        print_json({"run": str(folder.path), **summary})
        return
    _print_summary(folder, summary)


def _print_summary(folder: Any, summary: dict[str, Any]) -> None:
    out = results_to()
    for rule, result in summary["results"].items():
        test, scaled = result["test"], result["test_ts_nll"]
        out.print(
            f"{rule} (epoch {result['epoch']}): test accuracy {test['accuracy']['value']:.2%}, ECE {test['ece']['value']:.2%}, "
            f"NLL {test['nll']['value']:.4f}; after temperature scaling (T = {scaled['temperature']:.2f}) "
            f"ECE {scaled['ece']['value']:.2%}, NLL {scaled['nll']['value']:.4f}",
            markup=False,
        )
    out.print(f"{folder.path}: next, calattn evaluate {folder.path} --ts", markup=False)


train.epilog = examples(  # type: ignore[attr-defined]
    "calattn train digits                                           half a minute, no network",
    "calattn train cifar10 --set model.head=none --out runs/plain   the same network without the head",
    "calattn train cifar10 --size 224 --dry-run                     what would it cost?",
    "calattn train my.yaml --devices 8 --strategy ddp               eight GPUs",
    "torchrun --nproc-per-node 8 -m calattn train my.yaml --devices 8 --strategy fsdp",
)
