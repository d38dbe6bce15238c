"""SIGKILL at random moments of a sweep: its parent, its workers, a Ray worker, a Ray node. Resumed, the table is the same."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calattn.files.atomic import is_partial
from calattn.runs.runtime import Runtime
from calattn.sweeps import jobs
from calattn.sweeps.grid import read_grid
from calattn.sweeps.jobs import JobEvent, Local, run_jobs
from calattn.sweeps.sweep import Sweep
from tests.faults.tally import count, times
from tests.sweeps.clusters import SecondNode, cluster, needs_ray
from tests.sweeps.grids import write_grid
from tests.sweeps.player import gone, job, tries
from tests.sweeps.workers import Forked

FORK = multiprocessing.get_context("fork")
ONLY = ("plain-seed0", "ours-seed0")
NAMES = "abcdef"  # of jobs


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr(jobs.subprocess, "Popen", Forked)


def sweep(folder: Path) -> Sweep:
    """Two runs of two epochs, with a checkpoint after every step."""
    folder.mkdir(parents=True)
    runs = [run for run in read_grid(write_grid(folder), ["train.epochs=2"]) if run.name in ONLY]
    return Sweep(runs=runs, folder=folder, runtime=Runtime(accelerator="cpu", threads=1, save_seconds=0.0))


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], float]:
    """The metrics of a sweep that nothing happened to, and how long it took."""
    found, begun = sweep(tmp_path_factory.mktemp("calm") / "runs"), time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jobs.subprocess, "Popen", Forked)
        assert trained(found) == {}
    return metrics(found), time.monotonic() - begun


def trained(found: Sweep, *, numbers: Path | None = None) -> dict[str, str]:
    """Both side by side. `numbers`: a file that gets those of the workers."""
    engine = Local(2)

    def told(_: JobEvent) -> None:
        if numbers is not None:
            with numbers.open("a") as file:
                file.writelines(f"{process.pid}\n" for _, process, _ in engine._running.values())

    return found.train(found.todo(), engine, retries=3, told=told)


def metrics(found: Sweep) -> list[dict[str, Any]]:
    return [run["metrics"] for run in found.results({})]


def damage(found: Sweep, expected: list[dict[str, Any]], workers: Path) -> list[str]:
    """What a kill has cost; the sweep is resumed first, as the same command would do."""
    failed = trained(found, numbers=workers)
    lost = [f"failed: {failed}"] if failed else []
    lost += ["another table"] if metrics(found) != expected else []
    lost += [f"left over: {path}" for path in found.folder.rglob("*") if is_partial(path)]
    deadline, numbers = time.monotonic() + 30, [int(line) for line in workers.read_text().split()]
    while not all(map(gone, numbers)):
        if time.monotonic() > deadline:
            return [*lost, "orphans"]
        time.sleep(0.02)
    return lost


@pytest.mark.usefixtures("forked")
def test_a_sweep_whose_parent_is_killed(tmp_path, calm):
    (expected, lasts), workers, random_, lost = calm, tmp_path / "workers", random.Random(0), list[str]()
    repeats = times(1, 26)
    for number in range(repeats):
        found = sweep(tmp_path / str(number))
        parent = FORK.Process(target=trained, args=(found,), kwargs={"numbers": workers})
        parent.start()
        parent.join(random_.uniform(0, lasts))
        parent.kill()
        parent.join()
        lost += damage(found, expected, workers)
    count("SIGKILL", "the parent of a sweep", injected=repeats, lost=len(lost))
    assert not lost


class Killer:
    """Kills one of an engine's workers at a moment."""

    def __init__(self, engine: Local, moment: float, draw: random.Random) -> None:
        self._engine, self._moment, self._draw, self.hit = engine, moment, draw, False

    def __call__(self) -> None:
        running = list(self._engine._running.values())
        if time.monotonic() > self._moment and running and not self.hit:
            os.kill(self._draw.choice(running)[1].pid, signal.SIGKILL)
            self.hit = True


@pytest.mark.usefixtures("forked")
def test_a_sweep_whose_workers_are_killed(tmp_path, calm):
    (expected, lasts), workers, draw, lost = calm, tmp_path / "workers", random.Random(1), list[str]()
    workers.touch()
    hits, number, repeats = 0, 0, times(1, 26)
    while hits < repeats:
        found, engine = sweep(tmp_path / str(number)), Local(2)
        killer = Killer(engine, time.monotonic() + draw.uniform(0, 0.8 * lasts), draw)
        failed = found.train(found.todo(), engine, retries=1, tick=killer)
        lost += [f"failed: {failed}"] if failed else []
        lost += damage(found, expected, workers)
        hits, number = hits + killer.hit, number + 1
    count("SIGKILL", "a worker of a sweep", injected=hits, lost=len(lost))
    assert not lost


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster() as made:
        yield made


class RayKiller:
    """Kills a Ray worker, or a node with all its processes, at one random moment after the other; then lets the jobs go."""

    def __init__(self, what: str, nodes: Any, folder: Path, kills: int) -> None:
        self._of_nodes, self._nodes, self._folder, self._left = what == "a Ray node", nodes, folder, kills
        self._draw, self.second = random.Random(what), SecondNode(nodes)
        self._plan()

    def _plan(self) -> None:
        self._moment = time.monotonic() + self._draw.uniform(0, 3)

    def __call__(self) -> None:
        if not self._left:
            (self._folder / "go").touch()
        elif time.monotonic() > self._moment and self._kills():
            self._left -= 1
            self._plan()

    def _kills(self) -> bool:
        workers = [worker for name in NAMES for each in tries(name, self._folder) if (worker := worker_of(each))]
        if not self._of_nodes and workers:
            os.kill(self._draw.choice(workers), signal.SIGKILL)
            return True
        if self._of_nodes and (self._left % 2 == 0 or len(workers) == 2):  # every second node has a job when it is lost
            self.second.lose()
            if self._left > 1:
                self.second = SecondNode(self._nodes)
            return True
        return False


@needs_ray
@pytest.mark.parametrize("what", ["a Ray worker", "a Ray node"])
def test_jobs_whose_ray_worker_or_node_is_killed(nodes, tmp_path, what):
    """Jobs of nothing but their own process, which waits until the last kill: what a run resumes to is tested above."""
    import ray

    from calattn.sweeps.on_ray import OnRay

    kills, jobs = times(1, 50), [job(name, tmp_path, does="waits once") for name in NAMES]
    killer = RayKiller(what, nodes, tmp_path, kills)
    failed = run_jobs(jobs, OnRay(ray), retries=kills, tick=killer)
    started = [number for name in NAMES for number in tries(name, tmp_path)]
    lost, deadline = [f"failed: {failed}"] if failed else [], time.monotonic() + 60
    while left := [number for number in started if not gone(number)]:
        if time.monotonic() > deadline:
            lost.append(f"orphans: {left}")
            break
        time.sleep(0.05)
    killer.second.lose()
    count("SIGKILL", what, injected=kills, lost=len(lost))
    assert not lost
    assert len(started) >= len(NAMES) + (kills if what == "a Ray worker" else (kills + 1) // 2)


def worker_of(number: int) -> int | None:
    """The Ray worker that waits for a job's process; None where either has just ended."""
    with contextlib.suppress(OSError):
        parent = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{parent}/cmdline").read_bytes().startswith(b"ray::"):
            return parent
    return None
