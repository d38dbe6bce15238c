"""FLSD-53: the focal loss with a sample-dependent γ, the `FL-53` row of the paper's tables."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import over_labels, prepare
from calattn.losses._options import Reduction, reduce
from calattn.losses.focal_loss import complement, power


def flsd53(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Focal loss with γ = 5 where p_y < 0.2 and γ = 3 elsewhere.

    −(1 − p_y)^γ(p_y) log p_y (FLSD-53 of Mukhoti et al. 2020). The loss jumps at p_y = 0.2; γ
    itself carries no gradient. For soft labels q, Σ_k q_k of the same with k for y, γ chosen for each class
    by its own p_k.

    >>> flsd53(torch.zeros(1, 10), torch.tensor([3])) / torch.log(torch.tensor(10.0))  # 0.9⁵
    tensor(0.5905)
    >>> flsd53(torch.zeros(1, 2), torch.tensor([0])) / torch.log(torch.tensor(2.0))  # 0.5³
    tensor(0.1250)
    >>> flsd53(torch.zeros(1, 5), torch.tensor([0])) / torch.log(torch.tensor(5.0))  # 0.8³: 0.2 is not below 0.2
    tensor(0.5120)
    """
    logits, labels = prepare(logits, labels)
    return reduce(over_labels(_term, logits.log_softmax(dim=1), labels), reduction)


def _term(log_probs: Tensor) -> Tensor:
    rest = complement(log_probs)
    # exp(log_softmax) of an exact 1/5 comes out one float32 step low: a hair below 0.2 counts as 0.2
    return -log_probs * torch.where(log_probs.exp() < 0.2 * (1 - 1e-6), power(rest, 5.0), power(rest, 3.0))
