"""Filled tables for people (Markdown) and machines (CSV)."""

from __future__ import annotations

import csv
import io
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calattn.files.atomic import atomic_write
from calattn.report.style import between, number
from reproduction.cells import SCALES
from reproduction.tables import DEFINITIONS, Column, Entry, Row, Table


def shown(metric: str, value: float) -> str:
    """A number as the tables print it: per cent, NLL in nats, sizes in MiB.

    >>> shown("ece", 0.0438), shown("nll", 1.809), shown("parameters_added", 0.00228), shown("checkpoint_size", 82.72)
    ('4.38', '1.809', '0.228', '82.72')
    """
    if metric == "parameters_added":
        return f"{100 * value:.3f}"
    if metric == "checkpoint_size":
        return f"{value:.2f}"
    return number(metric, value)


def ours_text(table: Table, row: Row, entry: Entry) -> str:
    """Our number with its interval or spread and its temperature; "–" where there is none."""
    if entry.ours is None or math.isnan(entry.ours.value):
        return "–"
    metric = entry.ours.name
    text = shown(metric, entry.ours.value)
    if entry.spread is not None:
        text += f" ± {shown(metric, entry.spread)}"
    elif table.layout.intervals and (ends := between(metric, entry.ours.low, entry.ours.high)):
        text += f" {ends}"
    if len(entry.sources) > 1:
        text += f" (n {len(entry.sources)})"
    if entry.temperature is not None and _tells_temperature(table, row):
        text += f" (T={entry.temperature:.1f})"
    return text


def paper_text(table: Table, row: Row, entry: Entry) -> str:
    """The paper's number, in the same unit; empty where it prints none."""
    if entry.paper is None:
        return ""
    metric = row.quantity.metric
    network = "" if table.scale == "paper" or not table.layout.paper_network else f" ({table.layout.paper_network})"
    text = f"paper{network} {shown(metric, entry.paper)}"
    if entry.paper_spread is not None:
        text += f" ± {shown(metric, entry.paper_spread)}"
    return text if entry.paper_temperature is None else f"{text} (T={entry.paper_temperature:.1f})"


def hole_letters(table: Table) -> dict[str, str]:
    """Reason → letter, in the order in which a reader meets them."""
    columns = table.shown_columns
    reasons = dict.fromkeys(
        row.entries[i].hole for row in table.shown_rows for i in columns if row.entries[i].hole is not None
    )
    names = [*string.ascii_lowercase, *(a + b for a in string.ascii_lowercase for b in string.ascii_lowercase)]
    return {reason: names[i] for i, reason in enumerate(reasons) if reason is not None}


def footnotes(table: Table) -> list[str]:
    """What a reader must know: holes, scale, seeds, what "paper" is, definitions, notes and runs."""
    metrics = dict.fromkeys(row.quantity.metric for row in table.rows)
    notes = [f"({letter}) {' '.join(reason.split())}" for reason, letter in hole_letters(table).items()]
    notes.append(f"Scale {table.scale}: {SCALES[table.scale].title.rstrip('?')}.")
    entries = [entry for row in table.rows for entry in row.entries]
    if any(entry.paper is not None for entry in entries):
        notes.append(
            "paper: the number printed in the paper, under its own protocol. Ours stands first, in the same unit."
        )
    if any(entry.temperature is not None or entry.paper_temperature is not None for entry in entries):
        notes.append(
            "T: the temperature in {0.1, 0.2, …, 10.0} of the lowest validation ECE; of several seeds, the mean."
        )
    if any(entry.ours is not None for entry in entries) and table.rule is not None:
        notes.append(
            "Per cent of the test images, NLL in nats; [ , ] are 95 % bootstrap intervals, ± deviations over n seeds."
        )
    notes += [*table.notes, *(DEFINITIONS[metric] for metric in metrics if metric in DEFINITIONS)]
    if table.left_out:
        notes.append(f"Not run at this scale, in the CSV with the paper's numbers: {', '.join(table.left_out)}.")
    return [*notes, *_runs(table)]


