"""The grid as a file for `calattn sweep`."""

from __future__ import annotations

from pathlib import Path

import pytest

from calattn.sweeps.grid import read_grid
from reproduction.__main__ import main
from reproduction.cells import ScaleName, spec_of
from reproduction.planned import ordered_cells
from reproduction.runner import run_folder


@pytest.mark.parametrize("scale", ["smoke", "reduced", "paper"])
def test_a_sweep_trains_the_same_networks_in_the_same_folders(
    scale: ScaleName, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "grid.yaml"
    assert main(["--scale", scale, "--write-grid", str(written), "--runs", str(tmp_path / "runs")]) == 0
    assert f"calattn sweep {written} --out {tmp_path / 'runs' / scale}" in capsys.readouterr().out
    runs, cells = read_grid(written), ordered_cells(scale)
    assert [tmp_path / "runs" / scale / run.name for run in runs] == [
        run_folder(cell, scale, tmp_path / "runs") for cell in cells
    ]
    assert [run.spec() for run in runs] == [spec_of(cell, scale) for cell in cells]
