"""The shape checks of the tests are on: a module that was imported before them would go unchecked, and nobody would notice."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from tests.typecheck import PARTS


def test_every_module_that_handles_tensors_is_checked():
    names = [f"calattn.{part}" for part in PARTS]
    for name in tuple(names):
        path = getattr(importlib.import_module(name), "__path__", None)
        names += [] if path is None else [each.name for each in pkgutil.walk_packages(path, f"{name}.")]
    for name in names:
        importlib.import_module(name)
    unchecked = [name for name in names if "jaxtyping" not in type(sys.modules[name].__loader__).__module__]
    assert len(names) > 60
    assert not unchecked
