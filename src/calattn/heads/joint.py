"""The heads that are trained with the network, and the one that does nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from calattn import checks
from calattn.heads.base import HEADS, Head, PositiveMLP, float32, linear32, positive, start_at_identity
from calattn.types import ModelOutput


class CalAttn(Head):
    """Predicts the scale that divides the logits (Eq. 1 of the paper).

    `s(z) = Softplus(w2ᵀ GELU(W1 z + b1) + b2) + ε`, with w2 = 0, b1 = 0 and Softplus(b2) + ε = 1 at start.
    Eq. 1 has no b1, the paper's parameter count `hd + h + h + 1` does; `bias=False` leaves it out. Always
    float32.

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


class RelaxedSoftmax(Head):
    """Predicts an inverse temperature with one linear output (Neumann et al., 2018): softmax(α(z) ℓ).

    `α(z) = Softplus(wᵀ z + b) + ε`, scale = 1 / α; w = 0 and α = 1 at start, which the original leaves to
    chance.

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


class Dirichlet(Head):
    """Multiplies each class's evidence exp(ℓ) by a factor read off the features, 1 at start.

    `α = exp(ℓ) ⊙ (Softplus(g(z)) + ε)`, prediction `α / Σα = softmax(ℓ + log(Softplus(g(z)) + ε))`, g a
    two-layer MLP with one output per class. So the scale is 1 and the log-factor is the offset. The paper only
    names this head, in an ablation; the form is ours. Unlike a scale, an offset can change the predicted class.

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


class NoHead(Head):
    """Scale 1 for every sample, no parameters.

    Baselines run through the same code as everything else.

    >>> NoHead()(torch.zeros(2, 4), torch.zeros(2, 10)).scale
    tensor([1., 1.])
    """

    has_hidden_layer = False

    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        scale = torch.ones(logits.shape[0], dtype=torch.float32, device=logits.device)
        return ModelOutput(logits, scale, features)


@HEADS.register("calattn")
def _build_calattn(*, num_features: int, hidden: int, bias: bool, **_: object) -> CalAttn:
    return CalAttn(num_features, hidden=hidden, bias=bias)


# One linear layer: it has no hidden width, and its bias sets the identity.
HEADS.add("relaxed_softmax", lambda *, num_features, **_: RelaxedSoftmax(num_features))


@HEADS.register("dirichlet")
def _build_dirichlet(*, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> Dirichlet:
    if num_classes is None:
        raise ValueError("head='dirichlet' has one output per class: give the adapter num_classes=…")
    return Dirichlet(num_features, num_classes, hidden=hidden, bias=bias)


HEADS.add("none", lambda **_: NoHead())
