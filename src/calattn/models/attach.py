"""Puts a head on a classifier, timm's or another: `attach(backbone)` is a drop-in whose logits are calibrated."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from calattn import losses
from calattn.heads import HEADS
from calattn.losses import LossFunction
from calattn.models.adapters import Adapter, LayerAdapter, Pass, find_layer, missing_in_timm, patch_mean, widths_of
from calattn.types import ModelOutput

Features = Literal["cls", "patch_mean", "concat"]


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
        return widths_of(self.num_features, self.num_patch_features)

    def why_not(self, features: str) -> str:
        return f"{features!r} needs a class token, and here the classifier reads the pooled patches"

    def read(self, backbone: Any, /, *args: Any, **inputs: Any) -> Pass:
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
        return Pass(logits, cls, maps, self.num_prefix_tokens)


AnyAdapter = Adapter | LayerAdapter | TimmAdapter


class Classified(dict[str, Tensor]):
    """What `model(pixel_values=…)` gives: `logits`, and `loss` where there were labels, as keys and as attributes."""

    def __getattr__(self, name: str) -> Tensor:
        if name in self:
            return self[name]
        raise AttributeError(name)


class CalibratedModel(nn.Module):
    """A backbone and a head as one drop-in classifier, made by `attach`.

    `model(x)` gives the calibrated logits ℓ / s(z) (Eq. 2), `model.output(x)` also the parts; further arguments go to the
    backbone as they are. `model(pixel_values=x, labels=y)` is Hugging Face's way: it gives `.logits` and `.loss`, which is
    `model.loss_function` of the calibrated logits, so that their Trainer trains it. Each call is one pass through
    `model.backbone`, which is the caller's own object, unchanged; its tensors are `backbone.*` in the state dict
    and the head's are `head.*`.
    """

    accepts_loss_kwargs = False  # says to Hugging Face's Trainer: `**inputs` are the backbone's, not the loss's

    def __init__(self, backbone: nn.Module, head: nn.Module, *, features: Features, adapter: AnyAdapter) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.features = features
        self.adapter = adapter
        self.loss_function: LossFunction = losses.ce

    def output(self, x: Any = None, /, *more: Any, **inputs: Any) -> ModelOutput:
        """Logits, scale and features of a batch; `.calibrated_logits` and `.probs` follow from them."""
        args = () if x is None and not more else (x, *more)
        seen = self.adapter.read(self.backbone, *args, **inputs)
        if self.features == "cls":
            features = seen.cls
        elif self.features == "patch_mean":
            features = patch_mean(seen)
        else:
            features = torch.cat([seen.cls, patch_mean(seen)], dim=1)
        found = self.head(features, seen.logits)
        if not isinstance(found, ModelOutput):
            raise TypeError(
                f"the head {type(self.head).__name__} gave {type(found).__name__}; a head returns "
                "calattn.ModelOutput(logits, scale, features)"
            )
        return found

    def forward(
        self, x: Any = None, /, *more: Any, pixel_values: Any = None, labels: Any = None, **inputs: Any
    ) -> Float[Tensor, "b c"] | Classified:
        if pixel_values is None and labels is None:
            return self.output(x, *more, **inputs).calibrated_logits
        if x is not None and pixel_values is not None:
            inputs["pixel_values"] = pixel_values
        logits = self.output(pixel_values if x is None else x, *more, **inputs).calibrated_logits
        return (
            Classified(logits=logits)
            if labels is None
            else Classified(loss=self.loss_function(logits, labels), logits=logits)
        )

    def no_weight_decay(self) -> set[str]:
        """The backbone's own exceptions (position embeddings, …), for timm's optimiser factory."""
        exceptions: Any = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in exceptions()}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """The backbone's layer groups under their new names, for timm's layer-wise learning rates."""
        matcher: Any = getattr(self.backbone, "group_matcher", None)
        if matcher is None:
            raise AttributeError(f"{type(self.backbone).__name__} has no group_matcher")
        return {name: _prefixed(pattern) for name, pattern in matcher(coarse=coarse).items()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.backbone.set_grad_checkpointing(enable)  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        # What timm's own functions ask a model for: without these, timm.data.resolve_model_data_config would fall back
        # to ImageNet's normalisation in silence.
        if name == "num_classes" and isinstance(self.adapter, LayerAdapter) and self.adapter.num_classes:
            return self.adapter.num_classes  # torchvision's own number, if any, stays behind when a layer is replaced
        if name in ("num_classes", "pretrained_cfg", "default_cfg"):
            return getattr(super().__getattr__("backbone"), name)
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        return f"features={self.features!r}"


def _prefixed(pattern: Any) -> Any:
    """timm's group patterns, matched from the start of a name, moved under `backbone.`."""
    if isinstance(pattern, str):
        return r"^backbone\.(?:" + re.sub(r"(?<!\[)\^", "", pattern) + ")"
    if isinstance(pattern, list | tuple):
        return type(pattern)(_prefixed(part) if isinstance(part, str | list | tuple) else part for part in pattern)
    return pattern


