"""Cross-entropy, alone and with a second term: a Brier score, smoothed labels, a margin, the batch's calibration error."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.losses.loss import (
    Labels,
    Logits,
    Losses,
    Reduction,
    dense,
    non_negative,
    over_labels,
    positive,
    prepare,
    reduce,
)


def ce(logits: Logits, labels: Labels, *, reduction: Reduction = "mean") -> Losses:
    """Cross-entropy of calibrated logits.

    −log p_y with p = softmax(logits); for soft labels q, −Σ_k q_k log p_k (the CE term of Eq. 3). With
    weight decay, the `WD` row of the paper's tables.

    >>> ce(torch.zeros(1, 4), torch.tensor([2]))  # log 4
    tensor(1.3863)
    """
    logits, labels = prepare(logits, labels)
    return reduce(over_labels(torch.neg, logits.log_softmax(dim=1), labels), reduction)


def brier(logits: Logits, labels: Labels, *, reduction: Reduction = "mean") -> Losses:
    """Brier score of calibrated logits, summed over classes.

    ‖p − e_y‖² with p = softmax(logits) (Brier 1950; the second term of Eq. 3), in [0, 2]. For soft labels q
    it is ‖p − q‖²: the expectation over y ~ q less the constant 1 − ‖q‖², so the gradients are those of the
    expectation. The `BS` row of the paper's tables.

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))  # (1/2 − 1)² + (1/2)²
    tensor(0.5000)
    """
    logits, labels = prepare(logits, labels)
    return reduce((logits.softmax(dim=1) - dense(labels, logits)).square().sum(dim=1), reduction)


def ce_brier(logits: Logits, labels: Labels, *, weight: float = 0.1, reduction: Reduction = "mean") -> Losses:
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


def label_smoothing(logits: Logits, labels: Labels, *, alpha: float = 0.05, reduction: Reduction = "mean") -> Losses:
    """Cross-entropy against labels mixed with the uniform distribution.

    −Σ_k q̃_k log p_k with q̃ = (1 − α) q + α / C, α = 0.05 (Szegedy et al. 2016; Müller et al. 2019). The α
    is spread over all C classes, the label's own included, as in PyTorch; focal_calibration spreads it over
    the other C − 1, which is the same with α' = α C / (C − 1). Soft labels are smoothed too. The `LS` row of the
    paper's tables.

    >>> label_smoothing(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), alpha=0.5)  # ¾ · 0.1269 + ¼ · 2.1269
    tensor(0.6269)
    """
    alpha = checks.in_unit_interval(alpha, "alpha")
    logits, labels = prepare(logits, labels)
    log_probs = logits.log_softmax(dim=1)
    losses = (1.0 - alpha) * over_labels(torch.neg, log_probs, labels) - alpha * log_probs.mean(dim=1)
    return reduce(losses, reduction)


def mbls(
    logits: Logits, labels: Labels, *, margin: float = 10.0, weight: float = 0.1, reduction: Reduction = "mean"
) -> Losses:
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


def mmce(logits: Logits, labels: Labels, *, weight: float = 2.0, bandwidth: float = 0.4) -> Float[Tensor, ""]:
    """Cross-entropy plus `weight` times MMCE_w, the weighted maximum mean calibration error of the batch.

    With r the confidence of the predicted class, m₁ right and m₀ wrong predictions, k = exp(−|r − r'| / 0.4):

    MMCE_w² = Σ_{wrong, wrong} r r' k / m₀² + Σ_{right, right} (1 − r)(1 − r') k / m₁²
              − 2 Σ_{right, wrong} (1 − r) r' k / (m₀ m₁)

    (Kumar et al. 2018, the weighted estimator). It is the norm of a difference of two group means, so a batch
    that is all right or all wrong has none: the term is then 0, as in the authors' code. That code divides
    each sum by its number of pairs twice (`mmce_divided`); we follow the paper, where the loss does not fade with the
    batch size. With soft labels q, a sample counts as right with weight q at the predicted class and as wrong with
    the rest.

    A statistic of the batch: no `reduction`, and each process of a distributed run has its own.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # r = 0.88 twice, one right: MMCE_w = |(1 − r) − r|
    >>> mmce(logits, torch.tensor([0, 1])) - 2 * (torch.sigmoid(torch.tensor(2.0)) * 2 - 1)
    tensor(1.1269)
    """
    return _ce_mmce(logits, labels, weight, bandwidth, divisions=1)


def mmce_divided(logits: Logits, labels: Labels, *, weight: float = 2.0, bandwidth: float = 0.4) -> Float[Tensor, ""]:
    """`mmce` as it circulates in code: each of the three sums is divided by its number of pairs a second time.

    The term fades with the batch: with half of n predictions right it is 2/n of the published one. To compare with
    papers whose numbers came from such code.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # one pair in each sum: the same as `mmce`
    >>> mmce_divided(logits, torch.tensor([0, 1])) == mmce(logits, torch.tensor([0, 1]))
    tensor(True)
    """
    return _ce_mmce(logits, labels, weight, bandwidth, divisions=2)


def _ce_mmce(logits: Tensor, labels: Tensor, weight: float, bandwidth: float, *, divisions: int) -> Tensor:
    weight, bandwidth = non_negative(weight, "weight"), positive(bandwidth, "bandwidth")
    logits, labels = prepare(logits, labels)
    log_probs = logits.log_softmax(dim=1)
    cross_entropy = over_labels(torch.neg, log_probs, labels).mean()
    return cross_entropy + weight * _weighted_mmce(log_probs, labels, bandwidth, divisions=divisions)


def _weighted_mmce(log_probs: Tensor, labels: Tensor, bandwidth: float, *, divisions: int) -> Tensor:
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
    a, b = -torch.expm1(log_confidence) * right, confidence * wrong
    for _ in range(divisions):  # one after another: the square of the least number is 0
        a, b = a / num_right.clamp(min=limits.tiny), b / num_wrong.clamp(min=limits.tiny)
    a = a - b
    kernel = torch.exp(-(confidence.unsqueeze(0) - confidence.unsqueeze(1)).abs() / bandwidth)
    squared = (kernel * a.unsqueeze(0) * a.unsqueeze(1)).sum()
    # √ has an infinite slope at 0 though the norm's own slope is bounded by 1 (Cauchy–Schwarz); below eps²
    # the sum is rounding noise. `where` twice: a masked infinity would still make the gradient NaN.
    usable = (squared > limits.eps**2) & (num_right > 0) & (num_wrong > 0)
    return torch.where(usable, torch.where(usable, squared, 1.0).sqrt(), 0.0)
