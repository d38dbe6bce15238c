"""What becomes of one cell: trained, analysed, stored; failed, interrupted, unfinished."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from calattn.runs.runtime import Runtime
from reproduction import worker
from reproduction.cells import Cell
from reproduction.results import CellResult, Hole, ResultStore
from reproduction.worker import Work, read_order, run_cell, run_folder
from tests.reproduction.conftest import HEAD, PLAIN, work_in
from tests.small_runs import CPU

BROKEN = Cell(dataset="cifar10", model="deit", loss="no_such_loss")


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
        patched.setattr(worker, "score_run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
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

    monkeypatch.setattr(worker, "train_run", stop)
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
