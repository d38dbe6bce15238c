"""Networks trained twice: what the report says of them in a made-up world."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from reproduction.cells import Cell
from reproduction.evidence import Results
from reproduction.grid import ordered_cells
from reproduction.results import CellResult, ResultStore
from reproduction.retrained_report import retrained
from tests.reproduction.made_claims import made, nothing

ZERO = Cell(dataset="cifar100", model="deit", weight=0.0, head="calattn")
CE = Cell(dataset="cifar100", model="deit", loss="ce", head="calattn")


def harm(_cell: Cell, rule: str, phase: str, metric: str) -> float:
    """CalAttn raises the ECE, of cross-entropy on CIFAR-100 as of all others."""
    return 0.05 if (metric, phase, rule) == ("ece", "pre", "last") else 0.0


def stored(folder: Path, *networks: CellResult) -> ResultStore:
    store = ResultStore(folder / "reproduce", "reduced")
    for each in networks:
        store.put(each)
    return store


def zero(effect=harm) -> list[CellResult]:
    return [made(cell, effect) for cell in (ZERO, ZERO.twin)]


@pytest.fixture
def others() -> list[CellResult]:
    return [made(cell, harm) for cell in ordered_cells("reduced") if cell.weight != 0.0]


def test_none(tmp_path):
    assert retrained(Results(stored(tmp_path, made(CE, harm)))) == "None.\n"


def test_those_that_came_out_the_same_change_nothing(tmp_path, others):
    told = retrained(Results(stored(tmp_path, *others, *zero())))
    assert told.count("| `cifar100-deit-ce-calattn` | ") == told.count("| `cifar100-deit-ce` | ") == 2
    assert "2 of 2 came out the same." in told
    assert "If the other" not in told


def test_another_training_that_does_no_harm(tmp_path, others):
    told = retrained(Results(stored(tmp_path, *others, made(ZERO, nothing), made(ZERO.twin, nothing))))
    assert "1 of 2 came out the same." in told
    assert "ECE at `last` 5.00," in told
    assert "“ECE falls” at `last` would be better in 0, worse in 20 instead of better in 0, worse in 21 of 21" in told
    assert "“ECE falls” at `best-ece` would" not in told


def test_a_twin_that_came_out_otherwise_leaves_no_paired_difference(tmp_path, others):
    plain = made(ZERO.twin, nothing)
    plain.rules["last"]["phases"]["pre"]["ece"]["value"] += 0.01
    told = retrained(Results(stored(tmp_path, *others, made(ZERO, nothing), plain)))
    assert "0 of 2 came out the same." in told
    assert "“ECE falls”" not in told


def test_first_results_that_were_kept(tmp_path, others):
    cell = Cell(dataset="cifar100", model="deit", loss="flsd53")
    first = made(cell, harm)
    first.rules["best-ece"]["epoch"] = 3
    first.rules["best-ece"]["phases"]["pre"]["accuracy"]["value"] -= 0.2
    ResultStore(tmp_path / "trained-before", "reduced").put(first)
    told = retrained(Results(stored(tmp_path, *others)))
    assert "| `cifar100-deit-flsd53` | results/trained-before | `0123456789` | 60 |" in told
    assert "accuracy at `best-ece` 20.00" in told
    assert "would be +20.00 instead of +0.00" in told


def test_a_result_in_the_place_of_another(tmp_path, others):
    results = Results(stored(tmp_path, *others))
    changed = results.with_result(dataclasses.replace(made(ZERO, nothing), cell=CE))
    assert changed.get(CE).cell == CE
    assert changed.get(CE).metric("ece") != results.get(CE).metric("ece")
    assert changed.get(CE.twin) == results.get(CE.twin)
