"""What is committed under results/ says what its own files say: no number is typed in by hand, none is out of date."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from calattn.experiments.catalogue import EXPERIMENTS
from calattn.experiments.cells import Cell
from calattn.experiments.disclosures import DIFFERENCES
from calattn.experiments.reproduction import report_text
from calattn.experiments.results import ResultStore

ROOT = Path(__file__).parents[2]
REMEDY = "make reproduction writes it again"
SHOWN = (
    ("last", "accuracy"),
    ("last", "ece"),
    ("best-ece", "accuracy"),
)  # of networks trained twice, in the order of the text
TABLES = [experiment.name for experiment in EXPERIMENTS.values() if experiment.kind == "table"]


@pytest.fixture(scope="module")
def store() -> ResultStore:
    return ResultStore(ROOT / "results" / "reproduce", "reduced")


def test_the_report_is_that_of_the_committed_results(store):
    assert store.names(), "no results are committed"
    expected = report_text(store, folder="results/reproduction/reduced")
    assert (ROOT / "REPRODUCTION.md").read_text(encoding="utf-8") == expected, REMEDY


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_committed_results(store, name, tmp_path):
    for path in EXPERIMENTS[name].write(store, tmp_path):
        if path.suffix in (".csv", ".md"):
            committed = ROOT / "results" / "reproduction" / "reduced" / path.name
            assert committed.read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), REMEDY


def test_numbers_in_the_disclosures_are_those_of_the_files(store):
    """Two trainings with the same settings and seed: what the report says of them."""
    told = next(line for line in DIFFERENCES["reduced"] if "does not always give the same network" in line)
    grid = store.get(Cell(dataset="cifar10", model="deit", loss="ce"))
    other = json.loads((ROOT / "results/cifar10-deit-small/ce/summary.json").read_text())["results"]
    wanted = []
    for rule, metric in SHOWN:
        wanted += [grid.metric(metric, rule=rule).value, other[rule]["test"][metric]["value"]]
    epochs = [grid.rules["best-ece"]["epoch"], other["best-ece"]["epoch"]]
    cell = Cell(dataset="cifar100", model="deit", loss="flsd53")
    first, second = ResultStore(ROOT / "results/trained-before", "reduced").get(cell), store.get(cell)
    for rule, metric in SHOWN:
        wanted += [each.metric(metric, rule=rule).value for each in (first, second)]
    epochs += [each.rules["best-ece"]["epoch"] for each in (first, second)]
    for reference, heads in (
        ((other["best-ece"]["test"]["accuracy"]["value"], grid), "cifar10 ce"),
        ((first.metric("accuracy", rule="best-ece").value, second), "cifar100 flsd53"),
    ):
        dataset, loss = heads.split()
        tested = store.get(Cell(dataset=dataset, model="deit", loss=loss, head="calattn")).metric(
            "accuracy", rule="best-ece"
        )
        values = [tested.value - reference[0], tested.value - reference[1].metric("accuracy", rule="best-ece").value]
        assert " instead of ".join(f"{100 * each:+.2f}" for each in values).replace("-", "−") in told
        wanted += map(abs, values)
    assert [float(number) for number in re.findall(r"\d+\.\d\d", told)] == [round(100 * value, 2) for value in wanted]
    assert [int(n) for n in re.findall(r"epoch (\d+)", told)] == epochs
    networks = [store.get(Cell(dataset="cifar100", model="deit", **each)) for each in ({"loss": "ce"}, {"weight": 0.0})]
    assert networks[0].log == networks[1].log
    assert [each["phases"] for each in networks[0].rules.values()] == [e["phases"] for e in networks[1].rules.values()]
    again = json.loads((ROOT / "results/cifar10-deit-small/calattn/summary.json").read_text())["results"]
    same = store.get(Cell(dataset="cifar10", model="deit", head="calattn"))
    for rule in ("last", "best-ece"):
        assert same.metric("nll", rule=rule).value == pytest.approx(again[rule]["test"]["nll"]["value"], rel=1e-7)
