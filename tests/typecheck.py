"""Importing this puts jaxtyping's shape checks and beartype on what is imported from calattn afterwards."""

from __future__ import annotations

from collections.abc import Callable

from beartype import beartype
from beartype.roar import BeartypeDecorHintException
from jaxtyping import install_import_hook

# The parts that handle tensors. Of the others (specs, flags, data sets) beartype understands too little, and in `types` the
# checked constructors of data classes cannot be compiled.
PARTS = (
    *("backbones", "checks", "engine", "files.predictions", "heads", "losses", "metrics", "models", "posthoc"),
    *("readers", "report"),
)


def checked(function: Callable) -> Callable:
    """beartype, except where it cannot: methods that return `Self`, arguments that are protocols."""
    try:
        return beartype(function)
    except BeartypeDecorHintException:
        return function


install_import_hook([f"calattn.{part}" for part in PARTS], "tests.typecheck.checked")
