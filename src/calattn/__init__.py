"""CalAttn: per-image temperatures for vision transformers, and an honest way to judge calibration."""

from calattn import _torchvision  # noqa: F401  (must run before anything imports torchvision)
from calattn.types import ModelOutput, Predictions

__version__ = "0.1.0"

__all__ = ["ModelOutput", "Predictions"]
