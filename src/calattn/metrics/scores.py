"""Accuracy and the two proper scores, with the Brier score's decomposition."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float

from calattn import checks
from calattn.metrics.calibration import Labels, Probs, class_bins
from calattn.metrics.columns import columns_of


def accuracy(probs: Probs, labels: Labels) -> float:
    """Share of samples whose largest probability is the label's; of equal probabilities the first class counts.

    >>> import torch
    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 0]))
    0.5
    """
    return float(columns_of(probs, labels, "probs").correct.double().mean())


def nll(logits: Float[checks.ArrayLike, "n c"], labels: Labels) -> float:
    """Mean negative log-likelihood in nats: logsumexp(ℓ) − ℓ_y. Takes logits; `log p` of probabilities works too.

    Never clipped: a label of probability zero (logit −inf) gives ∞.

    >>> import torch
    >>> round(nll(torch.tensor([[0.0, 0.0]]), torch.tensor([1])), 4)
    0.6931
    """
    return float(columns_of(logits, labels, "logits").nll.mean())


def brier(probs: Probs, labels: Labels) -> float:
    """Brier score: mean of Σ_k (p_k − [y = k])², from 0 to 2, for two classes too.

    >>> import torch
    >>> round(brier(torch.tensor([[0.75, 0.25]]), torch.tensor([0])), 4)
    0.125
    """
    return float(columns_of(probs, labels, "probs").brier.mean())


class BrierDecomposition(NamedTuple):
    """brier = reliability − resolution + uncertainty + within_bin, exactly."""

    reliability: float  # squared gaps between mean probability and frequency, over class bins
    resolution: float  # how far bin frequencies spread around the class frequency
    uncertainty: float  # Σ_k f_k (1 − f_k): the score of always saying the class frequencies
    within_bin: float  # what bins of finite width leave over; → 0 as bins get finer


def brier_decomposition(probs: Probs, labels: Labels, *, num_bins: int = 15) -> BrierDecomposition:
    """Murphy's decomposition summed over classes, each with equal-width bins of its own probability.

    >>> import torch
    >>> parts = brier_decomposition(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    >>> [round(part, 4) for part in parts]
    [0.125, 0.0, 0.5, 0.0]
    """
    sums = class_bins(probs, labels, num_bins=num_bins)
    size = sums.count.clamp_min(1)
    weight = sums.count / sums.num_samples
    frequency = sums.correct / size
    base = (sums.correct.sum(dim=1) / sums.num_samples).unsqueeze(1)
    reliability = float((weight * (sums.confidence / size - frequency).square()).sum())
    resolution = float((weight * (frequency - base).square()).sum())
    uncertainty = float((base * (1 - base)).sum())
    return BrierDecomposition(
        reliability, resolution, uncertainty, brier(probs, labels) - (reliability - resolution + uncertainty)
    )
