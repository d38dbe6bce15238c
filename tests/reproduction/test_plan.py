"""The plan of a grid: recorded operations, times by what finished cells took, and what it does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calattn.data.corruptions import CORRUPTIONS
from calattn.experiments.cells import Cell, spec_of
from calattn.experiments.estimates import OVERHEAD, estimate
from calattn.experiments.needs import missing_data
from calattn.experiments.operations import RECORDED, count, image_size, operations
from calattn.experiments.order import ordered_cells
from calattn.experiments.plan import plan
from calattn.experiments.results import CellResult, ResultStore
from tests.cli_runner import invoke

PLAIN = Cell(dataset="cifar10", model="deit")


def finished(
    cell: Cell,
    seconds: float,
    *,
    epochs: int = 60,
    side_by_side: int = 1,
    device: str | None = "NVIDIA H200",
    started: str | None = None,
) -> CellResult:
    spec = spec_of(cell, "reduced")
    run = {"spec": spec.model_dump(mode="json"), "epochs": epochs, "seconds": seconds, "side_by_side": side_by_side}
    run["environment"] = {"devices": [{"name": device}] if device else [], "cpu": {"model": "Xeon"}}
    if started is not None:
        run["environment"]["started"] = f"2026-11-16T{started}+00:00"
    return CellResult(cell=cell, scale="reduced", cell_hash=spec.hash, run=run, log=[], rules={}, pair={})


def planned_networks() -> dict[tuple[str, int], object]:
    specs = [spec_of(cell, scale) for scale in ("reduced", "paper") for cell in ordered_cells(scale)]
    return {(spec.model.backbone, image_size(spec)): spec for spec in reversed(specs)}


def test_every_planned_network_is_recorded_and_no_other():
    assert set(RECORDED) == set(planned_networks())


@pytest.mark.parametrize("network", sorted(RECORDED), ids=lambda network: "{}-{}".format(*network))
def test_recorded_operations_are_those_counted(network):
    spec = planned_networks()[network]
    assert RECORDED[network] == pytest.approx(count(spec), rel=0.01)
    assert operations(spec) == RECORDED[network]


def test_a_network_with_options_of_its_own_is_counted():
    """One layer instead of twelve: the record of the whole network does not apply."""
    spec = planned_networks()["deit_small", 32]
    shallow = spec.model_copy(update={"model": spec.model.model_copy(update={"options": {"depth": 1}})})
    assert operations(shallow) == pytest.approx(operations(spec) / 12, rel=0.1)


def test_a_plan_waits_for_torch_and_nothing_else_that_is_slow():
    slow = ["timm", "torchvision", "lightning_fabric", "torchmetrics", "sklearn", "matplotlib.pyplot", "scipy.stats"]
    arguments = ["reproduce", "all", "--scale", "reduced", "--plan", "--results", "nowhere"]
    code = (
        f"import sys; from calattn.cli.app import run; run({arguments}); print([m for m in {slow} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "79 to do" in out.stdout
    assert out.stdout.splitlines()[-1] == "[]"


def test_the_same_network_on_another_data_set_tells_more_than_the_formula(tmp_path):
    store = ResultStore(tmp_path, "reduced")
    for seed, seconds in enumerate((300, 330, 390)):
        store.put(finished(Cell(dataset="cifar10", model="deit", seed=seed), seconds, side_by_side=3))
    names = ("cifar10", "cifar100", "mnist", "tiny_imagenet")
    own, cifar100, mnist, larger = (Cell(dataset=name, model="deit", loss="ce") for name in names)
    other = Cell(dataset="cifar100", model="vit")
    found = plan([own, cifar100, mnist, larger, other], "reduced", store)
    assert found.seconds[own] == 110
    assert found.seconds[cifar100] == pytest.approx(110)
    assert found.seconds[mnist] == pytest.approx(110 * 57_000 / 47_500)
    assert found.seconds[larger] == estimate(larger, "reduced")  # 64 px: another network in all but name
    assert found.seconds[other] == estimate(other, "reduced")
    for words in ("1 of 5 as long as", "2 of 5 as long as", "another data set", "finished on: NVIDIA H200"):
        assert words in found.basis


@pytest.mark.parametrize(
    ("started", "alone"),
    [
        ("08:00:00", 300),  # nobody beside it, though three might have been
        ("09:00:00", 150),  # one other all the time
        ("09:02:30", 225),  # one for half of the time
        ("10:00:00", 100),  # two others; that there were three, as other machines may be busy too, does not count
    ],
)
def test_a_cell_had_the_device_to_itself_where_no_other_was_under_way(tmp_path, started, alone):
    store = ResultStore(tmp_path, "reduced")
    store.put(finished(PLAIN, 300, side_by_side=3, started=started))
    others = ["08:59:00", "10:00:00", "10:00:00", "10:00:00"]
    for seed, other in enumerate(others):
        cell = Cell(dataset="cifar10", model="swin", seed=seed)
        store.put(finished(cell, 360 if other == "08:59:00" else 300, side_by_side=3, started=other))
    cell = Cell(dataset="cifar10", model="deit", loss="ce")
    known = [PLAIN, *(Cell(dataset="cifar10", model="swin", seed=seed) for seed in range(4))]
    assert plan([cell, *known], "reduced", store).seconds[cell] == pytest.approx(alone)


@pytest.mark.parametrize("scale", ["smoke", "reduced", "paper"])
def test_every_head_comes_after_its_twin(scale):
    cells = ordered_cells(scale)
    assert all(cells.index(cell.twin) < cells.index(cell) for cell in cells if cell.head != "none")


def test_the_data_sets_own_cells_come_first(tmp_path):
    store = ResultStore(tmp_path, "reduced")
    store.put(finished(PLAIN, 100))
    store.put(finished(Cell(dataset="cifar100", model="deit"), 200))
    cell = Cell(dataset="cifar100", model="deit", loss="ce")
    found = plan([cell], "reduced", store)
    assert found.seconds == {cell: 200}
    assert "another data set" not in found.basis


def test_one_cell_that_took_long_does_not_make_the_others_long(tmp_path):
    store = ResultStore(tmp_path, "reduced")
    for loss, seconds in (("ce", 900), ("flsd53", 100), ("mmce", 110)):
        store.put(finished(Cell(dataset="cifar10", model="deit", loss=loss), seconds))
    assert plan([PLAIN], "reduced", store).seconds == {PLAIN: 110}


def test_the_gpus_are_those_that_the_times_are_of(tmp_path):
    store = ResultStore(tmp_path, "reduced")
    store.put(finished(PLAIN, 100, device="NVIDIA A100"))
    like, other = Cell(dataset="cifar10", model="deit", loss="ce"), Cell(dataset="cifar10", model="vit")
    assert plan([like], "reduced", store).gpus == ("NVIDIA A100",)
    assert plan([other], "reduced", store).gpus == ("NVIDIA H200",)
    assert plan([like, other], "reduced", store).gpus == ("NVIDIA A100", "NVIDIA H200")
    assert plan([PLAIN], "smoke", ResultStore(tmp_path, "smoke")).gpus == ()


def test_times_of_a_part_are_not_those_of_the_whole(tmp_path):
    """Stopped at epoch 6 of 60 it took 30 s; that tells of others until epoch 6, not of all 60; nor the other way round."""
    store = ResultStore(tmp_path, "reduced")
    store.put(finished(PLAIN, 30, epochs=6))
    cell = Cell(dataset="mnist", model="deit")
    assert plan([cell], "reduced", store, until_epoch=6).seconds[cell] == pytest.approx(30 * 57_000 / 47_500)
    assert plan([cell], "reduced", store).seconds[cell] == estimate(cell, "reduced")
    store.put(finished(PLAIN, 300))
    assert plan([cell], "reduced", store).seconds[cell] == pytest.approx(300 * 57_000 / 47_500)
    other = plan([cell], "reduced", store, until_epoch=6).seconds[cell]
    assert other == estimate(cell, "reduced", until_epoch=6)


REDUCED = ("reproduce", "all", "--scale", "reduced", "--plan", "--results", "nowhere")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CALATTN_DATA", str(tmp_path))


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("until", "share"), [(None, 1 - 15 / 60), (20, 1 - 15 / 20), (99, 1 - 15 / 60)])
def test_of_what_was_begun_the_rest_is_left(tmp_path, until, share):
    """Compiling and analysis are due again, training only from where it stopped."""
    store = ResultStore(tmp_path, "reduced")
    whole = plan([PLAIN], "reduced", store, until_epoch=until).seconds[PLAIN]
    store.put(finished(PLAIN, 100, epochs=15))
    left = plan([PLAIN], "reduced", store, until_epoch=until).seconds[PLAIN]
    assert left == pytest.approx(OVERHEAD + share * (whole - OVERHEAD))
    assert until == 20 or whole == estimate(PLAIN, "reduced"), "no further than the last epoch"
    store.put(finished(Cell(dataset="cifar10", model="deit", loss="ce"), 40, epochs=20 if until == 20 else 60))
    quick = plan([PLAIN], "reduced", store, until_epoch=until).seconds[PLAIN]
    assert quick == 40, "where whole cells take less than that, the rest of one does too"


def test_without_a_gpu_the_plan_says_whose_times_they_are(capsys, monkeypatch):
    warning = "times of an H200, and this machine has no CUDA GPU"
    assert warning in invoke(capsys, *REDUCED).out
    assert invoke(capsys, *REDUCED, "--json").json["plan"]["cuda_here"] is False
    assert warning not in invoke(capsys, "reproduce", "all", "--plan", "--results", "nowhere").out  # smoke is for CPUs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert warning not in invoke(capsys, *REDUCED).out


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("device", "whose"), [(None, None), ("NVIDIA A100", "NVIDIA A100"), ("NVIDIA H200", "an H200")]
)
def test_times_of_finished_cells_are_not_called_another_devices(capsys, tmp_path, device, whose):
    ResultStore(tmp_path, "reduced").put(finished(PLAIN, 100, device=device))
    arguments = ("reproduce", "all", "--scale", "reduced", "--plan", "--results", tmp_path, "--only")
    shown = invoke(capsys, *arguments, "cifar10-deit-*").out
    assert f"finished on: {device or 'Xeon'}" in shown
    assert "27,000 images/s" not in shown
    assert ("times of" in shown) is (whose is not None)
    assert f"these are times of {whose}, and this machine" in shown or whose is None
    mixed = invoke(capsys, *arguments, "cifar10-*").out
    assert "27,000 images/s" in mixed
    assert "an H200" in mixed


@pytest.mark.usefixtures("no_gpu")
def test_missing_data_and_the_command_that_gets_it(capsys, tmp_path):
    found = {each["name"]: each for each in invoke(capsys, *REDUCED, "--json").json["plan"]["missing_data"]}
    assert list(found) == ["cifar10", "cifar100", "mnist", "svhn"]
    assert found["cifar10"] == {
        "name": "cifar10",
        "command": "calattn data get cifar10",
        "manual": None,
        "training": sum(cell.dataset == "cifar10" for cell in ordered_cells("reduced")),
        "ood": sum(cell.dataset == "cifar100" for cell in ordered_cells("reduced")),  # made from CIFAR-10's images
    }
    assert (found["svhn"]["training"], found["svhn"]["ood"]) == (0, 73)
    for name in found:
        (tmp_path / "there" / name).mkdir(parents=True)
        for split in ("train", "test"):
            (tmp_path / "there" / name / f"{split}-00000-of-00001.parquet").touch()
    there = ("--data-root", str(tmp_path / "there"))
    assert invoke(capsys, *REDUCED, *there, "--json").json["plan"]["missing_data"] == []
    (tmp_path / "there" / "mnist" / "test-00000-of-00001.parquet").unlink()
    shown = invoke(capsys, *REDUCED, *there).out
    assert f"mnist is not there (6 cells train on it): calattn data get mnist --data-root {tmp_path}/there" in shown
    assert "svhn is not there" not in shown


@pytest.mark.usefixtures("no_gpu")
def test_data_that_needs_an_account_has_no_command():
    (found,) = missing_data([Cell(dataset="imagenet1k", model="swin")], "paper")
    assert found.command is None
    assert "image-net.org" in found.text
    assert found.text.endswith("under CALATTN_DATA")
    (found,) = missing_data([Cell(dataset="imagenet1k", model="swin")], "paper", root=Path("/elsewhere"))
    assert found.text.endswith("under /elsewhere")
    assert missing_data(ordered_cells("smoke"), "smoke") == []


def test_corrupted_images_come_from_their_own_files_where_those_are(tmp_path):
    cell = Cell(dataset="cifar100", model="deit")
    assert [each.name for each in missing_data([cell], "reduced", root=tmp_path)] == ["cifar100", "svhn", "cifar10"]
    (tmp_path / "cifar10_c").mkdir()
    for name in (*CORRUPTIONS, "labels"):
        (tmp_path / "cifar10_c" / f"{name}.npy").touch()
    assert [each.name for each in missing_data([cell], "reduced", root=tmp_path)] == ["cifar100", "svhn"]
