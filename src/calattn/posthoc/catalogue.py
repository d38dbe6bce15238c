"""The catalogue of calibrators by name; each class enters itself."""

from __future__ import annotations

from collections.abc import Callable

from calattn.posthoc.base import Calibrator
from calattn.registry import Registry

CALIBRATORS: Registry[Callable[..., Calibrator]] = Registry("calibrator")
