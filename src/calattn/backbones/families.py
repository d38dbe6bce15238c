"""Families: `deit_small` is the DeiT-S that fits the images, whatever their size."""

from __future__ import annotations

from typing import Any

from calattn.backbones.registry import BACKBONES

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
