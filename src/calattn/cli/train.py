"""`calattn train`."""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from calattn.cli import completion, options
from calattn.cli.console import errors_to, note, only_helps, print_json, results_to
from calattn.cli.errors import code_of, examples


@options.flat
def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|SPEC",
            help="The name of a recipe (`calattn list recipes`), or a spec of your own in YAML.",
            autocompletion=completion.recipe_or_spec,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change any key of the spec, such as optimizer.lr=0.001; may be repeated. --dry-run shows all keys.",
            rich_help_panel=options.RUN,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The run's folder; default: one under runs/ named by the spec.", rich_help_panel=options.RUN
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Side in pixels of the images the network sees: 32, 224, … Sets data.size.",
            rich_help_panel=options.RUN,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Times through the training images. Sets train.epochs.", rich_help_panel=options.RUN),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Draws weights, order and augmentation (not the validation images). Sets seed.",
            rich_help_panel=options.RUN,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Remove the run that the folder holds and start again.", rich_help_panel=options.RUN
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the resolved spec, parameters, steps and an estimate of time; train and write nothing.",
            rich_help_panel=options.RUN,
        ),
    ] = False,
    where: options.Cluster = options.CLUSTER,
    json: Annotated[bool, typer.Option("--json", help="Print the summary (or the plan of a dry run) as JSON.")] = False,
) -> None:
    """Train a run, or resume one that was interrupted with the same command, bit for bit on a CPU.

    The folder gets spec.yaml, environment.json, log.jsonl, checkpoints,
    predictions of the validation and test images, and summary.json.

    Everything that decides the result is in the spec: a recipe, your YAML
    file, and what --set changes. "Where it runs" is about the machine only.
    """
    from calattn.runs.resolving import resolve

    runtime = where.runtime()
    shortcuts = {"data.size": size, "train.epochs": epochs, "seed": seed}
    changes = [*(overrides or []), *(f"{key}={value}" for key, value in shortcuts.items() if value is not None)]
    if epochs is not None:
        changes += _shorter_warmup(resolve(source, overrides or []), epochs, processes=runtime.num_devices)
    spec = resolve(source, changes)
    if dry_run:
        _show_plan(spec, runtime, run, as_json=json)
    else:
        train_and_report(spec, runtime, run, overwrite=overwrite, as_json=json)


def _shorter_warmup(spec: Any, epochs: int, *, processes: int) -> list[str]:
    """A trial of few epochs keeps the share of warm-up that the recipe has; said aloud, and written in the run's spec."""
    warmup = spec.schedule.warmup_epochs
    if warmup <= epochs / 2 or epochs < 1:
        return []
    shorter = round(epochs * warmup / max(spec.train.epochs, 2 * warmup), 3)
    if not only_helps(processes):
        note(f"the warm-up of {warmup:g} epochs is shortened to {shorter:g}, because --epochs is {epochs}")
    return [f"schedule.warmup_epochs={shorter}"]


def _show_plan(spec: Any, runtime: Any, run: Path | None, *, as_json: bool) -> None:
    from calattn.runs.plan import plan_run

    plan = plan_run(spec, runtime, run)
    if as_json:
        print_json({"schema": 1, "command": "train", "dry_run": True, **plan.as_dict()})
        return
    out = results_to()
    out.print(plan.yaml.rstrip(), markup=False, soft_wrap=True)
    out.print(plan.text, markup=False, soft_wrap=True)


def train_and_report(
    spec: Any, runtime: Any, run: Path | None, *, overwrite: bool, as_json: bool, command: str = "train"
) -> None:
    """Trains, or goes on training, with a progress bar, and prints what came out."""
    from calattn.cli.training_progress import TrainingProgress
    from calattn.runs.plan import run_path
    from calattn.runs.runtime import settled
    from calattn.runs.train import train_run

    path = run or run_path(settled(spec, runtime))
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    with TrainingProgress(errors_to()) as reporter, _said_once(reporter, processes=runtime.num_devices):
        folder = train_run(spec, path, runtime=runtime, overwrite=overwrite, reporter=reporter)
    if not reporter.is_main:
        return
    summary = folder.summary()
    if as_json:
        print_json({"schema": 1, "command": command, "run": str(folder.path), **summary})
        return
    _print_summary(folder, summary, epochs=spec.train.epochs)
    if summary["epochs"] < spec.train.epochs:
        note(f"unfinished: {summary['epochs']} of {spec.train.epochs} epochs; without --until-epoch it resumes")


@contextlib.contextmanager
def _said_once(reporter: Any, *, processes: int) -> Iterator[None]:
    """What stops all processes of a machine is said by its first; what only one of them meets, by that one."""
    from calattn.engine.interrupt import Interrupted
    from calattn.engine.step import NonFiniteLoss

    helper = only_helps(processes, on_machine=True)
    try:
        yield
    except (Interrupted, NonFiniteLoss) as error:  # the processes have agreed on these
        if not helper:
            raise
        raise typer.Exit(code_of(error)) from None
    except (ValueError, OSError, RuntimeError) as error:
        # Until training starts all do the same, and when the first one is refused the others only lose their connection.
        if not helper or reporter.started:
            raise
        raise typer.Exit(code_of(error)) from None


def _print_summary(folder: Any, summary: dict[str, Any], *, epochs: int) -> None:
    from calattn.runs.spec import is_taught

    out = results_to()
    head_is_taught = is_taught(summary["spec"]["model"]) and summary["epochs"] >= epochs
    for rule, result in summary["results"].items():
        test, scaled = result["test"], result["test_ts_nll"]
        end = "" if scaled.get("converged", True) else ", the end of its range"
        taught = head_is_taught and rule == "last"
        which = f"{rule} (epoch {result['epoch']})" if summary["epochs"] else "the network"
        lines = [
            f"{which}{', with its taught head' if taught else ''}: test accuracy {test['accuracy']['value']:.2%}, "
            f"ECE {test['ece']['value']:.2%}, NLL {test['nll']['value']:.4f}"
        ]
        if not taught:  # else there is no second stage
            lines.append(
                f"  after temperature scaling by NLL (T = {scaled['temperature']:.3g}{end}): "
                f"ECE {scaled['ece']['value']:.2%}, NLL {scaled['nll']['value']:.4f}"
            )
        out.print("\n".join(lines), markup=False, soft_wrap=True)
    path = shlex.quote(str(folder.path))
    then = f"predict {path} --corrupt all-5" if head_is_taught else f"evaluate {path} --ts --objective nll"
    out.print(f"next: calattn {then}", markup=False, soft_wrap=True)


train.epilog = examples(  # type: ignore[attr-defined]
    "calattn train digits                               half a minute, no network",
    "calattn train cifar10 --size 224 --dry-run         what would it cost?",
    "calattn train cifar10 --set model.head=none --out runs/plain",
    "calattn train my.yaml --devices 8                  eight GPUs of one machine",
    "calattn train runs/a/spec.yaml --out runs/b        another run's spec again",
)
