"""The table of baselines, on a made-up network whose numbers are known."""

from __future__ import annotations

from reproduction import baselines
from reproduction.cells import Cell
from reproduction.evidence import Results
from tests.reproduction.made_claims import nothing, world

CELL = Cell(dataset="cifar10", model="deit", loss="ce")
COURSE = [(0.9, 0.02, 0.6), (0.7, 0.05, 0.7), (0.8, 0.01, 0.8)]


def test_ours_stands_beside_the_papers_and_nothing_is_made_up() -> None:
    log = [{"epoch": 1, "validation": {"nll": nll, "ece": ece, "accuracy": right}} for nll, ece, right in COURSE]
    mixed = Cell(dataset="cifar10", model="deit", loss="ce", recipe="mixup")
    store = world(nothing, cells=[CELL, mixed], log=log)
    for rule, ece in (("last", 0.0885), ("best-ece", 0.0221)):
        store.found[CELL].rules[rule]["phases"]["pre"]["ece"]["value"] = ece
    (row,) = found = baselines.rows(Results(store))
    assert row["paper"] == (4.42, 1.2, 69.4)
    assert row["best-nll"] == (5.0, None, 70.0), "of the log, at the lowest NLL; no temperature was fitted there"
    # 8.85 is above twice 4.42; 2.21 is exactly half of it, and 5.00 is near.
    assert [baselines.reproduced(found, rule) for rule in ("last", "best-ece", "best-nll")] == [0, 1, 1]
    text = baselines.page(Results(store))
    assert "| 4.42, 1.2, 69.4 | 8.85, 1.5, " in text
    assert "| 5.00, –, 70.0 |" in text
    assert "Of 1 baselines" in text
