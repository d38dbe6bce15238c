"""RandAugment in integers: a batch at once, each image with its own operation, the same bits on every device."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from calattn import checks
from calattn.data.augment.geometry import affine, fixed_point
from calattn.data.plan import upload

OPERATIONS = (
    *("identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize"),
    *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)

# Blends weigh by whole ten-thousandths: magnitudes such as 9 / 10 of 0.9 are then exact, which no binary fraction makes them.
WHOLE = 10_000
LUMA = (19595, 38470, 7471)  # ITU-R 601 in units of 2⁻¹⁶, Pillow's conversion to grey
CODES = 2 * len(OPERATIONS)  # each operation in two directions
ANY = tuple(level / 2 for level in range(21))  # the magnitudes that "any" draws from: 0, ½, …, 10

Magnitude = float | Literal["any"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandAugment:
    """`num_ops` operations one after the other, each uniform among the fourteen, at strength `magnitude` / 10 of its range.

    Magnitude "any" draws a magnitude of 0 … 10 for each image and how many of the operations it gets, 0 … `num_ops`: images from
    untouched to hardly recognisable.

    Every operation is one of three kinds: it moves pixels (an affine map), it maps levels to levels (a table), or it blends the
    image with its grey or its smoothed copy. A batch passes through all three, with maps, tables and weights that leave alone the
    images whose operation is of another kind: so nothing branches on the draws, and nothing waits for the device.
    """

    num_ops: int
    magnitude: Magnitude
    size: tuple[int, int]

    def __post_init__(self) -> None:
        checks.positive_int(self.num_ops, "randaugment_ops")
        if self.magnitude != "any" and (isinstance(self.magnitude, str) or not 0 <= self.magnitude <= 10):
            raise ValueError(f'randaugment_magnitude must be in [0, 10] or "any", got {self.magnitude!r}')

    @property
    def magnitudes(self) -> tuple[float, ...]:
        return ANY if self.magnitude == "any" else (self.magnitude,)

    @property
    def num_draws(self) -> int:
        return 2 * self.num_ops + (2 if self.magnitude == "any" else 0)

    def derive(self, draws: Float[Tensor, "n k"]) -> Float[Tensor, "n m"]:
        """For each operation a code: twice its place in `OPERATIONS`, plus one if its direction is negative.

        Codes of the i-th magnitude of several begin at i · `CODES`; an operation that an image does not get is "identity".
        """
        which, sign = draws[:, 0 : 2 * self.num_ops : 2], draws[:, 1 : 2 * self.num_ops : 2]
        codes = (which.double() * len(OPERATIONS)).floor().float() * 2 + (sign < 0.5)
        if self.magnitude != "any":
            return codes
        level, count = draws[:, -2:].double().unbind(1)
        wanted = (count * (self.num_ops + 1)).floor().unsqueeze(1) > torch.arange(self.num_ops)
        return (codes * wanted) + (level * len(ANY)).floor().float().unsqueeze(1) * CODES

    def __call__(self, images: UInt8[Tensor, "b c h w"], codes: Shaped[Tensor, "b m"]) -> UInt8[Tensor, "b c h w"]:
        for column in codes.long().unbind(1):
            images = self.apply(images, column)
        return images

    def apply(self, images: UInt8[Tensor, "b c h w"], code: Int[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """One operation each."""
        tables = _tables(self.magnitudes, self.size, images.device)
        images = affine(images, tables.matrix[code])
        images = mapped(images, self._levels(images, code, tables))
        return _blended(images, tables.factor[code], sharpen=tables.sharpen[code])

    def _levels(self, images: Tensor, code: Tensor, tables: _Tables) -> Int[Tensor, "b c 256"]:
        """The table of each image and channel: fixed ones by code, and the three that look at the image first."""
        b, c = images.shape[:2]
        levels = tables.levels[code].unsqueeze(1).expand(b, c, 256)
        name = code.view(b, 1, 1) % CODES // 2
        levels = torch.where(name == OPERATIONS.index("autocontrast"), autocontrast_levels(images), levels)
        levels = torch.where(name == OPERATIONS.index("equalize"), equalize_levels(images), levels)
        contrast = contrast_levels(images, tables.contrast[code])
        return torch.where(name == OPERATIONS.index("contrast"), contrast, levels)


@dataclasses.dataclass(frozen=True)
class _Tables:
    """What each of the 28 codes does at each magnitude, as far as it does not depend on the image."""

    matrix: Int[Tensor, "k 6"]
    levels: Int[Tensor, "k 256"]
    contrast: Int[Tensor, " k"]
    factor: Int[Tensor, " k"]
    sharpen: Tensor


@functools.lru_cache(maxsize=32)
def _tables(magnitudes: tuple[float, ...], size: tuple[int, int], device: torch.device) -> _Tables:
    codes = [(name, sign, level / 10) for level in magnitudes for name in OPERATIONS for sign in (1, -1)]
    factor = [WHOLE + sign * round(0.9 * strength * WHOLE) for _, sign, strength in codes]
    blends = [f if name in ("color", "sharpness") else WHOLE for f, (name, *_) in zip(factor, codes, strict=True)]
    parts = (
        torch.tensor([_matrix(name, sign * strength, size) for name, sign, strength in codes], dtype=torch.int32),
        torch.stack([_fixed_levels(name, sign, strength) for name, sign, strength in codes]),
        torch.tensor(factor, dtype=torch.int32),
        torch.tensor(blends, dtype=torch.int32),
        torch.tensor([name == "sharpness" for name, *_ in codes]),
    )
    return _Tables(*(upload(part, device) for part in parts))


def _matrix(name: str, amount: float, size: tuple[int, int]) -> list[int]:
    """The map from output to input coordinates, in fixed point; the ranges are torchvision's."""
    h, w = size
    a, b, c, d, e, f = 1.0, 0.0, 0.0, 0.0, 1.0, 0.0
    if name == "shear_x":
        b = 0.3 * amount
    elif name == "shear_y":
        d = 0.3 * amount
    elif name == "translate_x":
        c = -float(math.trunc(150 / 331 * w * amount))
    elif name == "translate_y":
        f = -float(math.trunc(150 / 331 * h * amount))
    elif name == "rotate":
        angle = -math.radians(30 * amount)
        a, b, d, e = math.cos(angle), math.sin(angle), -math.sin(angle), math.cos(angle)
        c, f = w / 2 - a * w / 2 - b * h / 2, h / 2 - d * w / 2 - e * h / 2
    return fixed_point((a, b, c, d, e, f))


