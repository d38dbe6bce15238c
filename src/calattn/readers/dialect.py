"""The dialect of a text table: what separates its columns and its decimals, where that can be told without a doubt."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence

MARKS = ";\t|"  # beside the comma
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def delimiter_in(line: str) -> str:
    """The comma, unless that leaves the line whole and one other mark alone parts it.

    >>> delimiter_in("logit_0;logit_1;label"), delimiter_in("a,b;c"), delimiter_in("a|b;c"), delimiter_in('"a;b"')
    (';', ',', ',', ',')
    """

    def parts(mark: str) -> bool:
        return len(next(csv.reader([line], delimiter=mark), [])) > 1

    found = [] if parts(",") else [mark for mark in MARKS if parts(mark)]
    return found[0] if len(found) == 1 else ","


def decimal_mark_in(lines: Iterable[Sequence[str]], delimiter: str) -> str:
    """The comma, where it does not part columns and cells have decimal commas, none of them a decimal point.

    Cells that may all be thousands (1,234) are in doubt, and left for an error to name.

    >>> decimal_mark_in([["0,5", "1"]], ";"), decimal_mark_in([["0,5", "0.5"]], ";"), decimal_mark_in([["1,234"]], "\\t")
    (',', '.', '.')
    """
    cells = [cell.strip() for line in lines for cell in line] if delimiter != "," else []
    commas = [cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
    in_doubt = all(map(_THOUSANDS.fullmatch, commas)) or any(map(_DECIMAL_POINT.fullmatch, cells))
    return "." if in_doubt else ","
