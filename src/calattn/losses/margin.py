"""Margin-based label smoothing: cross-entropy plus a penalty on logit distances beyond a margin."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import over_labels, prepare
from calattn.losses._options import Reduction, non_negative, reduce


def mbls(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    margin: float = 10.0,
    weight: float = 0.1,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Cross-entropy plus `weight` times the mean excess of logit distances over `margin`.

    −log p_y + 0.1 · mean_k max(0, max_j ℓ_j − ℓ_k − m), m = 10, or 6 on CIFAR-10 (Liu et al. 2022,
    with the mean over classes of their code). Soft labels enter the cross-entropy only. ℓ are the logits
    given: with a temperature head these are the calibrated ones, so raising the temperature is one way to
    satisfy the margin.

    >>> mbls(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))  # 6e-6 + 0.1 · (12 − 0 − 10) / 2
    tensor(0.1000)
    """
    margin, weight = non_negative(margin, "margin"), non_negative(weight, "weight")
    logits, labels = prepare(logits, labels)
    excess = (logits.max(dim=1, keepdim=True).values - logits - margin).relu().mean(dim=1)
    losses = over_labels(torch.neg, logits.log_softmax(dim=1), labels) + weight * excess
    return reduce(losses, reduction)
