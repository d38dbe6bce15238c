"""What every head is: features and logits in, `ModelOutput` out, its own arithmetic in float32; and the MLP that several use."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn import checks
from calattn.registry import Registry
from calattn.types import ModelOutput

EPSILON = 1e-6
"""ε of Eq. 1: keeps the scale above zero where Softplus underflows."""

IDENTITY_BIAS = math.log(math.expm1(1.0 - EPSILON)) + 2.0**-24
"""The b with Softplus(b) + ε = 1. The paper prints ln(e − 1), whose scale is 1 + ε, not the identity.

The last term is one float32 step at that value: without it the sum rounds to 1 − 6e-8, with it to 1 exactly.
"""


class Head(nn.Module):
    """Base of the heads: `head(features, logits)` gives `ModelOutput(logits, scale, features[, offset])`.

    The scale is float32 whatever comes in, so half-precision logits give float32 calibrated logits.
    """

    has_hidden_layer = True
    """Whether `hidden` and `bias` mean anything to this head."""

    @abstractmethod
    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        """Judges each sample by its features; the logits pass through unchanged."""


class HeadBuilder(Protocol):
    def __call__(self, *, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> Head: ...


HEADS: Registry[HeadBuilder] = Registry("head")


def float32(values: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """`compute(values)` in float32, without autocast, which would run linear layers in half precision."""
    kind = values.device.type
    # A meta device has no autocast; asking torch whether a device has one breaks the graph before torch 2.13.
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return compute(values.float())
    with torch.autocast(kind, enabled=False):
        return compute(values.float())


def linear32(layer: nn.Linear, values: Tensor) -> Tensor:
    """The layer with its parameters widened to float32, for models that were cast to half precision."""
    return functional.linear(values, layer.weight.float(), None if layer.bias is None else layer.bias.float())


def positive(values: Tensor) -> Tensor:
    """Softplus(values) + ε, the paper's map onto positive numbers."""
    return functional.softplus(values) + EPSILON


def start_at_identity(layer: nn.Linear) -> None:
    """Zero weights and the bias that `positive` maps to 1, so that a fresh head changes nothing."""
    nn.init.zeros_(layer.weight)
    nn.init.constant_(layer.bias, IDENTITY_BIAS)


class PositiveMLP(nn.Module):
    """Softplus(W2 GELU(W1 z + b1) + b2) + ε in float32, equal to 1 before the first step.

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


def cosine_adamw(
    module: nn.Module, *, learning_rate: float, weight_decay: float, steps: int, fused: bool = False
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW whose rate falls to zero along a cosine; biases do not decay: that would pull scales towards softplus(0)."""
    matrices, biases = ([p for p in module.parameters() if (p.ndim == 2) is wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=fused)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column in float64, or 1 where it is 0.

    64 columns at a time: the bits of all at once (any multiple of a vector register), without a wide copy of all.
    """
    means, stds = [], []
    for columns in inputs.split(64, dim=1):
        wide = columns.double()
        means.append(wide.mean(dim=0))
        stds.append(wide.std(dim=0, correction=0))
    std = torch.cat(stds)
    return torch.cat(means), torch.where(std > 0, std, 1.0)
