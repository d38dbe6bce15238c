"""The grid: cells are trained, analysed and stored one after another, and what is done is not done again."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch

from calattn.engine.checkpoint import is_checkpoint_file
from calattn.experiments.analysis import RULES, analyse
from calattn.experiments.cells import Cell, ScaleName, spec_of
from calattn.experiments.ood import score_run
from calattn.experiments.plan import Forecast, Plan, plan
from calattn.experiments.results import CellResult, ResultStore
from calattn.files.predictions import MANIFEST
from calattn.runs.folder import RunFolder
from calattn.runs.runtime import Runtime
from calattn.runs.train import RunReporter, train_run

__all__ = ["GridReporter", "GridResult", "Outcome", "Plan", "plan", "run_cell", "run_cells", "run_folder"]

# What a run may meet without being a defect of ours: a wrong spec, missing data, a full disk or device, a loss that blew up.
# An interruption is none of them and stops the grid.
EXPECTED = (ValueError, OSError, RuntimeError, ArithmeticError, MemoryError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a cell ended: `reason` is why it has no result, `remark` what is missing in it."""

    cell: Cell
    seconds: float
    reason: str | None = None
    remark: str | None = None
    unfinished: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridResult:
    """What a call did. `seconds` is the wall time; `left_out` did not fit the time budget."""

    outcomes: tuple[Outcome, ...]
    skipped: tuple[Cell, ...]
    left_out: tuple[Cell, ...]
    seconds: float
    jobs: int

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.reason is not None)

    @property
    def seconds_a_cell(self) -> float | None:
        """Of the device: wall time over cells, however many ran side by side."""
        return self.seconds / len(self.outcomes) if self.outcomes else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "finished": [each.cell.name for each in self.outcomes if each.reason is None and not each.unfinished],
            "unfinished": [each.cell.name for each in self.outcomes if each.unfinished],
            "failed": {outcome.cell.name: outcome.reason for outcome in self.failed},
            "skipped": [cell.name for cell in self.skipped],
            "left_out": [cell.name for cell in self.left_out],
            "seconds": round(self.seconds, 1),
            "jobs": self.jobs,
            "seconds_a_cell": None if self.seconds_a_cell is None else round(self.seconds_a_cell, 1),
        }


class GridReporter(Protocol):
    """Who is told how far a grid is. `training` is told of each run; None where nobody watches it."""

    training: RunReporter | None

    def started(self, cell: Cell, *, place: int, total: int) -> None: ...

    def finished(self, outcome: Outcome, *, done: int, total: int, left: float) -> None: ...


class Silent(GridReporter):
    """Tells nobody."""

    training = None

    def started(self, cell: Cell, *, place: int, total: int) -> None: ...

    def finished(self, outcome: Outcome, *, done: int, total: int, left: float) -> None: ...


def run_cells(
    cells: Iterable[Cell],
    scale: ScaleName,
    *,
    store: ResultStore,
    runs: Path,
    runtime: Runtime | None = None,
    jobs: int = 1,
    keep: bool = False,
    budget: float | None = None,
    reporter: GridReporter | None = None,
) -> GridResult:
    """Fills the store: cells that it holds are skipped, the rest trained in `runs`/<scale>, analysed and put there.

    A run that fails leaves its reason in the store and the grid goes on. SIGTERM and Ctrl-C stop it (with the engine's
    `Interrupted`, or the usual exceptions), and the next call goes on where it stopped. No cell is started that would not
    end within `budget` seconds. With `runtime.until_epoch`, cells stop there and are stored as unfinished. `keep` keeps
    the checkpoints of analysed runs. `jobs` processes share the device.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more, got {jobs}")
    if scale != store.scale:
        raise ValueError(f"the store holds results of the scale {store.scale!r}, not {scale!r}; open one for {scale!r}")
    runtime, reporter = runtime or Runtime(), reporter or Silent()
    planned = plan(cells, scale, store, until_epoch=runtime.until_epoch)
    work = Work(store=store, runs=Path(runs), runtime=runtime, keep=keep, jobs=min(jobs, max(1, len(planned.todo))))
    forecast = Forecast(planned.seconds)
    if work.jobs > 1:
        from calattn.experiments.jobs import run_side_by_side

        return run_side_by_side(planned, work, forecast, budget=budget, reporter=reporter)
    return _run_in_turn(planned, work, forecast, budget=budget, reporter=reporter)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Where cells are run and their results put. `cache`: corrupted images that several processes share."""

    store: ResultStore
    runs: Path
    runtime: Runtime
    keep: bool = False
    jobs: int = 1
    cache: Path | None = None


