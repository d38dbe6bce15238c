"""The CalAttn head: one temperature per image, read off the representation that feeds the classifier."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from calattn.heads.base import HEADS, Head
from calattn.heads.mlp import PositiveMLP
from calattn.types import ModelOutput


class CalAttn(Head):
    """Predicts the scale that divides the logits (Eq. 1 of the paper).

    `s(z) = Softplus(w2ᵀ GELU(W1 z + b1) + b2) + ε`, with w2 = 0, b1 = 0 and Softplus(b2) + ε = 1 at start.
    Eq. 1 has no b1, the paper's parameter count `hd + h + h + 1` does; `bias=False` leaves it out. Always
    float32.

    >>> import torch
    >>> head = CalAttn(384)
    >>> sum(p.numel() for p in head.parameters())
    49409
    >>> head(torch.randn(2, 384), torch.randn(2, 10)).scale.tolist()
    [1.0, 1.0]
    """

    def __init__(self, num_features: int, *, hidden: int = 128, bias: bool = True) -> None:
        super().__init__()
        self.mlp = PositiveMLP(num_features, 1, hidden=hidden, bias=bias)

    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        return ModelOutput(logits, self.mlp(features).squeeze(1), features)


@HEADS.register("calattn")
def _build(*, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> CalAttn:  # noqa: ARG001
    return CalAttn(num_features, hidden=hidden, bias=bias)
