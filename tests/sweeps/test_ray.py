"""Ray as the engine of a sweep: the same loop, the same results, and nodes that die."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from calattn.files.atomic import is_partial
from calattn.sweeps import jobs
from calattn.sweeps.jobs import JobEvent, run_jobs
from tests.cli_runner import invoke, predictions, refused, write_npz
from tests.samples import near
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

    second, events = SecondNode(nodes), list[JobEvent]()
    each = [job("bad", tmp_path, does="fails"), job("once", tmp_path, does="dies once")]
    each.append(job("good", tmp_path, after=("bad",)))
    assert run_jobs(each, OnRay(ray), retries=1, told=events.append) == {"bad": "ValueError: no such thing"}
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


def test_two_jobs_share_a_gpu(tmp_path, nodes):
    """Each waits until both have started. What Ray says a node has is not looked at: there need be no GPU."""
    import ray

    from calattn.sweeps.on_ray import OnRay

    node = nodes.add_node(num_cpus=2, num_gpus=1)

    def both() -> None:
        if all(tries(name, tmp_path) for name in "ab"):
            (tmp_path / "go").touch()

    assert run_jobs([job(name, tmp_path, does="waits once") for name in "ab"], OnRay(ray, gpus=0.5), tick=both) == {}
    nodes.remove_node(node)
    assert [(tmp_path / f"{name}.log").read_text() for name in "ab"] == ["GPUs: 0\n"] * 2


def test_forty_shards_of_which_a_node_is_lost_half_way_give_the_numbers_of_one_process(
    tmp_path, nodes, capsys, monkeypatch
):
    from calattn.sweeps import on_ray

    whole = predictions(n=600)
    for place, rows in enumerate(torch.arange(600).split(15)):
        write_npz(tmp_path / f"part-{place:02}.npz", whole.select(rows))
    command = ["evaluate", tmp_path / "part-*.npz", "--bootstrap", "50"]

    def found(*flags: str) -> dict[str, Any]:
        """From a file: Ray, which the tests keep connected, may speak of lost nodes on standard output at any time."""
        assert invoke(capsys, *command, *flags, "--write", tmp_path / "found.json").code == 0
        (one,) = json.loads((tmp_path / "found.json").read_text())["results"]
        return one

    here = found()
    second, mapped = SecondNode(nodes), on_ray.mapped

    def losing(ray: Any) -> Callable[..., Iterator[Any]]:
        def over(*arguments: Any) -> Iterator[Any]:
            for done, result in enumerate(mapped(ray)(*arguments), start=1):
                if done == 20:
                    second.lose()
                yield result

        return over

    monkeypatch.setattr(on_ray, "mapped", losing)
    there = found("--engine", "ray")
    assert second.lost
    assert there["verdict"] == here["verdict"]
    for name, row in here["metrics"].items():
        assert there["metrics"][name] == near(row, name, rel=1e-9), name

    # What is wrong with a shard is said as of a file here, and as an error of the same class.
    write_npz(tmp_path / "part-07.npz", whole.select(torch.arange(15)))
    damaged = dict(np.load(tmp_path / "part-07.npz"))
    damaged["logits"][3, 2] = np.nan
    np.savez(tmp_path / "part-07.npz", **damaged)
    error = refused(capsys, *command, "--engine", "ray")
    assert "part-07.npz" in error
    assert "[3, 2]" in error


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_grid_of_which_a_node_is_lost_half_way_gives_the_table_of_one_machine(tmp_path, nodes, capsys, monkeypatch):
    path, folder, second = write_grid(tmp_path), tmp_path / "ray", SecondNode(nodes)

    def half_way() -> None:
        while len(list(folder.glob("*/summary.json"))) < 3:
            time.sleep(0.02)
        second.lose()

    threading.Thread(target=half_way, daemon=True).start()
    command = ["sweep", path, *ON_CPU, "--json", "--out"]
    on_ray = invoke(capsys, *command, folder, "--engine", "ray")
    assert "starts again: Ray lost it: NodeDiedError" in on_ray.err
    monkeypatch.setattr(jobs.subprocess, "Popen", Forked)
    here = invoke(capsys, *command, tmp_path / "here").json
    assert [run["name"] for run in here["runs"]] == NAMES
    assert numbers(on_ray.json) == numbers(here)
    assert not [each for each in folder.rglob("*") if is_partial(each)]


@pytest.mark.usefixtures("nodes")
def test_what_ray_has_to_say_of_its_nodes_is_not_among_the_results(capsys):
    """Ray prints it, wherever standard output is by then."""
    from calattn.sweeps.on_ray import cluster

    with cluster(None):
        print("a line of Ray's")
    said = capsys.readouterr()  # beside it, what Ray really says of nodes that other tests have lost
    assert ("a line of Ray's\n" in said.out, "a line of Ray's\n" in said.err) == (False, True)


def test_without_ray_the_command_names_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for command in (["evaluate", write_npz(tmp_path / "a.npz", predictions())], ["sweep", write_grid(tmp_path)]):
        result = invoke(capsys, *command, "--engine", "ray")
        assert result.code == 1
        assert "pip install 'calattn[ray]'" in result.err
