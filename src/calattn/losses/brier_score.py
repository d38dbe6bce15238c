"""The Brier score as a loss: the `BS` row of the paper's tables."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import dense, prepare
from calattn.losses._options import Reduction, reduce


def brier(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Brier score of calibrated logits, summed over classes.

    ‖p − e_y‖² with p = softmax(logits) (Brier 1950; the second term of Eq. 3), in [0, 2]. For soft labels q
    it is ‖p − q‖²: the expectation over y ~ q less the constant 1 − ‖q‖², so the gradients are those of the
    expectation.

    >>> import torch
    >>> brier(torch.zeros(1, 2), torch.tensor([0]))  # (1/2 − 1)² + (1/2)²
    tensor(0.5000)
    """
    logits, labels = prepare(logits, labels)
    return reduce((logits.softmax(dim=1) - dense(labels, logits)).square().sum(dim=1), reduction)
