"""The catalogue of calibrators by name; each class enters itself."""

from __future__ import annotations

from collections.abc import Callable

from calattn.posthoc.base import Calibrator
from calattn.registry import Registry

# What others call these, or their nearest kin: Platt's sigmoid is vector scaling of two classes, and beta calibration is
# Dirichlet calibration of two.
_ALIASES = (
    dict.fromkeys(("ts", "temp", "temperature_scaling"), "temperature_nll")
    | dict.fromkeys(("platt", "platt_scaling", "sigmoid", "logistic", "vs", "vector_scaling"), "vector")
    | dict.fromkeys(("ms", "matrix_scaling"), "matrix")
    | dict.fromkeys(("hb", "histogram_binning", "binning"), "histogram")
    | {"ir": "isotonic", "isotonic_regression": "isotonic", "beta": "dirichlet"}
)

CALIBRATORS: Registry[Callable[..., Calibrator]] = Registry("calibrator", aliases=_ALIASES)
