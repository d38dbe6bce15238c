"""Filled tables for people (Markdown) and machines (CSV)."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calattn.files.atomic import atomic_write
from calattn.report import table as written
from calattn.report.style import between, number
from reproduction.cells import SCALES
from reproduction.paper_tables import DEFINITIONS, Column, Entry, PaperTable, Row


def shown(metric: str, value: float) -> str:
    """A number as the tables print it: per cent, NLL in nats.

    >>> shown("ece", 0.0438), shown("nll", 1.809), shown("parameters_added", 0.00228)
    ('4.38', '1.809', '0.228')
    """
    return f"{100 * value:.3f}" if metric == "parameters_added" else number(metric, value)


def ours_text(table: PaperTable, row: Row, entry: Entry) -> str:
    """Our number with its interval or spread and its temperature; "–" where there is none."""
    if entry.ours is None or math.isnan(entry.ours.value):
        return "–"
    metric = entry.ours.name
    text = shown(metric, entry.ours.value)
    if entry.spread is not None:
        text += f" ± {shown(metric, entry.spread)} (n {len(entry.sources)})"
    elif table.layout.intervals and (ends := between(metric, entry.ours.low, entry.ours.high)):
        text += f" {ends}"
    if entry.temperature is not None and _tells_temperature(table, row):
        text += f" (T={entry.temperature:.1f})"
    return text


def paper_text(table: PaperTable, row: Row, entry: Entry) -> str:
    """The paper's number, in the same unit; empty where it prints none."""
    if entry.paper is None:
        return ""
    network = "" if table.scale == "paper" or not table.layout.paper_network else f" ({table.layout.paper_network})"
    text = f"paper{network} {with_spread(row.quantity.metric, entry.paper, entry.paper_spread)}"
    return text if entry.paper_temperature is None else f"{text} (T={entry.paper_temperature:.1f})"


def with_spread(metric: str, *values: float | None) -> str:
    """A number, and its standard deviation where there is one; empty without a number."""
    return " ± ".join(shown(metric, value) for value in values if value is not None)


def hole_letters(table: PaperTable) -> dict[str, str]:
    """Reason → letter, in the order in which a reader meets them."""
    holes = [row.entries[i].hole for row in table.shown_rows for i in table.shown_columns]
    names = [*string.ascii_lowercase, *(a + b for a in string.ascii_lowercase for b in string.ascii_lowercase)]
    return dict(zip(dict.fromkeys(hole for hole in holes if hole is not None), names, strict=False))


def footnotes(table: PaperTable) -> list[str]:
    """What a reader must know: holes, scale, seeds, what "paper" is, definitions, notes and runs."""
    metrics = dict.fromkeys(row.quantity.metric for row in table.rows)
    entries = [entry for row in table.rows for entry in row.entries]
    notes = [f"({letter}) {' '.join(reason.split())}" for reason, letter in hole_letters(table).items()]
    notes.append(f"Scale {table.scale}: {SCALES[table.scale].title.rstrip('?')}.")
    if any(entry.paper is not None for entry in entries):
        notes.append(PAPER)
    if any(entry.temperature is not None or entry.paper_temperature is not None for entry in entries):
        notes.append(TEMPERATURE)
    if table.results:
        notes.append(UNITS)
    notes += [
        *table.layout.notes,
        table.networks,
        *(DEFINITIONS[metric] for metric in metrics if metric in DEFINITIONS),
    ]
    if table.left_out:
        notes.append(f"Not run at this scale, in the CSV with the paper's numbers: {', '.join(table.left_out)}.")
    return [*notes, _runs(table)]


PAPER = "paper: the number printed in the paper, under its own protocol. Ours stands first, in the same unit."
TEMPERATURE = "T: the temperature in {0.1, 0.2, …, 10.0} of the lowest validation ECE; of several seeds, the mean."
UNITS = "Per cent of the test images, NLL in nats; [ , ] are 95 % bootstrap intervals, ± deviations over n seeds."


def _runs(table: PaperTable) -> str:
    seeds = sorted({cell.seed for cell in table.results})
    if not seeds:
        return "No run of this table has a result at this scale."
    text = f"Runs: {len(table.results)}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    if seeds == [0]:
        text += " (the claims average over seeds where there are several)"
    hashes = (f"{cell.name} {result.cell_hash[:8]}" for cell, result in table.results.items())
    return f"{text}; spec hashes: {', '.join(hashes)}."


