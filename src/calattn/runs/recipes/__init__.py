"""Recipes: run specs that come with calattn, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable


class Recipes(Mapping[str, str]):
    """name → what it trains: the first comment line of the recipe's YAML."""

    def __init__(self) -> None:
        folder = resources.files(__name__)
        self._files: dict[str, Traversable] = {
            entry.name.removesuffix(".yaml"): entry
            for entry in sorted(folder.iterdir(), key=str)
            if entry.name.endswith(".yaml")
        }

    def __getitem__(self, name: str) -> str:
        return self.text(name).splitlines()[0].lstrip("# ")

    def text(self, name: str) -> str:
        return self._files[name].read_text(encoding="utf-8")

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


RECIPES = Recipes()
