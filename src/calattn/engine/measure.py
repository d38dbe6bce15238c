"""What is written down after every epoch about the validation predictions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.evaluation import evaluate
from calattn.types import Predictions

METRICS = ("accuracy", "nll", "brier", "ece")
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
HISTOGRAM_BINS = 40


def measure(predictions: Predictions) -> dict[str, Any]:
    """Accuracy, NLL, Brier and ECE, and the dynamics of the paper's figure: scale, inverse scale and feature norms.

    A model without a head has scale 1 throughout; its row says so with a standard deviation of 0.
    """
    found: dict[str, Any] = {
        name: row.value for name, row in evaluate(predictions, metrics=METRICS, num_bootstrap=0).rows.items()
    }
    if predictions.scale is not None:
        found["scale"] = distribution(predictions.scale)
        found["inverse_scale"] = distribution(predictions.scale.reciprocal())
    if predictions.features is not None:
        found["feature_norm"] = distribution(predictions.features.float().norm(dim=1))
    return found


def distribution(values: Float[Tensor, " n"]) -> dict[str, Any]:
    """Mean, standard deviation, coefficient of variation, quantiles and a 40-bin histogram between the extremes.

    >>> distribution(torch.tensor([1.0, 3.0]))["cv"]
    0.5
    """
    values = values.detach().double().cpu()
    mean, std = float(values.mean()), float(values.std(correction=0))
    # quantile() refuses more than 16 million values; a stride through them is as good.
    thinned = values[:: max(1, len(values) // 1_000_000)]
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + max(abs(low) * 1e-6, 1e-12)
    counts, edges = torch.histogram(values, bins=HISTOGRAM_BINS, range=(low, high))
    return {
        "mean": mean,
        "std": std,
        "cv": std / abs(mean) if mean else 0.0,
        "quantiles": {f"{q:g}": float(thinned.quantile(q)) for q in QUANTILES},
        "histogram": {"counts": [int(count) for count in counts], "edges": [float(edge) for edge in edges]},
    }
