"""The paper's own numbers, one CSV a table, in the paper's order and units (per cent where it prints per cent).

Columns `paper_…` keep the paper's names; `names.csv` adds ours beside them (dataset, backbone, head, loss, metric, unit, …). A
row holds one `value` and, where printed, its `temperature` (T*), `std` or `change`; `bold` is the paper's own mark for the best.
`oddities.csv` lists where the numbers contradict each other or the text; the tests find each of them again.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
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


PAPER_TABLES: Registry[Printed] = Registry("paper table")
for _name, _printed in _INDEX["tables"].items():
    PAPER_TABLES.add(_name, Printed(**_printed))


@functools.cache
def rows_of(name: str) -> tuple[Mapping[str, Value], ...]:
    """The rows of a table, our names beside the paper's; numbers are not rescaled, and `unit` says what they are.

    >>> rows = rows_of("ece")
    >>> len(rows), rows[0]["unit"], rows[0]["dataset"]
    (448, 'per cent', 'cifar100')
    """
    _ = PAPER_TABLES[name]  # or the error that names the nearest
    names: dict[tuple[str, str], dict[str, str]] = {}
    for entry in _read("names"):  # those for every table (`*`) and those for this one
        if entry["table"] in ("*", name):
            names.setdefault((entry["column"], entry["paper"]), {})[entry["key"]] = entry["ours"]
    rows = [_with_our_names(printed, names) for printed in _read(name)]
    columns = dict.fromkeys(column for row in rows for column in row)
    return tuple(MappingProxyType(dict.fromkeys(columns) | row) for row in rows)


def find(name: str, **keys: Value) -> Mapping[str, Value] | None:
    """The only row of a table that agrees with all keys; None where the paper has none.

    >>> find("three_seeds", dataset="cifar10", calibrator="temperature", metric="ece")["value"]
    0.92
    >>> find("ece", dataset="mnist", backbone="resnet50_cifar") is None
    True
    """
    columns = rows_of(name)[0]
    found = _rows_by(name, tuple(keys)).get(tuple(keys.values()), [])
    if len(found) > 1 or not keys.keys() <= columns.keys():
        raise ValueError(f"table {name!r} has {len(found)} rows with {keys}; choose by {', '.join(columns)}")
    return found[0] if found else None


@functools.cache
def _rows_by(name: str, keys: tuple[str, ...]) -> dict[tuple[Value, ...], list[Mapping[str, Value]]]:
    """The rows of a table by their values of these columns: a report looks up thousands."""
    found: dict[tuple[Value, ...], list[Mapping[str, Value]]] = {}
    for row in rows_of(name):
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return found


def oddities() -> list[dict[str, str]]:
    """What does not add up in the paper's numbers: kind (see `ODDITIES`), table, where, what, values."""
    return _read("oddities")


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


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
