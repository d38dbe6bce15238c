"""`calattn reproduce` end to end on tiny networks: skipped, failed, killed, terminated, side by side."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from calattn.experiments import jobs
from calattn.experiments.cells import Cell
from calattn.experiments.grid import run_cells, run_folder
from calattn.experiments.results import CellResult, Hole, ResultStore
from calattn.runs.runtime import Runtime
from tests.cli_runner import Result, invoke

PLAIN = Cell(dataset="cifar10", model="deit")
HEAD = dataclasses.replace(PLAIN, head="calattn")
ONLY = ("--only", "cifar10-deit-ce_brier*")
CPU = ("--accelerator", "cpu", "--threads", "1")


def places(base: Path) -> tuple[str, ...]:
    return ("--results", str(base / "results"), "--runs", str(base / "runs"), "--out", str(base / "out"))


def results_of(base: Path) -> list[CellResult | Hole]:
    store = ResultStore(base / "results", "smoke")
    return [store.get(cell) for cell in (PLAIN, HEAD)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("undisturbed")
    store = ResultStore(base / "results", "smoke")
    run_cells([PLAIN, HEAD], "smoke", store=store, runs=base / "runs", runtime=Runtime(accelerator="cpu", threads=1))
    return base


def assert_same_numbers(base: Path, undisturbed: Path) -> None:
    for mine, theirs in zip(results_of(base), results_of(undisturbed), strict=True):
        assert isinstance(mine, CellResult), mine
        assert mine.rules == theirs.rules
        assert mine.pair == theirs.pair
        assert mine.log == theirs.log


def test_a_table_is_made_once_and_then_only_written(capsys, tmp_path, undisturbed):
    first = invoke(capsys, "reproduce", "ece", *ONLY, *places(tmp_path), *CPU, "--json")
    assert first.code == 0, first.err
    assert first.json["grid"]["finished"] == [PLAIN.name, HEAD.name]
    assert first.json["holes"] == {}
    assert_same_numbers(tmp_path, undisturbed)
    written = [Path(path) for path in first.json["written"]]
    assert {path.suffix for path in written} >= {".md", ".tex", ".csv"}
    assert all(path.stat().st_size for path in written)
    assert "about" in first.err  # time left, after the first of two

    second = invoke(capsys, "reproduce", "ece", *ONLY, *places(tmp_path), *CPU, "--json")
    assert second.json["grid"]["finished"] == []
    assert second.json["grid"]["skipped"] == [PLAIN.name, HEAD.name]
    assert "2 cells were done before" in second.err

    shown = invoke(capsys, "reproduce", "ece", "--no-train", *places(tmp_path))
    assert shown.code == 0
    ece = results_of(tmp_path)[1].metric("ece")
    assert f"{100 * ece.value:.1f}" in shown.out
    for path in written:
        assert str(path) in shown.out


def test_the_plan_runs_nothing(capsys, tmp_path):
    planned = invoke(capsys, "reproduce", "all", "--plan", *places(tmp_path), "--json")
    assert planned.code == 0
    assert len(planned.json["plan"]["todo"]) > 20
    assert planned.json["plan"]["seconds"] == pytest.approx(3.0 * len(planned.json["plan"]["todo"]))
    assert list(tmp_path.iterdir()) == []
    text = invoke(capsys, "reproduce", "ece", "--plan", *places(tmp_path)).out
    assert PLAIN.name in text
    assert "as measured on one core" in text


def test_a_report_needs_no_run(capsys, tmp_path):
    made = invoke(capsys, "reproduce", "report", *places(tmp_path), "--report", tmp_path / "R.md")
    assert made.code == 0, made.err
    assert made.out.split() == [str(tmp_path / "R.md")]
    assert "not tested" in (tmp_path / "R.md").read_text(encoding="utf-8")


def test_a_cell_without_data_is_a_hole_in_the_table(capsys, tmp_path):
    name = "cifar10-deit-ce"
    scale = ("--scale", "reduced", "--only", name, "--data-root", tmp_path / "nowhere")
    made = invoke(capsys, "reproduce", "ood", *scale, *places(tmp_path), *CPU, "--json")
    assert made.code == 1
    assert "calattn data get cifar10" in made.json["holes"][name]
    assert list(made.json["grid"]["failed"]) == [name]
    table = next(Path(path) for path in made.json["written"] if path.endswith(".md")).read_text(encoding="utf-8")
    assert "calattn data get cifar10" in table


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ecee",), "did you mean 'ece'?"),
        (("nonsense",), "all, report"),
        (("ece", "--only", "nothing*"), "no cell matches --only 'nothing*'"),
        (("ece", "--scale", "huge"), "smoke"),
    ],
)
def test_wrong_usage_is_said_in_a_line(capsys, tmp_path, arguments, said):
    found: Result = invoke(capsys, "reproduce", *arguments, *places(tmp_path))
    assert found.code == 2
    assert said in found.err


def start(base: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "calattn", "reproduce", "ece", *ONLY, *places(base), *CPU, *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    for _ in range(20000):
        if ready():
            return
        assert process.poll() is None, "it ended too early"
        time.sleep(0.01)
    raise AssertionError("it never came")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_in_the_middle_it_goes_on(capsys, tmp_path, undisturbed, number):
    process = start(tmp_path)
    store = ResultStore(tmp_path / "results", "smoke")
    try:
        wait_for(process, lambda: store.path(PLAIN).exists())
        process.send_signal(number)
        code = process.wait(timeout=150)
    finally:
        process.kill()
    assert code == (-9 if number == signal.SIGKILL else 143)
    first, second = results_of(tmp_path)
    assert isinstance(first, CellResult)
    assert isinstance(second, Hole)
    assert second.reason == "not run", "an interruption is no failure"
    again = invoke(capsys, "reproduce", "ece", *ONLY, *places(tmp_path), *CPU, "--json")
    assert again.json["grid"]["finished"] == [HEAD.name]
    assert again.json["grid"]["skipped"] == [PLAIN.name]
    assert "1 cell was done before" in again.err
    assert_same_numbers(tmp_path, undisturbed)


def _alive(lock: Path) -> bool:
    try:
        os.kill(int(lock.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_side_by_side_one_that_dies_takes_no_other_down(tmp_path, undisturbed, monkeypatch):
    """Four cells for two workers; one worker is killed by the system when it comes to its cell."""
    doomed, seed = Cell(dataset="mnist", model="vit"), dataclasses.replace(PLAIN, seed=1)
    deadly = (
        "import os, signal, sys; from calattn.experiments import worker; run = worker.run_cell;"
        "worker.run_cell = lambda cell, work: os.kill(os.getpid(), signal.SIGKILL)"
        " if cell.dataset == 'mnist' else run(cell, work);"
        "sys.exit(worker.main(sys.argv[1]))"
    )
    honest = subprocess.Popen

    def mined(command: list[str], **options: object) -> subprocess.Popen:
        assert command[1:3] == ["-m", "calattn.experiments.worker"]
        return honest([sys.executable, "-c", deadly, command[-1]], **options)

    monkeypatch.setattr(jobs.subprocess, "Popen", mined)
    store = ResultStore(tmp_path / "results", "smoke")
    runtime = Runtime(accelerator="cpu", threads=1)
    cells = [doomed, HEAD, seed, PLAIN]
    result = run_cells(cells, "smoke", store=store, runs=tmp_path / "runs", runtime=runtime, jobs=2)
    assert result.jobs == 2
    assert {outcome.cell for outcome in result.outcomes} == set(cells)
    assert [outcome.cell for outcome in result.failed] == [doomed]
    hole = store.get(doomed)
    assert isinstance(hole, Hole)
    assert "SIGKILL" in hole.reason
    assert_same_numbers(tmp_path, undisturbed)
    assert store.get(seed).run["side_by_side"] == 2
    logs = [path.read_text() for path in (tmp_path / "runs" / "smoke" / "logs").glob("*.log")]
    assert len(logs) == 3, "the one that was killed has a successor"
    assert sum(PLAIN.name in log for log in logs) >= 1


def test_side_by_side_no_worker_outlives_the_command(tmp_path):
    process = start(tmp_path, "--only", "cifar10-deit-*", "--jobs", "2")
    locks = [run_folder(cell, "smoke", tmp_path / "runs") / ".lock" for cell in (PLAIN, HEAD)]
    folder = locks[0].parents[1]
    try:
        wait_for(process, lambda: len(list(folder.glob("*/.lock"))) >= 2)
        process.terminate()
        assert process.wait(timeout=150) == 143
    finally:
        process.kill()
    held = list(folder.glob("*/.lock"))
    assert not any(_alive(lock) for lock in held)
    assert not list((tmp_path / "results").rglob("*.failed.json"))
