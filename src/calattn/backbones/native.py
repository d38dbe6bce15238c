"""ViT, DeiT and Swin at the resolution of the data, 32 or 64 px, through timm's own constructor arguments.

ViT and DeiT keep 8 × 8 patches: patch 4 at 32 px, patch 8 at 64 px. Swin halves its grid three times. With
patch 4 at 32 px the grids are 8, 4, 2, 1: timm builds it, and the last stage then attends within single
positions. Patch 2 at 32 px and patch 4 at 64 px give 16, 8, 4, 2 at four times the tokens. Both are
registered; windows are 4 and timm shrinks them where the grid is smaller.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from calattn.backbones.registry import BACKBONES


def _timm(base: str, preset: dict[str, Any], **options: Any) -> nn.Module:
    import timm

    return timm.create_model(base, **{**preset, **options})


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
