"""Frozen CalAttn: the paper's head, fitted on the stored features of a network trained before."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from calattn.posthoc.base import CALIBRATORS
from calattn.posthoc.features import features_of
from calattn.posthoc.modules import HeadScaledLogits
from calattn.posthoc.scale_head import ScaleHeadCalibrator
from calattn.types import Predictions


@CALIBRATORS.register("frozen_calattn")
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class FrozenCalAttn(ScaleHeadCalibrator):
    """s(z) = Softplus(w2ᵀ GELU(W1 z + b1) + b2) + ε on features z, fitted by CE + λ·Brier with fixed logits.

    This is the setting of the paper's proposition (conditional optimality with frozen logits): where p(y|x) =
    softmax(ℓ/s*), both terms are least at s*, so the head estimates s* for every λ ≥ 0. `weight` is λ. The
    epoch with the lowest CE + λ·Brier on the hold-out is kept.

    >>> g = torch.Generator().manual_seed(0)
    >>> logits, features = torch.randn(200, 3, generator=g), torch.randn(200, 5, generator=g)
    >>> p = Predictions(logits=logits, labels=torch.arange(200) % 3, features=features)
    >>> FrozenCalAttn(hidden=4, epochs=1).fit(p).head_.mlp.fc1
    Linear(in_features=5, out_features=4, bias=True)
    """

    weight: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight >= 0.0:
            raise ValueError(f"weight (λ) must not be negative, got {self.weight!r}")

    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n d"]:
        return features_of(predictions)

    def _module(self) -> HeadScaledLogits:
        return self._head_module(logits=False, features=True)

    def _loss(self, log_probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        loss = functional.nll_loss(log_probs, labels)
        return loss if self.weight == 0.0 else loss + self.weight * _brier(log_probs, labels).mean()

    def _score(self, predictions: Predictions) -> float:
        total = 0.0
        for logits, labels in predictions.blocks():
            total += float(self._loss(logits.double().log_softmax(dim=1), labels)) * len(labels)
        return total / len(predictions)


def _brier(log_probs: Tensor, labels: Tensor) -> Tensor:
    """‖p − e_y‖² = Σ p² − 2 p_y + 1, without the one-hot matrix."""
    probs = log_probs.exp()
    picked = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return torch.linalg.vecdot(probs, probs) - 2 * picked + 1
