"""The dual focal loss: the `DFL` row of the paper's tables."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import prepare
from calattn.losses._options import Reduction, non_negative, reduce
from calattn.losses.focal_loss import complement, power


def dual_focal(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    gamma: float = 5.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Focal loss that looks at the gap between the label's probability and the next one below it.

    −(1 − p_y + p_j)^γ log p_y with p_j the largest probability strictly below p_y, 0 if there is none; γ = 5
    (Tao et al. 2023: "the highest logit ranked after the ground truth logit"). p_j carries gradient, as in
    the authors' code. For soft labels q, Σ_k q_k of the same with k for y, each k with its own p_j.

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
        return reduce(_term(chosen.squeeze(1), below, gamma), reduction)
    # A class without label mass must not count, even at log p = −inf, where 0 · ∞ would be NaN.
    terms = _term(log_probs.masked_fill(labels == 0, 0.0), _next_below(log_probs), gamma)
    return reduce((labels * terms).sum(dim=1), reduction)


def _term(log_probs: Tensor, below: Tensor, gamma: float) -> Tensor:
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
