"""Tables of the reproduction: our numbers are the documents', the paper's are the paper's, holes have reasons."""

from __future__ import annotations

import csv
import functools
import itertools
import operator
import random
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest
import torch

from calattn.runs.build import build_model
from reproduction import paper
from reproduction.catalogue import EXPERIMENTS, ordered_cells, tables_of
from reproduction.cells import SCALES, TRANSFORMERS, GridCell, spec_of
from reproduction.paper_tables import LAYOUTS, NOT_AT_THIS_SCALE, layout_of
from reproduction.render import csv_rows, footnotes, markdown
from reproduction.results import OOD_SETS, CellResult, ResultStore
from tests.reproduction.conftest import COMMITTED, document_of, store_of

DONE = [cell for cell in ordered_cells("reduced") if isinstance(COMMITTED.get(cell), CellResult)]
ROOT = Path(__file__).parents[2] / "results/reproduction/reduced"
COMMITTED_BY_CELL = functools.cache(COMMITTED.get)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    cells = random.Random(0).sample(DONE, 38)
    store = store_of(tmp_path_factory.mktemp("half"), cells)
    absent = next(cell for cell in ordered_cells("reduced") if cell not in cells)
    store.fail(absent, "out of memory & 100 % {lost}\non cuda:0")
    return store


@pytest.fixture
def none(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path, "reduced")


# --- the order of the runs ---------------------------------------------------------------------------------------------


def test_every_head_comes_after_its_twin_and_no_cell_twice():
    for scale in SCALES:
        cells = ordered_cells(scale)
        assert len(set(cells)) == len(cells)
        place = {cell: i for i, cell in enumerate(cells)}
        for cell in cells:
            assert place[cell.twin] <= place[cell], cell


@pytest.mark.parametrize("scale", ["smoke", "reduced", "paper"])
def test_no_two_networks_of_a_scale_are_one(scale):
    """Trained from random weights, DeiT-S is ViT-S: two names for one network would count every finding twice."""
    specs = {model: spec_of(GridCell(dataset="cifar10", model=model), scale) for model in TRANSFORMERS}
    with torch.device("meta"):
        networks = [build_model(spec, num_classes=10, channels=3, size=spec.data.size or 8) for spec in specs.values()]
    assert len({sum(p.numel() for p in network.parameters()) for network in networks}) == len(specs)


def test_smoke_has_something_of_every_data_set_of_every_table():
    assert len(ordered_cells("smoke")) <= 60
    planned = set(ordered_cells("smoke"))
    for name in LAYOUTS:
        blocks = layout_of(name, "smoke").blocks
        for dataset in {block.header[0] for block in blocks}:
            groups = [
                g for block in blocks if block.header[0] == dataset for g in block.cells if not isinstance(g, str)
            ]
            assert any(cell in planned for group in groups for cell in group), (name, dataset)


# --- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_our_numbers_are_those_of_the_documents(name: str):
    """The committed CSV, which another test makes again: singles are the documents', means those of their seeds."""
    by_name = {cell.name: cell for cell in ordered_cells("reduced")}
    with (ROOT / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["ours"]]
    place = operator.itemgetter("rule", "data_set", "network", "column", "metric", "phase")
    for _, group in itertools.groupby(rows, place):
        *singles, last = group
        if last["statistic"] == "mean":
            values = [float(row["ours"]) for row in singles]
            assert float(last["ours"]) == pytest.approx(statistics.fmean(values))
            assert float(last["std"]) == pytest.approx(statistics.stdev(values))
        for row in singles if last["statistic"] == "mean" else [last]:
            document = COMMITTED_BY_CELL(by_name[row["cell"]])
            rule, metric = document.rules[row["rule"]], row["metric"]
            if metric == "parameters_added":
                assert float(row["ours"]) == document.run["parameters"]["head"] / document.run["parameters"]["backbone"]
            elif metric in OOD_SETS:
                assert float(row["ours"]) == rule["ood"][metric]
            else:
                found = rule["phases"][row["phase"]][metric]
                expected = [_csv(found[key]) for key in ("value", "low", "high")]
                assert [row[key] for key in ("ours", "low", "high")] == expected
            if row["phase"] == "post" and row["temperature"]:
                assert float(row["temperature"]) == rule["temperature"]["ece"]
            assert row["hash"] == spec_of(by_name[row["cell"]], "reduced").hash


def _csv(number: float | None) -> str:
    return "" if number is None else str(number)


