"""The pages beside the report, on made-up networks whose numbers are known."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from reproduction import appendix
from reproduction.cells import GridCell
from reproduction.results import ResultStore
from tests.reproduction.made_claims import nothing, world

CELL = GridCell(dataset="cifar10", model="deit", loss="ce")
COURSE = [(0.9, 0.02, 0.6), (0.7, 0.05, 0.7), (0.8, 0.01, 0.8)]


def test_ours_stands_beside_the_papers_and_nothing_is_made_up() -> None:
    log = [{"epoch": 1, "validation": {"nll": nll, "ece": ece, "accuracy": right}} for nll, ece, right in COURSE]
    mixed = GridCell(dataset="cifar10", model="deit", loss="ce", recipe="mixup")
    store = world(nothing, cells=[CELL, mixed], log=log)
    for rule, ece in (("last", 0.0885), ("best-ece", 0.0221)):
        store.found[CELL].rules[rule]["phases"]["pre"]["ece"]["value"] = ece
    (row,) = found = appendix.baselines(store)
    assert row["paper"] == (4.42, 1.2, 69.4)
    assert row["best-nll"] == (5.0, None, 70.0), "of the log, at the lowest NLL; no temperature was fitted there"
    # 8.85 is above twice 4.42; 2.21 is exactly half of it, and 5.00 is near.
    assert [appendix.reproduced(found, rule) for rule in ("last", "best-ece", "best-nll")] == [0, 1, 1]
    text = appendix.baselines_page(store)
    assert "| 4.42, 1.2, 69.4 | 8.85, 1.5, " in text
    assert "| 5.00, –, 70.0 |" in text
    assert "Of 1 baselines" in text


def test_test_images_go_before_the_log_where_they_were_predicted() -> None:
    log = [{"epoch": 1, "validation": {"nll": 0.7, "ece": 0.05, "accuracy": 0.7}}]
    store = world(nothing, cells=[CELL], log=log)
    rules = store.found[CELL].rules
    rules["best-nll"] = copy.deepcopy(rules["last"])
    rules["best-nll"]["phases"]["pre"]["ece"]["value"] = 0.03
    (row,) = appendix.baselines(store)
    assert row["best-nll"][:2] == (pytest.approx(3.0), 1.5)


def test_the_pair_of_the_papers_schedule_is_compared_over_the_epochs_that_both_have(tmp_path: Path) -> None:
    """One has 40 epochs, the other was stopped at 30: the last 25 that both have are 6 to 30."""
    store = ResultStore(tmp_path, "reduced")
    for cell, epochs in zip(appendix.PAIR, (40, 30), strict=True):
        log = [
            {"epoch": e, "train": {"accuracy": 0.5}, "validation": {"accuracy": e / 100, "ece": 0.02}}
            for e in range(1, epochs + 1)
        ]
        store.put(world(nothing, cells=[cell], log=log).found[cell])
    text = appendix.schedule_table(store)
    for who in ("without", "with CalAttn"):
        assert f"| ours, {who}, 25 logged epochs from 6 to 30 | 18.00 | 50.00 | 2.00 | 1.00 |" in text
    assert "| paper, without | 69.40 | – | 4.25 | – |" in text


@pytest.mark.parametrize(
    ("ece", "accuracy", "states"),
    [
        (-0.01, 0.0, ("holds", "holds")),
        (0.01, -0.02, ("contradicted", "contradicted")),
        (0.0, -0.01, ("undecided",) * 2),
    ],
)
def test_the_mean_over_families_decides(ece: float, accuracy: float, states: tuple[str, str]) -> None:
    """The head moves ECE and accuracy at the epoch of the lowest NLL, and elsewhere does something else."""
    store = world(nothing)
    heads = [cell for cell in store.found if cell.head == "calattn"]
    for cell, result in store.found.items():
        head, noise = cell.head != "none", 0.0005 * (-1) ** heads.index(cell) if cell in heads else 0.0
        best = {
            "nll": 0.5,
            "brier": 0.3,
            "ece": 0.05 + head * (ece + noise),
            "accuracy": 0.7 + head * (accuracy + noise),
        }
        rows = [{"validation": best}, {"validation": best | {"nll": 0.9, "ece": 0.5 - 0.4 * head}}]
        result.log[:] = rows
    found = [appendix.course_of(name, store) for name in ("ece_falls", "accuracy_kept")]
    assert tuple(course.state for course in found) == states
    assert len(found[0].families) == 21
    assert found[0].mean("ece")[0] == pytest.approx(ece, abs=0.001)
