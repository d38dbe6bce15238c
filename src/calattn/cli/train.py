"""`calattn train`, and how a training run is shown: a bar and a line per epoch on a terminal, elsewhere only the lines."""

from __future__ import annotations

import contextlib
import functools
import logging
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from calattn.cli import options
from calattn.cli.console import errors_to, note, only_helps, print_json, say, starting
from calattn.cli.errors import code_of, examples

_run = functools.partial(options.flag, options.RUN)


@options.flat
def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|SPEC",
            help="The name of a recipe (`calattn list recipes`), or a spec of your own in YAML.",
            autocompletion=options.recipe_or_spec,
        ),
    ],
    new: options.NewRun = options.NEW_RUN,
    data: str | None = options.flag(
        options.RUN, "--data", text="The images: a data set, imagefolder:PATH or parquet:PATH. Sets data.name."
    ),
    epochs: int | None = _run("--epochs", text="Times through the training images. Sets train.epochs."),
    seed: int | None = _run(
        "--seed", text="Draws weights, order and augmentation (not the validation images). Sets seed."
    ),
    dry_run: bool = _run(
        "--dry-run",
        default=False,
        text="Print the resolved spec, parameters, steps and an estimate of time; train and write nothing.",
    ),
    where: options.Cluster = options.CLUSTER,
    json: options.Json = False,
) -> None:
    """Train a run, or resume one that was interrupted with the same command, bit for bit on a CPU.

    The folder gets spec.yaml, environment.json, log.jsonl, checkpoints,
    predictions of the validation and test images, and summary.json.

    Everything that decides the result is in the spec: a recipe, your YAML
    file, and what --set changes. "Where it runs" is about the machine only.
    """
    from calattn.runs.resolving import data_values, resolve

    runtime = where.runtime()
    chosen = [*data_values(source, data, root=runtime.data_root), *new.changes]
    shortcuts = {"data.size": new.size, "train.epochs": epochs, "seed": seed}
    changes = [*chosen, *(f"{key}={value}" for key, value in shortcuts.items() if value is not None)]
    if epochs is not None:
        changes += _shorter_warmup(resolve(source, chosen), epochs, processes=runtime.num_devices)
    spec = resolve(source, changes)
    if dry_run:
        _show_plan(spec, runtime, new.out, as_json=json)
    else:
        train_and_report(spec, runtime, new.out, overwrite=new.overwrite, as_json=json)


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
    say(plan.yaml.rstrip())
    say(plan.text)


def train_and_report(
    spec: Any, runtime: Any, run: Path | None, *, overwrite: bool, as_json: bool, command: str = "train"
) -> None:
    """Trains, or resumes training, with a progress bar, and prints what came out."""
    with starting():
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
    except (Interrupted, NonFiniteLoss, ValueError, OSError, RuntimeError) as error:
        # Until training starts all do the same, and when the first one is refused the others only lose their connection.
        agreed = isinstance(error, Interrupted | NonFiniteLoss) or not reporter.started
        if not helper or not agreed:
            raise
        raise typer.Exit(code_of(error)) from None


def _print_summary(folder: Any, summary: dict[str, Any], *, epochs: int) -> None:
    from calattn.runs.spec import is_taught

    head_is_taught = is_taught(summary["spec"]["model"]) and summary["epochs"] >= epochs
    for rule, result in summary["results"].items():
        split = "test" if "test" in result else "validation"
        numbers = {name: row["value"] if split == "test" else row for name, row in result[split].items()}
        taught = head_is_taught and rule == "last"
        which = f"{rule} (epoch {result['epoch']})" if summary["epochs"] else "the network"
        lines = [
            f"{which}{', with its taught head' if taught else ''}: {split} accuracy {numbers['accuracy']:.2%}, "
            f"ECE {numbers['ece']:.2%}, NLL {numbers['nll']:.4f}"
        ]
        if not taught and split == "test":  # else there is no second stage
            scaled = result["test_ts"]
            end = "" if scaled.get("converged", True) else ", the end of its range"
            lines.append(
                f"  after temperature scaling by NLL (T = {scaled['temperature']:.3g}{end}): "
                f"ECE {scaled['ece']['value']:.2%}, NLL {scaled['nll']['value']:.4f}"
            )
        say("\n".join(lines))
    path = shlex.quote(str(folder.path))
    then = f"predict {path} --corrupt all-5" if head_is_taught else f"evaluate {path} --ts"
    say(f"next: calattn {then}")


