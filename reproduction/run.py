"""The runner: a loop over worker processes, one for each cell that has no result yet."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from calattn.runs.runtime import Runtime
from reproduction import ood
from reproduction.cells import Cell
from reproduction.results import CellResult, Hole
from reproduction.worker import FAILED, Work

ROOT = Path(__file__).parents[1]
_STOP_SECONDS = 120.0  # a worker that is asked to stop writes a checkpoint first


def is_done(cell: Cell, work: Work) -> bool:
    """Whether the store has the cell's result, or what it came to by `until_epoch`."""
    if isinstance(work.store.get(cell), CellResult):
        return True
    last, partly = work.runtime.until_epoch, work.store.unfinished(cell)
    return last is not None and partly is not None and partly.run["epochs"] >= last


def run_cells(cells: Sequence[Cell], work: Work, say: Callable[[str], None] = print) -> list[Cell]:
    """Runs what is not done, `work.jobs` side by side, a head after its twin; returns what failed.

    However it ends, by Ctrl-C too, no worker outlives it; those that must stop early get the time to save.
    """
    todo = [cell for cell in cells if not is_done(cell, work)]
    total, failed = len(todo), list[Cell]()
    say(f"cells to run: {total}; done before: {len(cells) - total}")
    running: dict[Cell, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="calattn-") as cache:
        ood.prepare(todo, work.store.scale, root=work.runtime.data_root, cache=Path(cache))
        work = dataclasses.replace(work, cache=Path(cache), runtime=_with_threads(work))
        try:
            while todo or running:
                while len(running) < work.jobs and (cell := _next(todo, running)) is not None:
                    todo.remove(cell)
                    running[cell] = _start(cell, work)
                time.sleep(0.1)
                for cell in [cell for cell, process in running.items() if process.poll() is not None]:
                    reason = _ended(cell, running.pop(cell).returncode, work)
                    failed += [cell] if reason else []
                    place = total - len(todo) - len(running)
                    say(f"[{place}/{total}] {cell.name}: {f'failed: {reason}' if reason else 'done'}")
        finally:
            _stop(list(running.values()))
    return failed


def _next(todo: Sequence[Cell], running: dict[Cell, subprocess.Popen[bytes]]) -> Cell | None:
    """The first cell that waits for no twin."""
    waiting = {*todo, *running}
    return next((cell for cell in todo if cell.twin == cell or cell.twin not in waiting), None)


def log_path(cell: Cell, work: Work) -> Path:
    return work.runs / work.store.scale / "logs" / f"{cell.name}.log"


def _start(cell: Cell, work: Work) -> subprocess.Popen[bytes]:
    log_path(cell, work).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "reproduction.worker", work.order(cell)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log_path(cell, work).open("wb") as log:
        # In a session of its own: Ctrl-C goes to the runner alone, which tells its workers in good order.
        environment = os.environ | {"PYTHONPATH": paths}
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _ended(cell: Cell, code: int, work: Work) -> str | None:
    """Why the cell failed, if it did; for a process that died, the reason is stored here."""
    if code == 0:
        return None
    found = work.store.get(cell)
    if code == FAILED and isinstance(found, Hole) and found.reason:
        return found.reason
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    reason = f"its process ended with {how}; see {log_path(cell, work)}"
    work.store.fail(cell, reason)
    return reason


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _with_threads(work: Work) -> Runtime:
    """Each worker gets its share of the cores."""
    threads = work.runtime.threads or max(1, (os.cpu_count() or 1) // work.jobs)
    return dataclasses.replace(work.runtime, threads=threads) if work.jobs > 1 else work.runtime
