"""Adapters: how to read a network, in one pass, for its logits and the features behind them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn


class Reading(NamedTuple):
    """What one pass through a backbone gave: logits, the classifier's own input, the final tokens."""

    logits: Tensor
    cls: Tensor
    tokens: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """How to read a network that is not timm's: its features, and the classifier on top of them.

    `features(model, x)` gives the classifier's input `[b, num_features]`, or a pair of it and the patch
    tokens `[b, n, num_patch_features]`; `classifier(model, z)` gives the logits. What the model was called
    with goes to `features`, each argument as it was given. Only the Dirichlet head asks for `num_classes`.

    >>> import torch
    >>> from calattn.models.attach import attach
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> adapter = Adapter(features=lambda m, x: m[:-1](x), classifier=lambda m, z: m[-1](z), num_features=8)
    >>> attach(net, adapter=adapter)(torch.zeros(2, 3, 2, 2)).shape
    torch.Size([2, 3])
    """

    features: Callable[..., Tensor | tuple[Tensor, Tensor]]
    classifier: Callable[[Any, Tensor], Tensor]
    num_features: int
    num_patch_features: int | None = None
    num_classes: int | None = None

    def widths(self) -> dict[str, int]:
        """The width of each kind of features on offer."""
        return _widths(self.num_features, self.num_patch_features)

    def why_not(self, features: str) -> str:
        return f"{features!r} needs patch tokens: return (z, patch_tokens) and set num_patch_features=…"

    def read(self, backbone: nn.Module, /, *args: Any, **inputs: Any) -> Reading:
        given = self.features(backbone, *args, **inputs)
        cls, tokens = given if isinstance(given, tuple) else (given, None)
        _check_shape(cls, "features", self.num_features, "forgot to take one token, tokens[:, 0]?")
        logits = self.classifier(backbone, cls)
        _check_shape(logits, "classifier", self.num_classes, "does it return the logits alone?")
        return Reading(logits, cls, tokens)

    def patch_mean(self, reading: Reading) -> Tensor:
        return mean_token(reading.tokens, after=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimmAdapter:
    """Reads any network with timm's `forward_features` → `forward_head`, without importing timm.

    `num_prefix_tokens` counts class, distillation and register tokens: the patch tokens come after them. None
    means that the classifier already reads the pooled patches (Swin, CNNs, average-pooled ViTs): `patch_mean`
    is then that tensor.
    """

    num_features: int
    num_classes: int
    num_patch_features: int
    num_prefix_tokens: int | None
    linear_head: bool

    @classmethod
    def of(cls, backbone: nn.Module) -> TimmAdapter:
        kind = type(backbone).__name__
        if missing := missing_in_timm(backbone):
            raise ValueError(f"{kind} is no timm classifier (it has no {', '.join(missing)}); pass adapter=Adapter(…)")
        if not backbone.num_classes:
            raise ValueError(f"{kind} has num_classes={backbone.num_classes}: no classifier, so no logits to calibrate")
        if getattr(backbone, "distilled_training", False):
            raise ValueError(_DISTILLED)
        return cls(
            num_features=_classifier_width(backbone),
            num_classes=int(backbone.num_classes),  # type: ignore[arg-type]
            num_patch_features=int(backbone.num_features),  # type: ignore[arg-type]
            num_prefix_tokens=_prefix_tokens(backbone),
            linear_head=_linear_head(backbone),
        )

    def widths(self) -> dict[str, int]:
        if self.num_prefix_tokens is None:
            return {"cls": self.num_features, "patch_mean": self.num_features}
        return _widths(self.num_features, self.num_patch_features)

    def why_not(self, features: str) -> str:
        return f"{features!r} needs a class token, and here the classifier reads the pooled patches"

    def read(self, backbone: Any, /, *args: Any, **inputs: Any) -> Reading:
        maps = backbone.forward_features(*args, **inputs)
        if self.linear_head:
            cls = _vectors(backbone.forward_head(maps, pre_logits=True))
            logits = backbone.get_classifier()(cls)
        else:
            # Only forward_head knows how these logits come about. It runs first, so that under one seed they
            # carry the dropout mask of the bare network; the features then carry a mask of their own. A
            # BatchNorm inside the head counts the batch twice here (CPUBone; GhostNet with its dropout).
            logits = _vectors(backbone.forward_head(maps))
            cls = _vectors(backbone.forward_head(maps, pre_logits=True))
        return Reading(logits, cls, maps)

    def patch_mean(self, reading: Reading) -> Tensor:
        if self.num_prefix_tokens is None:
            return reading.cls
        return mean_token(reading.tokens, after=self.num_prefix_tokens)


_TIMM = ("forward_features", "forward_head", "get_classifier", "num_features", "num_classes")


def missing_in_timm(backbone: nn.Module) -> list[str]:
    """What a network lacks to be read as timm's; empty if it is one."""
    return [name for name in _TIMM if not hasattr(backbone, name)]


def _widths(num_features: int, num_patch_features: int | None) -> dict[str, int]:
    if num_patch_features is None:
        return {"cls": num_features}
    return {
        "cls": num_features,
        "patch_mean": num_patch_features,
        "concat": num_features + num_patch_features,
    }


def _classifier_width(backbone: Any) -> int:
    """The width of the classifier's input: by the classifier itself, else timm's `head_hidden_size`."""
    width = getattr(backbone.get_classifier(), "in_features", None)
    if isinstance(width, int):
        return width
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)


