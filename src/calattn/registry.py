"""A name → object table that refuses duplicates and, on a miss, says what it knows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """`registry.register("name")` decorates; `registry["name"]` looks up.

    >>> colours: Registry[int] = Registry("colour")
    >>> _ = colours.add("red", 1)
    >>> colours["rde"]
    Traceback (most recent call last):
    ...
    calattn.registry.UnknownName: unknown colour 'rde'; did you mean 'red'? known: red

    `aliases` are other people's names: not taken, but answered by the one that is meant.
    """

    def __init__(self, kind: str, *, aliases: Mapping[str, str] | None = None) -> None:
        self.kind, self._aliases = kind, aliases or {}
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        if name in self._items:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._items[name] = item
        return item

    def register(self, name: str) -> Callable[[T], T]:
        return lambda item: self.add(name, item)

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            meant = self._aliases.get(name.lower().replace("-", "_"))
            near = [meant] if meant else nearest(name, self._items)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            raise UnknownName(f"unknown {self.kind} {name!r}{hint} known: {', '.join(sorted(self._items))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items


def nearest(name: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Known names that look like `name`, whatever its case.

    >>> nearest("ECE", ["ece", "nll"])
    ['ece']
    """
    by_fold = {each.casefold(): each for each in known}
    return [by_fold[each] for each in difflib.get_close_matches(name.casefold(), by_fold, n=n, cutoff=cutoff)]


class UnknownName(ValueError, KeyError):
    """A name that the registry does not hold. A ValueError for callers, a KeyError for Mapping's own methods."""

    __str__ = ValueError.__str__
