"""The ranges of a loss's options, and how per-sample losses become one number."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def non_negative(value: float, name: str) -> float:
    if not (_is_number(value) and value >= 0):
        raise ValueError(f"{name} must be finite and at least 0, got {value!r}")
    return float(value)


def positive(value: float, name: str) -> float:
    if not (_is_number(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def reduce(values: Tensor, reduction: Reduction) -> Tensor:
    """The mean or sum over samples, or the per-sample values themselves."""
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    if reduction == "none":
        return values
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
