"""CalAttn: per-image temperatures for vision transformers, and an honest way to judge calibration."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from calattn import _torchvision

if TYPE_CHECKING:
    from calattn import comparison, heads, losses, metrics, posthoc
    from calattn.comparison.trainings import over_seeds
    from calattn.files.predictions import load_predictions, save_predictions
    from calattn.metrics.evaluation import Difference, Evaluation, compare, evaluate
    from calattn.models.adapters import Adapter, LayerAdapter
    from calattn.models.attach import CalibratedModel, Overhead, attach, overhead
    from calattn.models.predict import predict
    from calattn.models.teach import teach
    from calattn.readers import read_predictions, stream_predictions
    from calattn.runs.load import from_pretrained, load
    from calattn.types import MetricRow, ModelOutput, Predictions

_torchvision.install()

# Torch takes a second to import, timm and rich take more: `calattn --help` and shell completion cannot wait for that, so every
# name is fetched from its home on first use.
_PARTS = (
    *("backbones", "checks", "comparison", "files", "heads", "losses", "metrics", "models", "posthoc", "readers"),
    *("registry", "report", "runs", "sklearn", "types"),
)
_HOMES = {
    "Adapter": "models.adapters",
    "LayerAdapter": "models.adapters",
    "predict": "models.predict",
    "teach": "models.teach",
    **dict.fromkeys(("CalibratedModel", "Overhead", "attach", "overhead"), "models.attach"),
    **dict.fromkeys(("Difference", "Evaluation", "compare", "evaluate"), "metrics.evaluation"),
    "over_seeds": "comparison.trainings",
    **dict.fromkeys(("from_pretrained", "load"), "runs.load"),
    **dict.fromkeys(("read_predictions", "stream_predictions"), "readers"),
    **dict.fromkeys(("load_predictions", "save_predictions"), "files.predictions"),
    **dict.fromkeys(("MetricRow", "ModelOutput", "Predictions"), "types"),
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from calattn.distribution import version

        return version()
    if name in _PARTS:
        return importlib.import_module(f"calattn.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"calattn.{_HOMES[name]}"), name)
        globals()[name] = value  # found without this function from now on
        return value
    raise AttributeError(f"module 'calattn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS, *_HOMES})


__all__ = [
    "Adapter",
    "CalibratedModel",
    "Difference",
    "Evaluation",
    "LayerAdapter",
    "MetricRow",
    "ModelOutput",
    "Overhead",
    "Predictions",
    "attach",
    "compare",
    "comparison",
    "evaluate",
    "from_pretrained",
    "heads",
    "load",
    "load_predictions",
    "losses",
    "metrics",
    "over_seeds",
    "overhead",
    "posthoc",
    "predict",
    "read_predictions",
    "save_predictions",
    "stream_predictions",
    "teach",
]
