"""A name → object table that refuses duplicates and, for an unknown name, lists those it knows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from calattn.errors import InputError

T = TypeVar("T")

# Kinds that people add to; a plugin on the command line does so before names are looked up.
_EXTENSIBLE = frozenset({"loss", "head", "backbone", "data set", "metric", "calibrator"})


class Registry(Mapping[str, T]):
    """`registry.register("name")` decorates; `registry["name"]` looks up.

    >>> colours: Registry[int] = Registry("colour")
    >>> _ = colours.add("red", 1)
    >>> colours["rde"]
    Traceback (most recent call last):
    ...
    calattn.registry.UnknownName: unknown colour 'rde'; did you mean 'red'? known: red

    `aliases` are other people's names: not accepted, but the error names the one that is meant.
    """

    def __init__(self, kind: str, *, aliases: Mapping[str, str] | None = None) -> None:
        self.kind, self._aliases = kind, aliases or {}
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T, *, replace: bool = False) -> T:
        """`replace` takes the place of what has the name: for a notebook's cell that is run again."""
        if name in self._items and not replace:
            raise ValueError(
                f"{self.kind} {name!r} is registered twice; choose another name, or pass replace=True to replace it"
            )
        self._items[name] = item
        return item

    def register(self, name: str, *, replace: bool = False) -> Callable[[T], T]:
        return lambda item: self.add(name, item, replace=replace)

    def __getitem__(self, name: str) -> T:
        if not isinstance(name, str):
            raise TypeError(
                f"a {self.kind} must be given by its name, got {type(name).__name__}; register it under one first, with "
                '.register("name"), and pass that'
            )
        try:
            return self._items[name]
        except KeyError:
            meant = self._aliases.get(name.lower().replace("-", "_"))
            near = [meant] if meant else nearest(name, self._items)
            hint = f"did you mean {near[0]!r}? " if near else ""
            own = f"; {of_your_own(self.kind)}" if self.kind in _EXTENSIBLE else ""
            remedy = f"{hint}known: {', '.join(sorted(self._items))}{own}"
            raise UnknownName(f"unknown {self.kind} {name!r}", remedy=remedy) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items


def of_your_own(kind: str) -> str:
    """How a name comes to be known that is not ours."""
    return f"a {kind} of your own needs calattn --plugin FILE.py (or, in Python, the import of its module)"


def nearest(name: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Known names that look like `name`, whatever its case.

    >>> nearest("ECE", ["ece", "nll"])
    ['ece']
    """
    by_fold = {each.casefold(): each for each in known}
    return [by_fold[each] for each in difflib.get_close_matches(name.casefold(), by_fold, n=n, cutoff=cutoff)]


class UnknownName(InputError, KeyError):
    """A name that the registry does not hold. A ValueError for callers, a KeyError for Mapping's own methods."""
