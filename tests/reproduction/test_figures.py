"""Figures of the reproduction: they show the documents' numbers, open as files, and survive missing runs."""

from __future__ import annotations

import csv
import io
import itertools
import random
import re
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reproduction.catalogue import EXPERIMENTS, ordered_cells, results_of
from reproduction.cells import LOSSES, GridCell
from reproduction.drawing import equal_count_means
from reproduction.figures import CHANGE_CELLS, FIGURES, Drawn
from reproduction.results import CellResult, ResultStore
from tests.reproduction.conftest import COMMITTED, document_of, store_of, value

DONE = [cell for cell in ordered_cells("reduced") if isinstance(COMMITTED.get(cell), CellResult)]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    return store_of(tmp_path_factory.mktemp("half"), random.Random(1).sample(DONE, 38))


def drawn(name: str, store: ResultStore) -> list[Drawn]:
    return FIGURES[name].draw(results_of(store, set(FIGURES[name].cells)))


def texts(each: Drawn) -> str:
    return "\n".join(text.get_text() for ax in each.figure.axes for text in ax.texts)


@pytest.mark.parametrize(
    "name", ["cls_norm", "delta_ece", "dynamics", "reliability"]
)  # the other changes are drawn alike
def test_files_open_and_the_caption_counts_the_runs(name: str, half: ResultStore, tmp_path: Path):
    paths = EXPERIMENTS[name].write(half, tmp_path)
    kinds = {path.suffix for path in paths}
    assert {".png", ".pdf", ".svg", ".md"} <= kinds
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 800
                assert len(np.unique(np.asarray(image.convert("L")))) > 20  # something is drawn
        elif path.suffix == ".svg":
            assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
        elif path.suffix == ".pdf":
            content = path.read_bytes()
            assert content.startswith(b"%PDF-")
            assert content.rstrip().endswith(b"%%EOF")
        elif path.suffix == ".md":
            assert re.search(r"Missing: .*\(not run\)", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["cls_norm", "delta_ece", "dynamics", "reliability"])
def test_with_no_results_every_panel_says_so(name: str, tmp_path: Path):
    for each in drawn(name, ResultStore(tmp_path, "reduced")):
        assert "Runs shown: 0 of" in each.caption
        if name != "delta_ece":
            panels = [ax for ax in each.figure.axes if ax.get_xlabel() != "none"]
            assert texts(each).count("not run") == len(panels)
        else:
            crosses = [line for ax in each.figure.axes for line in ax.lines if line.get_marker() == "x"]
            assert len(crosses) == 2 * 12 * len(LOSSES), "ours under both rules; the paper has them all"


@pytest.mark.parametrize(
    ("name", "table", "metric"),
    [("delta_ece", "ece", "ece"), ("delta_smece", "smece", "smooth_ece"), ("delta_adaece", "adaece", "adaptive_ece")],
)
def test_changes_are_those_of_the_documents_and_of_the_paper(name: str, table: str, metric: str, full: ResultStore):
    (each,) = drawn(name, full)
    assert each.data is not None
    rows = list(csv.DictReader(io.StringIO(each.data)))
    assert len(rows) == 2 * len([cell for cell in CHANGE_CELLS if cell.head == "calattn"])
    printed = table
    backbones = {"vit": "vit_base", "deit": "deit_small", "swin": "swin_small"}
    for row in rows:
        place = {
            "dataset": row["data_set"],
            "backbone": backbones[row["network"]],
            "loss": row["loss"],
            "phase": row["phase"],
        }
        before, after = (value(printed, head=head, **place) for head in ("none", "calattn"))
        assert float(row["paper"]) == pytest.approx((after - before) / before)
        cell = GridCell(dataset=row["data_set"], model=row["network"], loss=row["loss"], head="calattn")
        if cell not in ordered_cells("reduced"):
            assert (row["last"], row["best_ece"]) == ("", "")
            continue
        for rule, column in (("last", "last"), ("best-ece", "best_ece")):
            a, b = (
                document_of(which).rules[rule]["phases"][row["phase"]][metric]["value"] for which in (cell.twin, cell)
            )
            assert float(row[column]) == pytest.approx((b - a) / a)


