"""The grid: what is run, in which order, what is skipped, and what a failure or a short time leaves behind."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from calattn.experiments import grid, worker
from calattn.experiments.cells import CNNS, TRANSFORMERS, Cell
from calattn.experiments.estimates import estimate
from calattn.experiments.grid import Outcome, Work, run_cells, run_folder
from calattn.experiments.plan import Forecast, plan, twins_first
from calattn.experiments.results import CellResult, Hole, ResultStore
from calattn.runs.runtime import Runtime
from tests.small_runs import CPU

PLAIN = Cell(dataset="cifar10", model="deit")
HEAD = dataclasses.replace(PLAIN, head="calattn")
BROKEN = Cell(dataset="cifar10", model="deit", loss="no_such_loss")


class Told:
    """Writes down what a grid reports."""

    training = None

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.outcomes: list[Outcome] = []
        self.left: list[float] = []

    def started(self, cell, *, place, total):
        self.starts.append(f"{place}/{total} {cell.name}")

    def finished(self, outcome, *, done, total, left):  # noqa: ARG002
        self.outcomes.append(outcome)
        self.left.append(left)


def done(cell: Cell, **run: object) -> CellResult:
    from calattn.experiments.cells import spec_of

    spec = spec_of(cell, "smoke")
    whole = {"spec": spec.model_dump(mode="json"), "epochs": spec.train.epochs}
    return CellResult(cell=cell, scale="smoke", cell_hash=spec.hash, run=whole | run, log=[], rules={}, pair={})


def test_twins_come_first_and_nothing_else_moves():
    others = [Cell(dataset="cifar100", model="vit"), Cell(dataset="mnist", model="swin")]
    assert twins_first([others[0], HEAD, others[1], PLAIN, HEAD]) == [others[0], PLAIN, HEAD, others[1]]
    assert twins_first([HEAD]) == [HEAD]  # a twin that nobody asked for is not run
    cells = [dataclasses.replace(PLAIN, head=head, seed=seed) for head in ("calattn", "none") for seed in range(4)]
    random.Random(0).shuffle(cells)
    ordered = twins_first(cells)
    assert sorted(ordered) == sorted(cells)
    assert all(ordered.index(cell.twin) < ordered.index(cell) for cell in cells if cell.head != "none")


def test_a_failing_cell_leaves_its_reason_and_the_rest_goes_on(tmp_path):
    store, told = ResultStore(tmp_path / "results", "smoke"), Told()
    cells = [BROKEN, PLAIN, HEAD]
    result = run_cells(cells, "smoke", store=store, runs=tmp_path / "runs", runtime=CPU, reporter=told)
    assert [outcome.cell for outcome in result.failed] == [BROKEN]
    hole = store.get(BROKEN)
    assert isinstance(hole, Hole)
    assert "no_such_loss" in hole.reason
    assert isinstance(store.get(PLAIN), CellResult)
    assert store.get(HEAD).pair, "the twin is at hand"
    assert told.starts == [f"{place}/3 {cell.name}" for place, cell in enumerate(cells, start=1)]
    assert told.left[-1] == 0 < told.left[0]
    for cell in (PLAIN, HEAD):
        folder = run_folder(cell, "smoke", tmp_path / "runs")
        assert not list((folder / "checkpoints").glob("*.safetensors")), "checkpoints go, predictions stay"
        assert (folder / "predictions" / "test" / "manifest.json").is_file()

    # The second call tries only what failed; the third nothing that is done.
    monitored = Told()
    again = run_cells(cells, "smoke", store=store, runs=tmp_path / "runs", runtime=CPU, reporter=monitored)
    assert [outcome.cell for outcome in again.outcomes] == [BROKEN]
    assert set(again.skipped) == {PLAIN, HEAD}

    # Without the result, but with the run: it is analysed again from its files alone, to the same numbers.
    before = store.get(HEAD)
    store.path(HEAD).unlink()
    run_cells([HEAD], "smoke", store=store, runs=tmp_path / "runs", runtime=CPU)
    assert store.get(HEAD).rules == before.rules
    assert store.get(HEAD).pair == before.pair


def test_without_its_twin_a_cell_is_not_compared_and_says_so(tmp_path):
    store, told = ResultStore(tmp_path / "results", "smoke"), Told()
    run_cells([HEAD], "smoke", store=store, runs=tmp_path / "runs", runtime=CPU, keep=True, reporter=told)
    assert store.get(HEAD).pair == {}
    assert store.get(HEAD).run["twin"] is None
    assert PLAIN.name in told.outcomes[0].remark
    folder = run_folder(HEAD, "smoke", tmp_path / "runs")
    assert list((folder / "checkpoints").glob("state-*.safetensors")), "keep"


def test_an_unfinished_cell_is_a_hole_and_goes_on_to_what_it_would_have_been(tmp_path):
    store, cells = ResultStore(tmp_path / "results", "smoke"), [PLAIN, HEAD]
    halfway = dataclasses.replace(CPU, until_epoch=1)
    result = run_cells(cells, "smoke", store=store, runs=tmp_path / "runs", runtime=halfway)
    assert [outcome.remark for outcome in result.outcomes] == ["unfinished: 1 of 2 epochs"] * 2
    assert not result.failed
    assert store.get(HEAD) == Hole(cell=HEAD, reason="unfinished: 1 of 2 epochs"), "no table may take it for a result"
    assert not store.names()
    partly = store.unfinished(HEAD)
    assert partly is not None
    assert (partly.run["epochs"], partly.planned_epochs, partly.unfinished) == (1, 2, True)
    assert partly.pair["last"]["pre"]["ece"], "compared with its twin at the same epoch"
    scores = run_folder(HEAD, "smoke", tmp_path / "runs") / "ood.safetensors"
    early = scores.read_bytes()
    assert plan(cells, "smoke", store, until_epoch=1).todo == ()
    assert run_cells(cells, "smoke", store=store, runs=tmp_path / "runs", runtime=halfway).skipped == (PLAIN, HEAD)
    assert plan(cells, "smoke", store).seconds == {PLAIN: 3.0, HEAD: 3.0}
    checkpoints = scores.parent / "checkpoints"
    assert list(checkpoints.glob("state-*.safetensors")), "from which it goes on"
    (checkpoints / "notes.txt").write_text("mine")

    run_cells(cells, "smoke", store=store, runs=tmp_path / "runs", runtime=CPU)
    assert scores.read_bytes() != early, "out-of-distribution scores are those of the network as it is now"
    assert [path.name for path in checkpoints.iterdir()] == ["notes.txt"]
    straight = ResultStore(tmp_path / "straight", "smoke")
    run_cells(cells, "smoke", store=straight, runs=tmp_path / "straight-runs", runtime=CPU)
    for cell in cells:
        ours, theirs = store.get(cell), straight.get(cell)
        assert isinstance(ours, CellResult)
        assert isinstance(theirs, CellResult)
        assert ours.rules == theirs.rules
        assert ours.pair == theirs.pair
        assert store.unfinished(cell) is None


def test_scores_of_an_earlier_epoch_are_never_used(tmp_path, monkeypatch):
    """Also not after a death between the end of training and the scoring."""
    store, runs = ResultStore(tmp_path / "results", "smoke"), tmp_path / "runs"
    run_cells([PLAIN], "smoke", store=store, runs=runs, runtime=dataclasses.replace(CPU, until_epoch=1))
    early = store.unfinished(PLAIN)
    with monkeypatch.context() as patched:
        patched.setattr(grid, "score_run", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_cells([PLAIN], "smoke", store=store, runs=runs, runtime=CPU)
    run_cells([PLAIN], "smoke", store=store, runs=runs, runtime=CPU)
    straight = ResultStore(tmp_path / "straight", "smoke")
    run_cells([PLAIN], "smoke", store=straight, runs=tmp_path / "other", runtime=CPU)
    assert store.get(PLAIN).rules["last"]["ood"] == straight.get(PLAIN).rules["last"]["ood"]
    assert store.get(PLAIN).rules["last"]["ood"] != early.rules["last"]["ood"]
    assert store.get(PLAIN).run["seconds"] > early.run["seconds"], "all sittings count"


@pytest.mark.parametrize("damage", ["{broken", "[]", "{}"])
def test_a_damaged_summary_is_made_again(tmp_path, damage):
    store, runs = ResultStore(tmp_path / "results", "smoke"), tmp_path / "runs"
    run_cells([PLAIN], "smoke", store=store, runs=runs, runtime=CPU, keep=True)
    store.path(PLAIN).unlink()
    (run_folder(PLAIN, "smoke", runs) / "summary.json").write_text(damage)
    result = run_cells([PLAIN, HEAD], "smoke", store=store, runs=runs, runtime=CPU)
    assert not result.failed
    assert store.get(HEAD).pair


def test_a_twin_that_is_not_as_far_is_no_twin(tmp_path):
    store = ResultStore(tmp_path / "results", "smoke")
    run_cells([PLAIN], "smoke", store=store, runs=tmp_path / "runs", runtime=dataclasses.replace(CPU, until_epoch=1))
    result = run_cells([HEAD], "smoke", store=store, runs=tmp_path / "runs", runtime=CPU)
    assert "or not as far" in (result.outcomes[0].remark or "")
    assert store.get(HEAD).pair == {}


@pytest.fixture
def quick(monkeypatch):
    """Cells that take a second of a pretended clock each."""
    clock = itertools.count()
    monkeypatch.setattr(grid.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(grid, "run_cell", lambda cell, work, training: Outcome(cell=cell, seconds=10.0))  # noqa: ARG005


@pytest.mark.usefixtures("quick")
def test_no_cell_is_started_that_would_not_fit(tmp_path):
    cells = [dataclasses.replace(PLAIN, seed=seed) for seed in range(4)]
    store = ResultStore(tmp_path, "smoke")
    # The first is expected to take 3 s and takes 10: the next is expected to take 10, and the clock is at 2 then.
    result = run_cells(cells, "smoke", store=store, runs=tmp_path, runtime=CPU, budget=11.0)
    assert [outcome.cell for outcome in result.outcomes] == cells[:1]
    assert result.left_out == tuple(cells[1:])
    assert run_cells(cells, "smoke", store=store, runs=tmp_path, runtime=CPU, budget=100.0).left_out == ()
    assert run_cells(cells, "smoke", store=store, runs=tmp_path, runtime=CPU, budget=2.0).left_out == tuple(cells)


def test_a_cell_that_fails_says_nothing_of_the_others_not_even_where_its_reason_cannot_be_kept(tmp_path):
    (tmp_path / "results").touch()  # no folder: nothing can be stored in it
    store, told = ResultStore(tmp_path / "results", "smoke"), Told()
    broken = [dataclasses.replace(BROKEN, seed=seed) for seed in range(3)]
    result = run_cells(broken, "smoke", store=store, runs=tmp_path / "runs", runtime=CPU, reporter=told)
    assert ["no_such_loss" in str(outcome.reason) for outcome in result.failed] == [True] * 3
    assert told.left == [6.0, 3.0, 0.0], "how soon they failed is no measure"


def test_an_interruption_is_no_failure(tmp_path, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "train_run", stop)
    store = ResultStore(tmp_path, "smoke")
    with pytest.raises(KeyboardInterrupt):
        run_cells([PLAIN], "smoke", store=store, runs=tmp_path, runtime=CPU)
    assert store.get(PLAIN).reason == "not run"


def test_bad_arguments_are_refused(tmp_path):
    store = ResultStore(tmp_path, "smoke")
    with pytest.raises(ValueError, match="jobs must be 1 or more, got 0"):
        run_cells([], "smoke", store=store, runs=tmp_path, jobs=0)
    with pytest.raises(ValueError, match="'smoke', not 'reduced'"):
        run_cells([], "reduced", store=store, runs=tmp_path)


def test_plan_expects_what_like_cells_took(tmp_path):
    store = ResultStore(tmp_path, "smoke")
    store.put(done(PLAIN, seconds=40.0, side_by_side=4))
    store.put(done(dataclasses.replace(PLAIN, seed=1)))  # does not say how long it took
    other = Cell(dataset="cifar10", model="vit")
    found = plan([PLAIN, HEAD, other], "smoke", store)
    assert found.done == (PLAIN,)
    assert found.todo == (HEAD, other)
    assert found.seconds == {HEAD: 10.0, other: 3.0}
    assert found.total == 13.0
    assert "1 of 2" in found.basis
    assert found.as_dict()["todo"][0] == {"cell": HEAD.name, "seconds": 10.0}


def test_estimates_of_real_scales():
    """What is known: DeiT-S/4 at 32 px does 27,000 images/s, and ViT-B at 224 px some 3,500 (2,300 by proportion)."""
    deit = estimate(PLAIN, "reduced")
    assert deit == pytest.approx(90 + 60 * 47_500 / 27_000, rel=0.02)
    assert estimate(Cell(dataset="cifar10", model="vit"), "paper") == pytest.approx(350 * 47_500 / 2_300, rel=0.1)
    for model in (*TRANSFORMERS, *CNNS):
        assert estimate(Cell(dataset="cifar100", model=model), "reduced") >= deit * 0.99


def test_forecast_learns_from_what_cells_took():
    cells = [dataclasses.replace(PLAIN, seed=seed) for seed in range(4)]
    forecast = Forecast(dict.fromkeys(cells, 10.0))
    assert forecast.of(cells) == 40.0
    forecast.took(cells[0], 20.0)
    assert forecast.of(cells[1:]) == pytest.approx(60.0)


def test_orders_and_reports_survive_the_command_line(tmp_path):
    runtime = Runtime(accelerator="cpu", threads=1, data_root=tmp_path)
    store = ResultStore(tmp_path / "results", "reduced")
    work = Work(store=store, runs=tmp_path / "runs", runtime=runtime, keep=True, jobs=3, cache=tmp_path)
    read = worker.read_order(worker.order(work))
    assert (read.store.folder, read.store.scale) == (store.folder, "reduced")
    assert dataclasses.replace(read, store=store) == work
    outcome = Outcome(cell=HEAD, seconds=1.5, reason="ValueError: “x”\nof two lines")
    assert "\n" not in worker.report_line(outcome)
    assert worker.read_report(worker.report_line(outcome)) == outcome
