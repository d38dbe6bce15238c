"""Comparison: whether predictions are of the same samples and data, and whether methods differ over several trainings."""

from calattn.comparison.samples import data_warning, labels_of, same_samples
from calattn.comparison.trainings import (
    Method,
    SeedsDifference,
    Training,
    common_seeds,
    compare_over_seeds,
    methods_of,
    over_seeds,
)

__all__ = [
    "Method",
    "SeedsDifference",
    "Training",
    "common_seeds",
    "compare_over_seeds",
    "data_warning",
    "labels_of",
    "methods_of",
    "over_seeds",
    "same_samples",
]
