"""Calibration metrics: pure functions over mergeable states.

Functions take `probs` (or `logits` where the name says so) and integer `labels`, and return fractions. Tensors of any
floating precision and numpy arrays are welcome; sums accumulate in float64. `MetricState` streams the same metrics.
"""

from calattn.metrics.functions import (
    BrierDecomposition,
    SmoothECE,
    accuracy,
    adaptive_ece,
    aurc,
    brier,
    brier_decomposition,
    class_bins,
    classwise_ece,
    debiased_ece,
    ece,
    ece_sweep,
    high_confidence_errors,
    kernel_ece,
    mce,
    misclassification_auroc,
    nll,
    ood_auroc,
    risk_coverage,
    smooth_ece,
    smooth_ece_automatic,
)
from calattn.metrics.scoresums import HighConfidenceErrors
from calattn.metrics.state import METRICS, Metric, MetricState

__all__ = [
    "METRICS",
    "BrierDecomposition",
    "HighConfidenceErrors",
    "Metric",
    "MetricState",
    "SmoothECE",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier",
    "brier_decomposition",
    "class_bins",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "ece_sweep",
    "high_confidence_errors",
    "kernel_ece",
    "mce",
    "misclassification_auroc",
    "nll",
    "ood_auroc",
    "risk_coverage",
    "smooth_ece",
    "smooth_ece_automatic",
]
