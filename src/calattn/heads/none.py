"""The head that does nothing: baselines run through the same code as everything else."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.heads.base import HEADS, Head
from calattn.types import ModelOutput


class NoHead(Head):
    """Scale 1 for every sample, no parameters.

    >>> NoHead()(torch.zeros(2, 4), torch.zeros(2, 10)).scale
    tensor([1., 1.])
    """

    has_hidden_layer = False

    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        scale = torch.ones(logits.shape[0], dtype=torch.float32, device=logits.device)
        return ModelOutput(logits, scale, features)


@HEADS.register("none")
def _build(*, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> NoHead:  # noqa: ARG001
    return NoHead()
