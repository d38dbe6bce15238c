"""Relaxed Softmax: the joint-training baseline with one linear extra output as inverse temperature."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from calattn import checks
from calattn.heads.base import HEADS, Head, float32, linear32, positive, start_at_identity
from calattn.types import ModelOutput


class RelaxedSoftmax(Head):
    """Predicts an inverse temperature with one linear output (Neumann et al., 2018): softmax(α(z) ℓ).

    `α(z) = Softplus(wᵀ z + b) + ε`, scale = 1 / α; w = 0 and α = 1 at start, which the original leaves to
    chance.

    >>> import torch
    >>> head = RelaxedSoftmax(4)
    >>> head(torch.randn(2, 4), torch.randn(2, 10)).scale.tolist()
    [1.0, 1.0]
    """

    has_hidden_layer = False

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.fc = nn.Linear(checks.positive_int(num_features, "num_features"), 1)
        start_at_identity(self.fc)

    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        inverse = float32(features, lambda z: positive(linear32(self.fc, z)))
        return ModelOutput(logits, inverse.squeeze(1).reciprocal(), features)


@HEADS.register("relaxed_softmax")
def _build(*, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> RelaxedSoftmax:  # noqa: ARG001
    return RelaxedSoftmax(num_features)  # one linear layer: it has no hidden width, and its bias sets the identity
