"""The loop over jobs: in order, side by side, again after a death, and stopped, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calattn.sweeps.jobs import Job, JobEvent, Local, run_jobs
from tests.sweeps.player import ROOT, gone, job, tries


def run(jobs: list[Job], slots: int = 1, retries: int = 0) -> tuple[dict[str, str], list[JobEvent]]:
    events: list[JobEvent] = []
    return run_jobs(jobs, Local(slots), retries=retries, told=events.append), events


def test_one_after_another_and_those_that_wait_for_others_last(tmp_path):
    failed, events = run([job("b", tmp_path, after=("a",)), job("c", tmp_path), job("a", tmp_path)])
    assert failed == {}
    assert [each.name for each in events if each.state == "started"] == ["c", "a", "b"]
    assert [each.name for each in events if each.state == "done"] == ["c", "a", "b"]


def test_a_job_that_fails_says_why_and_stops_no_other_and_is_not_tried_again(tmp_path):
    failed, events = run([job("bad", tmp_path, does="fails"), job("good", tmp_path, after=("bad",))], retries=3)
    assert failed == {"bad": "ValueError: no such thing"}
    assert len(tries("bad", tmp_path)) == len(tries("good", tmp_path)) == 1
    assert JobEvent("good", "done") in events


def test_a_job_that_dies_is_started_again_so_often_and_no_more(tmp_path):
    failed, events = run(
        [job("once", tmp_path, does="dies once"), job("always", tmp_path, does="dies")], slots=2, retries=2
    )
    assert list(failed) == ["always"]
    assert "SIGKILL" in failed["always"]
    assert len(tries("once", tmp_path)) == 2
    assert len(tries("always", tmp_path)) == 3
    assert sum(each.state == "again" for each in events) == 3


def test_side_by_side_no_more_than_asked_for(tmp_path):
    names = "abcde"
    _, events = run([job(name, tmp_path) for name in names], slots=2)
    under_way = [sum({"started": 1, "done": -1}[each.state] for each in events[: i + 1]) for i in range(len(events))]
    assert max(under_way) == 2
    assert under_way[-1] == 0


def test_several_gpus_are_dealt_out(tmp_path, monkeypatch):
    environments = []

    class Ended:
        stdin = None

        def poll(self) -> int:
            return 0

        terminate = wait = lambda *_: None

    def popen(_: object, env: dict[str, str], **__: object) -> Ended:
        environments.append(env.get("CUDA_VISIBLE_DEVICES"))
        return Ended()

    monkeypatch.setattr("calattn.sweeps.jobs.subprocess.Popen", popen)
    run_jobs([job(name, tmp_path) for name in "abc"], Local(3, gpus=["4", "5"]))
    assert environments == ["4", "5", "4"]


RUNNER = """
import sys
from pathlib import Path
from calattn.sweeps.jobs import Local, run_jobs
from tests.sweeps.player import job
run_jobs([job(name, Path(sys.argv[1]), does="waits") for name in "ab"], Local(2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_starter(tmp_path, number):
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    handled = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + handled + RUNNER, str(tmp_path)],
        env=environment,
        stderr=subprocess.PIPE,
    ) as runner:
        workers = waiting(tmp_path, "ab")
        runner.send_signal(number)
        runner.wait()
        if number != signal.SIGKILL:
            assert all(map(gone, workers)), "it ends after them"
        while not all(map(gone, workers)):
            time.sleep(0.02)


def waiting(folder: Path, names: str) -> list[int]:
    while not all(tries(name, folder) for name in names):
        time.sleep(0.02)
    return [tries(name, folder)[-1] for name in names]


def test_nothing_of_the_current_folder_is_run(tmp_path, monkeypatch):
    """`python -m` alone would look there first."""
    (tmp_path / "json.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    assert run([job("a", tmp_path)])[0] == {}
    assert not (tmp_path / "ran").exists()
