"""The Dirichlet α-head of the paper's ablation: a concentration per class instead of one scale per image."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.heads.base import HEADS, Head, float32
from calattn.heads.mlp import PositiveMLP
from calattn.types import ModelOutput


class Dirichlet(Head):
    """Multiplies each class's evidence exp(ℓ) by a factor read off the features, 1 at start.

    `α = exp(ℓ) ⊙ (Softplus(g(z)) + ε)`, prediction `α / Σα = softmax(ℓ + log(Softplus(g(z)) + ε))`, g a
    two-layer MLP with one output a class. So the scale is 1 and the log-factor is the offset. The paper only
    names this head; the form is ours. Unlike a scale, an offset can change the predicted class.

    >>> import torch
    >>> out = Dirichlet(4, 3)(torch.randn(2, 4), torch.zeros(2, 3))
    >>> evidence(out)  # Σα of three classes with α = 1
    tensor([3., 3.], grad_fn=<ExpBackward0>)
    """

    def __init__(self, num_features: int, num_classes: int, *, hidden: int = 128, bias: bool = True) -> None:
        super().__init__()
        num_classes = checks.positive_int(num_classes, "num_classes")
        self.mlp = PositiveMLP(num_features, num_classes, hidden=hidden, bias=bias)

    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        scale = torch.ones(logits.shape[0], dtype=torch.float32, device=logits.device)
        return ModelOutput(logits, scale, features, self.mlp(features).log())


def log_evidence(output: ModelOutput) -> Float[Tensor, " b"]:
    """log Σα, in float32: it stays finite where Σα = exp(·) overflows (a logit above 88)."""
    return float32(output.calibrated_logits, lambda log_alpha: log_alpha.logsumexp(dim=1))


def evidence(output: ModelOutput) -> Float[Tensor, " b"]:
    """Σα, the Dirichlet's total concentration: large where much speaks for some class."""
    return log_evidence(output).exp()


@HEADS.register("dirichlet")
def _build(*, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> Dirichlet:
    if num_classes is None:
        raise ValueError("head='dirichlet' has one output a class: give the adapter num_classes=…")
    return Dirichlet(num_features, num_classes, hidden=hidden, bias=bias)