def attach(
    backbone: nn.Module,
    features: Features = "cls",
    hidden: int = 128,
    bias: bool = True,
    *,
    head: str | nn.Module = "calattn",
    classifier: str | None = None,
    adapter: AnyAdapter | None = None,
) -> CalibratedModel:
    """The backbone with a head on its features; until the first step, outputs equal the bare backbone's.

    `features` is what the head reads: `cls`, the classifier's own input; `patch_mean`, the mean of the final
    patch tokens; `concat`, both. `head` is a name in `calattn.heads.HEADS`, or a head of your own. The head is
    float32 on the backbone's device. Of a network that is not timm's the last linear layer is read; `classifier`
    names another one, an `adapter` does what else is needed.

    >>> from calattn.backbones import create
    >>> model = attach(create("resnet8_cifar", num_classes=10))
    >>> out = model.output(torch.zeros(2, 3, 32, 32))
    >>> out.probs.shape, out.scale.shape
    (torch.Size([2, 10]), torch.Size([2]))
    """
    if isinstance(backbone, CalibratedModel):
        raise ValueError("the model already has a head; attach to its .backbone instead")
    if not isinstance(backbone, nn.Module):
        made = f"timm.create_model({backbone!r})" if isinstance(backbone, str) else "timm.create_model(…)"
        raise ValueError(f"backbone must be a network (nn.Module), such as {made}; got {type(backbone).__name__}")
    reader: AnyAdapter
    if adapter is not None:
        if classifier is not None:
            raise ValueError(f"classifier={classifier!r} and adapter=… both define how to read the network: pass one")
        if isinstance(adapter, LayerAdapter):
            find_layer(backbone, adapter.layer)
        reader = adapter
    else:
        is_timm = classifier is None and not missing_in_timm(backbone)
        reader = TimmAdapter.of(backbone) if is_timm else LayerAdapter.of(backbone, classifier)
    widths = reader.widths()
    if features not in widths:
        offered = ", ".join(repr(name) for name in widths)
        reason = reader.why_not(features) if features in ("patch_mean", "concat") else "there is no such kind"
        raise ValueError(f"features={features!r} is not what {type(backbone).__name__} offers: {offered}; {reason}")
    built = _head(head, num_features=widths[features], num_classes=reader.num_classes, hidden=hidden, bias=bias)
    parameter = next(backbone.parameters(), None)
    model = CalibratedModel(
        backbone,
        built if parameter is None else built.to(parameter.device),
        features=features,
        adapter=reader,
    )
    # Not model.train(…), which would reach into the backbone and thaw layers that the caller set to eval.
    model.training = backbone.training
    built.train(backbone.training)
    return model


def _head(head: str | nn.Module, *, num_features: int, num_classes: int | None, hidden: int, bias: bool) -> nn.Module:
    """The head of that name, built; a module is taken as it is."""
    if isinstance(head, nn.Module):
        if (hidden, bias) != (128, True):
            raise ValueError(f"hidden={hidden}, bias={bias} are for heads by name; this {type(head).__name__} is built")
        return head
    if not isinstance(head, str):
        got = f"the class {head.__name__}" if isinstance(head, type) else type(head).__name__
        raise TypeError(f"head must be a name, or a head such as MyHead({num_features}), an nn.Module; got {got}")
    builder = HEADS[head]
    try:
        built = builder(num_features=num_features, num_classes=num_classes, hidden=hidden, bias=bias)
    except (TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise ValueError(
            f"the head {head!r} cannot be built with num_features={num_features}, num_classes={num_classes}, "
            f"hidden={hidden}, bias={bias} ({type(error).__name__}: {text}); fix what is registered under that name"
        ) from error
    if not isinstance(built, nn.Module):
        raise TypeError(f"the head {head!r} was built as {type(built).__name__}; its builder must return an nn.Module")
    if not getattr(built, "has_hidden_layer", True) and (hidden, bias) != (128, True):
        raise ValueError(f"the head {head!r} has no hidden layer: hidden={hidden}, bias={bias} would change nothing")
    return built


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overhead:
    """What a head costs: parameters and checkpoint bytes, of the backbone and added to it."""

    backbone_params: int
    added_params: int
    backbone_bytes: int
    added_bytes: int

    @property
    def fraction(self) -> float:
        """Added parameters per backbone parameter."""
        return self.added_params / self.backbone_params


def overhead(model: CalibratedModel) -> Overhead:
    """Counts the head against the backbone; bytes are those of the tensors in the state dict.

    >>> from calattn.backbones import create
    >>> overhead(attach(create("resnet8_cifar", num_classes=10))).added_params  # 128·64 + 128 + 128 + 1
    8449
    """
    return Overhead(
        backbone_params=sum(p.numel() for p in model.backbone.parameters()),
        added_params=sum(p.numel() for p in model.head.parameters()),
        backbone_bytes=_bytes(model.backbone),
        added_bytes=_bytes(model.head),
    )


def _bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


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
