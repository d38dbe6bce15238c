"""Fitted calibrators as parts of a network: modules that map logits to calibrated logits."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from calattn.heads.base import float32
from calattn.heads.joint import CalAttn

LOWEST_LOGIT = -1e4
"""Of a head's inputs and losses, less the row's top: far below any that matters, and finite, as −inf has no gradient."""


class CalibratorModule(nn.Module):
    """What `calibrator.module()` gives: `module(logits)`, or `module(logits, features)`, are calibrated logits in float32.

    What was learned are buffers (of a head, parameters without gradients), so that an optimiser over the whole network leaves it
    alone. Only shapes are checked, so that compiled and exported graphs stay whole.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def forward(
        self, logits: Float[Tensor, "b c"], features: Float[Tensor, "b d"] | None = None
    ) -> Float[Tensor, "b c"]:
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(f"logits must have shape [b, {self.num_classes}], as fitted, got {list(logits.shape)}")
        extra = None if features is None else features.float()
        return float32(logits, lambda values: self.map(values, extra))

    @abstractmethod
    def map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """The calibrated logits, in the precision of the logits."""

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}"

    def _keep(self, **learned: Tensor) -> None:
        for name, value in learned.items():
            self.register_buffer(name, value.detach().to("cpu", copy=True))


class ScaledLogits(CalibratorModule):
    """ℓ / T."""

    temperature: Tensor

    def __init__(self, num_classes: int, temperature: float) -> None:
        super().__init__(num_classes)
        self._keep(temperature=torch.tensor(temperature, dtype=torch.float64))

    def map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return logits / self.temperature.to(logits)


class MixedLogits(CalibratorModule):
    """log(w₁ softmax(ℓ/T) + w₂ softmax(ℓ) + w₃/C)."""

    temperature: Tensor
    weights: Tensor

    def __init__(self, num_classes: int, temperature: float, weights: Float[Tensor, " 3"]) -> None:
        super().__init__(num_classes)
        self._keep(temperature=torch.tensor(temperature, dtype=torch.float64), weights=weights)

    def map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:  # noqa: ARG002
        logs = [(logits / self.temperature.to(logits)).log_softmax(dim=1), logits.log_softmax(dim=1)]
        logs.append(torch.full_like(logits, 1.0 / logits.shape[1]).log())
        return (torch.stack(logs) + self.weights.to(logits).log().view(3, 1, 1)).logsumexp(dim=0)


class AffineLogits(CalibratorModule):
    """W z + b of z = log((1 − m) softmax(ℓ/T) + m/C), W or its diagonal; `inputs` are T, how far below the top ℓ may lie, m."""

    weight: Tensor
    bias: Tensor
    inputs: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, inputs: Float[Tensor, " 3"]) -> None:
        super().__init__(len(bias))
        self._keep(weight=weight, bias=bias, inputs=inputs)

    def map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:  # noqa: ARG002
        logs = tempered(logits, self.inputs.to(logits))
        weight, bias = self.weight.to(logits), self.bias.to(logits)
        return logs * weight + bias if weight.ndim == 1 else functional.linear(logs, weight, bias)


def tempered(logits: Float[Tensor, "n c"], inputs: Float[Tensor, " 3"]) -> Float[Tensor, "n c"]:
    """log((1 − m) softmax(ℓ/T) + m/C), where no ℓ lies further below the top than the limit; `inputs` are T, limit and m."""
    temperature, limit, share = inputs.unbind()
    gaps = torch.maximum(logits - logits.amax(dim=1, keepdim=True), -limit)
    logs = (gaps / temperature).log_softmax(dim=1)
    return torch.logaddexp(logs + torch.log1p(-share), torch.log(share / logits.shape[1]))


