"""`python -m reproduction` end to end on tiny networks: planned, skipped, failed, killed, stopped, side by side."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from calattn.data.corruptions import CORRUPTIONS
from calattn.runs.runtime import Runtime
from calattn.sweeps import jobs
from reproduction import figures, runner
from reproduction.__main__ import main
from reproduction.cells import GridCell
from reproduction.planned import ordered_cells
from reproduction.results import CellResult, Hole, ResultStore
from reproduction.runner import Work, is_done, read_order, run_cell, run_cells, run_folder
from tests.reproduction.conftest import HEAD, PLAIN, work_in
from tests.small_runs import CPU
from tests.sweeps.player import gone
from tests.sweeps.workers import FORK, Forked

ONLY = ("--only", "cifar10-deit-ce_brier*")
ON_CPU = ("--accelerator", "cpu", "--threads", "1")


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr(jobs.subprocess, "Popen", Forked)


def places(base: Path) -> tuple[str, ...]:
    return ("--results", str(base / "results"), "--runs", str(base / "runs"), "--out", str(base / "out"))


def results_of(base: Path) -> list[CellResult | Hole]:
    store = ResultStore(base / "results", "smoke")
    return [store.get(cell) for cell in (PLAIN, HEAD)]


@pytest.fixture
def begun(copied: Work) -> Path:
    """A folder in which the cell without a head is done, and the other is not."""
    copied.store.path(HEAD).unlink()
    shutil.rmtree(run_folder(HEAD, "smoke", copied.runs))
    return copied.runs.parent


def assert_same_numbers(base: Path, undisturbed: Work) -> None:
    for mine, theirs in zip(results_of(base), map(undisturbed.store.get, (PLAIN, HEAD)), strict=True):
        assert isinstance(mine, CellResult), mine
        assert mine.rules == theirs.rules
        assert mine.pair == theirs.pair
        assert mine.log == theirs.log


def test_a_table_is_made_once_and_then_only_written(capsys, begun, undisturbed):
    assert main(["ece", *ONLY, *places(begun), *ON_CPU]) == 0
    first = capsys.readouterr()
    assert "cells to run: 1; done before: 1" in first.err
    assert f"[1/1] {HEAD.name}: done" in first.err
    assert_same_numbers(begun, undisturbed)
    written = [Path(line) for line in first.out.splitlines()]
    assert {path.name for path in written} >= {"ece.md", "ece.csv"}
    assert all(path.stat().st_size for path in written)
    shown = f"{100 * results_of(begun)[1].metric('ece').value:.2f}"
    assert shown in written[0].read_text(encoding="utf-8")

    assert main(["ece", *ONLY, *places(begun), *ON_CPU]) == 0
    assert "cells to run: 0; done before: 2" in capsys.readouterr().err


def test_the_plan_runs_nothing(capsys, tmp_path):
    assert main(["--plan", *places(tmp_path)]) == 0
    assert list(tmp_path.iterdir()) == []
    shown = capsys.readouterr().out
    assert re.findall(r"^to do  (.+)$", shown, re.M) == [cell.name for cell in ordered_cells("smoke")]
    assert "59 to do, 0 done" in shown
    assert "is not there" not in shown


def test_the_plan_names_missing_data_and_the_command_that_gets_it(capsys, tmp_path):
    there = tmp_path / "there"

    def missing(*arguments: str) -> list[str]:
        assert main([*arguments, "--plan", "--data-root", str(there), *places(tmp_path)]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "is not there" in line]

    names = ("cifar10", "cifar100", "mnist", "svhn")
    lines = missing("--scale", "reduced", "--only", "[cm]*")
    assert sorted(line.split()[0] for line in lines) == sorted(names)
    assert f"mnist is not there; get it with: calattn data get mnist --data-root {there}" in lines
    for name in names:
        (there / name).mkdir(parents=True)
        for split in ("train", "test"):
            (there / name / f"{split}-00000-of-00001.parquet").touch()
    assert missing("--scale", "reduced", "--only", "[cm]*") == []
    (needs_account,) = missing("imagenet1k", "--scale", "paper")
    assert "image-net.org" in needs_account


def test_corrupted_images_come_from_their_own_files_where_those_are(capsys, tmp_path):
    (tmp_path / "cifar10_c").mkdir()
    for name in (*CORRUPTIONS, "labels"):
        (tmp_path / "cifar10_c" / f"{name}.npy").touch()
    asked = ["--scale", "reduced", "--plan", "--only", "cifar100-deit-ce", "--data-root", str(tmp_path)]
    assert main([*asked, *places(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "is not there" in line] == ["cifar100", "svhn"]


def test_a_report_needs_no_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "save_figure", lambda *_: None)  # empty pictures are drawn by the tests of figures
    monkeypatch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda _: None)
    assert main(["--no-train", *places(tmp_path), "--report", str(tmp_path / "R.md")]) == 0
    assert str(tmp_path / "R.md") in capsys.readouterr().out.splitlines()
    assert "not tested" in (tmp_path / "R.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("forked")
def test_a_cell_without_data_is_a_hole_in_the_table(capsys, tmp_path):
    only = ("--scale", "reduced", "--only", "cifar10-deit-ce", "--data-root", str(tmp_path / "nowhere"))
    assert main(["ood", *only, *places(tmp_path), *ON_CPU]) == 1
    assert "cifar10-deit-ce: failed" in capsys.readouterr().err
    assert "calattn data get cifar10" in (tmp_path / "out" / "reduced" / "ood.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ecee",), "did you mean 'ece'?"),
        (("ece", "--only", "nothing*"), "no cell matches --only 'nothing*'"),
        (("ece", "--scale", "huge"), "smoke"),
        (("--jobs", "0"), "--jobs must be 1 or more, got 0"),
        (("--no-train", "--out", "file/x"), "file/x"),
    ],
)
def test_wrong_usage_is_said_in_a_line(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("forked")
def test_stopped_in_the_middle_it_leaves_no_worker_and_no_failure(capsys, tmp_path, monkeypatch):
    """Its workers wait where they would train. What a cell resumes to is tested with the worker; other ends, with the loop."""
    begun = tmp_path / "begun"
    begun.mkdir()

    def wait(_: object, folder: Path, **__: object) -> None:
        (begun / folder.name).write_text(str(os.getpid()))
        time.sleep(600)

    monkeypatch.setattr("calattn.runs.train.train_run", wait)
    asked = ("--only", "cifar10-deit-*", "--jobs", "2")
    process = FORK.Process(target=command, args=("ece", *places(tmp_path), *ON_CPU, *asked))
    process.start()
    try:
        while len(found := [path for path in begun.iterdir() if path.read_text()]) < 2:
            assert process.is_alive(), "it ended too early"
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        process.join()
        assert all(gone(int(path.read_text())) for path in found)
    finally:
        process.kill()
    assert process.exitcode == 143
    assert not list((tmp_path / "results").rglob("*.failed.json")), "an interruption is no failure"
    assert main(["ece", *places(tmp_path), *asked, "--plan"]) == 0
    assert "14 to do, 0 done" in capsys.readouterr().out


def command(*arguments: str) -> None:
    torch.set_num_threads(1)
    sys.argv[1:] = arguments
    runpy.run_module("reproduction", run_name="__main__", alter_sys=True)


def test_side_by_side_one_that_dies_takes_no_other_down(tmp_path, undisturbed, monkeypatch):
    """One worker is killed by the system whenever it comes to its cell."""
    doomed = GridCell(dataset="mnist", model="vit")
    started: list[GridCell] = []

    def mined(given: list[str], **more: object) -> Forked:
        started.append(GridCell(**json.loads(given[-1])["cell"]))
        dies = (lambda: os.kill(os.getpid(), signal.SIGKILL)) if started[-1] == doomed else None
        return Forked(given, before=dies, **more)

    monkeypatch.setattr(jobs.subprocess, "Popen", mined)
    work = dataclasses.replace(work_in(tmp_path), jobs=2)
    said: list[str] = []
    assert run_cells([doomed, HEAD, PLAIN], work, said.append) == [doomed]
    assert started == [doomed, PLAIN, doomed, HEAD], "a head waits for its twin, and others go before it"
    hole = work.store.get(doomed)
    assert isinstance(hole, Hole)
    assert "SIGKILL" in hole.reason
    assert any("failed" in line and "SIGKILL" in line for line in said)
    assert_same_numbers(tmp_path, undisturbed)
    assert work.store.get(PLAIN).run["side_by_side"] == 2


@pytest.mark.usefixtures("forked")
def test_a_head_that_was_stored_without_its_twin_is_compared_once_there_is_one(begun, undisturbed):
    """The worker of the twin had died: the head was analysed alone, and its paired tests would have been lost for ever."""
    work = work_in(begun)
    twin = run_folder(PLAIN, "smoke", work.runs)
    hidden = twin.rename(begun / "hidden")
    run_cell(HEAD, work)
    assert work.store.get(HEAD).pair == {}
    assert is_done(HEAD, work), "there is no twin to compare it with, nor will there be: the other result stands"
    work.store.path(PLAIN).unlink()
    assert not is_done(HEAD, work), "its twin will be there"
    hidden.rename(twin)
    assert run_cells([HEAD, PLAIN], work, print) == []
    assert_same_numbers(begun, undisturbed)
    assert is_done(HEAD, work)


@pytest.mark.parametrize(("threads", "each"), [(None, max(1, (os.cpu_count() or 1) // 2)), (3, 3)])
def test_workers_share_the_cores(tmp_path, threads, each):
    runtime = dataclasses.replace(CPU, threads=threads)
    work = Work(store=ResultStore(tmp_path, "smoke"), runs=tmp_path, runtime=runtime, jobs=2)
    assert runner._with_threads(work).threads == each


# --- what becomes of one cell ------------------------------------------------------------------------------------------

BROKEN = GridCell(dataset="cifar10", model="deit", loss="no_such_loss")


@pytest.fixture
def work(tmp_path) -> Work:
    return work_in(tmp_path)


def until(work: Work, epoch: int) -> Work:
    return dataclasses.replace(work, runtime=dataclasses.replace(CPU, until_epoch=epoch))


def test_a_failing_cell_leaves_its_reason(work):
    with pytest.raises(ValueError, match="no_such_loss"):
        run_cell(BROKEN, work)
    hole = work.store.get(BROKEN)
    assert isinstance(hole, Hole)
    assert "no_such_loss" in hole.reason


def test_a_reason_that_cannot_be_kept_is_said_all_the_same(work):
    work.store.folder.parent.touch()  # no folder: nothing can be stored in it
    with pytest.raises(ValueError, match="no_such_loss"):
        run_cell(BROKEN, work)


def test_a_pair_is_compared_and_analysed_again_its_checkpoints_go(copied, undisturbed):
    before = undisturbed.store.get(HEAD)
    assert before.pair, "the twin is at hand"
    # Without the result, but with the run: it is analysed again from its files alone, to the same numbers.
    copied.store.path(HEAD).unlink()
    run_cell(HEAD, copied)
    assert copied.store.get(HEAD).rules == before.rules
    assert copied.store.get(HEAD).pair == before.pair
    folder = run_folder(HEAD, "smoke", copied.runs)
    assert not list((folder / "checkpoints").glob("*.safetensors")), "checkpoints go, predictions stay"
    assert (folder / "predictions" / "test" / "manifest.json").is_file()


def test_without_its_twin_a_cell_is_not_compared(work):
    run_cell(HEAD, dataclasses.replace(work, keep=True))
    assert work.store.get(HEAD).pair == {}
    assert work.store.get(HEAD).run["twin"] is None
    folder = run_folder(HEAD, "smoke", work.runs)
    assert list((folder / "checkpoints").glob("state-*.safetensors")), "keep"


def test_a_twin_that_is_not_as_far_is_no_twin(copied):
    shutil.rmtree(run_folder(PLAIN, "smoke", copied.runs))
    run_cell(PLAIN, until(copied, 1))
    copied.store.path(HEAD).unlink()
    run_cell(HEAD, copied)
    assert copied.store.get(HEAD).pair == {}


def test_an_unfinished_cell_is_a_hole_and_resumes_to_what_it_would_have_been(work, undisturbed):
    for cell in (PLAIN, HEAD):
        run_cell(cell, until(work, 1))
        hole = work.store.get(cell)
        assert isinstance(hole, Hole)
        assert hole.reason == "unfinished: 1 of 2 epochs"
    assert work.store.unfinished(HEAD).pair, "two that came equally far are compared"
    scores = run_folder(HEAD, "smoke", work.runs) / "ood.safetensors"
    early, checkpoints = scores.read_bytes(), scores.parent / "checkpoints"
    assert list(checkpoints.glob("state-*.safetensors")), "from which it resumes"
    (checkpoints / "notes.txt").write_text("mine")

    for cell in (PLAIN, HEAD):
        run_cell(cell, work)
    assert scores.read_bytes() != early, "out-of-distribution scores are those of the network as it is now"
    assert [path.name for path in checkpoints.iterdir()] == ["notes.txt"]
    for cell in (PLAIN, HEAD):
        ours, theirs = work.store.get(cell), undisturbed.store.get(cell)
        assert isinstance(ours, CellResult)
        assert ours.rules == theirs.rules
        assert ours.pair == theirs.pair
        assert work.store.unfinished(cell) is None


def test_scores_of_an_earlier_epoch_are_never_used(work, undisturbed, monkeypatch):
    """Also not after a death between the end of training and the scoring."""
    run_cell(PLAIN, until(work, 1))
    early = work.store.unfinished(PLAIN)
    with monkeypatch.context() as patched:
        patched.setattr(runner.ood, "score_run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_cell(PLAIN, work)
    run_cell(PLAIN, work)
    found, calm = work.store.get(PLAIN), undisturbed.store.get(PLAIN)
    assert found.rules["last"]["ood"] == calm.rules["last"]["ood"]
    assert found.rules["last"]["ood"] != early.rules["last"]["ood"]
    assert found.run["seconds"] > early.run["seconds"], "all sittings count"


@pytest.mark.parametrize("damage", ["{broken", "[]", "{}"])
def test_a_damaged_summary_is_made_again(copied, damage):
    (run_folder(PLAIN, "smoke", copied.runs) / "summary.json").write_text(damage)
    for cell in (PLAIN, HEAD):
        copied.store.path(cell).unlink()
    for cell in (PLAIN, HEAD):
        run_cell(cell, copied)
    assert copied.store.get(HEAD).pair


def test_an_interruption_is_no_failure(work, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train_run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_cell(PLAIN, work)
    assert work.store.get(PLAIN).reason == "not run"


def test_an_order_survives_the_command_line(tmp_path):
    store = ResultStore(tmp_path / "results", "reduced")
    runtime = Runtime(accelerator="cpu", threads=1, data_root=tmp_path)
    work = Work(store=store, runs=tmp_path / "runs", runtime=runtime, keep=True, jobs=3, cache=tmp_path)
    cell, read = read_order(work.order(HEAD))
    assert cell == HEAD
    assert (read.store.folder, read.store.scale) == (store.folder, "reduced")
    assert dataclasses.replace(read, store=store) == work
