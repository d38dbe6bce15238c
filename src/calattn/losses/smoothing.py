"""Label smoothing: the `LS` row of the paper's tables."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.losses._inputs import over_labels, prepare
from calattn.losses._options import Reduction, reduce


def label_smoothing(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    alpha: float = 0.05,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Cross-entropy against labels mixed with the uniform distribution.

    −Σ_k q̃_k log p_k with q̃ = (1 − α) q + α / C, α = 0.05 (Szegedy et al. 2016; Müller et al. 2019). The α
    is spread over all C classes, the label's own included, as in PyTorch; focal_calibration spreads it over
    the other C − 1, which is the same with α' = α C / (C − 1). Soft labels are smoothed too.

    >>> label_smoothing(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), alpha=0.5)  # ¾ · 0.1269 + ¼ · 2.1269
    tensor(0.6269)
    """
    alpha = checks.in_unit_interval(alpha, "alpha")
    logits, labels = prepare(logits, labels)
    log_probs = logits.log_softmax(dim=1)
    losses = (1.0 - alpha) * over_labels(torch.neg, log_probs, labels) - alpha * log_probs.mean(dim=1)
    return reduce(losses, reduction)