class HeadScaledLogits(CalibratorModule):
    """ℓ / s(z), by a head on standardised inputs z: the centred logits, the features, or both."""

    mean: Tensor
    std: Tensor

    def __init__(
        self, num_classes: int, head: CalAttn, mean: Tensor, std: Tensor, *, logits: bool, features: bool
    ) -> None:
        super().__init__(num_classes)
        self.head = head.requires_grad_(False)
        self.reads_logits, self.reads_features = logits, features
        self._keep(mean=mean, std=std)

    def map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        inputs = [centred(logits)] if self.reads_logits else []
        if self.reads_features:
            if features is None:
                raise ValueError(
                    "this calibrator reads features: call module(logits, features), with those of model.output(x) of an attached "
                    "model; nn.Sequential hands on the logits alone"
                )
            inputs.append(features)
        values = torch.cat(inputs, dim=1)
        if values.shape[1] != self.mean.shape[0]:
            raise ValueError(f"the calibrator was fitted on {self.mean.shape[0]} inputs, got {values.shape[1]}")
        return self.head((values - self.mean.to(values)) / self.std.to(values), logits).calibrated_logits


def centred(logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Logits less their mean, which softmax does not see; masks, far below the row's top, do not overflow it."""
    logits = torch.maximum(logits, logits.amax(dim=1, keepdim=True) + LOWEST_LOGIT)
    return logits - logits.mean(dim=1, keepdim=True)


class MappedProbs(CalibratorModule):
    """log(g_k(p_k) / Σ_j g_j(p_j)); where all g are zero, uniform. `floor` raises smaller values of g."""

    def __init__(self, num_classes: int, *, floor: float) -> None:
        super().__init__(num_classes)
        self.floor = floor

    @abstractmethod
    def _mapped(self, probs: Float[Tensor, "c b"]) -> Float[Tensor, "c b"]:
        """g_k of each class's probabilities."""

    def probs(self, probs: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        values = self._mapped(probs.T.contiguous()).T.clamp(min=self.floor)
        total = values.sum(dim=1, keepdim=True)
        return torch.where(total > 0, values / total, 1.0 / self.num_classes)

    def map(self, logits: Tensor, features: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return self.probs(logits.double().softmax(dim=1).float()).log().float()


class InterpolatedProbs(MappedProbs):
    """g_k is linear between class k's knots and constant outside; class k's are entries starts[k] to starts[k + 1]."""

    knots: Tensor
    values: Tensor
    last: Tensor

    def __init__(self, knots: Tensor, values: Tensor, starts: Int[Tensor, " c1"], *, floor: float) -> None:
        super().__init__(len(starts) - 1, floor=floor)
        counts = starts.diff()
        parts = [part.split(counts.tolist()) for part in (knots, values)]
        padded = [nn.utils.rnn.pad_sequence(list(part), True, torch.inf) for part in parts]
        self._keep(knots=padded[0], values=padded[1], last=counts[:, None] - 1)

    def _mapped(self, probs: Tensor) -> Tensor:
        probs = probs.double()  # beside a step of g, the last bit of p decides
        below = (torch.searchsorted(self.knots.to(probs), probs, right=True) - 1).clamp(min=0)
        above = torch.minimum(below + 1, self.last)
        (x0, y0), (x1, y1) = (
            [part.to(probs).gather(1, at) for part in (self.knots, self.values)] for at in (below, above)
        )
        share = ((probs - x0) / torch.where(x1 > x0, x1 - x0, 1.0)).clamp(0.0, 1.0)
        return y0 + share * (y1 - y0)


class BinnedProbs(MappedProbs):
    """g_k is the frequency of the bin that p_k falls into; a bin holds its upper edge."""

    edges: Tensor
    frequencies: Tensor

    def __init__(self, edges: Tensor, frequencies: Tensor, *, floor: float) -> None:
        super().__init__(len(frequencies), floor=floor)
        self._keep(edges=edges, frequencies=frequencies)

    def _mapped(self, probs: Tensor) -> Tensor:
        return self.frequencies.to(probs).gather(1, torch.bucketize(probs, self.edges.to(probs)))
