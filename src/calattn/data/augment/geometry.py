"""Moving pixels: crops, mirrors, affine maps and boxes, each image of a batch with its own."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

Bytes = UInt8[Tensor, "b c h w"]
UNIT = 1 << 16  # affine maps are in 16.16 fixed point, as in Pillow's nearest-neighbour transform


def pick(
    images: Bytes,
    rows: Int[Tensor, "b #H #W"],  # noqa: F821
    columns: Int[Tensor, "b #H #W"],  # noqa: F821
) -> UInt8[Tensor, "b c H W"]:
    """Output pixel (y, x) is the input's at (rows[y, x], columns[y, x]); black where that lies outside."""
    b, c, h, w = images.shape
    inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    index = (rows.clamp(0, h - 1) * w + columns.clamp(0, w - 1)).long()
    flat = index.view(b, 1, -1).expand(b, c, -1)
    return images.reshape(b, c, h * w).gather(2, flat).view(b, c, *index.shape[1:]) * inside.unsqueeze(1)


def crop(
    images: Bytes,
    top: Int[Tensor, " b"],
    left: Int[Tensor, " b"],
    mirror: Bool[Tensor, " b"],
    *,
    padding: int,
) -> Bytes:
    """The part of each image's own size that begins at (top, left) of the image padded with black, then mirrored or not.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> crop(image, torch.tensor([0]), torch.tensor([1]), torch.tensor([False]), padding=1).tolist()
    [[[[0, 0], [1, 2]]]]
    """
    h, w = images.shape[2:]
    rows = torch.arange(h, device=images.device) + (top - padding).unsqueeze(1)
    columns = torch.arange(w, device=images.device).expand(len(images), w)
    columns = torch.where(mirror.unsqueeze(1), w - 1 - columns, columns) + (left - padding).unsqueeze(1)
    return pick(images, rows.unsqueeze(2), columns.unsqueeze(1))


def affine(images: Bytes, matrix: Int[Tensor, "b 6"]) -> Bytes:
    """Each image under its own map from output to input coordinates, nearest neighbour, black outside.

    A row (a, b, c, d, e, f) in units of 2⁻¹⁶ sends (x, y) to (a·x + b·y + c, d·x + e·y + f); pixel centres are already in c, f.
    """
    h, w = images.shape[2:]
    y = torch.arange(h, device=images.device, dtype=matrix.dtype).view(1, h, 1)
    x = torch.arange(w, device=images.device, dtype=matrix.dtype).view(1, 1, w)
    a, b, c, d, e, f = (column.view(-1, 1, 1) for column in matrix.unbind(1))
    return pick(images, (d * x + e * y + f) >> 16, (a * x + b * y + c) >> 16)


def fixed_point(matrix: tuple[float, float, float, float, float, float]) -> list[int]:
    """A map of continuous coordinates as integers for `affine`: rounded to 2⁻¹⁶ after stepping to the first pixel's centre."""
    a, b, c, d, e, f = matrix
    return [math.floor(v * UNIT + 0.5) for v in (a, b, c + 0.5 * (a + b), d, e, f + 0.5 * (d + e))]


def box_mask(boxes: Float[Tensor, "b 4"], *, height: int, width: int) -> Bool[Tensor, "b 1 height width"]:
    """True inside each image's own box (top, left, height, width), given as whole numbers."""
    top, left, tall, wide = (column.view(-1, 1, 1, 1) for column in boxes.unbind(1))
    y = torch.arange(height, device=boxes.device).view(1, 1, -1, 1)
    x = torch.arange(width, device=boxes.device).view(1, 1, 1, -1)
    return (y >= top) & (y < top + tall) & (x >= left) & (x < left + wide)
