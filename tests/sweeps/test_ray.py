"""Ray as the engine of a sweep: the same loop, the same results, and nodes that die."""

from __future__ import annotations

import time

import pytest

from calattn.sweeps.jobs import Event, run_jobs
from tests.sweeps.clusters import cluster, kill, needs_ray
from tests.sweeps.player import gone, job, tries

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


def lose(nodes, folder) -> None:
    """The second node is lost once both jobs wait, and the others are let go."""
    workers = [number for name in "ab" for number in tries(name, folder)]
    if len(workers) == 2 and len(nodes.worker_nodes) == 1:
        (node,) = nodes.worker_nodes
        kill(node)
        nodes.worker_nodes.clear()
        while not any(map(gone, workers)):
            time.sleep(0.02)
        (folder / "go").touch()


def interrupt(folder) -> None:
    if tries("stopped", folder):
        raise KeyboardInterrupt
