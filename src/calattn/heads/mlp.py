"""The two-layer MLP that both the CalAttn head and the Dirichlet α-head put on the features."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn import checks
from calattn.heads.base import float32, linear32, positive, start_at_identity


class PositiveMLP(nn.Module):
    """Softplus(W2 GELU(W1 z + b1) + b2) + ε in float32, equal to 1 before the first step.

    >>> import torch
    >>> PositiveMLP(4, 2, hidden=3)(torch.randn(5, 4)).detach().unique()
    tensor([1.])
    """

    def __init__(self, num_features: int, num_outputs: int, *, hidden: int, bias: bool = True) -> None:
        super().__init__()
        num_features = checks.positive_int(num_features, "num_features")
        hidden = checks.positive_int(hidden, "hidden")
        self.fc1 = nn.Linear(num_features, hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, num_outputs)
        if self.fc1.bias is not None:
            nn.init.zeros_(self.fc1.bias)
        start_at_identity(self.fc2)

    def forward(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        return float32(features, self._compute)

    def _compute(self, features: Tensor) -> Tensor:
        return positive(linear32(self.fc2, functional.gelu(linear32(self.fc1, features))))