def _linear_head(backbone: Any) -> bool:
    """Whether logits = classifier(forward_head(…, pre_logits=True)), so that the head's layers run once.

    Not with two heads, a normalising head, VOLO's token classifier, or dropout, on whichever side it sits.
    """
    layers = [module.p for module in backbone.modules() if isinstance(module, nn.Dropout)]
    dropout = any([getattr(backbone, "drop_rate", 0.0), *layers])
    classifier = backbone.get_classifier()
    plain = isinstance(classifier, nn.Linear) and getattr(backbone, "aux_head", None) is None
    if not plain or dropout:
        return False
    # Some classifiers are the linear part of a head that normalises first (EfficientViT, SHViT): only a head that knows
    # `pre_logits` itself is known to have done everything else by then.
    holder = next(module for module in backbone.modules() if any(child is classifier for child in module.children()))
    return holder is backbone or "pre_logits" in inspect.signature(holder.forward).parameters


def _prefix_tokens(backbone: nn.Module) -> int | None:
    """How many tokens precede the patch tokens, or None where the classifier reads the pooled patches."""
    pool = getattr(backbone, "global_pool", None)
    declared = getattr(backbone, "num_prefix_tokens", None)
    if pool == "token":  # CaiT, XCiT, ConViT, … do not declare: they have a class token, distilled ones two
        return declared or (1 if getattr(backbone, "head_dist", None) is None else 2)
    if isinstance(pool, str) and pool not in ("", "avg"):
        return declared  # attention pooling (SigLIP) and its like: the classifier does not read the mean
    return None


def _check_shape(values: Any, name: str, width: int | None, hint: str) -> None:
    """Adapters are written by hand: what they return is checked (shapes only, so compiled graphs stay whole)."""
    wanted = f"[b, {'c' if width is None else width}]"
    if not isinstance(values, Tensor):
        raise ValueError(f"Adapter.{name} returned {type(values).__name__}, not a tensor {wanted}; {hint}")
    if values.ndim != 2 or (width is not None and values.shape[1] != width):
        raise ValueError(f"Adapter.{name} returned shape {list(values.shape)}, not {wanted}; {hint}")


def mean_token(tokens: Any, *, after: int) -> Tensor:
    if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[1] <= after:
        got = f"shape {list(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"no patch tokens [b, n, d] at the backbone's end, but {got}: it offers only 'cls'")
    return tokens[:, after:].mean(dim=1)


_DISTILLED = (
    "the backbone gives one output per head (distilled training), which cannot share a scale; "
    "call backbone.set_distilled_training(False)"
)


def _vectors(values: Any) -> Tensor:
    """The `[b, d]` that forward_head gave, or an error that says what to change."""
    if isinstance(values, tuple | list):
        raise ValueError(_DISTILLED)
    if values.ndim != 2:
        raise ValueError(f"the backbone's head gives shape {list(values.shape)}, not [b, d]: set its global_pool")
    return values
