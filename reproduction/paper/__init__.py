"""The paper's own numbers, one CSV a table, in the paper's order and units (per cent where it prints per cent).

Columns `paper_…` keep the paper's names; `names.csv` adds ours beside them (dataset, backbone, head, loss, metric, unit, …). A
row holds one `value` and, where printed, its `temperature` (T*), `std` or `change`; `bold` is the paper's own mark for the best.
`oddities.csv` lists where the numbers contradict each other or the text; the tests find each of them again.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

import yaml

from calattn.registry import Registry

Value = str | float | bool | None

NUMBERS = ("value", "temperature", "std", "change", "lambda_min", "lambda_max")
_INDEX = yaml.safe_load(resources.files(__name__).joinpath("index.yaml").read_text(encoding="utf-8"))
ODDITIES: dict[str, str] = _INDEX["oddities"]


class Printed(NamedTuple):
    """Where a table stands in the paper, and what it shows."""

    label: str
    title: str


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table as the paper prints it: numbers are not rescaled, and `unit` says what they are."""

    name: str
    label: str
    title: str
    unit: str
    rows: list[dict[str, Value]]


PAPER_TABLES: Registry[Printed] = Registry("paper table")
for _name, _printed in _INDEX["tables"].items():
    PAPER_TABLES.add(_name, Printed(**_printed))


def paper_table(name: str) -> PaperTable:
    """The table of that name with our names beside the paper's.

    >>> table = paper_table("ece")
    >>> table.label, table.unit, len(table.rows)
    ('tab:ece_comparison', 'per cent', 448)
    """
    label, title = PAPER_TABLES[name]
    names = _names(name)
    rows = [_with_our_names(printed, names) for printed in _read(name)]
    columns = list(dict.fromkeys(column for cells in rows for column in cells))
    unit = ", ".join(dict.fromkeys(str(cells["unit"]) for cells in rows))
    complete = [{column: cells.get(column) for column in columns} for cells in rows]
    return PaperTable(name=name, label=label, title=title, unit=unit, rows=complete)


def find(table: PaperTable | str, **keys: Value) -> dict[str, Value] | None:
    """The only row that agrees with all keys; None where the paper has none.

    >>> find("three_seeds", dataset="cifar10", calibrator="temperature", metric="ece")["value"]
    0.92
    >>> find("ece", dataset="mnist", backbone="resnet50_cifar") is None
    True
    """
    table = _once(table) if isinstance(table, str) else table
    columns = table.rows[0]
    found = [cells for cells in table.rows if all(cells.get(key) == wanted for key, wanted in keys.items())]
    if len(found) > 1 or not keys.keys() <= columns.keys():
        raise ValueError(f"table {table.name!r} has {len(found)} rows with {keys}; choose by {', '.join(columns)}")
    return dict(found[0]) if found else None


def oddities() -> list[dict[str, str]]:
    """What does not add up in the paper's numbers: kind (see `ODDITIES`), table, where, what, values."""
    return _read("oddities")


@functools.cache
def _once(name: str) -> PaperTable:
    """For looking up: nobody else gets its rows, so nobody changes them."""
    return paper_table(name)


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _names(table: str) -> dict[tuple[str, str], dict[str, str]]:
    """(column, the paper's name) → our names: those for every table (`*`) and those for this one."""
    names: dict[tuple[str, str], dict[str, str]] = {}
    for entry in _read("names"):
        if entry["table"] in ("*", table):
            names.setdefault((entry["column"], entry["paper"]), {})[entry["key"]] = entry["ours"]
    return names


def _with_our_names(printed: dict[str, str], names: dict[tuple[str, str], dict[str, str]]) -> dict[str, Value]:
    cells: dict[str, Value] = {column: _cell(column, text) for column, text in printed.items()}
    for column, text in printed.items():
        if column.startswith("paper_"):
            ours = names[column, text]
            assert not cells.keys() & ours.keys(), (column, text)  # two columns must not both say what the head is
            cells |= ours
    cells.setdefault("head", "none")  # a row whose names do not speak of a head has none
    return cells


def _cell(column: str, text: str) -> Value:
    if column in NUMBERS:
        return float(text) if text else None
    return text == "yes" if column == "bold" else text
