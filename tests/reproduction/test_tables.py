"""Tables of the reproduction: our numbers are the documents', the paper's are the paper's, holes have reasons."""

from __future__ import annotations

import csv
import itertools
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from calattn.runs.build import build_model
from reproduction import paper
from reproduction.catalogue import EXPERIMENTS, TABLES, ordered_cells, tables_of
from reproduction.cells import LOSSES, SCALES, TRANSFORMERS, Cell, spec_of
from reproduction.grid import steps
from reproduction.render import csv_rows, footnotes, markdown
from reproduction.results import CellResult, ResultStore
from reproduction.sizes import cost_of
from reproduction.tables import LAYOUTS, NOT_AT_THIS_SCALE, OOD_SETS, layout_of, measured
from tests.reproduction.conftest import COMMITTED, document_of, store_of

DONE = [cell for cell in ordered_cells("reduced") if isinstance(COMMITTED.get(cell), CellResult)]
RUN_TABLES = [name for name in TABLES if name != "checkpoint_size"]


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


def test_paired_runs_stand_next_to_each_other():
    cells = ordered_cells("reduced")
    for before, cell in itertools.pairwise(cells):
        if cell.head == "calattn" and cell.features == "cls":
            assert before == cell.twin


def test_the_first_runs_are_the_seven_losses_of_deit():
    first = ordered_cells("reduced")[:28]
    assert set(first) == {
        Cell(dataset=dataset, model="deit", loss=loss, head=head)
        for dataset in ("cifar10", "cifar100")
        for loss in LOSSES
        for head in ("none", "calattn")
    }
    assert [len(step) for step in steps("reduced")] == [28, 12, 6, 6, 11, 6, 6, 4, 2, 6, 10, 3]


@pytest.mark.parametrize("scale", ["smoke", "reduced", "paper"])
def test_no_two_networks_of_a_scale_are_one(scale):
    """Trained from random weights, DeiT-S is ViT-S: two names for one network would count every finding twice."""
    specs = {model: spec_of(Cell(dataset="cifar10", model=model), scale) for model in TRANSFORMERS}
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


def test_every_cell_has_a_spec_and_a_hash_of_its_own():
    for scale in SCALES:
        cells = ordered_cells(scale)
        hashes = Counter(spec_of(cell, scale).hash for cell in cells)
        assert len(hashes) == len(cells), [code for code, count in hashes.items() if count > 1]


def test_the_paper_scale_has_every_cell_of_the_papers_tables():
    planned = set(ordered_cells("paper"))
    for name in LAYOUTS:
        assert set(layout_of(name, "paper").cells()) <= planned


# --- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUN_TABLES)
def test_our_numbers_are_those_of_the_documents(name: str, full: ResultStore):
    by_name = {cell.name: cell for cell in ordered_cells("reduced")}
    checked = 0
    for row in csv_rows(tables_of(name, full)):
        if row["ours"] is None or row["statistic"] == "mean":
            continue
        document = document_of(by_name[row["cell"]])
        if row["metric"] == "parameters_added":
            head = document.run["parameters"]["head"]
            assert row["ours"] == head / document.run["parameters"]["backbone"]
        elif row["metric"] in OOD_SETS:
            assert row["ours"] == document.rules[row["rule"]]["ood"][row["metric"]]
        else:
            found = document.rules[row["rule"]]["phases"][row["phase"]][row["metric"]]
            assert (row["ours"], row["low"], row["high"]) == (found["value"], found["low"], found["high"])
        if row["phase"] == "post" and row["temperature"] is not None:
            assert row["temperature"] == document.rules[row["rule"]]["temperature"]["ece"]
        assert row["hash"] == spec_of(by_name[row["cell"]], "reduced").hash
        checked += 1
    assert checked > 0 or name == "imagenet1k"


