"""Ensemble temperature scaling: what temperature scaling says, what the network says and the uniform distribution, mixed."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.posthoc.base import Calibrator, Learned
from calattn.posthoc.modules import MixedLogits, mixed
from calattn.posthoc.temperature import best_temperature
from calattn.types import Predictions, row_blocks

_ENOUGH = 1e-9  # nats: what no other weights can gain
_STEPS = 10_000


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(ℓ/T) + w₂ softmax(ℓ) + w₃/C (Zhang et al. 2020): T has the least NLL, then the weights have; they sum to one.

    The predicted class never changes. Zhang et al. fit by squared error; methods are ranked by NLL here. That is convex in w, and
    max_k mean(p_k/p) − 1, of the labels' probabilities, bounds what is left to gain: `converged_` says that it is below 1e-9.

    >>> p = Predictions(logits=torch.tensor([[9.0, 0.0]] * 9 + [[1.0, 0.0]] * 4), labels=torch.tensor([0] * 8 + [1, 0, 0, 0, 1]))
    >>> EnsembleTemperatureScaling().fit(p).weights_.numpy().round(2).tolist()
    [0.0, 0.79, 0.21]
    """

    bounds: tuple[float, float] = (1e-6, 1e6)
    temperature_: float = dataclasses.field(init=False, repr=False)
    weights_: Float[Tensor, " 3"] = dataclasses.field(init=False, repr=False)
    objective_value_: float = dataclasses.field(init=False, repr=False)
    converged_: bool = dataclasses.field(init=False, repr=False)

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        single = best_temperature(predictions, self.bounds, stacklevel=4)
        logits, labels = predictions.calibrated_logits, predictions.labels.unsqueeze(1)
        parts = []
        for rows in row_blocks(*logits.shape):
            both = (logits[rows].double() / t for t in (single.temperature, 1.0))
            own = [each.softmax(dim=1).gather(1, labels[rows]) for each in both]
            parts.append(torch.cat([*own, torch.full_like(own[0], 1.0 / predictions.num_classes)], dim=1))
        weights, gap = _best_weights(torch.cat(parts))
        value = float(-(torch.cat(parts) @ weights).log().mean())
        converged = single.converged and gap <= _ENOUGH
        found: dict[str, Learned] = {"temperature_": single.temperature, "weights_": weights.cpu()}
        return found | {"objective_value_": value, "converged_": converged}

    def _apply(self, predictions: Predictions) -> Predictions:
        logits = predictions.calibrated_logits
        found = torch.empty_like(logits)
        for rows in row_blocks(*logits.shape):
            found[rows] = mixed(logits[rows].double(), self.temperature_, self.weights_.to(logits.device)).to(found)
        return predictions.replace(logits=found, scale=None)

    def _module(self) -> MixedLogits:
        return MixedLogits(self.num_classes_, self.temperature_, self.weights_)


def _best_weights(label_probs: Float[Tensor, "n 3"]) -> tuple[Tensor, float]:
    """The weights of least NLL by expectation–maximisation, which never makes it worse, and what is left to gain at most."""
    weights = label_probs.new_full((3,), 1 / 3)
    for _ in range(_STEPS):
        ratios = (label_probs / (label_probs @ weights).unsqueeze(1)).mean(dim=0)
        gap = float(ratios.max()) - 1.0
        if gap <= _ENOUGH:
            break
        weights = weights * ratios
    return weights / weights.sum(), gap