def test_fewer_seeds_than_planned_are_counted(tmp_path: Path):
    seeds = [GridCell(dataset="cifar10", model="deit", loss="ce", seed=seed) for seed in (0, 1)]
    (table, _) = tables_of("three_seeds", store_of(tmp_path, seeds))
    found = {row.header[0]: row.entries[0] for row in table.rows}
    assert found["CIFAR-10"].hole == "2 of 3 seeds; the others: not run"
    assert found["CIFAR-100"].hole == "not run"


def test_every_cell_has_a_hash_of_its_own():
    for scale in SCALES:
        cells = ordered_cells(scale)
        assert len({spec_of(cell, scale).hash for cell in cells}) == len(cells)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name in paper.PAPER_TABLES])
@pytest.mark.parametrize("scale", ["reduced", "paper"])
def test_every_number_of_the_paper_stands_in_the_csv(name: str, scale: str, tmp_path: Path):
    tables = tables_of(name, ResultStore(tmp_path, scale))  # type: ignore[arg-type]
    rows = [row for row in csv_rows(tables[:1]) if row["paper"] is not None]
    ours = Counter(round(row["paper"] * {"nll": 1, "brier": 1}.get(row["metric"], 100), 6) for row in rows)
    theirs = Counter(row["value"] for row in paper.rows_of(name))
    if name in ("lambda_cebs", "lambda_full", "high_confidence"):  # one number beside several of ours
        assert set(ours) == set(theirs)
    else:
        assert ours == theirs


# --- holes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_tables_render_with_all_none_and_half_of_the_results(
    name: str, full: ResultStore, half: ResultStore, none: ResultStore, tmp_path: Path
):
    for kind, store in {"full": full, "half": half, "none": none}.items():
        tables = tables_of(name, store)
        assert tables[0].layout.title.split(";")[0][:30] in markdown(tables)
        paths = EXPERIMENTS[name].write(store, tmp_path / kind)
        assert [path.name for path in paths] == [f"{name}.{suffix}" for suffix in ("md", "csv")]
        check_markdown(paths[0].read_text(encoding="utf-8"))
        with paths[1].open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(csv_rows(tables))
        for row in rows:
            assert bool(row["ours"]) or bool(row["hole"]), row


def test_what_a_scale_does_not_plan_is_left_out_and_named(full: ResultStore):
    table = tables_of("ece", full)[0]
    headers = {row.header for row in table.shown_rows}
    assert ("Tiny ImageNet", "ViT") not in headers
    assert ("CIFAR-10", "DeiT-S + CalAttn") in headers
    notes = "\n".join(footnotes(table))
    assert "Tiny ImageNet ViT" in notes
    assert NOT_AT_THIS_SCALE in notes


def test_accuracy_and_nll_stand_beside_every_calibration_error():
    for name in LAYOUTS:
        metrics = {quantity.metric for quantity in layout_of(name, "paper").quantities}
        if any(metric.endswith("ece") for metric in metrics):
            assert {"accuracy", "nll"} <= metrics, name


def test_a_metric_that_was_not_measured_is_a_hole(tmp_path: Path):
    cell = GridCell(dataset="cifar10", model="deit")
    result = document_of(cell)
    del result.rules["last"]["phases"]["pre"]["ece"]
    result.rules["last"]["phases"]["pre"]["nll"]["value"] = None
    store = ResultStore(tmp_path, "reduced")
    store.put(result)
    rows = [row for row in csv_rows(tables_of("ece", store)[:1]) if row["cell"] == cell.name and row["phase"] == "pre"]
    assert {row["metric"]: row["hole"] for row in rows} == {
        "ece": "ece was not measured",
        "nll": "no image that it could be measured on",
        "accuracy": None,
    }


# --- formats -----------------------------------------------------------------------------------------------------------


def check_markdown(text: str) -> None:
    """Every row of a table has as many cells as its header."""
    for block in re.split(r"\n\n", text):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(counts) <= 1, block


def test_a_strange_reason_breaks_no_format(tmp_path: Path):
    store = ResultStore(tmp_path, "reduced")
    store.fail(GridCell(dataset="cifar10", model="deit", loss="ce"), "[red]bad[/] | pipe & amp_{x} \\ ümlaut\nline 2")
    tables = tables_of("ece", store)
    check_markdown(markdown(tables))
    assert "[red]bad[/] | pipe" in markdown(tables), "below the table, where a bar breaks nothing"
    assert "ümlaut line 2" in markdown(tables)
