"""The workbench: `resolve` a recipe or file into a spec, `train_run` it into a folder, `predict_folder` from there."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calattn.workbench.folder import RunFolder
    from calattn.workbench.predicting import predict_folder
    from calattn.workbench.recipes import RECIPES
    from calattn.workbench.resolving import resolve
    from calattn.workbench.runtime import Runtime
    from calattn.workbench.spec import RunSpec
    from calattn.workbench.training import train_run
    from calattn.workbench.yamlfile import SpecError

__all__ = ["RECIPES", "RunFolder", "RunSpec", "Runtime", "SpecError", "predict_folder", "resolve", "train_run"]

_HOME = {
    "RECIPES": "recipes",
    "RunFolder": "folder",
    "RunSpec": "spec",
    "Runtime": "runtime",
    "SpecError": "yamlfile",
    "predict_folder": "predicting",
    "resolve": "resolving",
    "train_run": "training",
}


def __getattr__(name: str) -> object:
    """On first use: a list of the recipes need not wait for the engine."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
