"""The paper's own objective: cross-entropy plus a weighted Brier score."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import dense, over_labels, prepare
from calattn.losses._options import Reduction, non_negative, reduce


def ce_brier(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    weight: float = 0.1,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Cross-entropy plus `weight` times the Brier score, the objective CalAttn is trained with.

    −log p_y + λ‖p − e_y‖², λ = 0.1 (Eq. 3). Soft labels as in `ce` and `brier`.

    >>> ce_brier(torch.zeros(1, 2), torch.tensor([0]), weight=1.0)  # log 2 + 1/2
    tensor(1.1931)
    """
    weight = non_negative(weight, "weight")
    logits, labels = prepare(logits, labels)
    log_probs = logits.log_softmax(dim=1)  # once for both terms
    score = (log_probs.exp() - dense(labels, logits)).square().sum(dim=1)
    return reduce(over_labels(torch.neg, log_probs, labels) + weight * score, reduction)
