"""The focal family: cross-entropy times a factor (1 − p)^γ that fades for samples already predicted well."""

from __future__ import annotations

import torch
from torch import Tensor

from calattn.losses.loss import Labels, Logits, Losses, Reduction, non_negative, over_labels, prepare, reduce


def focal(logits: Logits, labels: Labels, *, gamma: float = 3.0, reduction: Reduction = "mean") -> Losses:
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


def flsd53(logits: Logits, labels: Labels, *, reduction: Reduction = "mean") -> Losses:
    """Focal loss with γ = 5 where p_y < 0.2 and γ = 3 elsewhere.

    −(1 − p_y)^γ(p_y) log p_y (FLSD-53 of Mukhoti et al. 2020). The loss jumps at p_y = 0.2; γ
    itself carries no gradient. For soft labels q, Σ_k q_k of the same with k for y, γ chosen for each class
    by its own p_k. The `FL-53` row of the paper's tables.

    >>> flsd53(torch.zeros(1, 10), torch.tensor([3])) / torch.log(torch.tensor(10.0))  # 0.9⁵
    tensor(0.5905)
    >>> flsd53(torch.zeros(1, 2), torch.tensor([0])) / torch.log(torch.tensor(2.0))  # 0.5³
    tensor(0.1250)
    >>> flsd53(torch.zeros(1, 5), torch.tensor([0])) / torch.log(torch.tensor(5.0))  # 0.8³: 0.2 is not below 0.2
    tensor(0.5120)
    """
    logits, labels = prepare(logits, labels)
    return reduce(over_labels(_sample_dependent, logits.log_softmax(dim=1), labels), reduction)


def _sample_dependent(log_probs: Tensor) -> Tensor:
    rest = complement(log_probs)
    # exp(log_softmax) of an exact 1/5 comes out one float32 step low: a hair below 0.2 counts as 0.2
    return -log_probs * torch.where(log_probs.exp() < 0.2 * (1 - 1e-6), power(rest, 5.0), power(rest, 3.0))


def dual_focal(logits: Logits, labels: Labels, *, gamma: float = 5.0, reduction: Reduction = "mean") -> Losses:
    """Focal loss that looks at the gap between the label's probability and the next one below it.

    −(1 − p_y + p_j)^γ log p_y with p_j the largest probability strictly below p_y, 0 if there is none; γ = 5
    (Tao et al. 2023: "the highest logit ranked after the ground truth logit"). p_j carries gradient, as in
    the authors' code. For soft labels q, Σ_k q_k of the same with k for y, each k with its own p_j. The
    `DFL` row of the paper's tables.

    >>> probs = torch.tensor([[0.5, 0.3, 0.2]])
    >>> dual_focal(probs.log(), torch.tensor([1])), 0.9**5 * -torch.tensor(0.3).log()  # p_j = 0.2
    (tensor(0.7109), tensor(0.7109))
    """
    gamma = non_negative(gamma, "gamma")
    logits, labels = prepare(logits, labels)
    log_probs = logits.log_softmax(dim=1)
    if labels.ndim == 1:
        chosen = log_probs.gather(1, labels.unsqueeze(1))
        # Ranks are compared between logits: probabilities of 0 or 1 tie long before they do. A compiler may compute the same
        # number twice and get two, log-probabilities above all, which it sums anew: ties in half precision would be broken.
        # So the label's own class is named, not found by comparison, and the maximum is taken by its place. (The slope of
        # `amax` divides by the number of entries equal to the maximum: NaN if none is.)
        excluded = (logits >= logits.gather(1, labels.unsqueeze(1))).scatter(1, labels.unsqueeze(1), True)
        below = log_probs.masked_fill(excluded, -torch.inf).max(dim=1).values.exp()
        return reduce(_dual(chosen.squeeze(1), below, gamma), reduction)
    # A class without label mass must not count, even at log p = −inf, where 0 · ∞ would be NaN.
    terms = _dual(log_probs.masked_fill(labels == 0, 0.0), _next_below(log_probs), gamma)
    return reduce((labels * terms).sum(dim=1), reduction)


def _dual(log_probs: Tensor, below: Tensor, gamma: float) -> Tensor:
    return -log_probs * power(complement(log_probs) + below, gamma)


def _next_below(log_probs: Tensor) -> Tensor:
    """For every class the largest probability strictly below its own, 0 for the lowest, in O(C log C)."""
    ordered, order = log_probs.sort(dim=1)
    places = torch.arange(ordered.shape[1], device=ordered.device).expand_as(ordered)
    rises = torch.ones_like(order, dtype=torch.bool)
    rises[:, 1:] = ordered[:, 1:] > ordered[:, :-1]
    before = places.where(rises, 0).cummax(dim=1).values - 1  # the last place before the run of equals
    below = ordered.gather(1, before.clamp(min=0)).exp().masked_fill(before < 0, 0.0)
    return torch.zeros_like(below).scatter(1, order, below)


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
