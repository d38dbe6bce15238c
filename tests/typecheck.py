"""The type checker that jaxtyping's import hook applies in the tests."""

from __future__ import annotations

from collections.abc import Callable

from beartype import beartype
from beartype.roar import BeartypeDecorHintPep673Exception


def checked(function: Callable) -> Callable:
    """beartype, except on methods that return `Self`, which beartype cannot check one function at a time."""
    try:
        return beartype(function)
    except BeartypeDecorHintPep673Exception:
        return function
