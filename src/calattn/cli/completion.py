"""What the shell may complete after an option or argument: names from the registries, imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path


def names(target: str, *more: str) -> Callable[[str], list[str]]:
    """A completer of the names in a registry, "module:attribute", and of `more`; the last of a comma-separated list counts.

    >>> names("calattn.runs.recipes:RECIPES", "none")("di")
    ['digits']
    """

    def complete(incomplete: str) -> list[str]:
        module, _, attribute = target.partition(":")
        before, comma, begun = incomplete.rpartition(",")
        found = [*getattr(importlib.import_module(module), attribute), *more]
        return [f"{before}{comma}{name}" for name in found if name.startswith(begun)]

    return complete


def recipe_or_spec(incomplete: str) -> list[str]:
    """Recipes, and YAML files, whose folders are completed on the way."""
    found = [
        path for path in Path().glob(f"{incomplete}*") if path.is_dir() or path.suffix.lower() in (".yaml", ".yml")
    ]
    files = [f"{path.as_posix()}/" if path.is_dir() else path.as_posix() for path in sorted(found)]
    return [*names("calattn.runs.recipes:RECIPES")(incomplete), *files]