train.epilog = examples(  # type: ignore[attr-defined]
    "calattn train digits                               half a minute, no network",
    "calattn train finetune --data imagefolder:pets    your own images, a folder per class",
    "calattn train cifar10 --size 224 --dry-run         what would it cost?",
    "calattn train cifar10 --set model.head=none --out runs/plain",
    "calattn train my.yaml --devices 8                  eight GPUs of one machine",
    "calattn train runs/a/spec.yaml --out runs/b        another run's spec again",
)


class TrainingProgress:
    """What `train_run` reports to. `is_main` is true in the one process that prints, `started` once training begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar = self._bars.add_task("", visible=False, pace="")
        self._epochs = self._per_epoch = self._done = 0
        self.is_main = self.started = False

    def __enter__(self) -> TrainingProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def preparing(self, what: str) -> None:
        self._bars.update(self._bar, description=what, total=None, visible=True)

    def decoded(self, what: str, done: int, total: int) -> None:
        self._show(what, done=done, total=total)

    teaching = decoded

    def start(self, folder: Any, *, epochs: int, updates_per_epoch: int, done: int, main: bool) -> None:
        self.started, self.is_main = True, main
        if not main:
            return
        self._epochs, self._per_epoch, self._done = epochs, updates_per_epoch, done
        after = done // updates_per_epoch
        if epochs == 0:
            self._print(f"teaching a head in {folder.path}")
            return
        if done >= epochs * updates_per_epoch:
            self._print(f"{folder.path} is trained; writing predictions and summary")
            return
        self._print(
            f"training in {folder.path}" + (f": resuming from update {done}, epoch {after + 1}" if done else "")
        )
        self.updates(0)

    def note(self, text: str) -> None:
        self._print(text)

    def updates(self, count: int) -> None:
        self._done += count
        epoch = min(self._done // self._per_epoch + 1, self._epochs)
        self._show(f"epoch {epoch}/{self._epochs}", done=self._done, total=self._epochs * self._per_epoch)

    def pace(self, loss: float, images_per_second: float) -> None:
        self._bars.update(self._bar, pace=f"loss {loss:.4f}  {images_per_second:,.0f} img/s")

    def epoch(self, row: dict[str, Any]) -> None:
        self._print(epoch_line(row, self._epochs, self._console.width if self._console.is_terminal else None))

    def predicted(self, count: int, total: int) -> None:
        # The bar counts up from 0 once: `train_run` gives the total over all splits and checkpoints.
        before = self._bars.tasks[0].completed if self._bars.tasks[0].description == "predicting" else 0
        self._show("predicting", done=int(before) + count, total=total)

    def finished(self, folder: Any, *, before: bool) -> None:
        self.is_main = True
        self._bars.update(self._bar, visible=False)
        if before:
            self._print(f"{folder.path} is {self._how_far(folder)}")

    @staticmethod
    def _how_far(folder: Any) -> str:
        from calattn.runs.facts import RunFacts

        partly = RunFacts(folder.path).unfinished
        if partly is not None:
            return f"up to --until-epoch: {partly}"
        return "finished, nothing to do; --overwrite trains it again"

    def _show(self, description: str, *, done: int, total: int) -> None:
        if self._bars.tasks[0].description.split()[:1] != description.split()[:1]:
            self._bars.reset(self._bar, pace="")  # another kind of work: the clock starts anew
        self._bars.update(self._bar, description=description, completed=done, total=total, visible=True)

    def _print(self, text: str) -> None:
        # Rich would break piped lines at 80 columns; whoever reads a log wants an epoch a line.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def epoch_line(row: dict[str, Any], epochs: int, width: int | None = None) -> str:
    """The numbers of an epoch in a line; what does not fit `width` is left out from the right.

    >>> row = {"epoch": 2, "train": {"loss": 0.5}, "validation": {"accuracy": 0.9, "nll": 0.4, "ece": 0.02}}
    >>> epoch_line(row | {"seconds": 3.0, "images_per_second": 1200.0}, 30)
    'epoch  2/30  loss 0.5000  val acc 90.00%  NLL 0.4000  ECE 2.00%  3.0 s  1,200 img/s'
    """
    validation = row["validation"]
    parts = [
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}",
        f"loss {row['train']['loss']:.4f}",
        f"val acc {validation['accuracy']:.2%}",
        f"NLL {validation['nll']:.4f}",
        f"ECE {validation['ece']:.2%}",
    ]
    scale = validation.get("scale")
    if scale is not None and scale["std"] > 0:
        parts.append(f"s {scale['mean']:.2f} ± {scale['std']:.2f}")
    parts += [f"{row['seconds']:.1f} s", f"{row['images_per_second']:,.0f} img/s"]
    while width is not None and len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)
