"""Jobs: worker processes side by side on one device, each with a few cells, none able to take the others down."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from calattn.experiments import ood, worker
from calattn.experiments.cells import Cell
from calattn.experiments.grid import GridReporter, GridResult, Outcome, Work
from calattn.experiments.plan import Forecast, Plan

_STOP_SECONDS = 120.0  # a worker that is asked to stop writes a checkpoint first


@dataclasses.dataclass(eq=False)
class Job:
    """A worker at work: `waiting` are the cells that it has not reported yet."""

    process: subprocess.Popen[str]
    log: Path
    waiting: list[Cell]


def units(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Consecutive cells with the same twin, which one process runs in turn: a comparison finds its twin finished.

    >>> plain = Cell(dataset="cifar10", model="deit")
    >>> [len(unit) for unit in units([plain, dataclasses.replace(plain, head="calattn"), dataclasses.replace(plain, seed=1)])]
    [2, 1]
    """
    found: list[list[Cell]] = []
    for cell in cells:
        if found and found[-1][0].twin == cell.twin:
            found[-1].append(cell)
        else:
            found.append([cell])
    return found


def run_side_by_side(
    planned: Plan, work: Work, forecast: Forecast, *, budget: float | None, reporter: GridReporter
) -> GridResult:
    """The grid with `work.jobs` workers. Their stderr is kept in `runs`/<scale>/logs."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="calattn-") as cache:
        ood.prepare(planned.todo, planned.scale, root=work.runtime.data_root, cache=Path(cache))
        shared = dataclasses.replace(work, cache=Path(cache), runtime=_with_threads(work))
        pool = _Pool(planned, shared, forecast, reporter, deadline=None if budget is None else started + budget)
        with pool.stopped_at_the_end():
            pool.run()
    return GridResult(
        outcomes=tuple(pool.outcomes),
        skipped=planned.done,
        left_out=tuple(cell for unit in pool.pending for cell in unit),
        seconds=time.monotonic() - started,
        jobs=work.jobs,
    )


class _Pool:
    def __init__(
        self, planned: Plan, work: Work, forecast: Forecast, reporter: GridReporter, *, deadline: float | None
    ) -> None:
        self.planned, self.work, self.forecast, self.reporter = planned, work, forecast, reporter
        self.deadline = deadline
        self.pending = units(planned.todo)
        self.active: list[Job] = []
        self.outcomes: list[Outcome] = []
        self._news: queue.Queue[tuple[Job, str | None]] = queue.Queue()

    def run(self) -> None:
        while True:
            while len(self.active) < self.work.jobs and (unit := self._next()) is not None:
                self._start(unit)
            if not self.active:
                return
            job, line = self._news.get()
            if line is None:
                self._ended(job)
            else:
                self._note(job, worker.read_report(line))

    def _next(self) -> list[Cell] | None:
        """The first unit that waits for no twin of another's and fits the time; None where there is none now."""
        busy = {cell for job in self.active for cell in job.waiting}
        free = next((unit for unit in self.pending if unit[0].twin not in busy), None)
        if free is None:
            return None
        # Alone on a share of the device, a unit takes as many times longer as there are jobs.
        ends = time.monotonic() + self.forecast.of(free) * self.work.jobs
        if self.deadline is not None and ends > self.deadline:
            return None
        self.pending.remove(free)
        return free

    def _start(self, unit: list[Cell]) -> None:
        log = self.work.runs / self.planned.scale / "logs" / f"{unit[0].name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        for cell in unit:
            self.reporter.started(cell, place=self.planned.todo.index(cell) + 1, total=len(self.planned.todo))
        command = [sys.executable, "-m", "calattn.experiments.worker", worker.order(unit, self.work)]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, encoding="utf-8")
        job = Job(process, log, list(unit))
        self.active.append(job)
        threading.Thread(target=self._listen, args=(job,), daemon=True).start()

    def _listen(self, job: Job) -> None:
        assert job.process.stdout is not None
        for line in job.process.stdout:
            self._news.put((job, line))
        self._news.put((job, None))

    def _note(self, job: Job, outcome: Outcome) -> None:
        job.waiting.remove(outcome.cell)
        self.outcomes.append(outcome)
        self.forecast.took(outcome.cell, outcome.seconds)
        rest = [cell for unit in self.pending for cell in unit] + [
            cell for each in self.active for cell in each.waiting
        ]
        total = len(self.planned.todo)
        self.reporter.finished(outcome, done=len(self.outcomes), total=total, left=self.forecast.of(rest))

    def _ended(self, job: Job) -> None:
        """What a worker that died owes is put down as failed."""
        code = job.process.wait()
        self.active.remove(job)
        for cell in list(job.waiting):
            reason = f"its process ended with {_how(code)}; see {job.log}"
            self.work.store.fail(cell, reason)
            self._note(job, Outcome(cell=cell, seconds=0.0, reason=reason))

    @contextlib.contextmanager
    def stopped_at_the_end(self) -> Iterator[None]:
        """However the block ends, no worker outlives it; those that must stop early get the time to save."""
        try:
            yield
        finally:
            for job in self.active:
                job.process.terminate()
            deadline = time.monotonic() + _STOP_SECONDS
            try:
                for job in self.active:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        job.process.wait(max(0.1, deadline - time.monotonic()))
            finally:
                for job in self.active:
                    job.process.kill()
                    job.process.wait()


def _how(code: int) -> str:
    """
    >>> _how(-9), _how(70)
    ('SIGKILL', 'exit code 70')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _with_threads(work: Work) -> worker.Runtime:
    """Each worker gets its share of the cores."""
    if work.runtime.threads is not None:
        return work.runtime
    return dataclasses.replace(work.runtime, threads=max(1, (os.cpu_count() or 1) // work.jobs))