def _runs(table: Table) -> list[str]:
    if table.rule is None:
        return []
    seeds = sorted({s.cell.seed for row in table.rows for entry in row.entries for s in entry.sources})
    if not seeds:
        return ["No run of this table has a result at this scale."]
    text = f"Runs: {len(table.sources)}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    if seeds == [0]:
        text += " (the claims average over seeds where there are several)"
    return [f"{text}; spec hashes: {', '.join(f'{name} {code[:8]}' for name, code in table.sources.items())}."]


# --- Markdown ----------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""
    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def markdown(tables: Sequence[Table]) -> str:
    """The tables as GitHub shows them, the paper's numbers on a second line of each cell."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    letters, columns = hole_letters(table), table.shown_columns
    names = ["data set", "network", "quantity", *(table.layout.columns[i].title for i in columns)]
    lines = [f"### {table.title}", "", _line(names)]
    lines.append("|" + "---|" * 3 + "---:|" * len(columns))
    before: tuple[str, ...] = ()
    for row in table.shown_rows:
        headers = row.header if row.header != before else [""] * len(row.header)
        lines.append(
            _line([*headers, row.quantity.title, *(_cell(table, row, row.entries[i], letters) for i in columns)])
        )
        before = row.header
    lines += ["", *(f"- {note}" for note in footnotes(table)), ""]
    return "\n".join(lines)


def _cell(table: Table, row: Row, entry: Entry, letters: dict[str, str]) -> str:
    text = ours_text(table, row, entry)
    if entry.hole in letters:
        text += f"<sup>{letters[entry.hole]}</sup>"
    theirs = paper_text(table, row, entry)
    return f"{text}<br>{theirs}" if theirs else text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


# --- CSV ---------------------------------------------------------------------------------------------------------------


def csv_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """One number a row: fractions (NLL in nats, sizes in MiB), holes with their reason; of several seeds each, then the mean."""
    return [
        part
        for table in tables
        for row in table.rows
        for i, entry in enumerate(row.entries)
        for part in _csv_entry(table, row, table.layout.columns[i], entry)
    ]


def _csv_entry(table: Table, row: Row, column: Column, entry: Entry) -> list[dict[str, Any]]:
    place = {"table": table.layout.name, "rule": table.rule, "data_set": row.header[0], "network": row.header[1]}
    what = {"column": column.title, "metric": row.quantity.metric, "phase": column.phase or row.quantity.phase}
    ours = {"statistic": "value", **dict.fromkeys(("ours", "low", "high", "std", "temperature"))}
    theirs = {"paper": entry.paper, "paper_std": entry.paper_spread, "paper_temperature": entry.paper_temperature}
    empty = dict.fromkeys(theirs)
    base: dict[str, Any] = {**place, **what, **ours, **empty, "scale": table.scale}
    base |= dict.fromkeys(("cell", "seed", "hash", "hole"))
    singles = [
        base
        | {"ours": source.row.value, "low": source.row.low, "high": source.row.high}
        | {"cell": source.cell.name, "seed": source.cell.seed, "hash": source.cell_hash}
        for source in entry.sources
    ]
    if len(entry.cells) < 2 and singles:
        return [singles[0] | theirs | {"temperature": entry.temperature}]
    summary = base | theirs | {"std": entry.spread, "temperature": entry.temperature, "hole": entry.hole}
    if entry.ours is not None:
        summary |= {"statistic": "mean", "ours": entry.ours.value}
    seed = entry.cells[0].seed if len(entry.cells) == 1 else None
    return [*singles, summary | {"cell": " ".join(cell.name for cell in entry.cells) or None, "seed": seed}]


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_tables(tables: Sequence[Table], out: Path, name: str) -> list[Path]:
    """<name>.md and <name>.csv in a folder."""
    return write_texts({out / f"{name}.md": markdown(tables), out / f"{name}.csv": csv_text(csv_rows(tables))})


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """Each file whole or not at all."""
    for path, text in texts.items():
        with atomic_write(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)


def _tells_temperature(table: Table, row: Row) -> bool:
    """Only the first calibration error of a table, because the others have the same temperature."""
    phases = [column.phase for column in table.layout.columns]
    for quantity in table.layout.quantities:
        tempered = quantity.phase in ("post", "post_nll") or "post" in phases
        if tempered and "ece" in quantity.metric:
            return row.quantity == quantity
    return False
