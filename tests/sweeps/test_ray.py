"""Ray as the engine of a sweep: the same loop, the same results, and nodes that die."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from calattn.files.atomic import is_partial
from calattn.sweeps.jobs import Event, run_jobs
from tests.cli_runner import invoke
from tests.sweeps.clusters import cluster, kill, needs_ray
from tests.sweeps.grids import NAMES, ON_CPU, numbers, write_grid
from tests.sweeps.player import gone, job, tries
from tests.sweeps.workers import Forked

pytestmark = needs_ray


def test_jobs_on_a_cluster_fail_die_and_are_started_again_as_on_one_machine(tmp_path):
    import ray

    from calattn.sweeps.on_ray import OnRay

    with cluster(1, 1) as nodes:
        events: list[Event] = []
        jobs = [
            job("bad", tmp_path, does="fails"),
            job("once", tmp_path, does="dies once"),
            job("good", tmp_path, after=("bad",)),
        ]
        assert run_jobs(jobs, OnRay(ray), retries=1, told=events.append) == {"bad": "ValueError: no such thing"}
        assert [len(tries(name, tmp_path)) for name in ("bad", "once", "good")] == [1, 2, 1]

        # A node dies when both have a job that waits; what was on it runs on the other.
        waiting = [job(name, tmp_path, does="waits once") for name in "ab"]
        events.clear()
        assert run_jobs(waiting, OnRay(ray), retries=1, told=events.append, tick=lambda: lose(nodes, tmp_path)) == {}
        assert [each.state for each in events].count("again") == 1

        # Who stops the runner stops its jobs.
        with pytest.raises(KeyboardInterrupt):
            run_jobs([job("stopped", tmp_path, does="waits")], OnRay(ray), tick=lambda: interrupt(tmp_path))
        assert gone(tries("stopped", tmp_path)[0])


def lose(nodes: Any, folder: Path) -> None:
    """The second node is lost once both jobs wait, and the others are let go."""
    workers = [number for name in "ab" for number in tries(name, folder)]
    if len(workers) == 2 and len(nodes.worker_nodes) == 1:
        kill(nodes.worker_nodes.pop())
        while not any(map(gone, workers)):
            time.sleep(0.02)
        (folder / "go").touch()


def interrupt(folder: Path) -> None:
    if tries("stopped", folder):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_grid_whose_node_is_killed_half_way_gives_the_table_of_one_machine(tmp_path, capsys, monkeypatch):
    import ray

    from calattn.runs.runtime import Runtime
    from calattn.sweeps import jobs
    from calattn.sweeps.grid import read_grid
    from calattn.sweeps.on_ray import OnRay
    from calattn.sweeps.sweep import Sweep

    path = write_grid(tmp_path)
    found = Sweep(runs=read_grid(path), folder=tmp_path / "ray", runtime=Runtime(accelerator="cpu", threads=1))
    with cluster(1, 1) as nodes:
        events: list[Event] = []

        def half_way() -> None:
            if [each.state for each in events].count("done") == 3 and nodes.worker_nodes:
                kill(nodes.worker_nodes.pop())

        assert found.train(found.todo(), OnRay(ray), retries=1, told=events.append, tick=half_way) == {}
        assert [each.reason for each in events if each.state == "again"] == ["Ray lost it: NodeDiedError"]
        command = ["sweep", path, *ON_CPU, "--json"]
        # Connected as it is, the command finds nothing to do.
        on_ray = invoke(capsys, *command, "--out", tmp_path / "ray", "--engine", "ray").json
    monkeypatch.setattr(jobs.subprocess, "Popen", Forked)
    here = invoke(capsys, *command, "--out", tmp_path / "here").json
    assert [run["name"] for run in here["runs"]] == NAMES
    assert numbers(on_ray) == numbers(here)
    assert not [each for each in (tmp_path / "ray").rglob("*") if is_partial(each)]