def test_reliability_prints_the_ece_of_its_document(full: ResultStore):
    last, best = drawn("reliability", full)
    for each, rule in ((last, "last"), (best, "best-ece")):
        assert each.name == f"reliability-{rule}"
        for cell in (
            GridCell(dataset="cifar10", model="vit", loss="ce"),
            GridCell(dataset="cifar100", model="swin", head="calattn"),
        ):
            values = document_of(cell).rules[rule]["phases"]["pre"]
            expected = f"ECE {100 * values['ece']['value']:.2f} %\naccuracy {100 * values['accuracy']['value']:.2f} %"
            assert expected in texts(each)


def test_dynamics_draws_the_log_and_the_temperature(full: ResultStore):
    (each,) = drawn("dynamics", full)
    document = document_of(GridCell(dataset="cifar10", model="vit", head="calattn"))
    line, temperature = each.figure.axes[0].lines[:2]
    expected = [row["validation"]["inverse_scale"]["mean"] for row in document.log]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx(expected)
    assert list(temperature.get_ydata()) == [document.rules["last"]["temperature"]["ece"]] * 2  # type: ignore[arg-type]
    shown = [stairs.get_data() for stairs in each.figure.axes[6].patches]
    assert [float((values * np.diff(edges)).sum()) for values, edges, _ in shown] == pytest.approx([1, 1, 1])


def test_norms_put_each_image_where_the_document_says(full: ResultStore):
    last = drawn("cls_norm", full)[0]
    points = document_of(GridCell(dataset="cifar10", model="deit", head="calattn")).rules["last"]["scatter"]
    for panel, column in ((1, "max_prob"), (2, "scaled_max_prob")):
        shown = np.concatenate([np.asarray(c.get_offsets()) for c in last.figure.axes[panel].collections])
        expected = np.column_stack([points["feature_norm"], points[column]])
        assert np.allclose(np.sort(shown, axis=0), np.sort(expected, axis=0))


def test_bin_means_against_numpy():
    rng = np.random.default_rng(0)
    x, y = rng.permutation(100).astype(float), rng.normal(size=100)
    centres, means = equal_count_means(x, y, 10)
    assert centres.tolist() == [10 * i + 4.5 for i in range(10)]
    assert means.tolist() == pytest.approx([y[(x >= 10 * i) & (x < 10 * i + 10)].mean() for i in range(10)])


def test_equal_norms_are_never_divided_between_bins():
    """Norms that were kept to few digits: a bin holds all images of a value."""
    rng = np.random.default_rng(1)
    x, y = np.repeat([1.0, 2.0, 3.0], [50, 200, 5]), rng.normal(size=255)
    centres, means = equal_count_means(x, y, 10)
    assert all(a < b for a, b in itertools.pairwise(centres))
    sizes = [np.isclose(y[x == c].mean(), m) for c, m in zip(centres, means, strict=True) if c in (1.0, 2.0, 3.0)]
    assert sizes
    assert all(sizes)


def test_bars_are_pale_where_the_difference_may_be_chance(tmp_path: Path):
    """A bar says how sure it is: the interval of the pair, at its rule."""
    cell = GridCell(dataset="cifar10", model="deit", loss="ce", head="calattn")
    store, document = ResultStore(tmp_path, "reduced"), document_of(cell)
    document.pair["last"]["pre"]["ece"] |= {"low": 0.01, "high": 0.02}
    document.pair["best-ece"]["pre"]["ece"] |= {"low": -0.01, "high": 0.02}
    for each in (document, document_of(cell.twin)):
        store.put(each)
    (figure,) = drawn("delta_ece", store)
    row = next(r for r in csv.DictReader(io.StringIO(figure.data)) if r["cell"] == cell.name and r["phase"] == "pre")
    assert row["sure"] == "last"
    assert "Runs shown: 2 of 84." in figure.caption
    panel = figure.figure.axes[1]
    assert "CIFAR-10, DeiT-S, before TS" in panel.get_title()
    last, best, theirs = (container[0].get_facecolor()[3] for container in panel.containers)
    assert (last, theirs) == (1, 1)
    assert best < 0.5


def test_a_scale_that_has_not_moved_is_a_line(tmp_path: Path):
    cell = GridCell(dataset="cifar10", model="vit", head="calattn")
    document = document_of(cell)
    document.log[0]["validation"]["inverse_scale"]["histogram"]["edges"] = [1.0] * 41
    store = ResultStore(tmp_path, "reduced")
    store.put(document)
    (each,) = drawn("dynamics", store)
    assert [line.get_label() for line in each.figure.axes[6].lines] == ["epoch 1 (no spread)"]
    assert [stairs.get_label() for stairs in each.figure.axes[6].patches] == ["epoch 30", "epoch 60"]
