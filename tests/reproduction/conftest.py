"""Results for tests: the committed ones, and a pair of cells that were run undisturbed, once for all tests of a process."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from reproduction import paper
from reproduction.cells import GridCell, ScaleName, spec_of
from reproduction.results import CellResult, ResultStore
from reproduction.runner import Work, run_cell
from tests.small_runs import CPU

PLAIN = GridCell(dataset="cifar10", model="deit")
HEAD = dataclasses.replace(PLAIN, head="calattn")
COMMITTED = ResultStore(Path(__file__).parents[2] / "results" / "reproduce", "reduced")


def value(table: str, **keys: paper.Value) -> float:
    """A number of the paper."""
    found = paper.find(table, **keys)
    assert found is not None, (table, keys)
    assert isinstance(found["value"], float)
    return found["value"]


def document_of(cell: GridCell) -> CellResult:
    """A committed result, as a copy that a test may change."""
    found = COMMITTED.get(cell)
    assert isinstance(found, CellResult), found
    return copy.deepcopy(found)


def store_of(folder: Path, cells: Iterable[GridCell], scale: ScaleName = "reduced") -> ResultStore:
    """A store of committed results, as if they were of that scale."""
    store = ResultStore(folder, scale)
    for cell in cells:
        store.put(dataclasses.replace(document_of(cell), scale=scale, cell_hash=spec_of(cell, scale).hash))
    return store


def work_in(base: Path, *, keep: bool = False) -> Work:
    return Work(store=ResultStore(base / "results", "smoke"), runs=base / "runs", runtime=CPU, keep=keep)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Results and runs of both, with their checkpoints: to be read, or copied."""
    work = work_in(tmp_path_factory.mktemp("undisturbed"), keep=True)
    for cell in (PLAIN, HEAD):
        run_cell(cell, work)
    return work


@pytest.fixture(scope="session")
def full() -> ResultStore:
    """The committed results, of nearly every cell of the reduced scale: only to be read."""
    return COMMITTED


@pytest.fixture
def copied(undisturbed: Work, tmp_path: Path) -> Work:
    """The same in a folder of one test."""
    shutil.copytree(undisturbed.runs.parent, tmp_path, dirs_exist_ok=True)
    return work_in(tmp_path)
