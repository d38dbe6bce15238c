"""Ray as the engine of a sweep: the same loop, the same results, and nodes that die."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import calattn
from calattn.files.atomic import is_partial
from calattn.sweeps.jobs import Event, run_jobs
from tests.cli_runner import invoke, predictions, refused, write_npz
from tests.sweeps.clusters import SecondNode, cluster, needs_ray
from tests.sweeps.grids import NAMES, ON_CPU, numbers, write_grid
from tests.sweeps.player import gone, job, tries
from tests.sweeps.workers import Forked

pytestmark = needs_ray


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster() as made:
        yield made


def test_jobs_on_a_cluster_fail_die_and_are_started_again_as_on_one_machine(tmp_path, nodes):
    import ray

    from calattn.sweeps.on_ray import OnRay

    second, events = SecondNode(nodes), list[Event]()
    jobs = [job("bad", tmp_path, does="fails"), job("once", tmp_path, does="dies once")]
    jobs.append(job("good", tmp_path, after=("bad",)))
    assert run_jobs(jobs, OnRay(ray), retries=1, told=events.append) == {"bad": "ValueError: no such thing"}
    assert [len(tries(name, tmp_path)) for name in ("bad", "once", "good")] == [1, 2, 1]

    def half_way() -> None:
        """The second node is lost once both jobs wait, and the other job is let go."""
        workers = [number for name in "ab" for number in tries(name, tmp_path)]
        if len(workers) == 2 and not second.lost:
            second.lose()
            while not any(map(gone, workers)):
                time.sleep(0.02)
            (tmp_path / "go").touch()

    events.clear()
    waiting = [job(name, tmp_path, does="waits once") for name in "ab"]
    assert run_jobs(waiting, OnRay(ray), retries=1, told=events.append, tick=half_way) == {}
    assert [each.reason for each in events if each.state == "again"] == ["Ray lost it: NodeDiedError"]

    def interrupt() -> None:
        if tries("stopped", tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("stopped", tmp_path, does="waits")], OnRay(ray), tick=interrupt)
    assert gone(tries("stopped", tmp_path)[0]), "who stops the runner stops its jobs"


def test_forty_shards_of_which_a_node_is_lost_half_way_give_the_numbers_of_one_process(tmp_path, nodes, capsys):
    import ray

    from calattn.sweeps.on_ray import mapped
    from calattn.sweeps.shards import evaluated, shards_of

    whole = predictions(n=600)
    for place, rows in enumerate(torch.arange(600).split(15)):
        write_npz(tmp_path / f"part-{place:02}.npz", whole.select(rows))
    pattern, second, done = str(tmp_path / "part-*.npz"), SecondNode(nodes), 0

    def over(*arguments: Any) -> Iterator[Any]:
        nonlocal done
        for result in mapped(ray)(*arguments):
            done += 1
            if done == 20:
                second.lose()
            yield result

    shards = shards_of(pattern, {})
    assert len(shards) == 40
    evaluation, verdict = evaluated(shards, over, target=None, num_bootstrap=50)
    assert second.lost
    here = calattn.evaluate(calattn.stream_predictions(pattern), num_bootstrap=50)
    assert_close(evaluation.as_dict(), here.as_dict())
    command = ["evaluate", pattern, "--bootstrap", "50", "--json"]
    said = invoke(capsys, *command, "--engine", "ray")
    assert said.code == 0, said.err
    (there,) = said.json["results"]
    (here,) = invoke(capsys, *command).json["results"]
    assert there["verdict"] == here["verdict"] == {key: verdict[key] for key in ("kind", "headline", "detail")}
    assert_close(there["metrics"], here["metrics"])

    # What is wrong with a shard is said as of a file here, and as an error of the same class.
    write_npz(tmp_path / "part-07.npz", whole.select(torch.arange(15)))
    damaged = dict(np.load(tmp_path / "part-07.npz"))
    damaged["logits"][3, 2] = np.nan
    np.savez(tmp_path / "part-07.npz", **damaged)
    error = refused(capsys, *command, "--engine", "ray")
    assert "part-07.npz" in error
    assert "[3, 2]" in error


def assert_close(found: dict, expected: dict) -> None:
    """Classwise sums are resampled in float32."""
    for name, row in expected.items():
        assert found[name] == pytest.approx(row, rel=1e-6 if name == "classwise_ece" else 1e-9), name


@pytest.mark.slow
def test_a_grid_of_which_a_node_is_lost_half_way_gives_the_table_of_one_machine(tmp_path, nodes, capsys, monkeypatch):
    import ray

    from calattn.runs.runtime import Runtime
    from calattn.sweeps import jobs
    from calattn.sweeps.grid import read_grid
    from calattn.sweeps.on_ray import OnRay
    from calattn.sweeps.sweep import Sweep

    path, second, events = write_grid(tmp_path), SecondNode(nodes), list[Event]()
    found = Sweep(runs=read_grid(path), folder=tmp_path / "ray", runtime=Runtime(accelerator="cpu", threads=1))

    def half_way() -> None:
        if [each.state for each in events].count("done") == 3:
            second.lose()

    assert found.train(found.todo(), OnRay(ray), retries=1, told=events.append, tick=half_way) == {}
    assert [each.reason for each in events if each.state == "again"] == ["Ray lost it: NodeDiedError"]
    command = ["sweep", path, *ON_CPU, "--json"]
    on_ray = invoke(capsys, *command, "--out", tmp_path / "ray", "--engine", "ray").json  # finds nothing to do
    monkeypatch.setattr(jobs.subprocess, "Popen", Forked)
    here = invoke(capsys, *command, "--out", tmp_path / "here").json
    assert [run["name"] for run in here["runs"]] == NAMES
    assert numbers(on_ray) == numbers(here)
    assert not [each for each in (tmp_path / "ray").rglob("*") if is_partial(each)]


def test_without_ray_the_command_names_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (["evaluate", write_npz(tmp_path / "a.npz", predictions())], ["sweep", write_grid(tmp_path)]):
        result = invoke(capsys, *command, "--engine", "ray")
        assert result.code == 1
        assert "pip install 'calattn[ray]'" in result.err
