"""What is committed under results/ says what its own files say: no number is typed in by hand, none is out of date."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.head.__main__ import main as benchmark
from reproduction import figures
from reproduction.appendix import PAGES
from reproduction.catalogue import EXPERIMENTS
from reproduction.cells import GridCell
from reproduction.main_page import report_text, write_report
from reproduction.results import ResultStore

ROOT = Path(__file__).parents[2]
DETAILS = "29b0dd355dd61747f6be39522616960a8aeb0099e04569ae476086e9dc7d9cff"
REMEDY = "make reproduction writes it again"
FOLDER = Path("results/reproduction/reduced")
WRITTEN = ("verdicts.csv", "evidence.csv", *(f"{name}.md" for name in PAGES))


@pytest.fixture(scope="module")
def store() -> ResultStore:
    return ResultStore(ROOT / "results" / "reproduce", "reduced")


def test_the_report_is_that_of_the_committed_results(store):
    assert store.names(), "no results are committed"
    expected = report_text(store, tables="results/reproduction/reduced")
    assert (ROOT / "REPRODUCTION.md").read_text(encoding="utf-8") == expected, REMEDY
    assert len(expected.splitlines()) <= 150, "one page; what needs more room goes under results/"


def test_links_of_the_report_lead_somewhere():
    for page in (ROOT / "REPRODUCTION.md", ROOT / FOLDER / "details.md"):
        links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        assert len(links) > 20
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_verdicts_are_those_that_were_computed_before(store, tmp_path):
    """verdicts.csv and evidence.csv were written by the code that judged the claims first: no later change of code may change a
    state, a decision or a digit. Who changes a rule on purpose writes them anew and says so."""
    write_report(store, tmp_path / "R.md", folder=tmp_path)
    for name in WRITTEN:
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / FOLDER / name).read_text(encoding="utf-8"), name


def test_what_the_report_says_of_other_rules_is_in_the_ledger():
    """Which answers hang on the rules, as the sentences of the template have it."""
    with (ROOT / FOLDER / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    fixed = {(row["claim"], row["checkpoint"]): row["holds"] for row in rows if row["rules"] == "as fixed"}
    flips = {
        (row["claim"], row["checkpoint"], row["rules"])
        for row in rows
        if row["holds"] and row["holds"] != fixed[row["claim"], row["checkpoint"]]
    }
    kept = {("accuracy_kept", "last", rules) for rules in ("counted", "any effect", "uncorrected")}
    assert flips == {*kept, ("calattn_ts_best", "last", "scaled only")}


def test_every_table_and_caption_is_that_of_the_committed_results(store, tmp_path, monkeypatch):
    """All that `make reproduction` writes beside the report but pictures, whose rendering takes half a minute."""
    monkeypatch.setattr(figures, "save_figure", lambda *_: None)
    monkeypatch.setattr("matplotlib.figure.Figure.draw_without_rendering", lambda _: None)
    for experiment in EXPERIMENTS.values():
        experiment.write(store, tmp_path)
    written, committed = _texts(tmp_path / "reduced"), _texts(ROOT / FOLDER)
    assert written.keys() == committed.keys() - {"details.md", *WRITTEN}
    assert [name for name in written if committed[name] != written[name]] == [], REMEDY


def _texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".csv", ".md")}


def test_the_details_are_those_that_were_checked():
    """Written by the previous version and held against the result files number by number; nothing disclosed there may vanish."""
    assert hashlib.sha256((ROOT / FOLDER / "details.md").read_bytes()).hexdigest() == DETAILS


def test_tables_tell_how_well_networks_know_their_training_images(store):
    note = (ROOT / "results/reproduction/reduced/ece.md").read_text(encoding="utf-8")
    assert (
        "ViT-B ends at a training accuracy of 82 %, DeiT-S of 99 %, Swin-S of 97 %; on CIFAR-100 all three end at 98"
        in note
    )
    for loss, head in (("ce", "none"), ("ce_brier", "none"), ("ce_brier", "calattn")):
        for model, expected in (("vit", 82), ("deit", 99), ("swin", 97)):
            cell = GridCell(dataset="cifar10", model=model, loss=loss, head=head)
            assert round(100 * _course(store.get(cell))[-1]) == expected
            assert _course(store.get(dataclasses.replace(cell, dataset="cifar100")))[-1] > 0.98


def _course(network) -> list[float]:
    return [row["train"]["accuracy"] for row in network.log]


def test_the_readme_tells_what_the_report_says():
    """Its table of three seeds, its counts of networks and verdicts."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## The paper, judged")[1].split("\n## ")[0]
    means = _means_of_three_seeds("last")
    told = [row for row in _rows(section) if row[0].startswith("CIFAR")]
    assert len(told) == 4
    for dataset, name, *numbers in told:
        before, after = means[dataset, name], means[dataset, f"{name}, TS"]
        expected = [before["accuracy"], before["ece"], before["nll"], after["ece"], after["nll"], after["brier"]]
        assert numbers == expected, (dataset, name)
    report = (ROOT / "REPRODUCTION.md").read_text(encoding="utf-8")
    (networks,) = re.findall(r"(\d+) of (\d+) planned networks\*\* have results", report)
    assert f"on {networks[0]} networks" in " ".join(section.split())


