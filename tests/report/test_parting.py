"""Tables in narrow terminals: every number whole, intervals broken after the comma at most."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

import calattn
from calattn.cli import console as cli_console
from calattn.report import difference_table, evaluation_table, leaderboard
from calattn.report.contest import ranking_table
from calattn.report.table import parted
from tests.cli_runner import invoke, predictions, write_npz

_NUMBER = re.compile(r"[−+]?(?:\d+\.\d+|∞)")


@pytest.fixture(scope="module")
def tables() -> dict[str, tuple[Table, dict[str, int]]]:
    """Each table of numbers that commands print, and how it may be parted."""
    sets = {"plain": predictions(), "a/rather/long_file_name.npz": predictions(sharpness=2.0), "c": predictions(1)}
    evaluations = {name: calattn.evaluate(found, num_bootstrap=50) for name, found in sets.items()}
    differences = {
        f"b{i}": calattn.compare(predictions(), predictions(sharpness=2.0), num_bootstrap=50) for i in (1, 2)
    }
    ranked = {name: {metric: each[metric] for metric in ("nll", "ece")} for name, each in differences.items()}
    ranking = ranking_table(ranked, {"b2": ranked["b2"]}, seconds={"b1": 0.5, "b2": 123.25}, level=0.95)
    found = {
        "evaluation": evaluation_table(evaluations),
        "leaderboard": leaderboard(evaluations),
        "difference": difference_table(differences, baseline="a", level=0.95),
        "ranking": ranking,
    }
    return {name: (each.terminal(), {"lead": each.lead, "group": each.group}) for name, each in found.items()}


def rendered(found: list[Table], width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for table in found:
        console.print(table, crop=False)
    return console.export_text()


def numbers(text: str) -> list[str]:
    """Those in the cells beside the names."""
    cells = [cell for line in text.splitlines() if line.startswith("│") for cell in line.split("│")[2:-1]]
    return [found for cell in cells for found in _NUMBER.findall(cell)]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80])
@pytest.mark.parametrize("name", ["evaluation", "leaderboard", "difference", "ranking"])
def test_no_number_is_cut_or_broken(tables, name, width):
    table, parts = tables[name]
    text = rendered(parted(table, width, **parts), width)
    want, found = numbers(rendered([table], 1000)), numbers(text)
    assert "…" not in text
    # The baseline of differences stands in every table, all else once.
    assert ({*found} == {*want}) if parts["lead"] > 1 else (sorted(found) == sorted(want))
    if width >= 60:
        assert max(map(len, text.splitlines())) <= width


def test_a_table_that_fits_stays_as_it_is(tables):
    for table, parts in tables.values():
        assert parted(table, 400, **parts) == [table]


def test_every_column_comes_once_and_the_caption_last(tables):
    table, parts = tables["difference"]
    found = parted(table, 60, **parts)
    assert [[column.header for column in part.columns] for part in found] == [
        ["", "a", name, "difference", "p"] for name in ("b1", "b2")
    ]
    assert [part.caption for part in found] == [None, table.caption]


def test_where_a_group_is_too_wide_its_columns_part_and_no_heading_breaks(tables):
    table, parts = tables["difference"]
    found = parted(table, 40, **parts)
    text = rendered(found, 40)
    assert text.count("difference ") == 2
    assert max(map(len, text.splitlines())) <= 40
    headers = [column.header for part in found for column in part.columns if column.header]
    assert headers == ["a", "b1", "difference", "p", "a", "b2", "difference", "p"]
    assert [part.caption for part in found if part.caption] == [table.caption]


def test_intervals_break_after_the_comma_where_nothing_else_helps():
    table = Table()
    table.add_column("", no_wrap=True)
    table.add_column("ECE")
    table.add_row("a_method_with_a_long_name", "12.34\n\\[10.00, 15.00]")
    lines = [line.split("│")[2].strip() for line in rendered(parted(table, 40), 40).splitlines() if "│" in line]
    assert lines == ["12.34", "[10.00,", "15.00]"]


@pytest.mark.parametrize("command", [["evaluate", "--all"], ["calibrate", "--method", "temperature"]])
def test_commands_part_their_tables(capsys, tmp_path, monkeypatch, command):
    path = write_npz(tmp_path / "a.npz", predictions())
    arguments = [*command, path, "--bootstrap", 50]
    wide = invoke(capsys, *arguments).out
    monkeypatch.setattr(cli_console, "_PIPED_WIDTH", 40)
    narrow = invoke(capsys, *arguments).out
    assert len(numbers(wide)) > 30
    assert sorted(numbers(narrow)) == sorted(numbers(wide))
