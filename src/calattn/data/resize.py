"""Resizing in integers: the same bits on every device, within one grey level of Pillow."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from calattn import checks
from calattn.data.images import upload

Interpolation = Literal["bilinear", "bicubic"]

# Weights are multiples of 2**-10 and below 2: eleven bits, which TF32 keeps. Pixels have eight. A partial sum is a multiple of
# 2**-10 below 2**9: nineteen bits, exact in float32 in whatever order it is summed.
LEVELS = 1024


def resize(
    images: UInt8[Tensor, "b c h w"], size: tuple[int, int], *, interpolation: Interpolation = "bilinear"
) -> UInt8[Tensor, "b c H W"]:
    """Images of another size: half-pixel centres, and antialiasing where they shrink, as in Pillow.

    >>> resize(torch.tensor([[[[0, 100]]]], dtype=torch.uint8), (1, 4)).flatten().tolist()
    [0, 25, 75, 100]
    """
    return resized_levels(images, size, interpolation=interpolation).to(torch.uint8)


def resized_levels(
    images: UInt8[Tensor, "b c h w"], size: tuple[int, int], *, interpolation: Interpolation = "bilinear"
) -> Float[Tensor, "b c H W"]:
    """The result of `resize` as float32 whole numbers, which is how it is computed and what normalising reads."""
    levels = images.float()
    # Under autocast the products would be taken in bfloat16, which has no room for the weights.
    with torch.autocast(images.device.type, enabled=False):
        if size[1] != images.shape[3]:
            across = resize_matrix(images.shape[3], size[1], interpolation, images.device)
            levels = _to_levels(levels @ across.T)
        if size[0] != images.shape[2]:
            down = resize_matrix(images.shape[2], size[0], interpolation, images.device)
            levels = _to_levels(down @ levels)
    return levels


def _to_levels(sums: Tensor) -> Tensor:
    """Rounded half up and cut to [0, 255], between the passes too: Pillow does, and it keeps the second pass exact."""
    return sums.add_(0.5).floor_().clamp_(0, 255)


@functools.lru_cache(maxsize=64)
def resize_matrix(
    size_in: int, size_out: int, interpolation: Interpolation, device: torch.device
) -> Float[Tensor, "size_out size_in"]:
    """The weights of one direction, in multiples of 1/1024, every row summing to one exactly.

    Each row is rounded down and the missing units go to the largest remainders: no weight is off by a whole unit.
    """
    weights = _weights(size_in, size_out, interpolation) * LEVELS
    units = weights.floor()
    missing = (LEVELS - units.sum(dim=1, keepdim=True)).round()
    rank = (weights - units).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    units += rank < missing
    return upload((units / LEVELS).float(), device)


def _weights(size_in: int, size_out: int, interpolation: Interpolation) -> Float[Tensor, "size_out size_in"]:
    """float64 weights: the kernel at each source pixel's distance, stretched by the ratio where the image shrinks."""
    checks.positive_int(size_out, "size")
    if interpolation not in _KERNELS:
        raise ValueError(f"interpolation must be one of {', '.join(_KERNELS)}, got {interpolation!r}")
    kernel, support = _KERNELS[interpolation]
    ratio = size_in / size_out
    stretch = max(ratio, 1.0)
    weights = torch.zeros(size_out, size_in, dtype=torch.float64)
    for target in range(size_out):
        centre = (target + 0.5) * ratio
        first = max(0, math.floor(centre - support * stretch + 0.5))
        last = min(size_in, math.floor(centre + support * stretch + 0.5))
        row = torch.tensor(
            [kernel((source + 0.5 - centre) / stretch) for source in range(first, last)], dtype=torch.float64
        )
        weights[target, first:last] = row / row.sum()
    return weights


def _triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float) -> float:
    """Keys' kernel with a = −1/2."""
    x = abs(x)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0


_KERNELS: dict[str, tuple[Callable[[float], float], float]] = {"bilinear": (_triangle, 1.0), "bicubic": (_cubic, 2.0)}
