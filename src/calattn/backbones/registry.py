"""The names of our own backbones, and `create`, which also knows all of timm's and gives Swin its fused window attention."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Protocol

from torch import nn

from calattn.registry import Registry, UnknownName, nearest, of_your_own


class BackboneBuilder(Protocol):
    def __call__(self, **options: Any) -> nn.Module: ...


BACKBONES: Registry[BackboneBuilder] = Registry("backbone")

HUB_PREFIXES = ("hf-hub:", "hf_hub:", "timm/", "local-dir:")


def create(name: str, num_classes: int, in_chans: int = 3, **options: Any) -> nn.Module:
    """A classifier by name: one of `BACKBONES`, or any name that timm knows; `options` go to its constructor.

    Swin's windows attend through a fused kernel (timm's default is the plain products; the results agree up to rounding).

    >>> create("resnet8_cifar", num_classes=10).num_features
    64
    """
    if name in BACKBONES:
        return fuse_window_attention(BACKBONES[name](num_classes=num_classes, in_chans=in_chans, **options))
    import timm  # here, because it takes seconds that users of the CIFAR networks need not wait

    if not name.startswith(HUB_PREFIXES) and not timm.is_model(name):
        near = nearest(name, [*BACKBONES, *timm.list_models()], n=5)
        hint = f"did you mean {', '.join(near)}?" if near else f"our own are {', '.join(sorted(BACKBONES))};"
        remedy = f"{hint} {of_your_own('backbone')}"
        raise UnknownName(f"unknown backbone {name!r}, neither ours nor timm's", remedy=remedy)
    return fuse_window_attention(of_timm(name, num_classes=num_classes, in_chans=in_chans, **options))


def of_timm(name: str, *, pretrained: bool = False, **options: Any) -> nn.Module:
    """A network of timm. Options may come from anybody's spec: those are refused that no network's constructor takes."""
    import timm

    known = constructor_options()
    for option in options.keys() - known:
        near = nearest(option, sorted(known))
        hint = f"did you mean {near[0]!r}?" if near else "see the network's constructor"
        raise ValueError(f"model.options.{option} is not an option of timm's networks; {hint}")
    return timm.create_model(name, pretrained=pretrained, **options)


@functools.cache
def constructor_options() -> frozenset[str]:
    """What the networks of timm take. Its loaders take more: names of files, which they may unpickle."""
    import timm

    modules = {sys.modules[timm.models.model_entrypoint(name).__module__] for name in timm.list_models()}
    found = (each for module in modules for each in vars(module).values())
    networks = {each for each in found if isinstance(each, type) and issubclass(each, nn.Module)}
    return frozenset(name for network in networks for name in inspect.signature(network.__init__).parameters)


def fuse_window_attention(network: nn.Module) -> nn.Module:
    """The same network; every window attention of Swin in it is computed by `scaled_dot_product_attention` from now on.

    timm can do it and leaves it off by default. Window by window it forms no matrix of scores in memory, which is most of what
    Swin spends its time on: on an H200 `benchmarks/window_attention.py` shows by how much. The results are those of the plain
    products up to rounding; on a CPU neither is faster in training and the fused one is a quarter faster in prediction.
    """
    swin = sys.modules.get("timm.models.swin_transformer")  # a network of it has loaded it; nothing else has to
    if swin is not None:
        for module in network.modules():
            if isinstance(module, swin.WindowAttention):
                module.fused_attn = True
    return network
