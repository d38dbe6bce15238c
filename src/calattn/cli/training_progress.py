"""The progress of a training run on a terminal: two bars and a line an epoch; a line an epoch elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class TrainingProgress:
    """What `train_run` reports to. `is_main` is false in the processes that only help."""

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
        self._epochs = 0
        self._decoding: Any = None
        self._training: Any = None
        self.is_main = False

    def __enter__(self) -> TrainingProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def decoded(self, what: str, done: int, total: int) -> None:
        if self._decoding is None:
            self._decoding = self._bars.add_task(what, total=total)
        self._bars.update(self._decoding, completed=done, total=total)

    def start(self, folder: Any, *, epochs: int, updates_per_epoch: int, done: int) -> None:
        self.is_main = True
        self._epochs = epochs
        self._console.print(
            f"training in {folder.path}" + (f", from update {done}" if done else ""), markup=False, highlight=False
        )
        self._training = self._bars.add_task("updates", total=epochs * updates_per_epoch, completed=done)

    def updates(self, count: int) -> None:
        self._bars.advance(self._training, count)

    def epoch(self, row: dict[str, Any]) -> None:
        validation = row["validation"]
        scale = validation.get("scale", {"mean": 1.0, "std": 0.0})
        shown = "" if scale["std"] == 0 else f", scale {scale['mean']:.2f} ± {scale['std']:.2f}"
        self._console.print(
            f"epoch {row['epoch']:>3}/{self._epochs}: loss {row['train']['loss']:.4f}, validation accuracy "
            f"{validation['accuracy']:.2%}, NLL {validation['nll']:.4f}, ECE {validation['ece']:.2%}{shown}, "
            f"{row['seconds']:.1f} s, {row['images_per_second']:,.0f} images/s",
            markup=False,
            highlight=False,
        )
