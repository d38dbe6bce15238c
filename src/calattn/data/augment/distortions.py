"""Distortions in integers: RandAugment and shifts, a batch at once, the same bits on every device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from calattn import checks
from calattn.data.augment.geometry import UNIT, Bytes, affine, box_mask, fixed_point, pick
from calattn.data.images import upload

OPERATIONS = (
    *("identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize"),
    *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)

# Blends weigh by whole ten-thousandths: magnitudes such as 9 / 10 of 0.9 are then exact, which no binary fraction makes them.
WHOLE = 10_000
LUMA = (19595, 38470, 7471)  # ITU-R 601 in units of 2⁻¹⁶, Pillow's conversion to grey
CODES = 2 * len(OPERATIONS)  # each operation in two directions
ANY = tuple(level / 2 for level in range(21))  # the magnitudes that "any" draws from: 0, ½, …, 10

# Five kinds of shift that RandAugment has none of, for asking a network about images it was not trained on.
SHIFTS = ("erase", "channels", "zoom", "tiles", "overlay")
ORDERS = tuple(itertools.permutations(range(3)))  # of the colour channels; the first leaves them as they are
GRIDS = (2, 4)  # tiles per side: a weak shift and a strong one

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

    def __call__(self, images: Bytes, codes: Shaped[Tensor, "b m"]) -> Bytes:
        for column in codes.long().unbind(1):
            images = self.apply(images, column)
        return images

    def apply(self, images: Bytes, code: Int[Tensor, " b"]) -> Bytes:
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


def autocontrast_levels(images: Bytes) -> Int[Tensor, "b c 256"]:
    """Each channel stretched so that its darkest level is 0 and its brightest 255: ⌊255·(v − lo) / (hi − lo)⌋."""
    low = images.amin((2, 3)).int().unsqueeze(2)
    high = images.amax((2, 3)).int().unsqueeze(2)
    level = torch.arange(256, dtype=torch.int32, device=images.device).expand(*images.shape[:2], 256)
    span = high - low
    return torch.where(span > 0, (255 * (level - low) // span.clamp_min(1)).clamp(0, 255), level)


def equalize_levels(images: Bytes) -> Int[Tensor, "b c 256"]:
    """Each channel's levels spread so that equally many pixels lie in equal ranges, with Pillow's rounding."""
    b, c, h, w = images.shape
    counts = histogram(images)
    last = counts.gather(2, images.amax((2, 3)).long().unsqueeze(2))
    step = (h * w - last) // 255
    below = counts.cumsum(2, dtype=torch.int32) - counts
    level = torch.arange(256, dtype=torch.int32, device=images.device).expand(b, c, 256)
    return torch.where(step > 0, ((step // 2 + below) // step.clamp_min(1)).clamp_max(255), level)


def histogram(images: Bytes) -> Int[Tensor, "b c 256"]:
    """Pixels at each level, by image and channel."""
    b, c, h, w = images.shape
    # Flat, because CUDA's scatter has a deterministic mode for one dimension only (sums of integers are exact in any order).
    row = torch.arange(b * c, device=images.device).unsqueeze(1) * 256
    index = (images.reshape(b * c, h * w) + row).view(-1)
    ones = torch.ones(1, dtype=torch.int32, device=images.device).expand(len(index))
    counts = torch.zeros(b * c * 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(0, index, ones).view(b, c, 256)


def contrast_levels(images: Bytes, factor: Int[Tensor, " b"]) -> Int[Tensor, "b c 256"]:
    """Levels blended with the image's mean grey, rounded half up to a level."""
    b, c, h, w = images.shape
    total = grey(images).sum((1, 2, 3))
    mean = ((2 * total + h * w) // (2 * h * w)).int().view(b, 1, 1)
    level = torch.arange(256, dtype=torch.int32, device=images.device).expand(b, c, 256)
    return blend(mean, level, factor.view(b, 1, 1))


def grey(images: Bytes) -> Int[Tensor, "b 1 h w"]:
    """Luma as int32; images of one channel are their own."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().unbind(1)
    return ((LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue + (1 << 15)) >> 16).unsqueeze(1)


def smoothed(images: Bytes) -> Int[Tensor, "b c h w"]:
    """The 3 × 3 mean in which the centre counts five times, rounded; the border stays, as in Pillow."""
    result = images.int()
    if min(images.shape[2:]) < 3:
        return result
    wide = result[:, :, :, :-2] + result[:, :, :, 1:-1] + result[:, :, :, 2:]
    around = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    centre = result[:, :, 1:-1, 1:-1]
    centre.copy_((2 * (around + 4 * centre) + 13) // 26)
    return result


def mapped(images: Bytes, levels: Int[Tensor, "b c 256"]) -> Bytes:
    """Every pixel replaced by its level's entry in the table of its image and channel."""
    b, c, h, w = images.shape
    return levels.to(torch.uint8).gather(2, images.reshape(b, c, h * w).long()).view(b, c, h, w)


def blend(base: Int[Tensor, "*s"], value: Int[Tensor, "*t"], factor: Int[Tensor, "*u"]) -> Int[Tensor, "*v"]:
    """⌊base + (value − base)·factor⌋, cut to [0, 255], with the factor in ten-thousandths."""
    return ((base * (WHOLE - factor) + value * factor) // WHOLE).clamp(0, 255)


def _blended(images: Tensor, factor: Int[Tensor, " b"], *, sharpen: Tensor) -> Bytes:
    """Each image blended with its smoothed copy or its grey one; a factor of one leaves it as it is."""
    b = len(images)
    base = torch.where(sharpen.view(b, 1, 1, 1), smoothed(images), grey(images))
    return blend(base, images.int(), factor.view(b, 1, 1, 1)).to(torch.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shifts:
    """Each image gets one kind, at a strength between nothing and about half of its accuracy.

    erase: a box of up to 45 % of the area becomes one colour; channels: the colours change places; zoom: the image shrinks to as
    little as 1 / 1.9 of its side, on black; tiles: a grid of 2 × 2 or 4 × 4 parts is shuffled; overlay: a neighbour in the batch
    shows through, by up to 40 %. As in RandAugment, a batch passes through all five with numbers that leave alone the images of
    another kind, in integers.

    >>> shifts = Shifts(size=(8, 8))
    >>> images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    >>> shifts(images, shifts.derive(torch.rand(6, shifts.num_draws))).shape
    torch.Size([6, 3, 8, 8])
    """

    size: tuple[int, int]

    num_draws = 8 + max(GRIDS) ** 2

    def derive(self, draws: Float[Tensor, "n k"]) -> Float[Tensor, "n m"]:
        """Columns: box (4), its colour (3), order of the channels, its weight, zoom, overlay, grid, source of each tile (16)."""
        d = draws.double()
        kind, strength = (d[:, 0] * len(SHIFTS)).long(), d[:, 1]

        def only(name: str, values: Tensor, otherwise: float = 0.0) -> Tensor:
            return torch.where(kind == SHIFTS.index(name), values, otherwise)

        area = 0.02 + 0.43 * strength
        ratio = torch.exp(2 * d[:, 2] - 1)
        (top, tall), (left, wide) = (
            _side(length, share, place)
            for length, share, place in zip(
                self.size, ((area * ratio).sqrt(), (area / ratio).sqrt()), (d[:, 3], d[:, 4]), strict=True
            )
        )
        colour = (d[:, 5:8] * 256).floor()
        box = [only("erase", side) for side in (top, left, tall, wide)]
        order = only("channels", 1 + (d[:, 2] * (len(ORDERS) - 1)).floor())
        weight = only("channels", (WHOLE * (0.25 + 0.75 * strength)).floor())
        zoom = only("zoom", (UNIT * (1 + 0.9 * strength)).floor(), UNIT)
        overlay = only("overlay", (WHOLE * (0.1 + 0.3 * strength)).floor())
        grid = only("tiles", torch.where(strength < 0.5, float(GRIDS[0]), float(GRIDS[1])))
        columns = [*box, *colour.unbind(1), order, weight, zoom, overlay, grid]
        return torch.cat([torch.stack(columns, 1), _sources(grid, d[:, 8:])], dim=1).float()

    def __call__(self, images: Bytes, derived: Float[Tensor, "b m"]) -> Bytes:
        order, weight, zoom, overlay, grid = derived[:, 7:12].int().unbind(1)
        images = affine(images, _zoomed(zoom, self.size))
        images = _shuffled(images, grid, derived[:, 12:].int())
        if images.shape[1] == 3:
            places = torch.tensor(ORDERS, device=images.device)[order.long()]
            moved = images.gather(1, places.view(-1, 3, 1, 1).expand_as(images))
            images = _weighted(images, moved, weight)
        neighbour = (torch.arange(len(images), device=images.device) ^ 1).clamp_max(len(images) - 1)
        images = _weighted(images, images.index_select(0, neighbour), overlay)
        inside = box_mask(derived[:, :4], height=self.size[0], width=self.size[1])
        colour = derived[:, 4 : 4 + images.shape[1], None, None].to(torch.uint8)
        return torch.where(inside, colour, images)


def _side(length: int, share: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Where a box of this share of a side begins, and how long it is: whole pixels, at least one."""
    side = (share * length).round().clamp(1, length)
    return (place * (length - side + 1)).floor(), side


def _sources(grid: Tensor, keys: Tensor) -> Tensor:
    """For each tile of an image's grid the one that comes in its place; tiles that its grid does not have come last."""
    count = (grid**2).unsqueeze(1)
    missing = torch.arange(keys.shape[1]) >= count
    return torch.where(missing, 2.0 + torch.arange(keys.shape[1]), keys).argsort(dim=1, stable=True).double()


def _zoomed(factor: Int[Tensor, " b"], size: tuple[int, int]) -> Int[Tensor, "b 6"]:
    """The maps of `affine` that keep the middle where it is: x ← factor · (x + ½ − w/2) + w/2."""
    none = torch.zeros_like(factor)
    across, down = ((UNIT * side - factor * (side - 1)) // 2 for side in (size[1], size[0]))
    return torch.stack([factor, none, across, none, factor, down], dim=1)


def _shuffled(images: Tensor, grid: Int[Tensor, " b"], sources: Int[Tensor, "b t"]) -> Tensor:
    """The tiles of each image's grid exchanged; rows and columns that no tile takes stay, and so do images without a grid."""
    b, _, h, w = images.shape
    sides = grid.clamp_min(1).view(b, 1, 1)
    y = torch.arange(h, device=images.device).view(1, h, 1)
    x = torch.arange(w, device=images.device).view(1, 1, w)
    tall, wide = (h // sides).clamp_min(1), (w // sides).clamp_min(1)
    i, j = y // tall, x // wide
    source = sources.gather(1, (i * sides + j).clamp(0, sources.shape[1] - 1).long().view(b, -1)).view(b, h, w)
    moved = (i < sides) & (j < sides) & (grid.view(b, 1, 1) > 0)
    rows = torch.where(moved, source // sides * tall + y % tall, y)
    columns = torch.where(moved, source % sides * wide + x % wide, x)
    return pick(images, rows, columns)


def _weighted(images: Tensor, others: Tensor, weight: Int[Tensor, " b"]) -> Tensor:
    """(1 − weight) of each image and weight of the other, in ten-thousandths."""
    return blend(images.int(), others.int(), weight.view(-1, 1, 1, 1)).to(torch.uint8)
