"""ViT, DeiT and Swin at the resolution of the data, through timm's own constructor arguments.

ViT and DeiT keep 8 × 8 patches: patch 4 at 32 px, patch 8 at 64 px. Swin halves its grid three times. With
patch 4 at 32 px the grids are 8, 4, 2, 1: timm builds it, and the last stage then attends within single
positions. Patch 2 at 32 px and patch 4 at 64 px give 16, 8, 4, 2 at four times the tokens. Both are
registered; windows are 4 and timm shrinks them where the grid is smaller. A family name, such as `deit_small`, is
the DeiT-S that fits the images, whatever their size.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from calattn.backbones.registry import BACKBONES, of_timm

FAMILIES = tuple(f"{family}_{size}" for family in ("vit", "deit", "swin") for size in ("tiny", "small", "base"))


def fitted(name: str, size: int) -> tuple[str, dict[str, Any]]:
    """The backbone (and constructor options) that a name means for images of `size` × `size` pixels.

    ViT and DeiT take 16 × 16 patches from 128 px on, and below that an 8 × 8 grid of patches (7 × 7 for 28 px); Swin takes
    patches of 4 with windows of 7 at 224 px and of 4 elsewhere. A name that is no family is returned as it is.

    >>> fitted("deit_small", 32), fitted("deit_small", 224)
    (('deit_small_patch4_32', {}), ('deit_small_patch16_224', {}))
    """
    if name not in FAMILIES:
        return name, {}
    if name.startswith("swin"):
        return _swin(name, size)
    if size >= 128 and size % 16 == 0:
        return f"{name}_patch16_224", {} if size == 224 else {"img_size": size}
    grid = next((grid for grid in (8, 7) if size % grid == 0), None)
    if grid is None:
        raise ValueError(f"{name} does not fit {size} px: a size below 128 must be a multiple of 8 or 7; set data.size")
    registered = f"{name}_patch{size // grid}_{size}"
    if registered in BACKBONES:
        return registered, {}
    return f"{name}_patch16_224", {"img_size": size, "patch_size": size // grid}


def _swin(name: str, size: int) -> tuple[str, dict[str, Any]]:
    if size % 32:
        raise ValueError(
            f"{name} does not fit {size} px: it halves its grid of 4-pixel patches three times; set data.size to a multiple of 32"
        )
    registered = f"{name}_patch4_window4_{size}"
    if registered in BACKBONES:
        return registered, {}
    if size % 224 == 0:
        return f"{name}_patch4_window7_224", {} if size == 224 else {"img_size": size}
    return f"{name}_patch4_window7_224", {"img_size": size, "window_size": 4}


def _timm(base: str, preset: dict[str, Any], **options: Any) -> nn.Module:
    return of_timm(base, **{**preset, **options})


def _add(name: str, base: str, **preset: Any) -> None:
    BACKBONES.add(name, functools.partial(_timm, base, preset))


for _size in ("tiny", "small", "base"):
    for _pixels, _patch in ((32, 4), (64, 8)):
        for _family in ("vit", "deit"):
            _base = f"{_family}_{_size}_patch16_224"
            _add(f"{_family}_{_size}_patch{_patch}_{_pixels}", _base, img_size=_pixels, patch_size=_patch)
    for _pixels, _patch in ((32, 4), (32, 2), (64, 4)):
        _name = f"swin_{_size}_patch{_patch}_window4_{_pixels}"
        _add(_name, f"swin_{_size}_patch4_window7_224", img_size=_pixels, patch_size=_patch, window_size=4)

# Two layers and 32 channels: for examples and tests, where a pass has to take milliseconds.
_NANO = {"img_size": 32, "embed_dim": 32}
_add("vit_nano_patch8_32", "vit_tiny_patch16_224", patch_size=8, depth=2, num_heads=2, **_NANO)
_add(
    "swin_nano_patch4_window4_32",
    "swin_tiny_patch4_window7_224",
    window_size=4,
    depths=(1, 1),
    num_heads=(2, 4),
    **_NANO,
)

# Four layers, for images of a few pixels: the recipes digits and mnist.
_add("vit_micro_patch2_8", "vit_tiny_patch16_224", img_size=8, patch_size=2, embed_dim=48, depth=4, num_heads=3)
_add("vit_micro_patch7_28", "vit_tiny_patch16_224", img_size=28, patch_size=7, embed_dim=64, depth=4, num_heads=4)
