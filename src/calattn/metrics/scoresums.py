"""Plain sums over samples: the mergeable state of accuracy, NLL, Brier score and high-confidence errors."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.columns import Columns


class HighConfidenceErrors(NamedTuple):
    """The three readings of "high-confidence errors" at a threshold; NaN where nothing is there to count."""

    error_rate: float  # wrong among predictions with confidence ≥ threshold
    error_share: float  # errors with confidence ≥ threshold among all errors
    error_confidence: float  # mean confidence of the errors with confidence ≥ threshold


@dataclasses.dataclass
class ScoreSums:
    """[n, Σ correct, Σ NLL, Σ Brier, n high, n high and wrong, Σ confidence of these], in float64."""

    threshold: float
    sums: Float[Tensor, " 7"] = dataclasses.field(default_factory=lambda: torch.zeros(7, dtype=torch.float64))

    def add(self, columns: Columns) -> Self:
        self.sums = self.sums + score_features(columns, self.threshold).sum(dim=0).to(self.sums.device)
        return self

    def merge(self, other: ScoreSums) -> Self:
        if self.threshold != other.threshold:
            raise ValueError(f"cannot merge thresholds {other.threshold} and {self.threshold}")
        return type(self)(self.threshold, self.sums + other.sums)

    @property
    def num_samples(self) -> float:
        return float(self.sums[0])

    @property
    def num_high_errors(self) -> float:
        """How many errors were made with confidence ≥ threshold."""
        return float(self.sums[5])

    def read(self) -> dict[str, float]:
        return {name: float(value) for name, value in read_scores(self.sums).items()}


def score_features(columns: Columns, threshold: float) -> Float[Tensor, "n 7"]:
    """The summands, one row a sample."""
    correct = columns.correct.double()
    confidence = columns.confidence.double()
    # compared in the confidence's own precision: a float32 0.9 is at the threshold 0.9, not below it
    high = (columns.confidence >= torch.tensor(threshold, dtype=columns.confidence.dtype)).double()
    wrong = high * (1 - correct)
    parts = [torch.ones_like(correct), correct, columns.nll, columns.brier, high, wrong, wrong * confidence]
    return torch.stack(parts, dim=1)


def read_scores(sums: Float[Tensor, "... 7"]) -> dict[str, Float[Tensor, "..."]]:
    n, correct, nll, brier, high, high_wrong, wrong_confidence = sums.unbind(dim=-1)
    return {
        "accuracy": correct / n,
        "nll": nll / n,
        "brier": brier / n,
        "high_confidence_error_rate": high_wrong / high,
        "high_confidence_error_share": high_wrong / (n - correct),
        "high_confidence_error_confidence": wrong_confidence / high_wrong,
    }
