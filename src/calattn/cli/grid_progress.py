"""The progress of a grid of runs: a line a finished cell, and on a terminal a bar for the run at work."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console

from calattn.cli.training_progress import TrainingProgress
from calattn.runs.durations import duration


class _BarOnly(TrainingProgress):
    """A run among many: its epochs have no lines of their own."""

    def _print(self, text: str) -> None: ...


class GridProgress:
    """What `run_cells` reports to. With several jobs there is no one run to watch."""

    def __init__(self, console: Console, *, jobs: int) -> None:
        self._console = console
        self._bar = _BarOnly(console) if jobs == 1 and console.is_terminal else None
        self.training: Any = self._bar

    def __enter__(self) -> GridProgress:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def started(self, cell: Any, *, place: int, total: int) -> None:
        if self._bar is not None:  # piped, the line of the finished cell is enough
            self._say(f"[{place}/{total}] {cell.name}")

    def finished(self, outcome: Any, *, done: int, total: int, left: float) -> None:
        name, time = outcome.cell.name, duration(outcome.seconds)
        rest = f"; about {duration(left)} left" if done < total else ""
        if outcome.reason is not None:
            self._say(f"[{done}/{total}] {name} failed after {time}: {outcome.reason}{rest}")
            return
        remark = f" ({outcome.remark})" if outcome.remark else ""
        self._say(f"[{done}/{total}] {name}: {time}{remark}{rest}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