@pytest.mark.parametrize("name", [name for name in TABLES if name in paper.PAPER_TABLES])
@pytest.mark.parametrize("scale", ["reduced", "paper"])
def test_every_number_of_the_paper_stands_in_the_csv(name: str, scale: str, tmp_path: Path):
    tables = tables_of(name, ResultStore(tmp_path, scale))  # type: ignore[arg-type]
    rows = [row for row in csv_rows(tables[:1]) if row["paper"] is not None]
    percent = {"nll": 1, "checkpoint_size": 1, "brier": 1}
    ours = Counter(round(row["paper"] * percent.get(row["metric"], 100), 6) for row in rows)
    theirs = Counter(value for row in paper.rows_of(name) for value in [row["value"]])
    if name == "checkpoint_size":  # and the differences, which the paper gives beside them
        theirs += Counter(row["change"] for row in paper.rows_of(name) if row["change"] is not None)
    if name in ("lambda_cebs", "lambda_full", "high_confidence"):  # one number beside several of ours
        assert set(ours) == set(theirs)
    else:
        assert ours == theirs


def test_a_number_of_the_paper_stands_beside_the_right_cell(full: ResultStore):
    rows = csv_rows(tables_of("ece", full))
    found = [r for r in rows if r["cell"] == "cifar100-deit-ce_brier-calattn" and r["metric"] == "ece"]
    expected = {
        phase: paper.find(
            "ece", dataset="cifar100", backbone="deit_small", head="calattn", loss="ce_brier", phase=phase
        )
        for phase in ("pre", "post")
    }
    assert len(found) == 4
    for row in found:
        assert row["paper"] == pytest.approx(expected[row["phase"]]["value"] / 100)  # type: ignore[operator]
        assert row["paper_temperature"] == expected[row["phase"]]["temperature"]


def test_seeds_are_summed_up_as_mean_and_deviation(full: ResultStore):
    rows = [
        row
        for row in csv_rows(tables_of("three_seeds", full))
        if (row["rule"], row["data_set"], row["column"], row["metric"])
        == ("last", "CIFAR-10", "CE+BS + CalAttn, TS", "ece")
    ]
    singles, mean = rows[:-1], rows[-1]
    assert [row["cell"] for row in singles] == [
        "cifar10-deit-ce_brier-calattn" + suffix for suffix in ("", "-seed1", "-seed2")
    ]
    values = [row["ours"] for row in singles]
    average = sum(values) / 3
    assert mean["ours"] == pytest.approx(average)
    assert mean["std"] == pytest.approx((sum((v - average) ** 2 for v in values) / 2) ** 0.5)
    assert (mean["paper"], mean["paper_std"]) == (0.0092, 0.0008)


def test_the_rules_give_different_tables(full: ResultStore):
    last, best = tables_of("ece", full)
    assert "last epoch" in last.title
    assert "lowest validation ECE" in best.title
    assert [r["ours"] for r in csv_rows([last])] != [r["ours"] for r in csv_rows([best])]


def test_sizes_follow_the_formula_of_the_appendix():
    for model, width in (("vit", 768), ("deit", 384), ("swin", 768)):
        assert cost_of("cifar10", model).added_params == 128 * width + 128 + 128 + 1


def test_fewer_seeds_than_planned_are_counted(tmp_path: Path):
    seeds = [Cell(dataset="cifar10", model="deit", loss="ce", seed=seed) for seed in (0, 1)]
    store = store_of(tmp_path, seeds)
    (table, _) = tables_of("three_seeds", store)
    row = next(r for r in table.rows if r.header[0] == "CIFAR-10")
    assert row.entries[0].hole == "2 of 3 seeds; the others: not run"
    values = [source.row.value for source in row.entries[0].sources]
    assert row.entries[0].spread == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert next(r for r in table.rows if r.header[0] == "CIFAR-100").entries[0].hole == "not run"


