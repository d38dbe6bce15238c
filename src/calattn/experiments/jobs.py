"""Jobs: worker processes side by side on one device, a cell at a time each, none able to take the others down."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from calattn.experiments import ood, worker
from calattn.experiments.cells import Cell
from calattn.experiments.grid import GridReporter, GridResult, Outcome, Work
from calattn.experiments.plan import Forecast, Plan

_PATIENCE = 1.0  # seconds between looks at the clock
_STOP_SECONDS = 120.0  # a worker that is asked to stop writes a checkpoint first


@dataclasses.dataclass(eq=False)
class Job:
    """A worker at work: it is given one cell after another, `cell` at the moment.

    `had`: the seconds of the device that this cell has had, where it and others under way get the same.
    """

    process: subprocess.Popen[str]
    log: Path
    listener: threading.Thread | None = None
    cell: Cell | None = None
    since: float = 0.0
    had: float = 0.0

    @property
    def orders(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin


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
        left_out=tuple(pool.pending),
        seconds=time.monotonic() - started,
        jobs=work.jobs,
    )


class _Pool:
    def __init__(
        self, planned: Plan, work: Work, forecast: Forecast, reporter: GridReporter, *, deadline: float | None
    ) -> None:
        self.planned, self.work, self.forecast, self.reporter = planned, work, forecast, reporter
        self.deadline = deadline
        self.pending = list(planned.todo)
        self.jobs: list[Job] = []
        self.outcomes: list[Outcome] = []
        self._news: queue.Queue[tuple[Job, str | None]] = queue.Queue()
        self._numbers = itertools.count(1)
        self._next_start = 0.0
        self._shared_out = time.monotonic()

    @property
    def busy(self) -> list[Cell]:
        return [job.cell for job in self.jobs if job.cell is not None]

    def _share_out(self) -> None:
        """The time since the last call goes to the cells under way; due before one begins or ends."""
        now = time.monotonic()
        for job in self.jobs:
            if job.cell is not None:
                job.had += (now - self._shared_out) / len(self.busy)
        self._shared_out = now

    def run(self) -> None:
        while True:
            while len(self.busy) < self.work.jobs and self._may_start() and (cell := self._next()) is not None:
                self._give(cell)
            if not self.busy:
                return
            try:
                job, line = self._news.get(timeout=_PATIENCE)
            except queue.Empty:
                continue
            if line is None:
                self._ended(job)
            else:
                self._note(job, worker.read_report(line))

    def _next(self) -> Cell | None:
        """The first cell that waits for no twin and fits the time; None where there is none now."""
        waiting = {*self.busy, *self.pending}
        free = next((cell for cell in self.pending if cell.twin == cell or cell.twin not in waiting), None)
        if free is None:
            return None
        if self.deadline is not None and not self._all_end(free, self.deadline - time.monotonic()):
            return None
        self.pending.remove(free)
        return free

    def _all_end(self, cell: Cell, seconds: float) -> bool:
        """Whether the cell, started now, and all that are under way end in so many seconds: together at the latest, should
        nothing follow, and each within as many times its own time as there are jobs, because that share it always has."""
        self._share_out()
        under_way = [max(0.0, self.forecast.of([job.cell]) - job.had) for job in self.jobs if job.cell is not None]
        left = [*under_way, self.forecast.of([cell])]
        return sum(left) <= seconds or max(left) * self.work.jobs <= seconds

    def _may_start(self) -> bool:
        """Workers begin apart. A GPU that one run keeps busy gains from several only while some of them compile or
        analyse; those that begin together do so at the same time, with the GPU idle."""
        return len(self.jobs) > len(self.busy) or time.monotonic() >= self._next_start

    def _give(self, cell: Cell) -> None:
        """To a worker that has nothing to do, or to a new one."""
        self.reporter.started(cell, place=self.planned.todo.index(cell) + 1, total=len(self.planned.todo))
        job = next((job for job in self.jobs if job.cell is None), None) or self._start()
        if self.work.runtime.uses_gpu:
            self._next_start = time.monotonic() + self.forecast.of([cell]) / 2
        self._share_out()
        job.cell, job.since, job.had = cell, time.monotonic(), 0.0
        with contextlib.suppress(BrokenPipeError):  # a worker that is dead is found out by the end of its output
            job.orders.write(worker.cell_line(cell))
            job.orders.flush()

    def _start(self) -> Job:
        folder = self.work.runs / self.planned.scale / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"worker-{os.getpid()}-{next(self._numbers)}.log"
        command = [sys.executable, "-m", "calattn.experiments.worker", worker.order(self.work)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, encoding="utf-8"
            )
        job = Job(process, log)
        self.jobs.append(job)
        job.listener = threading.Thread(target=self._listen, args=(job,), daemon=True)
        job.listener.start()
        return job

    def _listen(self, job: Job) -> None:
        assert job.process.stdout is not None
        with job.process.stdout as lines:
            for line in lines:
                self._news.put((job, line))
        self._news.put((job, None))

    def _note(self, job: Job, outcome: Outcome) -> None:
        self._share_out()
        job.cell = None
        self.outcomes.append(outcome)
        if outcome.reason is None:
            share = job.had / (time.monotonic() - job.since)
            self.forecast.took(outcome.cell, outcome.seconds * share)
        left = self.forecast.of([*self.pending, *self.busy])
        self.reporter.finished(outcome, done=len(self.outcomes), total=len(self.planned.todo), left=left)

    def _ended(self, job: Job) -> None:
        """What a worker that died owes is put down as failed."""
        code = job.process.wait()
        _hang_up(job)
        self.jobs.remove(job)
        if job.cell is None:
            return
        reason = f"its process ended with {_how(code)}; see {job.log}"
        self.work.store.fail(job.cell, reason)
        self._note(job, Outcome(cell=job.cell, seconds=0.0, reason=reason))

    @contextlib.contextmanager
    def stopped_at_the_end(self) -> Iterator[None]:
        """However the block ends, no worker outlives it; those that must stop early get the time to save."""
        try:
            yield
        finally:
            for job in self.jobs:
                job.process.terminate()
            deadline = time.monotonic() + _STOP_SECONDS
            try:
                for job in self.jobs:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        job.process.wait(max(0.1, deadline - time.monotonic()))
            finally:
                for job in self.jobs:
                    job.process.kill()
                    job.process.wait()
                    _hang_up(job)


def _hang_up(job: Job) -> None:
    """Of a process that has ended. A child that outlives it may keep its stdout open, so nobody waits long for the listener."""
    with contextlib.suppress(BrokenPipeError):  # of an order that was never read
        job.orders.close()
    if job.listener is not None:
        job.listener.join(_PATIENCE)


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
