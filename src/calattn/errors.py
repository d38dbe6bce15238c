"""Errors and warnings as fields: what is wrong, where, and what to do. Whoever shows them makes the sentence.

The library raises fields, `str(error)` is the sentence for Python, and the command line makes its own from the same fields.
No code reads a message of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Self


class Args:
    """Arguments that the reader of a message may pass, with values: `kind="probs"` in Python, `--kind probs` at a shell.

    The value None names the argument alone, `...` stands for a value of the reader's own. `python` is the text for Python
    where it differs.

    >>> print(Args(kind="probs", ignore=["id"]), Args(columns=...), Args(sum_tolerance=None))
    kind="probs", ignore=["id"] columns=… sum_tolerance
    >>> print(Args("Predictions.from_probs(probs, labels)", kind="probs"))
    Predictions.from_probs(probs, labels)
    """

    def __init__(self, python: str | None = None, /, **values: object) -> None:
        self.python, self.values = python, values

    def __str__(self) -> str:
        named = (name if value is None else f"{name}={_literal(value)}" for name, value in self.values.items())
        return self.python or ", ".join(named)

    __repr__ = __str__


def _literal(value: object) -> str:
    if value is ...:
        return "…"
    if isinstance(value, PurePath):
        return f"Path({_literal(str(value))})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Words = str | tuple[str | Args, ...]


class _Fields(Exception):
    """The fields, of errors and of warnings alike.

    `subject` is what it is about (mostly a file), `argument` the argument or array, `row` and `column` the place in it.
    """

    def __init__(
        self,
        problem: Words = "",
        *,
        subject: str = "",
        argument: str = "",
        row: int | None = None,
        column: int | None = None,
        remedy: Words = "",
    ) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy
        self.subject, self.argument, self.row, self.column = subject, argument, row, column

    def sentence(self, name: Callable[[Args], str] = str) -> str:
        """The sentence; `name` gives arguments their names."""
        place = ", ".join(str(each) for each in (self.row, self.column) if each is not None)
        where = f"{self.argument}[{place}]" if place else name(Args(**{self.argument: None})) if self.argument else ""
        problem, remedy = _joined(self.problem, name), _joined(self.remedy, name)
        what = " ".join(part for part in (where, problem) if part)
        said = f"{self.subject}{': ' * bool(self.subject)}{what}{'; ' * bool(remedy)}{remedy}"
        return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], said)  # names in files may hold commands to a terminal

    def __str__(self) -> str:
        return self.sentence()

    @classmethod
    def of(cls, error: BaseException, **changes: Any) -> Self:
        """The same as one of this class, some fields changed; of an error without fields its words are the problem.

        >>> InputError.of(ValueError("is empty"), subject="a.csv", remedy="save it again")
        InputError('a.csv: is empty; save it again')
        """
        names = ("problem", "subject", "argument", "row", "column", "remedy")
        fields = (
            {each: getattr(error, each) for each in names} if isinstance(error, _Fields) else {"problem": str(error)}
        )
        return cls(**(fields | changes))

    def at(self, rows: Any) -> Self:
        """The same of a part's row as of the whole, which has it at `rows[row]`.

        >>> str(InputError("is nan", argument="logits", row=1, column=2).at([0, 5]))
        'logits[5, 2] is nan'
        """
        return self if self.row is None else self.of(self, row=int(rows[self.row]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentence()!r})"


def _joined(words: Words, name: Callable[[Args], str]) -> str:
    return words if isinstance(words, str) else "".join(name(it) if isinstance(it, Args) else it for it in words)


class InputError(_Fields, ValueError):
    """Something that the caller gave and can change.

    >>> remedy = ("pass ", Args(kind="logits"), " or ", Args(kind="probs"))
    >>> print(InputError("'scores' does not say what it is", subject="a.npz", remedy=remedy))
    a.npz: 'scores' does not say what it is; pass kind="logits" or kind="probs"
    """


class BadRowError(InputError):
    """A row that no prediction can be: NaN or infinite values, a scale that is not positive, probabilities that sum to 2."""


class InputWarning(_Fields, UserWarning):
    """Something that the caller gave and may not have meant."""
