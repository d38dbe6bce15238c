"""The focal loss with one γ, and the factor (1 − p)^γ that its relatives share."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import over_labels, prepare
from calattn.losses._options import Reduction, non_negative, reduce


def focal(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    gamma: float = 3.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Focal loss: cross-entropy that fades for samples already predicted well.

    −(1 − p_y)^γ log p_y, γ = 3 (Lin et al. 2017; γ of Mukhoti et al. 2020). For soft labels q, Σ_k q_k of the
    same with k for y. Any γ ≥ 0 has finite gradients, 0 < γ < 1 and p_y = 1 included; γ = 0 is cross-entropy.

    >>> focal(torch.zeros(1, 2), torch.tensor([0]))  # log 2 / 8
    tensor(0.0866)
    """
    gamma = non_negative(gamma, "gamma")
    logits, labels = prepare(logits, labels)
    losses = over_labels(lambda t: -t * power(complement(t), gamma), logits.log_softmax(dim=1), labels)
    return reduce(losses, reduction)


def complement(log_probs: Tensor) -> Tensor:
    """1 − p to full relative precision, also where p rounds to 1."""
    return -torch.expm1(log_probs)


def power(base: Tensor, gamma: float) -> Tensor:
    """base^γ for base in [0, 1], with finite gradients for every γ ≥ 0.

    The slope γ base^(γ − 1) is infinite at 0 for γ < 1, and ∞ · log p = ∞ · 0 is the NaN that users of other
    focal losses meet. The smallest normal number in place of 0 changes no value: the factor −log p is 0 there
    as well.
    """
    return base.clamp(min=torch.finfo(base.dtype).tiny) ** gamma
