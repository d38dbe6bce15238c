"""CalAttn: per-image temperatures for vision transformers, and an honest way to judge calibration."""

from calattn import _torchvision  # noqa: F401  isort: skip  (must run before anything imports torchvision)

from calattn import heads, losses, metrics, posthoc
from calattn.attachment import Adapter, CalibratedModel, Overhead, attach, overhead
from calattn.metrics.evaluation import Difference, Evaluation, compare, evaluate
from calattn.readers import read_predictions, stream_predictions
from calattn.store import load_predictions, save_predictions
from calattn.types import MetricRow, ModelOutput, Predictions

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`calattn.backbones` and `calattn.report` on first use: timm and rich are for those who want them."""
    if name in ("backbones", "report"):
        import importlib

        return importlib.import_module(f"calattn.{name}")
    raise AttributeError(f"module 'calattn' has no attribute {name!r}")


__all__ = [
    "Adapter",
    "CalibratedModel",
    "Difference",
    "Evaluation",
    "MetricRow",
    "ModelOutput",
    "Overhead",
    "Predictions",
    "attach",
    "compare",
    "evaluate",
    "heads",
    "load_predictions",
    "losses",
    "metrics",
    "overhead",
    "posthoc",
    "read_predictions",
    "save_predictions",
    "stream_predictions",
]
