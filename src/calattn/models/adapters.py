"""Adapters: how to read a network that is not timm's, in one pass, for its logits and the features behind them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import torch
from torch import Tensor, nn


class Pass(NamedTuple):
    """What one pass through a backbone gave: logits, the classifier's own input, the final tokens.

    The patch tokens come after `prefix` others; None: the classifier's own input is their mean.
    """

    logits: Tensor
    cls: Tensor
    tokens: Any = None
    prefix: int | None = 0


def patch_mean(seen: Pass) -> Tensor:
    """A function, because Dynamo does not trace methods of named tuples."""
    tokens, prefix = seen.tokens, seen.prefix
    if prefix is None:
        return seen.cls
    if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[1] <= prefix:
        got = f"shape {list(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"no patch tokens [b, n, d] at the backbone's end, but {got}: it offers only 'cls'")
    return tokens[:, prefix:].mean(dim=1)


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
        return widths_of(self.num_features, self.num_patch_features)

    def why_not(self, features: str) -> str:
        return f"{features!r} needs patch tokens: return (z, patch_tokens) and set num_patch_features=…"

    def read(self, backbone: nn.Module, /, *args: Any, **inputs: Any) -> Pass:
        given = self.features(backbone, *args, **inputs)
        cls, tokens = given if isinstance(given, tuple) else (given, None)
        _check_shape(cls, "features", self.num_features, "forgot to take one token, tokens[:, 0]?")
        logits = self.classifier(backbone, cls)
        _check_shape(logits, "classifier", self.num_classes, "does it return the logits alone?")
        return Pass(logits, cls, tokens)


_TIMM = ("forward_features", "forward_head", "get_classifier", "num_features", "num_classes")


def missing_in_timm(backbone: nn.Module) -> list[str]:
    """What a network lacks to be read as timm's; empty if it is one."""
    return [name for name in _TIMM if not hasattr(backbone, name)]


def widths_of(num_features: int, num_patch_features: int | None) -> dict[str, int]:
    if num_patch_features is None:
        return {"cls": num_features}
    return {
        "cls": num_features,
        "patch_mean": num_patch_features,
        "concat": num_features + num_patch_features,
    }


