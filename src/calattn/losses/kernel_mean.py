"""MMCE: cross-entropy plus a kernel estimate of the calibration error of the batch."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import over_labels, prepare
from calattn.losses._options import non_negative, positive


def mmce(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    weight: float = 2.0,
    bandwidth: float = 0.4,
) -> Float[Tensor, ""]:
    """Cross-entropy plus `weight` times MMCE_w, the weighted maximum mean calibration error of the batch.

    With r the confidence of the predicted class, m₁ right and m₀ wrong predictions, k = exp(−|r − r'| / 0.4):

    MMCE_w² = Σ_{wrong, wrong} r r' k / m₀² + Σ_{right, right} (1 − r)(1 − r') k / m₁²
              − 2 Σ_{right, wrong} (1 − r) r' k / (m₀ m₁)

    (Kumar et al. 2018, the weighted estimator). It is the norm of a difference of two group means, so a batch
    that is all right or all wrong has none: the term is then 0, as in the authors' code. That code divides
    each sum by its number of pairs twice; we follow the paper, where the loss does not fade with the batch
    size. With soft labels q, a sample counts as right with weight q at the predicted class and as wrong with
    the rest.

    A statistic of the batch: no `reduction`, and each process of a distributed run has its own.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # r = 0.88 twice, one right: MMCE_w = |(1 − r) − r|
    >>> mmce(logits, torch.tensor([0, 1])) - 2 * (torch.sigmoid(torch.tensor(2.0)) * 2 - 1)
    tensor(1.1269)
    """
    weight, bandwidth = non_negative(weight, "weight"), positive(bandwidth, "bandwidth")
    logits, labels = prepare(logits, labels)
    log_probs = logits.log_softmax(dim=1)
    cross_entropy = over_labels(torch.neg, log_probs, labels).mean()
    return cross_entropy + weight * _weighted_mmce(log_probs, labels, bandwidth)


def _weighted_mmce(log_probs: Tensor, labels: Tensor, bandwidth: float) -> Tensor:
    log_confidence, predicted = log_probs.max(dim=1)
    confidence = log_confidence.exp()
    if labels.ndim == 1:
        right = (predicted == labels).to(confidence.dtype)
    else:
        right = labels.gather(1, predicted.unsqueeze(1)).squeeze(1).clamp(max=1.0)
    wrong = 1.0 - right
    limits = torch.finfo(confidence.dtype)
    num_right, num_wrong = right.sum(), wrong.sum()
    # The three sums are one quadratic form aᵀKa. Elementwise, because autocast would run a matrix product in
    # bf16.
    a = -torch.expm1(log_confidence) * right / num_right.clamp(min=limits.tiny)
    a = a - confidence * wrong / num_wrong.clamp(min=limits.tiny)
    kernel = torch.exp(-(confidence.unsqueeze(0) - confidence.unsqueeze(1)).abs() / bandwidth)
    squared = (kernel * a.unsqueeze(0) * a.unsqueeze(1)).sum()
    # √ has an infinite slope at 0 though the norm's own slope is bounded by 1 (Cauchy–Schwarz); below eps²
    # the sum is rounding noise. `where` twice: a masked infinity would still make the gradient NaN.
    usable = (squared > limits.eps**2) & (num_right > 0) & (num_wrong > 0)
    return torch.where(usable, torch.where(usable, squared, 1.0).sqrt(), 0.0)
