"""The progress of a training run on a terminal: a bar and a line an epoch; elsewhere only the lines."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class TrainingProgress:
    """What `train_run` reports to. `is_main` is true in the one process that prints, `started` once training begins."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar = self._bars.add_task("", visible=False)
        self._epochs = self._per_epoch = self._done = 0
        self.is_main = self.started = False

    def __enter__(self) -> TrainingProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def decoded(self, what: str, done: int, total: int) -> None:
        self._show(what, done=done, total=total)

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

    def epoch(self, row: dict[str, Any]) -> None:
        self._print(epoch_line(row, self._epochs, self._console.width if self._console.is_terminal else None))

    def teaching(self, what: str, done: int, total: int) -> None:
        self._show(what, done=done, total=total)

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
            return f"as far as --until-epoch says: {partly}"
        return "finished, nothing to do; --overwrite trains it again"

    def _show(self, description: str, *, done: int, total: int) -> None:
        if self._bars.tasks[0].description.split()[:1] != description.split()[:1]:
            self._bars.reset(self._bar)  # another kind of work: the clock starts anew
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
