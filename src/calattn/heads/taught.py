"""The taught head: CalAttn's MLP, learned after training from distorted images, and anchored on held-out ones."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn import checks
from calattn.heads.base import HEADS, Head, float32, linear32
from calattn.types import ModelOutput

Kind = Literal["lowrank", "classwise", "scale"]


class Taught(Head):
    """A temperature per image, and per class where `kind` says so; the identity until `calattn.teach` fills it.

    With h = GELU(W1 z + b1), v = w2ᵀ h + b2 and softplus σ:

        log s = level − low · σ(−v) + high · σ(v)                  (low, high ≥ 0: s rises with v)
        scale:      ℓ / s
        lowrank:    ℓ / s + g · u,  g = gain + slope · σ(v)        (u = V h + c: an offset per class, of rank ≤ hidden)
        classwise:  ℓ_c / (s · exp(g · u_c)), ℓ centred            (a temperature per class)

    W1, w2, V and the biases are learned from distorted training images, the five numbers of `anchor` (level, low, high, gain,
    slope) from held-out ones. Only `scale` keeps every predicted class. No parameter takes a gradient: nothing is joint.

    >>> head = Taught(8, 3)
    >>> out = head(torch.randn(2, 8), torch.randn(2, 3))
    >>> out.scale.tolist(), bool((out.calibrated_logits == out.logits).all()), head.is_taught
    ([1.0, 1.0], True, False)
    """

    anchor: Tensor

    def __init__(self, num_features: int, num_classes: int, *, hidden: int = 128, kind: Kind = "lowrank") -> None:
        super().__init__()
        num_features, hidden = checks.positive_int(num_features, "num_features"), checks.positive_int(hidden, "hidden")
        classes = checks.positive_int(num_classes, "num_classes")
        if kind not in ("lowrank", "classwise", "scale"):
            raise ValueError(f"kind must be 'lowrank', 'classwise' or 'scale', got {kind!r}")
        self.kind = kind
        self.fc1 = nn.Linear(num_features, hidden)
        self.fc2 = nn.Linear(hidden, 1 if kind == "scale" else 1 + classes)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
        self.register_buffer("anchor", torch.zeros(5))

    @property
    def is_taught(self) -> bool:
        return bool(self.anchor.any())

    def forward(self, features: Float[Tensor, "b d"], logits: Float[Tensor, "b c"]) -> ModelOutput:
        read = float32(features, self.read)
        scale, offset = anchored(read, logits.float(), self.anchor, self.kind)
        return ModelOutput(logits, scale, features, offset)

    def read(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b k"]:
        """v and u, before the anchor."""
        return linear32(self.fc2, functional.gelu(linear32(self.fc1, features)))

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}, taught={self.is_taught}"


def anchored(
    read: Float[Tensor, "b k"], logits: Float[Tensor, "b c"], anchor: Float[Tensor, " 5"], kind: Kind
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b c"] | None]:
    """Scale and offset from what the MLP read; in the precision of its arguments, for the head and for fitting alike."""
    level, low, high, gain, slope = anchor.unbind()
    v = read[:, :1]
    above = functional.softplus(v)
    # σ(−v) = σ(v) − v; and as few operations as there can be, since a batch of one image waits for each.
    log_scale = torch.addcmul(torch.addcmul(level, v, low), above, high - low).squeeze(1)
    by_class = read[:, 1:] if kind == "scale" else torch.addcmul(gain, above, slope) * read[:, 1:]
    return scaled(log_scale, by_class, logits, kind)


def scaled(
    log_scale: Float[Tensor, " b"], by_class: Float[Tensor, "b k"], logits: Float[Tensor, "b c"], kind: Kind
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b c"] | None]:
    """Scale and offset of `ModelOutput`, from log s and a number per class, which `scale` has none of."""
    scale = log_scale.exp()
    if kind == "scale":
        return scale, None
    if kind == "lowrank":
        return scale, by_class
    centred = logits - logits.mean(dim=1, keepdim=True)
    return scale, centred / scale.unsqueeze(1) * torch.expm1(-by_class)


KINDS: dict[str, Kind] = {"taught": "lowrank", "taught_classwise": "classwise", "taught_scale": "scale"}  # by head name


def _register(name: str, kind: Kind) -> None:
    def build(*, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> Taught:
        if num_classes is None:
            raise ValueError(f"head={name!r} needs the number of classes: give the adapter num_classes=…")
        if not bias:
            raise ValueError(f"head={name!r} has a bias in its first layer; leave out bias=False")
        return Taught(num_features, num_classes, hidden=hidden, kind=kind)

    HEADS.add(name, build)


for _name, _kind in KINDS.items():
    _register(_name, _kind)
