"""Shifts: five kinds of distortion that RandAugment has none of, for asking a network about images it was not taught on."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from calattn.data.augment.geometry import UNIT, affine, box_mask, pick
from calattn.data.augment.randaugment import WHOLE, blend

KINDS = ("erase", "channels", "zoom", "tiles", "overlay")
ORDERS = tuple(itertools.permutations(range(3)))  # of the colour channels; the first leaves them as they are
GRIDS = (2, 4)  # tiles a side: a weak shift and a strong one


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
        kind, strength = (d[:, 0] * len(KINDS)).long(), d[:, 1]

        def only(name: str, values: Tensor, otherwise: float = 0.0) -> Tensor:
            return torch.where(kind == KINDS.index(name), values, otherwise)

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

    def __call__(self, images: UInt8[Tensor, "b c h w"], derived: Float[Tensor, "b m"]) -> UInt8[Tensor, "b c h w"]:
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
