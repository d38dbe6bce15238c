"""The runner: the jobs of a grid's cells, one for each that has no result yet, by the same loop as `calattn sweep`."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from calattn.runs.runtime import Runtime
from calattn.sweeps.jobs import Job, JobEvent, Local, run_jobs
from reproduction import ood
from reproduction.cells import Cell
from reproduction.results import CellResult, Hole
from reproduction.worker import Work, twin_of

ROOT = Path(__file__).parents[1]
RETRIES = 1  # of a worker that died


def is_done(cell: Cell, work: Work) -> bool:
    """Whether the store has the cell's result, or what it came to by `until_epoch`.

    A result whose twin was not at hand is to be made again once there is one, to be compared with it.
    """
    found = work.store.get(cell)
    if isinstance(found, CellResult):
        has_twin = cell.twin != cell and (not is_done(cell.twin, work) or twin_of(cell, work) is not None)
        return bool(found.pair) or not has_twin
    last, partly = work.runtime.until_epoch, work.store.unfinished(cell)
    return last is not None and partly is not None and partly.run["epochs"] >= last


def run_cells(cells: Sequence[Cell], work: Work, say: Callable[[str], None] = print) -> list[Cell]:
    """Runs what is not done, `work.jobs` side by side, a head after its twin; returns what failed.

    However it ends, by Ctrl-C too, no worker outlives it; those that must stop early get the time to save.
    """
    todo = {cell.name: cell for cell in cells if not is_done(cell, work)}
    say(f"cells to run: {len(todo)}; done before: {len(cells) - len(todo)}")
    ended = list[str]()

    def told(event: JobEvent) -> None:
        if event.state in ("done", "failed"):
            ended.append(event.name)
            failure = f"failed: {_reason(todo[event.name], event.reason, work)}" if event.reason else "done"
            say(f"[{len(ended)}/{len(todo)}] {event.name}: {failure}")
        elif event.state == "again":
            say(f"{event.name} starts again: {event.reason}")

    with tempfile.TemporaryDirectory(prefix="calattn-") as cache:
        ood.prepare(todo.values(), work.store.scale, root=work.runtime.data_root, cache=Path(cache))
        work = dataclasses.replace(work, cache=Path(cache), runtime=_with_threads(work))
        jobs = [_job(cell, work) for cell in todo.values()]
        failed = run_jobs(jobs, Local(work.jobs), retries=RETRIES, told=told)
    return [todo[name] for name in failed]


def _job(cell: Cell, work: Work) -> Job:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Job(
        name=cell.name,
        command=("reproduction.worker", work.order(cell)),
        log=work.runs.absolute() / work.store.scale / "logs" / f"{cell.name}.log",
        environment={"PYTHONPATH": paths},
        after=() if cell.twin == cell else (cell.twin.name,),
    )


def _reason(cell: Cell, reason: str, work: Work) -> str:
    """Why it failed. A worker stores that itself, unless it died."""
    found = work.store.get(cell)
    if not isinstance(found, Hole) or found.reason != reason:
        work.store.fail(cell, reason)
    return reason


def _with_threads(work: Work) -> Runtime:
    """Each worker gets its share of the cores."""
    threads = work.runtime.threads or max(1, (os.cpu_count() or 1) // work.jobs)
    return dataclasses.replace(work.runtime, threads=threads) if work.jobs > 1 else work.runtime
