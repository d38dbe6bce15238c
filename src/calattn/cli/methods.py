"""Methods: which calibrators `--method` and `--skip` name, and which of `all` would take too long."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from calattn.cli.options import listed

ALL = "all"
# A fit of C × C numbers. 5,000 samples, one core: dirichlet 6 s at 100 classes, 18 s at 200, 120 s at 400 (matrix 9, 3 and 12 s).
_FULL_MATRIX = ("matrix", "dirichlet")
_MOST_CLASSES = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Methods:
    """Names in the order given, and those of them that were named by themselves and not by `all` alone."""

    names: list[str]
    named: frozenset[str]

    @property
    def single(self) -> bool:
        return len(self.names) == 1

    def left_out(self, num_classes: int) -> dict[str, str]:
        """Method → why it does not take part unless it is named itself."""
        slow = [name for name in _FULL_MATRIX if name in self.names and name not in self.named]
        if self.single or num_classes <= _MOST_CLASSES:
            return {}
        why = f"with {num_classes:,} classes (more than {_MOST_CLASSES}) one fit can take minutes"
        anyway = ",".join([ALL, *(name for name in self.names if name in self.named or name in slow)])
        return dict.fromkeys(slow, f"{why}; name what you want anyway: --method {anyway}")


def chosen(method: Sequence[str] | None, skip: Sequence[str] | None) -> Methods:
    """What the flags name: each may be repeated, and each may hold several names.

    >>> chosen(["vector,sats", "vector"], ["sats"]).names
    ['vector']
    """
    from calattn.posthoc import CALIBRATORS

    given, skipped = _each(method or ["temperature"]), _each(skip or [])
    for name in (*given, *skipped):
        if name != ALL or name in skipped:
            CALIBRATORS[name]
    named = [name for name in given if name != ALL]
    names = list(CALIBRATORS) if ALL in given else named
    unused = next((name for name in skipped if name not in names), None)
    if unused is not None:
        raise ValueError(f"--skip {unused} is not among the methods ({', '.join(names)}); leave it out")
    if not (left := [name for name in names if name not in skipped]):
        raise ValueError(f"--skip leaves no method of {', '.join(names)}; skip fewer")
    return Methods(names=left, named=frozenset(named))


def _each(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name for text in texts for name in listed(text) or ()))