# --- Markdown ----------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    r"""`numbers`: how many columns, the last ones, are set flush right.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    """
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in (header, *rows)
    ]
    rule = "|---" * (len(header) - numbers) + "|---:" * numbers + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def markdown(tables: Sequence[PaperTable]) -> str:
    """The tables as GitHub shows them, the paper's numbers on a second line of each cell."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: PaperTable) -> str:
    letters, columns = hole_letters(table), table.shown_columns
    header = ["data set", "network", "quantity", *(table.layout.columns[i].title for i in columns)]
    lines, before = [], ("", "")
    for row in table.shown_rows:
        cells = [_cell(table, row, row.entries[i], letters) for i in columns]
        lines.append([*(row.header if row.header != before else ("", "")), row.quantity.title, *cells])
        before = row.header
    notes = "\n".join(f"- {note}" for note in footnotes(table))
    return f"### {table.title}\n\n{markdown_table(header, lines, numbers=len(columns))}\n\n{notes}\n"


def _cell(table: PaperTable, row: Row, entry: Entry, letters: dict[str, str]) -> str:
    letter = f"<sup>{letters[entry.hole]}</sup>" if entry.hole in letters else ""
    theirs = paper_text(table, row, entry)
    return ours_text(table, row, entry) + letter + (f"<br>{theirs}" if theirs else "")


# --- CSV ---------------------------------------------------------------------------------------------------------------


def csv_rows(tables: Sequence[PaperTable]) -> list[dict[str, Any]]:
    """One number a row: fractions (NLL in nats), holes with their reason; of several seeds each, then the mean."""
    return [
        part
        for table in tables
        for row in table.rows
        for column, entry in zip(table.layout.columns, row.entries, strict=True)
        for part in _csv_entry(table, row, column, entry)
    ]


def _csv_entry(table: PaperTable, row: Row, column: Column, entry: Entry) -> list[dict[str, Any]]:
    base: dict[str, Any] = {"table": table.layout.name, "rule": table.rule}
    base |= {"data_set": row.header[0], "network": row.header[1], "column": column.title, "metric": row.quantity.metric}
    base |= {"phase": column.phase or row.quantity.phase, "statistic": "value"}
    base |= dict.fromkeys(("ours", "low", "high", "std", "temperature", *_THEIRS)) | {"scale": table.scale}
    base |= dict.fromkeys(("cell", "seed", "hash", "hole"))
    theirs = dict(zip(_THEIRS, (entry.paper, entry.paper_spread, entry.paper_temperature), strict=True))
    singles = [
        base
        | {"ours": each.row.value, "low": each.row.low, "high": each.row.high, "cell": each.result.cell.name}
        | {"seed": each.result.cell.seed, "hash": each.result.cell_hash}
        for each in entry.sources
    ]
    if len(entry.cells) < 2 and singles:
        return [singles[0] | theirs | {"temperature": entry.temperature}]
    summary = base | theirs | {"std": entry.spread, "temperature": entry.temperature, "hole": entry.hole}
    if entry.ours is not None:
        summary |= {"statistic": "mean", "ours": entry.ours.value}
    seed = entry.cells[0].seed if len(entry.cells) == 1 else None
    return [*singles, summary | {"cell": " ".join(cell.name for cell in entry.cells) or None, "seed": seed}]


_THEIRS = ("paper", "paper_std", "paper_temperature")


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    return written.Table(header=(), rows=(), caption="", records=rows).csv()


def write_tables(tables: Sequence[PaperTable], out: Path, name: str) -> list[Path]:
    """<name>.md and <name>.csv in a folder."""
    return write_texts({out / f"{name}.md": markdown(tables), out / f"{name}.csv": csv_text(csv_rows(tables))})


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Each file whole or not at all."""
    for path, text in texts.items():
        with atomic_write(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)


def _tells_temperature(table: PaperTable, row: Row) -> bool:
    """Only the first calibration error of a table, because the others have the same temperature."""
    of_columns = any(column.phase == "post" for column in table.layout.columns)
    tempered = [q for q in table.layout.quantities if "ece" in q.metric and (of_columns or q.phase.startswith("post"))]
    return tempered[:1] == [row.quantity]
