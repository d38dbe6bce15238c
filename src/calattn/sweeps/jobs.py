"""Jobs: processes that are started, watched, started again when they die, and stopped. Where they run is an engine's business."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
GPUS = "CUDA_VISIBLE_DEVICES"
STOP_SECONDS = 120.0  # a worker that is asked to stop writes a checkpoint first
_TICK = 0.1
_LOG_END = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """`python -P -m` and its arguments, in the folder `cwd`; what it prints is appended to `log`.

    The module calls `worker.obey_starter` first: its standard input is a pipe that ends when whoever started it is gone.
    `after`: jobs that must have ended before.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    cwd: Path = dataclasses.field(default_factory=Path.cwd)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: tuple[str, ...] = ()


class End(NamedTuple):
    """How a job ended. `died`: without a word of its own (a signal, a lost machine), so that another try may end better."""

    reason: str | None
    died: bool = False


class JobEvent(NamedTuple):
    """What is told: a job has started, has to start again, is done, or has failed."""

    name: str
    state: Literal["started", "again", "done", "failed"]
    reason: str | None = None


class Engine(Protocol):
    """Starts jobs somewhere, at most `slots` at a time."""

    slots: int

    def start(self, job: Job) -> None: ...

    def ended(self) -> Iterator[tuple[str, End]]:
        """Those that have ended since the last call."""

    def stop(self) -> None:
        """Ends all that run, with time to save."""


def run_jobs(
    jobs: Sequence[Job],
    engine: Engine,
    *,
    retries: int = 0,
    told: Callable[[JobEvent], object] = lambda _: None,
    tick: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Runs all, and gives the reasons of those that failed, by name. However it ends, by Ctrl-C too, no job outlives it.

    A job that failed does not stop the others. One that died is started again, `retries` times at most: a run resumes.
    """
    todo, running, tries, failed = list(jobs), dict[str, Job](), dict[str, int](), dict[str, str]()
    try:
        while todo or running:
            while len(running) < engine.slots and (job := _next(todo, running)) is not None:
                todo.remove(job)
                running[job.name] = job
                engine.start(job)
                told(JobEvent(job.name, "started"))
            for name, end in engine.ended():
                job, tries[name] = running.pop(name), tries.get(name, 0) + 1
                if end.died and tries[name] <= retries:
                    todo.insert(0, job)
                    told(JobEvent(name, "again", end.reason))
                    continue
                failed |= {} if end.reason is None else {name: end.reason}
                told(JobEvent(name, "done" if end.reason is None else "failed", end.reason))
            tick()
            time.sleep(_TICK)
    finally:
        engine.stop()
    return failed


def _next(todo: Sequence[Job], running: Mapping[str, Job]) -> Job | None:
    """The first that waits for no other."""
    waiting = {*(each.name for each in todo), *running}
    return next((job for job in todo if waiting.isdisjoint(job.after)), None)


class Local:
    """Processes of this machine. Where it has several GPUs, named as in CUDA_VISIBLE_DEVICES, they are dealt out in turn."""

    def __init__(self, slots: int, *, gpus: Sequence[str] = ()) -> None:
        self.slots, self._gpus = slots, gpus
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes], int]] = {}

    def start(self, job: Job) -> None:
        taken = {place for _, _, place in self._running.values()}
        place = next(each for each in range(self.slots) if each not in taken)
        own = {GPUS: self._gpus[place % len(self._gpus)]} if len(self._gpus) > 1 else {}
        self._running[job.name] = job, start(dataclasses.replace(job, environment={**job.environment, **own})), place

    def ended(self) -> Iterator[tuple[str, End]]:
        for name, (job, process, _) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                stop([process])
                yield name, end_of(job, code)

    def stop(self) -> None:
        stop([process for _, process, _ in self._running.values()])


def start(job: Job) -> subprocess.Popen[bytes]:
    """The process of a job. In a session of its own: Ctrl-C goes to whoever started it, which stops it in good order."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *job.command],
            cwd=job.cwd,
            env={**os.environ, **job.environment},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def end_of(job: Job, code: int) -> End:
    """What an exit code means; a job that fails says why in the last line of its log."""
    if code == 0:
        return End(None)
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        with contextlib.suppress(ValueError):
            return End(f"its process was ended by {signal.Signals(number).name}; see {job.log}", died=True)
    return End(_last_line(job.log) or f"its process ended with exit code {code}; see {job.log}")


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks all to end and waits for them; who asks a second time, by Ctrl-C, waits no longer."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
        lines = file.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
