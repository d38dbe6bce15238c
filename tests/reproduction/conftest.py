"""A pair of cells that were run undisturbed: trained once for all tests of a process."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from reproduction.cells import Cell
from reproduction.grid import ordered_cells
from reproduction.results import ResultStore
from reproduction.worker import Work, run_cell
from tests.reproduction.made_results import made_store
from tests.small_runs import CPU

PLAIN = Cell(dataset="cifar10", model="deit")
HEAD = dataclasses.replace(PLAIN, head="calattn")


def work_in(base: Path, *, keep: bool = False) -> Work:
    return Work(store=ResultStore(base / "results", "smoke"), runs=base / "runs", runtime=CPU, keep=keep)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Results and runs of both, with their checkpoints: to be read, or copied."""
    work = work_in(tmp_path_factory.mktemp("undisturbed"), keep=True)
    assert [run_cell(cell, work) for cell in (PLAIN, HEAD)] == [None, None]
    return work


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    """A made-up result of every cell of the reduced scale."""
    return made_store(tmp_path_factory.mktemp("full"), "reduced", ordered_cells("reduced"))


@pytest.fixture
def copied(undisturbed: Work, tmp_path: Path) -> Work:
    """The same in a folder of one test."""
    shutil.copytree(undisturbed.runs.parent, tmp_path, dirs_exist_ok=True)
    return work_in(tmp_path)