# What README and docs/method.md call a method, and how benchmarks.head does.
HEAD_ROWS = {
    "as trained": "none",
    "temperature scaling": "ts",
    "temperature scaling (TS)": "ts",
    "temperature scaling, shifted validation images too": "ts_shifted",
    "TS, shifted validation images too": "ts_shifted",
    "vector scaling": "vector",
    "structured vector scaling": "structured",
    "SATS": "sats",
    "CalAttn head on validation features": "frozen_calattn",
    "density-aware calibration": "dac",
    "density-aware calibration (DAC)": "dac",
    "calattn, temperature per image": "taught_scale",
    "calattn, temperature per image and class offsets": "taught",
    "`taught_scale`": "taught_scale",
    "`taught_classwise`": "taught_classwise",
    "`taught`": "taught",
}


@pytest.mark.parametrize(
    ("page", "heading", "dataset"),
    [
        ("README.md", "| CIFAR-10, DeiT-S", "cifar10"),
        ("docs/method.md", "| CIFAR-10 |", "cifar10"),
        ("docs/method.md", "| CIFAR-100 |", "cifar100"),
    ],
)
def test_the_numbers_of_the_head_are_those_of_its_files(page, heading, dataset):
    text = (ROOT / page).read_text(encoding="utf-8")
    table = heading + text.split(heading)[1].split("\n\n")[0]
    documents = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "results/head").glob(f"{dataset}-deit-[0-9].json")
    ]
    for document in documents:
        assert document["about"]["measured"]["commit"]["hash"]
        assert document["about"]["spec"]["model"]["backbone"] == "deit_small"

    def mean(method: str, group: str, metric: str) -> float:
        return sum(document["values"][method][group][metric]["value"] for document in documents) / len(documents)

    rows = _rows(table)[2:]
    assert len(rows) >= 5
    for name, *numbers in rows:
        method = HEAD_ROWS[name]
        expected = [mean(method, group, m) for group in ("clean", "severity 5") for m in ("nll", "ece")]
        if len(numbers) == 5:
            expected += [mean(method, group, "accuracy") for group in ("clean", "severity 5")]
        shown = [float(part) for cell in numbers for part in cell.replace("*", "").split(",")]
        for place, (ours, theirs) in enumerate(zip(shown, expected, strict=True)):
            digits = len(numbers[min(place, len(numbers) - 1)].replace("*", "").split(",")[0].split(".")[1])
            assert ours == pytest.approx(theirs * (1 if place in (0, 2) else 100), abs=0.501 * 10**-digits), (
                name,
                place,
            )


def test_the_numbers_of_other_networks_are_those_of_their_files():
    text = (
        (ROOT / "docs/method.md")
        .read_text(encoding="utf-8")
        .split("### Other networks")[1]
        .split("## What was tried")[0]
    )
    files = iter(["swin", "deit-plain", "vit", "resnet50", "deit-joint"])
    rows = _rows(text)[2:]
    assert len(rows) == 10
    for name, *numbers in rows:
        if not name.startswith("…"):
            path = ROOT / f"results/head/cifar10-{next(files)}-0.json"
            values = json.loads(path.read_text(encoding="utf-8"))["values"]
            ts = "joint_ts" if "joint" in values else "ts"
        method = (
            name.split("`")[1] if "`taught" in name else "dac" if "DAC" in name else ts if "TS" in name else "joint"
        )
        for place, shown in enumerate(numbers):
            expected = values[method]["clean" if place < 2 else "severity 5"]["ece" if place % 2 else "nll"]["value"]
            digits = len(shown.strip("*").split(".")[1])
            assert float(shown.strip("*")) == pytest.approx(
                expected * (100 if place % 2 else 1), abs=0.501 * 10**-digits
            ), name


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_the_taught_head_beats_one_temperature_beyond_chance_in_every_network(dataset):
    paths = sorted((ROOT / "results/head").glob(f"{dataset}-deit-[0-9].json"))
    assert len(paths) == 3
    for path in paths:
        values = json.loads(path.read_text(encoding="utf-8"))["values"]
        for group in ("clean", "severity 5"):
            for metric in ("nll", "brier", "ece"):
                value, low, high = values["taught"][group][metric]["against_ts"]
                assert low <= value <= high < 0, (path.name, group, metric)
            assert values["taught"][group]["nll"]["value"] < values["ts_shifted"][group]["nll"]["value"]


def test_the_table_of_the_head_is_made_from_its_files(tmp_path, monkeypatch):
    files = sorted(str(path) for path in (ROOT / "results/head").glob("*.json"))
    monkeypatch.setattr(sys, "argv", ["benchmarks.head", "table", *files, "--out", str(tmp_path / "head.md")])
    benchmark()
    assert (tmp_path / "head.md").read_text() == (ROOT / "results/head.md").read_text()


def _rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table."""
    return [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def _means_of_three_seeds(rule: str) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    with (ROOT / "results/reproduction/reduced/three_seeds.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["rule"], row["statistic"]) == (rule, "mean"):
                factor, digits = (1, 3) if row["metric"] == "nll" else (100, 2)
                text = " ± ".join(f"{factor * float(row[name]):.{digits}f}" for name in ("ours", "std"))
                found.setdefault((row["data_set"], row["column"]), {})[row["metric"]] = text
    return found