def test_seeds_that_a_scale_does_not_plan_are_not_missed(tmp_path: Path):
    """The smoke scale has two of the three seeds: with both there, nothing is lacking."""
    store = store_of(
        tmp_path,
        [cell for cell in ordered_cells("smoke") if cell in layout_of("three_seeds", "smoke").cells()],
        "smoke",
    )
    entries = [e for row in tables_of("three_seeds", store)[0].rows for e in row.entries if e.planned]
    assert {len(entry.sources) for entry in entries} == {2}
    assert {entry.hole for entry in entries} == {None}


# --- holes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
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


def test_a_hole_says_why(half: ResultStore):
    absent = [cell for cell in ordered_cells("reduced") if not isinstance(half.get(cell), CellResult)]
    rows = {
        row["cell"]: row for row in csv_rows(tables_of("ece", half)) if row["metric"] == "ece" and row["phase"] == "pre"
    }
    assert rows[absent[0].name]["hole"].startswith("out of memory")
    assert rows[next(c for c in absent[1:] if c.name in rows).name]["hole"] == "not run"
    assert rows["cifar10-vit-mmce"]["hole"] == NOT_AT_THIS_SCALE


def test_what_a_scale_does_not_plan_is_left_out_and_named(full: ResultStore):
    table = tables_of("ece", full)[0]
    headers = {row.header for row in table.shown_rows}
    assert ("Tiny ImageNet", "ViT") not in headers
    assert ("CIFAR-10", "DeiT-S + CalAttn") in headers
    for name in RUN_TABLES:
        each = tables_of(name, full)[0]
        shown = {each.layout.columns[i].title for i in each.shown_columns}
        rest = {column.title for column in each.layout.columns} - shown
        rows = {" ".join(row.header) for row in each.rows} - {" ".join(row.header) for row in each.shown_rows}
        assert set(each.left_out) == rest | rows
    notes = "\n".join(footnotes(table))
    assert "Tiny ImageNet ViT" in notes
    assert NOT_AT_THIS_SCALE in notes


def test_accuracy_and_nll_stand_beside_every_calibration_error():
    for name in LAYOUTS:
        metrics = {quantity.metric for quantity in layout_of(name, "paper").quantities}
        if any(metric.endswith("ece") for metric in metrics):
            assert {"accuracy", "nll"} <= metrics, name


def test_footnotes_name_scale_seeds_hashes_and_definitions(full: ResultStore):
    notes = "\n".join(footnotes(tables_of("three_seeds", full)[0]))
    code = spec_of(Cell(dataset="cifar10", model="deit", loss="ce", seed=2), "reduced").hash[:8]
    for part in (
        "Scale reduced",
        "seeds 0, 1, 2",
        f"cifar10-deit-ce-seed2 {code}",
        "15 equal-width bins",
        "deit_small",
    ):
        assert part in notes


def test_a_metric_that_was_not_measured_is_a_hole(tmp_path: Path):
    cell = Cell(dataset="cifar10", model="deit")
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


def test_an_ood_set_brings_its_interval():
    result = document_of(Cell(dataset="cifar10", model="deit"))
    result.rules["last"]["ood_intervals"] = {"svhn": {"low": 0.1, "high": 0.2}}
    row = measured(result, "svhn", rule="last", phase="pre")
    assert row is not None
    assert (row.low, row.high) == (0.1, 0.2)


# --- formats -----------------------------------------------------------------------------------------------------------


def check_markdown(text: str) -> None:
    """Every row of a table has as many cells as its header."""
    for block in re.split(r"\n\n", text):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(counts) <= 1, block


def test_a_strange_reason_breaks_no_format(tmp_path: Path):
    store = ResultStore(tmp_path, "reduced")
    store.fail(Cell(dataset="cifar10", model="deit", loss="ce"), "[red]bad[/] | pipe & amp_{x} \\ ümlaut\nline 2")
    tables = tables_of("ece", store)
    check_markdown(markdown(tables))
    assert "[red]bad[/] | pipe" in markdown(tables), "below the table, where a bar breaks nothing"
    assert "ümlaut line 2" in markdown(tables)
