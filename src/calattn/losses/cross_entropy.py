"""Cross-entropy: the `WD` row of the paper's tables, once the recipe's weight decay is on."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.losses._inputs import over_labels, prepare
from calattn.losses._options import Reduction, reduce


def ce(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"] | Float[Tensor, "n c"],
    *,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""] | Float[Tensor, " n"]:
    """Cross-entropy of calibrated logits.

    −log p_y with p = softmax(logits); for soft labels q, −Σ_k q_k log p_k (the CE term of Eq. 3).

    >>> ce(torch.zeros(1, 4), torch.tensor([2]))  # log 4
    tensor(1.3863)
    """
    logits, labels = prepare(logits, labels)
    return reduce(over_labels(torch.neg, logits.log_softmax(dim=1), labels), reduction)
