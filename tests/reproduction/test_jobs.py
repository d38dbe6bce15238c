"""Cells side by side: who waits for whom, what no longer fits the time, what a worker is told. Workers only pretend to train."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calattn.experiments import jobs as pools
from calattn.experiments.cells import Cell
from calattn.experiments.grid import GridResult, Outcome, Work, run_cells
from calattn.experiments.plan import Forecast, Plan
from calattn.experiments.results import ResultStore
from calattn.runs.runtime import Runtime

PLAIN = Cell(dataset="cifar10", model="deit")
HEAD = dataclasses.replace(PLAIN, head="calattn")
OTHERS = [dataclasses.replace(PLAIN, seed=seed) for seed in range(1, 4)]
CPU = Runtime(accelerator="cpu", threads=1)
# Says of each cell that it took 10 seconds, of some that they failed at once.
PRETENDER = """
import json, sys, time
for line in sys.stdin:
    time.sleep(0.1)
    cell = json.loads(line)
    ended = {"seconds": 0.0, "reason": "no data"} if cell["dataset"] == "mnist" else {"seconds": 10.0, "reason": None}
    print(json.dumps({"cell": cell, **ended, "remark": None, "unfinished": False}), flush=True)
"""


class Events:
    """Writes down what begins and ends, in order."""

    training = None

    def __init__(self) -> None:
        self.seen: list[tuple[str, Cell]] = []
        self.left: list[float] = []

    def started(self, cell: Cell, **_: int) -> None:
        self.seen.append(("started", cell))

    def finished(self, outcome: Outcome, *, left: float, **_: int) -> None:
        self.seen.append(("finished", outcome.cell))
        self.left.append(left)


@pytest.fixture
def processes() -> list[subprocess.Popen]:
    """The workers themselves."""
    return []


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen]) -> list[dict]:
    """The orders of the workers, which are pretenders."""
    given: list[dict] = []
    honest = subprocess.Popen

    def pretended(command: list[str], **options: object) -> subprocess.Popen:
        given.append(json.loads(command[-1]))
        processes.append(honest([sys.executable, "-c", PRETENDER], **options))
        return processes[-1]

    monkeypatch.setattr(pools.subprocess, "Popen", pretended)
    return given


def run(path: Path, cells: list[Cell], *, runtime: Runtime = CPU, **options: object) -> GridResult:
    store = ResultStore(path / "results", "smoke")
    return run_cells(cells, "smoke", store=store, runs=path / "runs", runtime=runtime, **options)


@pytest.mark.parametrize(
    ("budget", "count", "workers"),
    [(2.0, 0, 0), (4.5, 1, 1), (9.0, 3, 2), (None, 3, 2)],
)
def test_no_cell_is_started_that_would_not_fit(tmp_path, orders, budget, count, workers):
    """A cell is expected to take 3 s alone and 6 s beside another; after one said 10 s of half a device, 5 s and 10 s."""
    result = run(tmp_path, OTHERS, jobs=2, budget=budget)
    assert {outcome.cell for outcome in result.outcomes} == set(OTHERS[:count])
    assert result.left_out == tuple(OTHERS[count:])
    assert len(orders) == workers


@pytest.mark.parametrize(
    ("had", "latest"),
    [
        ([], 3.0),
        ([0.0], 6.0),
        ([2.0], 4.0),
        ([0.0, 0.0], 9.0),
        ([3.0, 2.0], 4.0),
        ([33.0, 33.0], 3.0),
        ([0.0] * 5, 9.0),
    ],
)
def test_a_cell_ends_at_the_latest_with_all_that_is_under_way(tmp_path, had, latest):
    """3 s each on a device that three share: of a cell that has had 2 s one is left."""
    pool = made_pool(tmp_path, {PLAIN: 3.0, HEAD: 3.0}, [(HEAD, seconds) for seconds in had])
    assert not pool._all_end(PLAIN, latest - 0.1)
    assert pool._all_end(PLAIN, latest + 0.1)


def test_a_short_cell_does_not_make_a_long_one_late(tmp_path):
    """A cell of 100 s was started alone, with 110 s left. One of 20 s would end in time, and take the time from it."""
    pool = made_pool(tmp_path, {PLAIN: 20.0, HEAD: 100.0}, [(HEAD, 0.0)], jobs=2)
    assert not pool._all_end(PLAIN, 110.0)
    assert pool._all_end(PLAIN, 121.0)


def made_pool(folder, seconds, under_way, jobs=3):
    """`under_way`: cells and the seconds of the device that they have had; one more worker waits."""
    work = Work(store=ResultStore(folder, "smoke"), runs=folder, runtime=CPU, jobs=jobs)
    plan = Plan(scale="smoke", done=(), todo=(), seconds={}, basis="")
    pool = pools._Pool(plan, work, Forecast(seconds), Events(), deadline=None)
    pool.jobs = [pools.Job(None, folder, cell=cell, had=had) for cell, had in under_way]
    pool.jobs.append(pools.Job(None, folder))
    return pool


def test_a_device_is_shared_by_those_under_way_and_not_by_those_that_might_be(tmp_path, monkeypatch):
    """Of three jobs one cell is under way, for 10 s; then another beside it for 4 s. It had 12 s of the device, the other 2 s."""
    clock = [100.0]
    monkeypatch.setattr(pools.time, "monotonic", lambda: clock[0])
    pool = made_pool(tmp_path, {PLAIN: 6.0, HEAD: 6.0}, [(PLAIN, 0.0)])
    first, second = pool.jobs
    first.since = clock[0]
    clock[0] += 10
    pool._share_out()
    assert (first.had, second.had) == (10.0, 0.0)
    second.cell, second.since = HEAD, clock[0]
    clock[0] += 4
    pool._note(first, Outcome(cell=PLAIN, seconds=14.0))
    assert (first.had, second.had) == (12.0, 2.0)
    assert pool.forecast.of([HEAD]) == pytest.approx(12.0), "it took twice as long as expected"


@pytest.mark.usefixtures("orders")
def test_workers_are_hung_up_on(tmp_path, processes):
    run(tmp_path, OTHERS, jobs=2)
    assert len(processes) == 2
    for process in processes:
        assert process.poll() is not None
        assert process.stdin.closed
        assert process.stdout.closed


def test_a_cell_waits_until_its_twin_is_done_and_others_go_before_it(tmp_path, orders):
    told = Events()
    run(tmp_path, [PLAIN, HEAD, *OTHERS], jobs=3, reporter=told)
    assert [cell for what, cell in told.seen if what == "started"][:3] == [PLAIN, *OTHERS[:2]]
    assert told.seen.index(("started", HEAD)) > told.seen.index(("finished", PLAIN))
    assert len(orders) == 3, "a worker that is done is given the next cell"


@pytest.mark.parametrize(("threads", "each"), [(None, max(1, (os.cpu_count() or 1) // 2)), (3, 3)])
def test_workers_share_the_cores(tmp_path, orders, threads, each):
    result = run(tmp_path, OTHERS, jobs=2, runtime=Runtime(accelerator="cpu", threads=threads))
    assert [order["runtime"]["threads"] for order in orders] == [each, each]
    assert [order["jobs"] for order in orders] == [2, 2]
    assert result.seconds_a_cell == pytest.approx(result.seconds / 3)


@pytest.mark.usefixtures("orders")
def test_how_soon_a_cell_fails_says_nothing_of_the_others(tmp_path):
    told = Events()
    failing = [dataclasses.replace(cell, dataset="mnist") for cell in OTHERS]
    assert len(run(tmp_path, failing, jobs=2, reporter=told).failed) == 3
    assert told.left == [6.0, 3.0, 0.0]


def test_no_more_workers_than_cells(tmp_path, orders):
    assert run(tmp_path, OTHERS[:2], jobs=5).jobs == 2
    assert [order["jobs"] for order in orders] == [2, 2]


def test_on_a_gpu_workers_begin_apart(tmp_path, orders, monkeypatch):
    """Half a cell's expected 3 s: by then the first worker has done all three."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    result = run(tmp_path, OTHERS, jobs=2, runtime=Runtime(accelerator="cuda", threads=1))
    assert [outcome.cell for outcome in result.outcomes] == OTHERS
    assert len(orders) == 1