def _check_shape(values: Any, name: str, width: int | None, hint: str) -> None:
    """Adapters are written by hand: what they return is checked (shapes only, so compiled graphs stay whole)."""
    wanted = f"[b, {'c' if width is None else width}]"
    if not isinstance(values, Tensor):
        raise ValueError(f"Adapter.{name} returned {type(values).__name__}, not a tensor {wanted}; {hint}")
    if values.ndim != 2 or (width is not None and values.shape[1] != width):
        raise ValueError(f"Adapter.{name} returned shape {list(values.shape)}, not {wanted}; {hint}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerAdapter:
    """Reads the input of the final layer during an ordinary pass: Hugging Face, torchvision and their like.

    `layer` is the name of the classifying layer as `named_modules` has it. The network returns the logits, or an
    object that has `.logits`. With `straight`, they have to be what the layer itself returned: `of` asks for that
    where it chose the layer without being told.

    >>> from calattn.models.attach import attach
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> attach(net).adapter
    LayerAdapter(layer='3', num_features=8, num_classes=3, straight=True)
    """

    layer: str
    num_features: int
    num_classes: int | None = None
    straight: bool = False

    @classmethod
    def of(cls, backbone: nn.Module, classifier: str | None = None) -> LayerAdapter:
        """The layer called `classifier`, by default the last linear layer."""
        kind = type(backbone).__name__
        if isinstance(backbone, nn.Linear):
            raise ValueError(f"{kind} is itself the layer that classifies: wrap it, attach(nn.Sequential({kind}(…)))")
        linear = _linear_names(backbone)
        _refuse_wrapper(backbone, named=classifier is not None)
        if classifier is None and not linear:
            missing = ", ".join(missing_in_timm(backbone))
            raise ValueError(
                f"{kind} is no timm classifier (it has no {missing}) and holds no nn.Linear; pass adapter=Adapter(…)"
            )
        name = linear[-1] if classifier is None else classifier
        found: Any = find_layer(backbone, name)
        if not isinstance(getattr(found, "in_features", None), int):
            raise ValueError(
                f"classifier={name!r} is a {type(found).__name__}, whose width is not known: name the linear layer in it, "
                f"or pass adapter=LayerAdapter(layer={name!r}, num_features=…)"
            )
        if classifier is not None:
            _refuse_probabilities(backbone, name)
        num_classes = getattr(found, "out_features", None)
        return cls(layer=name, num_features=found.in_features, num_classes=num_classes, straight=classifier is None)

    def widths(self) -> dict[str, int]:
        return {"cls": self.num_features}

    def why_not(self, features: str) -> str:
        return f"{features!r} needs patch tokens, which are not in the input of {self.layer!r}; pass adapter=Adapter(…)"

    def read(self, backbone: nn.Module, /, *args: Any, **inputs: Any) -> Pass:
        if inputs.get("labels") is not None:
            raise ValueError("labels=… would give a loss of the uncalibrated logits; pass labels to model(…) itself")
        output, seen = _watch(backbone, self.layer, args, inputs)
        kind = type(backbone).__name__
        logits = _logits(output, kind)
        if not seen:
            compiled = f"is {kind} compiled? compile the attached model instead"
            raise ValueError(f"the layer {self.layer!r} of {kind} did not run; {_NAME_IT} ({compiled})")
        if len(seen) > 1:
            raise ValueError(f"{kind} ran its layer {self.layer!r} {len(seen)} times in a pass, not once; {_NAME_IT}")
        (cls, own), width = seen[0], self.num_features
        if self.straight and not _is_output(logits, own):
            raise ValueError(
                f"the logits of {kind} are not the output of {self.layer!r}, its last linear layer; if the network ends "
                f"in a softmax, take it off: the head needs logits; else {_NAME_IT}"
            )
        if not isinstance(cls, Tensor) or cls.ndim != 2 or cls.shape[1] != width or cls.shape[0] != logits.shape[0]:
            shape = list(cls.shape) if isinstance(cls, Tensor) else type(cls).__name__
            raise ValueError(
                f"{self.layer!r} of {kind} reads {shape}, not one vector [b, {width}] an image; {_NAME_IT}"
            )
        if self.num_classes not in (None, logits.shape[1]):
            raise ValueError(
                f"{kind} gives {logits.shape[1]} logits, its layer {self.layer!r} {self.num_classes}; {_NAME_IT}"
            )
        return Pass(logits, cls)


def find_layer(backbone: nn.Module, name: str) -> nn.Module:
    """The layer of that name, which need not be its only one; else an error with names that exist."""
    try:
        found = backbone.get_submodule(name)
    except AttributeError:
        found = backbone
    if found is not backbone:
        return found
    linear = _linear_names(backbone)
    last = ", ".join((linear or [other for other, _ in backbone.named_modules() if other])[-3:]) or "none"
    which = "last linear ones" if linear else "last ones"
    raise ValueError(f"{type(backbone).__name__} has no layer {name!r}; its {which} are {last}")


def _linear_names(backbone: nn.Module) -> list[str]:
    return [name for name, module in backbone.named_modules() if name and isinstance(module, nn.Linear)]


def _refuse_probabilities(backbone: nn.Module, name: str) -> None:
    """Nothing that holds the layer may end in a softmax; a log-softmax only shifts the logits, and may stay."""
    parts = name.split(".")
    for depth in range(len(parts)):
        end = [None, *backbone.get_submodule(".".join(parts[:depth])).children()][-1]
        if isinstance(end, nn.Softmax | nn.Sigmoid):
            raise ValueError(
                f"{type(backbone).__name__} has a {type(end).__name__} after {name!r}: take it off, the head needs logits "
                f"(if it is not for the output, pass adapter=LayerAdapter(layer={name!r}, num_features=…))"
            )


def _refuse_wrapper(backbone: nn.Module, *, named: bool) -> None:
    """A network may call a part of its own `module`: who names the layer is believed, unless it is torch that wraps."""
    parallel = isinstance(backbone, nn.DataParallel | nn.parallel.DistributedDataParallel)
    for wrapped, by_torch in (("module", parallel), ("_orig_mod", True)):
        inner = getattr(backbone, wrapped, None)
        if not isinstance(inner, nn.Module) or [inner] != [*backbone.children()] or (named and not by_torch):
            continue
        advice = f"attach to its .{wrapped} ({type(inner).__name__}), then wrap"
        otherwise = "" if by_torch else "; if it is no wrapper, name the layer that classifies, classifier='…'"
        raise ValueError(f"{type(backbone).__name__} wraps the classifier: {advice}{otherwise}")


_NAME_IT = "name the layer that classifies, classifier='…', or pass adapter=Adapter(…)"


@no_type_check  # Dynamo cannot trace a shape checker's wrapper on a module that is made within the graph
class _Watched(nn.Module):
    def __init__(self, layer: nn.Module, seen: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self.layer = layer
        self.seen = seen

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.layer(*args, **kwargs)
        self.seen.append(((*args, *kwargs.values())[0], output))
        return output


def _watch(backbone: nn.Module, name: str, args: tuple[Any, ...], inputs: dict[str, Any]) -> tuple[Any, list]:
    """One pass: what the backbone returned, and each (input, output) of the named layer in it."""
    seen: list[tuple[Any, Any]] = []
    layer = backbone.get_submodule(name)
    if torch.compiler.is_dynamo_compiling():
        # Dynamo cannot trace the registering of a hook, but plays an exchange of modules through without making it:
        # at run time the graph only sets the layer to itself.
        watched = _Watched(layer, seen)
        places = [(holder, own) for holder in backbone.modules() for own, m in holder._modules.items() if m is layer]
        for holder, own in places:
            setattr(holder, own, watched)
        try:
            return backbone(*args, **inputs), seen
        finally:
            for holder, own in places:
                setattr(holder, own, layer)

    thread = threading.get_ident()

    def keep(_: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # Passes that other threads make meanwhile come here too; between the two steps in which torch registers and
        # removes a hook, without the keywords.
        if not torch.compiler.is_dynamo_compiling() and threading.get_ident() != thread:
            return
        kwargs = rest[0] if len(rest) == 2 else {}
        seen.append(((*args, *kwargs.values())[0], rest[-1]))

    handle = layer.register_forward_hook(keep, with_kwargs=True)
    try:
        return backbone(*args, **inputs), seen
    finally:
        handle.remove()


def _is_output(logits: Tensor, own: Any) -> bool:
    """Whether these are a layer's own output, or the same memory: full backward hooks hand on a view of it."""
    if logits is own or torch.compiler.is_dynamo_compiling() or not isinstance(own, Tensor):
        return logits is own
    if (logits.shape, logits.stride(), logits.storage_offset()) != (own.shape, own.stride(), own.storage_offset()):
        return False
    # Not data_ptr(), which the tensors of torch.export lack.
    return logits.untyped_storage()._cdata == own.untyped_storage()._cdata


def _logits(output: Any, kind: str) -> Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"{kind} returned {shape}, neither logits [b, c] nor an object that has them as .logits")
    if isinstance(output, tuple) and any(part is not None for part in output[1:]):
        raise ValueError(f"{kind} returned auxiliary logits too, whose loss would be lost; set its aux_logits to False")
    return logits
