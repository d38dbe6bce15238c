"""What is committed under results/ says what its own files say: no number is typed in by hand, none is out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from calattn.experiments.catalogue import EXPERIMENTS
from calattn.experiments.reproduction import report_text
from calattn.experiments.results import ResultStore

ROOT = Path(__file__).parents[2]
REMEDY = "make reproduction writes it again"
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
