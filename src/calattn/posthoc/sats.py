"""SATS: a temperature per sample, read off its logits."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from calattn import checks
from calattn.posthoc.base import CALIBRATORS, Learned, finite_logits
from calattn.posthoc.features import features_of
from calattn.posthoc.grid import ece_curve
from calattn.posthoc.modules import HeadScaledLogits
from calattn.posthoc.scale_head import ScaleHeadCalibrator
from calattn.types import Predictions


@CALIBRATORS.register("sats")
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SATS(ScaleHeadCalibrator):
    """Sample-adaptive temperature scaling as the paper runs it: an MLP on the logits gives T(x).

    After Joy et al. 2023. T is trained on cross-entropy for 10 epochs, and the epoch with the lowest ECE on the
    hold-out is kept. The paper says no more; we centre each row's logits (softmax does not see their mean) and
    standardise them. `inputs` may add the stored features, the paper's option. The VAE that Joy et al. put over
    the features is not part of it.

    >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> p = Predictions(logits=logits, labels=torch.arange(200) % 3)
    >>> SATS(epochs=1, hidden=4).fit(p).weights_["mlp.fc1.weight"].shape
    torch.Size([4, 3])
    """

    epochs: int = 10
    inputs: Literal["logits", "logits+features"] = "logits"
    num_bins: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive_int(self.num_bins, "num_bins")
        if self.inputs not in ("logits", "logits+features"):
            raise ValueError(f"inputs must be 'logits' or 'logits+features', got {self.inputs!r}")

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        finite_logits(predictions)  # here, where row numbers are still the caller's
        return super()._fit(predictions)

    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n d"]:
        logits = finite_logits(predictions)
        centred = logits - logits.mean(dim=1, keepdim=True)
        if self.inputs == "logits":
            return centred
        return torch.cat([centred, features_of(predictions).to(centred)], dim=1)

    def _module(self) -> HeadScaledLogits:
        return self._head_module(logits=True, features=self.inputs == "logits+features")

    def _loss(self, log_probs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        return functional.nll_loss(log_probs, labels)

    def _score(self, predictions: Predictions) -> float:
        return float(ece_curve(predictions, [1.0], num_bins=self.num_bins))
