"""Runs: `resolve` a recipe or file into a spec, `train_run` it into a folder, `predict_folder` from there."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calattn.runs.folder import RunFolder
    from calattn.runs.predict import predict_folder
    from calattn.runs.recipes import RECIPES
    from calattn.runs.resolving import resolve
    from calattn.runs.runtime import Runtime
    from calattn.runs.spec import RunSpec, SpecError
    from calattn.runs.train import train_run

__all__ = ["RECIPES", "RunFolder", "RunSpec", "Runtime", "SpecError", "predict_folder", "resolve", "train_run"]

_HOME = {
    "RECIPES": "recipes",
    "RunFolder": "folder",
    "RunSpec": "spec",
    "Runtime": "runtime",
    "SpecError": "spec",
    "predict_folder": "predict",
    "resolve": "resolving",
    "train_run": "train",
}


def __getattr__(name: str) -> object:
    """On first use: a list of the recipes need not wait for the engine."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
