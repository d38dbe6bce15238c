"""Text from files and folders, such as names of classes, made harmless for those who show it."""

from __future__ import annotations

import re

# What moves a terminal's cursor or turns the direction of what follows, and half letters, which no file can hold.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_FORMULA = re.compile(r"[=@\t]|[+-](?!\d*\.?\d+(e[+-]?\d+)?$)", re.IGNORECASE)  # numbers are none


def visible(text: str) -> str:
    r"""The text, what would act instead of being seen as an escape, which JSON reads back; lines and tabs stay.

    >>> print(visible("a\x1b[31mb\u202e"))
    a\u001b[31mb\u202e
    """
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_formula(text: str) -> bool:
    """Whether a spreadsheet would compute the text instead of showing it."""
    return _FORMULA.match(text) is not None


def cell_text(text: str) -> str:
    """The text for a cell of a CSV file; an apostrophe before what a spreadsheet would compute.

    >>> cell_text("=1+1"), cell_text("cat"), cell_text("-1.5e-3")
    ("'=1+1", 'cat', '-1.5e-3')
    """
    return f"'{visible(text)}" if is_formula(text) else visible(text)