def _fixed_levels(name: str, sign: int, strength: float) -> Int[Tensor, " 256"]:
    level = torch.arange(256, dtype=torch.int32)
    if name == "solarize":
        return torch.where(level >= 255 * (1 - strength), 255 - level, level)
    if name == "posterize":
        return level & -(1 << round(4 * strength))
    if name == "brightness":
        factor = WHOLE + sign * round(0.9 * strength * WHOLE)
        return blend(torch.zeros_like(level), level, torch.tensor(factor, dtype=torch.int32))
    return level


def autocontrast_levels(images: UInt8[Tensor, "b c h w"]) -> Int[Tensor, "b c 256"]:
    """Each channel stretched so that its darkest level is 0 and its brightest 255: ⌊255·(v − lo) / (hi − lo)⌋."""
    low = images.amin((2, 3)).int().unsqueeze(2)
    high = images.amax((2, 3)).int().unsqueeze(2)
    level = torch.arange(256, dtype=torch.int32, device=images.device).expand(*images.shape[:2], 256)
    span = high - low
    return torch.where(span > 0, (255 * (level - low) // span.clamp_min(1)).clamp(0, 255), level)


def equalize_levels(images: UInt8[Tensor, "b c h w"]) -> Int[Tensor, "b c 256"]:
    """Each channel's levels spread so that equally many pixels lie in equal ranges, with Pillow's rounding."""
    b, c, h, w = images.shape
    counts = histogram(images)
    last = counts.gather(2, images.amax((2, 3)).long().unsqueeze(2))
    step = (h * w - last) // 255
    below = counts.cumsum(2, dtype=torch.int32) - counts
    level = torch.arange(256, dtype=torch.int32, device=images.device).expand(b, c, 256)
    return torch.where(step > 0, ((step // 2 + below) // step.clamp_min(1)).clamp_max(255), level)


def histogram(images: UInt8[Tensor, "b c h w"]) -> Int[Tensor, "b c 256"]:
    """Pixels at each level, by image and channel."""
    b, c, h, w = images.shape
    # Flat, because CUDA's scatter has a deterministic mode for one dimension only (sums of integers are exact in any order).
    row = torch.arange(b * c, device=images.device).unsqueeze(1) * 256
    index = (images.reshape(b * c, h * w) + row).view(-1)
    ones = torch.ones(1, dtype=torch.int32, device=images.device).expand(len(index))
    counts = torch.zeros(b * c * 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(0, index, ones).view(b, c, 256)


def contrast_levels(images: UInt8[Tensor, "b c h w"], factor: Int[Tensor, " b"]) -> Int[Tensor, "b c 256"]:
    """Levels blended with the image's mean grey, rounded half up to a level."""
    b, c, h, w = images.shape
    total = grey(images).sum((1, 2, 3))
    mean = ((2 * total + h * w) // (2 * h * w)).int().view(b, 1, 1)
    level = torch.arange(256, dtype=torch.int32, device=images.device).expand(b, c, 256)
    return blend(mean, level, factor.view(b, 1, 1))


def grey(images: UInt8[Tensor, "b c h w"]) -> Int[Tensor, "b 1 h w"]:
    """Luma as int32; images of one channel are their own."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().unbind(1)
    return ((LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue + (1 << 15)) >> 16).unsqueeze(1)


def smoothed(images: UInt8[Tensor, "b c h w"]) -> Int[Tensor, "b c h w"]:
    """The 3 × 3 mean in which the centre counts five times, rounded; the border stays, as in Pillow."""
    result = images.int()
    if min(images.shape[2:]) < 3:
        return result
    wide = result[:, :, :, :-2] + result[:, :, :, 1:-1] + result[:, :, :, 2:]
    around = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    centre = result[:, :, 1:-1, 1:-1]
    centre.copy_((2 * (around + 4 * centre) + 13) // 26)
    return result


def mapped(images: UInt8[Tensor, "b c h w"], levels: Int[Tensor, "b c 256"]) -> UInt8[Tensor, "b c h w"]:
    """Every pixel replaced by its level's entry in the table of its image and channel."""
    b, c, h, w = images.shape
    return levels.to(torch.uint8).gather(2, images.reshape(b, c, h * w).long()).view(b, c, h, w)


def blend(base: Int[Tensor, "*s"], value: Int[Tensor, "*t"], factor: Int[Tensor, "*u"]) -> Int[Tensor, "*v"]:
    """⌊base + (value − base)·factor⌋, cut to [0, 255], with the factor in ten-thousandths."""
    return ((base * (WHOLE - factor) + value * factor) // WHOLE).clamp(0, 255)


def _blended(images: Tensor, factor: Int[Tensor, " b"], *, sharpen: Tensor) -> UInt8[Tensor, "b c h w"]:
    """Each image blended with its smoothed copy or its grey one; a factor of one leaves it as it is."""
    b = len(images)
    base = torch.where(sharpen.view(b, 1, 1, 1), smoothed(images), grey(images))
    return blend(base, images.int(), factor.view(b, 1, 1, 1)).to(torch.uint8)
