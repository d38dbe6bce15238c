"""The plan of a grid: recorded operations, times by what finished cells took, and what it does without."""

from __future__ import annotations

import subprocess
import sys

import pytest

from calattn.experiments.cells import spec_of
from calattn.experiments.operations import RECORDED, count, image_size, operations
from calattn.experiments.order import ordered_cells


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
    assert "77 to do" in out.stdout
    assert out.stdout.splitlines()[-1] == "[]"