def _run_in_turn(
    planned: Plan, work: Work, forecast: Forecast, *, budget: float | None, reporter: GridReporter
) -> GridResult:
    started = time.monotonic()
    outcomes: list[Outcome] = []
    left_out: tuple[Cell, ...] = ()
    for place, cell in enumerate(planned.todo):
        if budget is not None and time.monotonic() - started + forecast.of([cell]) > budget:
            left_out = planned.todo[place:]
            break
        reporter.started(cell, place=place + 1, total=len(planned.todo))
        outcome = run_cell(cell, work, training=reporter.training)
        outcomes.append(outcome)
        if outcome.reason is None:  # how soon a cell fails says nothing of the others
            forecast.took(cell, outcome.seconds)
        left = forecast.of(planned.todo[place + 1 :])
        reporter.finished(outcome, done=len(outcomes), total=len(planned.todo), left=left)
    return GridResult(
        outcomes=tuple(outcomes),
        skipped=planned.done,
        left_out=left_out,
        seconds=time.monotonic() - started,
        jobs=1,
    )


def run_cell(cell: Cell, work: Work, *, training: RunReporter | None = None) -> Outcome:
    """Trains (or goes on training), analyses and stores one cell; what was to be expected to go wrong is stored as well."""
    started = time.monotonic()
    try:
        result, remark = _run_cell(cell, work, started, training)
    except EXPECTED as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        with contextlib.suppress(OSError):  # where the disk is full the reason cannot be kept either
            work.store.fail(cell, reason)
        return Outcome(cell=cell, seconds=time.monotonic() - started, reason=reason)
    finally:
        _forget(work.runtime)
    seconds = time.monotonic() - started
    return Outcome(cell=cell, seconds=seconds, remark=remark, unfinished=result.unfinished)


def _run_cell(cell: Cell, work: Work, started: float, training: RunReporter | None) -> tuple[CellResult, str | None]:
    scale = work.store.scale
    path = run_folder(cell, scale, work.runs)
    partly = work.store.unfinished(cell)
    folder = train_run(spec_of(cell, scale), path, runtime=work.runtime, reporter=training)
    scores = score_run(folder, cell, scale, rules=RULES, runtime=work.runtime, cache=work.cache)
    twin = _twin(cell, scale, work.runs)
    result = analyse(folder, cell, scale, twin=twin, ood=scores)
    sittings = 0.0 if partly is None else float(partly.run.get("seconds", 0.0))
    cost = {"seconds": round(sittings + time.monotonic() - started, 1), "side_by_side": work.jobs}
    work.store.put(dataclasses.replace(result, run=result.run | cost))
    if not work.keep and not result.unfinished:
        # Its twin's analysis needs predictions and scores, which stay.
        _remove_checkpoints(folder)
    remarks = []
    if result.unfinished:
        remarks.append(f"unfinished: {result.run['epochs']} of {result.planned_epochs} epochs")
    if cell.head != "none" and twin is None:
        remarks.append(f"not compared with {cell.twin.name}: that run is not in {work.runs}, or not as far")
    return result, "; ".join(remarks) or None


def run_folder(cell: Cell, scale: ScaleName, runs: Path) -> Path:
    """`runs`/<scale>/<cell>-<hash>: a cell whose spec has changed does not meet its older run."""
    return Path(runs) / scale / f"{cell.name}-{spec_of(cell, scale).hash[:8]}"


def _twin(cell: Cell, scale: ScaleName, runs: Path) -> RunFolder | None:
    """The run without the head, trained as far as the cell's own, where it is at hand."""
    if cell.head == "none":
        return None
    folder = RunFolder(run_folder(cell.twin, scale, runs))
    needed = [folder.predictions_path(split, rule) / MANIFEST for split in ("validation", "test") for rule in RULES]
    as_far = _epochs(folder) == _epochs(RunFolder(run_folder(cell, scale, runs)))
    return folder if as_far and all(path.is_file() for path in needed) else None


def _epochs(folder: RunFolder) -> int | None:
    progress = folder.progress()
    return None if progress is None else progress.epochs


def _remove_checkpoints(folder: RunFolder) -> None:
    for path in list(folder.checkpoints_path.glob("*")):
        if is_checkpoint_file(path):
            path.unlink(missing_ok=True)


def _forget(runtime: Runtime) -> None:
    """Frees what a run leaves behind in the process.

    Each run is a new network behind the same code: after eight of them torch.compile would give up and run the rest uncompiled.
    """
    if runtime.uses_gpu:
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
