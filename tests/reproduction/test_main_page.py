"""The report: templates filled with numbers, against worlds whose truth is known."""

from __future__ import annotations

import re
import string

import pytest

from reproduction.appendix import PAGES, TEMPLATES
from reproduction.cells import SCALES, GridCell
from reproduction.claims import CLAIMS, TOLD, verdicts
from reproduction.main_page import numbers, report_text, write_report
from reproduction.results import ResultStore
from tests.reproduction.made_claims import helps, nothing, on_disk, world


def placeholders(text: str) -> set[str]:
    return {match["named"] or match["braced"] for match in string.Template.pattern.finditer(text)} - {None}


@pytest.mark.parametrize("template", ["any", "reduced"])
def test_every_placeholder_has_a_number(template, tmp_path):
    known = numbers(ResultStore(tmp_path, "smoke"), tables="t").keys() | {"tables"}
    assert placeholders((TEMPLATES / f"{template}.md").read_text(encoding="utf-8")) <= known


@pytest.mark.parametrize("scale", SCALES)
def test_an_empty_store_gives_a_report_that_says_so(tmp_path, scale):
    text = report_text(ResultStore(tmp_path, scale), tables="t")
    assert "not tested" in text
    assert "$" not in text
    assert "nan" not in text


@pytest.fixture(scope="module")
def helped(tmp_path_factory) -> ResultStore:
    return on_disk(tmp_path_factory.mktemp("helped"), world(helps))


def test_the_numbers_of_a_world_in_which_the_head_helps(helped):
    found = numbers(helped, tables="t")
    assert (found["run"], found["planned"], found["not_run"]) == (110, 110, "none")
    assert found["ece_falls_last_better"] == found["ece_falls_last_families"] == 21
    assert found["ece_falls_last"].startswith("−3.20 [")  # 0.4 of 0.08, in points
    assert found["ece_falls_last_one_seed"] == 18
    for rule in ("last", "best_ece"):
        states = [found[f"{state}_{rule}"] for state in ("holds", "contradicted", "undecided", "not_tested")]
        assert sum(states) == found["claims"] == len(CLAIMS)
    assert found["claims_table"].count("| not tested: ") == states[-1] == 7


def test_the_table_of_claims_has_a_state_for_each_checkpoint(helped, tmp_path):
    rows = {
        cells[1]: cells[2:-1]
        for line in numbers(helped, tables="t")["claims_table"].splitlines()[2:]
        if (cells := [cell.strip() for cell in line.split("|")])
    }
    judged = verdicts(helped)
    assert list(rows) == [told["title"] for told in TOLD.values()]
    untested = [name for name in CLAIMS if judged[name].state("last") == "not tested"]
    assert [title for title, cells in rows.items() if "not tested" in cells[1]] == [
        TOLD[name]["title"] for name in untested
    ]
    assert all(cell.endswith("], **holds**") for cell in rows["ECE falls"][1:3])
    assert rows["SATS stays behind"][3] == "–", "no log tells what a calibrator would have done"
    idle = numbers(on_disk(tmp_path, world(nothing)), tables="t")["claims_table"]
    assert re.search(r"\| ECE falls \| 21 of 21 \| [^|]+, undecided \|", idle)


def test_networks_that_know_their_images_by_heart_are_counted(tmp_path):
    def log(train: float, new: float) -> list[dict]:
        return [{"epoch": 1, "train": {"accuracy": train}, "validation": {"accuracy": new}}]

    cells = {
        GridCell(dataset="cifar10", model="deit"): log(0.99, 0.8),
        GridCell(dataset="mnist", model="deit"): log(0.99, 0.985),  # new images are as easy
        GridCell(dataset="cifar10", model="vit"): log(0.8, 0.7),
        GridCell(dataset="cifar10", model="deit", recipe="mixup"): log(0.99, 0.8),  # of mixed images
    }
    store = ResultStore(tmp_path, "reduced")
    for cell, course in cells.items():
        store.put(world(nothing, cells=[cell], log=course).found[cell])
    found = numbers(store, tables="t")
    assert (found["by_heart"], found["by_heart_of"]) == (1, 3)
    assert found["not_run"].endswith(f"and {110 - len(cells) - 6} others (not run)")


def test_what_the_early_checkpoint_costs(tmp_path):
    def early(_cell: GridCell, rule: str, _phase: str, metric: str) -> float:
        return -0.3 if (rule, metric) == ("best-ece", "accuracy") else 0.0

    store = on_disk(tmp_path, world(early, cells=[GridCell(dataset="mnist", model="deit", head="calattn")]))
    found = numbers(store, tables="t")
    assert found["best_ece_price"] == "−30.00"
    assert (found["best_ece_poor"], found["judged"]) == (1, 1)


def test_the_files_are_the_report_and_its_ledger(helped, tmp_path):
    report = tmp_path / "new" / "R.md"
    written = write_report(helped, report, folder=tmp_path / "tables")
    names = ["R.md", "verdicts.csv", "evidence.csv", *(f"{name}.md" for name in PAGES)]
    assert [path.name for path in written] == names
    assert report.read_text(encoding="utf-8") == report_text(helped, tables="../tables")
