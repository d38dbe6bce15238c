"""The paper's tables as layouts: which cells stand where, and which printed number stands beside them."""

from reproduction.layouts import ablations, calibration, rivals  # noqa: F401  (they register)
from reproduction.layouts.parts import BACKBONES, DATASETS, LAYOUTS, LOSS_TITLES, MODELS, SEEDS

__all__ = ["BACKBONES", "DATASETS", "LAYOUTS", "LOSS_TITLES", "MODELS", "SEEDS"]
