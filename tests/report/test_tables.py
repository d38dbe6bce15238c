"""Tables say what the evaluations say: per cent where people read, full precision where programs do."""

from __future__ import annotations

import csv
import io
import math

import pytest
import torch
from rich.console import Console

import calattn
from calattn.metrics.evaluation import Difference, Evaluation, paired
from calattn.report import Cell, Table, difference_rows, difference_table, evaluation_table, leaderboard, sentence
from calattn.report.evaluations import clear_best
from calattn.report.page.leaderboard import Standing, leaderboard_document
from calattn.report.style import between, number, percent
from calattn.report.table import latex_text
from tests.cli_runner import predictions


@pytest.fixture(scope="module")
def evaluations():
    sets = {"plain": predictions(), "sharp [2]": predictions(sharpness=2.0)}
    return {title: calattn.evaluate(found, num_bootstrap=50) for title, found in sets.items()}


@pytest.fixture(scope="module")
def differences():
    return {"b": calattn.compare(predictions(), predictions(sharpness=2.0), num_bootstrap=50)}


def rendered(table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_markdown_has_every_number_in_per_cent(evaluations):
    header, rule, *rows = cells(evaluation_table(evaluations).markdown())
    assert header == ["", "plain", "sharp \\[2\\]"]
    assert rule == ["---", "---:", "---:"]
    assert len(rows) == len(calattn.metrics.METRICS)
    ece = next(row for row in rows if row[0] == "ECE")
    want = evaluations["plain"]["ece"]
    assert ece[1] == f"{100 * want.value:.2f} [{100 * want.low:.2f}, {100 * want.high:.2f}]"
    nll = next(row for row in rows if row[0] == "NLL")
    assert nll[2].startswith(f"{evaluations['sharp [2]']['nll'].value:.3f} ")


def test_terminal_table_shows_the_same_numbers_and_keeps_brackets(evaluations):
    text = rendered(evaluation_table(evaluations))
    assert "sharp [2]" in text
    for row in evaluations["plain"].rows.values():
        assert number(row.name, row.value) in text
        assert between(row.name, row.low, row.high) in text
    assert "error rate at p ≥ 0.9" in text
    assert "600 samples" in text
    assert "95 % intervals from 50 resamples" in text


def test_csv_keeps_full_precision(evaluations):
    rows = list(csv.DictReader(io.StringIO(leaderboard(evaluations).csv())))
    assert [row["title"] for row in rows] == list(evaluations)
    for row in rows:
        for name, want in evaluations[row["title"]].items():
            found = tuple(float(row[key]) if row[key] else None for key in (name, f"{name}_low", f"{name}_high"))
            assert found == (want.value, want.low, want.high)


def test_no_intervals_no_brackets():
    bare = {"a": calattn.evaluate(predictions(), metrics=["ece"], num_bootstrap=0)}
    assert "[" not in evaluation_table(bare).markdown()
    assert "intervals" not in rendered(evaluation_table(bare))


def test_leaderboard_keeps_order_and_marks_the_best(evaluations):
    table = leaderboard(evaluations)
    text = rendered(table)
    assert text.index("plain") < text.index("sharp")
    better = min(evaluations, key=lambda name: evaluations[name]["nll"].value)
    column = list(evaluations["plain"].rows).index("nll") + 1
    assert [row[column].mark == "best" for row in table.rows] == [name == better for name in evaluations]
    assert all(cell.startswith("[bold]") == (row[0] == better) for row in table.rows for cell in [row[column].above()])
    assert "best" not in {row[column].mark for row in leaderboard(evaluations, bold_best=False).rows}
    assert "bold: the best, by more than chance" in table.caption
    assert [row[1].mark for row in table.rows] == ["", ""], "accuracy is the same"


def test_the_best_is_so_by_its_paired_difference():
    """Intervals of accuracy overlap by far, yet one is right wherever the other is, and on twelve samples more."""
    a = predictions()
    wrong = (a.logits.argmax(dim=1) != a.labels).nonzero().squeeze(1)

    def righted(count: int) -> Evaluation:
        logits = a.logits.clone()
        logits[wrong[:count], a.labels[wrong[:count]]] += 50
        return calattn.evaluate(a.replace(logits=logits), metrics="accuracy", num_bootstrap=200)

    found = {"a": righted(0), "more": righted(12), "one": righted(1)}
    low, high = found["more"]["accuracy"].low, found["a"]["accuracy"].high
    assert low < high, "unpaired, nothing would be clear"
    assert clear_best("accuracy", found) == "more"
    assert clear_best("accuracy", {name: found[name] for name in ("a", "one")}) is None, "one sample is chance"
    assert clear_best("accuracy", {"more": found["more"], "one": found["one"]}) == "more"
    rows = [Standing(title=name, facts={}, evaluation=each, labels="same") for name, each in found.items()]
    rows.append(Standing(title="others", facts={}, evaluation=found["a"], labels="not the same"))
    board = leaderboard_document(rows, title="t", split="test", checkpoint="last")["rows"]
    assert [row["better_than"]["accuracy"] for row in board] == [[], [0, 2], [], []]
    part = calattn.evaluate(a.select(torch.arange(100)), metrics="accuracy", num_bootstrap=200)
    assert clear_best("accuracy", found | {"part": part}) is None, "of other samples"
    bare = calattn.evaluate(a, metrics="accuracy", num_bootstrap=0)
    assert clear_best("accuracy", found | {"bare": bare}) is None
    assert clear_best("accuracy", {"alone": found["more"]}) is None


def test_resamples_of_evaluations_are_paired_as_those_of_compare(evaluations):
    a, b = evaluations.values()
    again = calattn.compare(predictions(), predictions(sharpness=2.0), num_bootstrap=50)
    for name, each in again.items():
        mine = paired(a, b, name)
        assert mine.difference == each.difference
        width = pytest.approx(each.high - each.low, rel=0.6, abs=1e-12, nan_ok=name == "mce")  # it has no interval
        assert mine.high - mine.low == width


@pytest.mark.parametrize(
    ("name", "difference", "low", "high", "words"),
    [
        ("ece", -0.012, -0.02, -0.004, "ECE falls by 1.20 points [0.40, 2.00]: better, more than chance"),
        ("ece", 0.012, 0.004, 0.02, "ECE rises by 1.20 points [0.40, 2.00]: worse, more than chance"),
        ("ece", -0.002, -0.007, 0.003, "ECE falls by 0.20 points [−0.30, 0.70]: within chance"),
        ("accuracy", 0.012, 0.004, 0.02, "accuracy rises by 1.20 points [0.40, 2.00]: better, more than chance"),
        ("accuracy", -0.012, -0.02, -0.004, "accuracy falls by 1.20 points [0.40, 2.00]: worse, more than chance"),
        ("nll", -0.0344, -0.05, -0.02, "NLL falls by 0.034 nats [0.020, 0.050]: better, more than chance"),
        (
            "nll",
            -0.0001,
            -0.0002,
            -0.00005,
            "NLL falls by less than 0.001 nats [0.000, 0.000]: better, more than chance",
        ),
        ("nll", 0.0, 0.0, 0.0, "NLL does not change"),
    ],
)
def test_sentence(name, difference, low, high, words):
    assert (
        sentence(Difference(name=name, a=0.5, b=0.5, difference=difference, low=low, high=high, p_value=0.01)) == words
    )


def test_sentence_of_what_is_undefined():
    numbers = dict.fromkeys(("a", "b", "difference", "low", "high", "p_value"), math.nan)
    nothing = Difference(name="high_confidence_error_rate", **numbers)
    assert sentence(nothing) == "error rate at p ≥ t is not defined for both"


def test_differences_as_table_markdown_and_rows(differences):
    ece = differences["b"]["ece"]
    table = difference_table(differences, baseline="a", level=0.9)
    text = rendered(table)
    signed = f"{100 * ece.difference:+.2f}".replace("-", "−")
    assert signed in text
    assert between("ece", ece.low, ece.high, signed=True) in text
    assert "90 % intervals" in text
    row = next(row for row in cells(table.markdown()) if row[0] == "ECE")
    assert row[1:3] == [f"{100 * ece.a:.2f}", f"{100 * ece.b:.2f}"]
    assert row[3].startswith(signed)
    rows = difference_rows(differences, baseline="a", level=0.9)
    place = list(differences["b"]).index("ece") + 1
    assert [row[place] for row in cells(rows.markdown())[2:]] == [row[1], f"{row[2]} ({row[3]})"]
    first, second = rows.records
    assert (first["ece"], second["ece"]) == (ece.a, ece.b)
    assert all(second[f"ece_{key}"] == getattr(ece, key) for key in ("difference", "low", "high", "p_value"))


def test_numbers_at_the_edges():
    assert number("nll", math.inf) == "∞"
    assert number("nll", -math.inf, signed=True) == "−∞"
    assert number("ece", math.nan) == "–"
    assert between("ece", math.nan, math.nan) == ""
    assert percent(0.5) == "50 %"


def test_one_table_is_written_in_four_ways():
    table = Table(
        header=["", "a & b [1]"],
        rows=[["ECE | top", Cell("1.20", "[1.00, 1.40]", "better")], ["NLL", "–"]],
        caption="per cent",
    )
    assert all(text in rendered(table) for text in ("a & b [1]", "ECE | top", "1.20", "[1.00, 1.40]", "per cent"))
    assert cells(table.markdown().replace("\\|", "/"))[2] == ["ECE / top", "**1.20** [1.00, 1.40]"]
    latex = table.latex(notes=["a note of 5 %"])
    assert r"ECE $|$ top & \textbf{1.20} {[}1.00, 1.40{]} \\" in latex
    assert r"a \& b {[}1{]}" in latex
    assert r"a note of 5 \%" in latex
    assert latex.isascii()
    assert "\\label{tab:calattn}" in latex
    assert list(csv.reader(io.StringIO(table.csv())))[1:] == [["ECE | top", "1.20 [1.00, 1.40]"], ["NLL", "–"]]


def test_a_comparison_of_nothing_is_an_empty_table():
    table = difference_table({"b": {}}, baseline="a", level=0.95)
    assert table.csv() == ",a,b,difference,p\n"
    assert "Paired" in table.markdown()


def test_latex_escapes_everything():
    assert latex_text("a_b & 50 % {x} #1 $2 ~^\\") == (
        r"a\_b \& 50 \% \{x\} \#1 \$2 \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert latex_text("Błasiok é λ ± – − ≥ 漢") == r"B\l{}asiok \'{e} $\lambda$ $\pm$ -- $-$ $\ge$ ?"
