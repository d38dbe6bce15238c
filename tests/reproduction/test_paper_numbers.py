"""The paper's numbers: complete, unchanged, under names that we know, and equal to the paper's source where it is at hand.

CALATTN_PAPER=path/to/calattn.tex pytest tests/test_paper_numbers.py
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from importlib import resources
from pathlib import Path

import pytest

from calattn.backbones import BACKBONES
from calattn.backbones.transformers import FAMILIES
from calattn.data.sources.datasets import DATASETS
from calattn.heads import HEADS
from calattn.losses import LOSSES
from calattn.metrics import METRICS
from calattn.posthoc import CALIBRATORS
from reproduction import paper
from reproduction.paper import PAPER_TABLES, find, rows_of

SUMS = {
    "ece": (448, "afc296e9b7af813b575de5eb058fa2f3d0dce37f598f4705e5b6697ac74baaea"),
    "smece": (448, "20ff26a3ed647a77127cbbfe7d90a608702f23a2461ae9b43dddd3024c092204"),
    "adaece": (448, "f2490104aa810cf3566cafc9ad66f5f360f4b311395a67a4602fa21567e1296f"),
    "classece": (448, "b72b58ba18950563d2e590bcc7416967589026502376cb3d495e50d596614978"),
    "accuracy": (12, "e0acf00dd89eddbc476c641933c388b4e08ba8f1b7040cfe800775cc0b8e2d13"),
    "high_confidence": (18, "46377180b06d33fb3900061c06ce3a0dadb02bb7ea8c0a1f4f641a3671212cac"),
    "ood": (72, "cdbf9d131cfeedc1d10c39d805ebe36c1e238c3f0e0a4387f2d000e6cf9eace1"),
    "feature_ablation": (54, "f0e70c17e944562dcbfd82e997a0f1203c743538a67ae82eba2ac4d14291ca33"),
    "dirichlet": (10, "082f0cac24d35d409072722b29103b7010e70adcce7d2befa0c7f8bb2a42d9ec"),
    "imagenet1k": (15, "1d6eaafadf621083d90052606e87119e94009e227d0c0bd6438aa985f30269fd"),
    "sats": (30, "3e1b3bb9de51e99b52e96ae7d18650af2dcfd22e337339f0fb8912c44a7ab25d"),
    "checkpoint_size": (12, "85e73c29497823fd354dadfc3a9abf9d955f8b2fe964531a33d36e4a81d528d6"),
    "lambda_cebs": (20, "5ba41a0560d06839cd19e80f318f791421f73ef343338a47644d8a264ab62c8d"),
    "lambda_full": (16, "3ddaad2e0e92f7a6bfe43f428c49d1d71ca49ca4848f2ad5004fbbd66d21e687"),
    "three_seeds": (40, "78b428ed9835d99f3e4b6aae7cfad07908b52861e1293dd5974b9c497c392f64"),
    "names": (121, "38f4d5fff13563a465ab972172e4a7ca23bb9fa8e1ec3f7435d8865800ecf4fa"),
    "oddities": (162, "abcf8e5a5f9605b869d988a64432bf684d7f3c5f45527ffff48d7612933e3a32"),
}

# What the paper compares with or measures, and we do not have under one name.
FOREIGN = {
    "loss": {"csm"},  # needs images made by diffusion
    "metric": {"ood_auroc", "checkpoint_size", "parameters_added", "high_confidence_false_positives"},
    "calibrator": {"none"},
}
SECOND = ("temperature", "std", "change")  # the number printed in a cell's second place


def raw(name: str) -> list[dict[str, str]]:
    text = resources.files(paper).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("name", [*PAPER_TABLES, "names", "oddities"])
def test_files_are_as_checked(name: str):
    """A change must be meant: count and digest change with it."""
    data = resources.files(paper).joinpath(f"{name}.csv").read_bytes()
    assert (len(raw(name)), hashlib.sha256(data).hexdigest()) == SUMS[name]


def test_our_names_are_ours():
    known = {
        "dataset": set(DATASETS),
        "shift": set(DATASETS),
        "backbone": {*BACKBONES, *FAMILIES},
        "head": set(HEADS),
        "loss": set(LOSSES),
        "metric": set(METRICS),
        "calibrator": set(CALIBRATORS),
        "features": {"cls", "patch_mean", "concat"},
        "unit": {"per cent", "nats", "fraction", "MB"},
    }
    for entry in raw("names"):
        assert entry["ours"] in known[entry["key"]] | FOREIGN.get(entry["key"], set()), entry


def test_one_cell_is_read():
    cell = {"dataset": "mnist", "backbone": "vit_base", "head": "none", "loss": "brier", "phase": "post"}
    assert find("ece", **cell)["temperature"] == 8.7
    assert find("lambda_cebs", lambda_max=1.0, metric="ece")["value"] == 2.48
    assert find("three_seeds", dataset="cifar10", calibrator="sats", metric="nll")["std"] == 0.019
    assert find("accuracy", dataset="cifar11") is None


@pytest.mark.parametrize(("keys", "rows"), [({"dataset": "cifar10"}, 6), ({"datset": "cifar10"}, 0), ({}, 12)])
def test_what_names_no_single_cell_is_refused(keys: dict[str, str], rows: int):
    with pytest.raises(ValueError, match=rf"has {rows} rows with .*; choose by paper_dataset"):
        find("accuracy", **keys)


def test_unknown_table_names_the_nearest():
    with pytest.raises(ValueError, match="unknown paper table 'eces'; did you mean 'ece'"):
        rows_of("eces")


# --- against the paper's source -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> str:
    path = os.environ.get("CALATTN_PAPER")
    if not path:
        pytest.skip("set CALATTN_PAPER to the paper's LaTeX source to compare with it")
    return Path(path).read_text(encoding="utf-8")


def environment(source: str, label: str) -> tuple[str, str]:
    """Header and body of the tabular that follows a label."""
    after = source.split(f"\\label{{{label}}}")[1].split("\\end{tabular}")[0].split("\\begin{tabular}")[1]
    header, body = after.split("\\midrule", 1)
    return header, body


def printed_numbers(body: str) -> list[tuple[float, bool]]:
    """Every decimal number in reading order, and whether bold type begins at it. Names have no decimals but HCFP@0.90."""
    matches = re.finditer(r"(?<![@\d.])([-+]?\d+\.\d+)", body.replace("--", "  "))
    text = body.replace("--", "  ")
    return [(float(m[1]), re.search(r"bf\{\s*$", text[: m.start()]) is not None) for m in matches]


def our_numbers(name: str) -> list[tuple[float, bool]]:
    numbers, span = [], None
    for r in raw(name):
        if "lambda_min" in r and span != (r["lambda_min"], r["lambda_max"]):
            span = (r["lambda_min"], r["lambda_max"])
            numbers += [(float(end), False) for end in dict.fromkeys(span)]
        numbers.append((float(r["value"]), r.get("bold") == "yes"))
        numbers += [(float(r[column]), False) for column in SECOND if r.get(column)]
    return numbers


@pytest.mark.parametrize("name", list(PAPER_TABLES))
def test_numbers_are_the_papers(name: str, source: str):
    _, body = environment(source, PAPER_TABLES[name].label)
    assert our_numbers(name) == printed_numbers(body)


@pytest.mark.parametrize("name", list(PAPER_TABLES))
def test_names_are_the_papers(name: str, source: str):
    """Line by line: the name in front of the numbers is the one in our rows, and the data set that was named last."""
    _, body = environment(source, PAPER_TABLES[name].label)
    rows = iter(raw(name))
    texts = dict.fromkeys(("paper_dataset", "paper_model", "paper_feature", "paper_head", "paper_method"), "")
    known = {c: {r[c] for r in raw(name) if c in r} for c in texts}
    for line in body.split("\\\\"):
        cells = [plain(cell) for cell in line.split("&")]
        for column, names in known.items():
            texts[column] = next((cell for cell in cells if cell in names), texts[column])
        for _ in range(
            sum(bool(re.match(r"[\d+-]*\d\.\d", cell)) and not is_second(cell, name, cells) for cell in cells)
        ):
            printed = next(rows)
            for column, text in texts.items():
                assert not text or printed.get(column, text) == text, line
    assert next(rows, None) is None


def plain(cell: str) -> str:
    cell = re.sub(
        r"\\(cite|rowcolor|cmidrule\(lr\)|multirow\{\d+\})\{[^}]*\}|\\(midrule|goodrow|addlinespace|protect)\b",
        "",
        cell,
    )
    cell = re.sub(r"\\textsubscript\{(\w+)\}", r"_\1", cell)
    cell = re.sub(r"\\(textbf|mathbf)|\\footnotemark\[\d\]|\$\\uparrow\$|\$\\downarrow\$|[{}$~]", "", cell)
    return cell.replace("\\rightarrow", "→").replace("\\alpha", "α").strip()


def is_second(cell: str, name: str, cells: list[str]) -> bool:
    """A cell that belongs to the row of another: λ itself, or the printed change."""
    first = name.startswith("lambda") and cell is cells[0]
    return first or (name in ("high_confidence", "checkpoint_size") and cell is cells[-1])


def test_the_text_says_what_the_oddities_quote(source: str):
    """Both halves of each `text` row, found in the source: the phases, the initialisation, the schedule."""
    said = " ".join(source.split())
    for words in (
        "global alignment (epochs 0--30)",
        "\\mathrm{CV}_{s}$ drops",
        "$\\mathbf w_2=0$",
        "such that $s(\\mathbf z)\\approx 1$ at the start of training",
        "near-uniform modulation (epochs 30--150).} After the first learning-rate decay",
        "0.1 for first 150 epochs",
    ):
        assert words in said, words
