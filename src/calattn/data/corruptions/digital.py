"""What cameras, screens and files do: brightness, contrast, warps, large pixels, JPEG."""

from __future__ import annotations

import io

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from calattn.data.corruptions.draws import Draws
from calattn.data.corruptions.filters import gaussian_blur, separable
from calattn.data.corruptions.kinds import corruption, to_bytes


@corruption("raises the value of HSV", shift=(0.05, 0.10, 0.15, 0.20, 0.30))
def brightness(
    images: Float[Tensor, "n c h w"],
    draws: Draws,  # noqa: ARG001  (nothing is random here)
    *,
    shift: float,
) -> Float[Tensor, "n c h w"]:
    """V = max(r, g, b) becomes min(V + shift, 1); hue and saturation stay, which is a common factor for r, g and b."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + shift).clamp_max(1)
    return torch.where(value > 0, images * (raised / value.clamp_min(1e-9)), raised)  # black has no hue: it turns grey


@corruption("draws the values towards their mean", factor=(0.75, 0.50, 0.40, 0.30, 0.15))
def contrast(
    images: Float[Tensor, "n c h w"],
    draws: Draws,  # noqa: ARG001  (nothing is random here)
    *,
    factor: float,
) -> Float[Tensor, "n c h w"]:
    """(x − m)·factor + m, with m the mean of the image's channel."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return (images - mean) * factor + mean


@corruption(
    "moves three points by up to `affine`, then every pixel by smooth noise (all in parts of the side)",
    strength=(0.0, 0.05, 0.08, 0.10, 0.10),
    smoothness=(0.0, 0.20, 0.06, 0.04, 0.03),
    affine=(0.08, 0.07, 0.06, 0.05, 0.03),
)
def elastic_transform(
    images: Float[Tensor, "n c h w"], draws: Draws, *, strength: float, smoothness: float, affine: float
) -> Float[Tensor, "n c h w"]:
    """An affine map, mirrored about the edge pixels, then displacements strength · (uniform noise ∗ Gaussian)."""
    height, width = images.shape[2:]
    side = min(height, width)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    here = torch.stack([x, y, torch.ones_like(x)], dim=-1).double()
    matrix = _affine(draws.between(-affine * side, affine * side, "points", 3, 2), height, width)
    images = sample(images, torch.einsum("hwk,nkd->nhwd", here, matrix), about_pixels=True)
    shifts = draws.between(-1, 1, "shifts", 2, height, width)
    shifts = strength * side * gaussian_blur(shifts, smoothness * side, mode="reflect", truncate=3.0)
    return sample(images, here[..., :2] + shifts.permute(0, 2, 3, 1), about_pixels=False)


def _affine(moves: Float[Tensor, "n 3 2"], height: int, width: int) -> Float[Tensor, "n 3 2"]:
    """Matrices that send (x, y, 1) of the new image to (x, y) of the old: three corners of a square go to their moved places."""
    arm = max(1, min(height, width) // 3)
    centre = torch.tensor([width // 2, height // 2])
    corners = (centre + torch.tensor([[arm, arm], [arm, -arm], [-arm, -arm]])).double()
    moved = torch.cat([corners + moves, torch.ones(len(moves), 3, 1, dtype=torch.float64)], dim=2)
    return torch.linalg.solve(moved, corners.expand(len(moves), 3, 2))


def sample(
    images: Float[Tensor, "n c h w"], points: Float[Tensor, "n h w 2"], *, about_pixels: bool
) -> Float[Tensor, "n c h w"]:
    """The images at points (x, y) in pixels, bilinear; beyond the edge mirrored about edge pixels or about their outer border."""
    size = torch.tensor([images.shape[3], images.shape[2]], dtype=torch.float64)
    span = (size - 1).clamp_min(1) if about_pixels else size
    grid = 2 * (points if about_pixels else points + 0.5) / span - 1
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=about_pixels)


@corruption("shrinks to `scale` of the side and enlarges again", scale=(0.95, 0.90, 0.85, 0.75, 0.65))
def pixelate(
    images: Float[Tensor, "n c h w"],
    draws: Draws,  # noqa: ARG001  (nothing is random here)
    *,
    scale: float,
) -> Float[Tensor, "n c h w"]:
    """Pillow's box filter there and back, rounded to bytes after each direction as Pillow does, the rows' first.

    On images higher than wide Pillow may take the columns first: then some values differ by one.
    """
    height, width = images.shape[2:]
    small = max(1, int(height * scale)), max(1, int(width * scale))
    for rows, columns in (
        (box_matrix(height, small[0]), box_matrix(width, small[1])),
        (box_matrix(small[0], height), box_matrix(small[1], width)),
    ):
        for left, right in ((torch.eye(rows.shape[1]).double(), columns), (rows, torch.eye(columns.shape[0]).double())):
            images = to_bytes(separable(images, left, right)).double() / 255
    return images


def box_matrix(size: int, new: int) -> Float[Tensor, "new size"]:
    """Each new pixel is the mean of the old ones whose centres lie in its box: which those are, Pillow says (there are ties)."""
    from PIL import Image

    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    inside = np.asarray(unit.resize((size, new), Image.Resampling.BOX)) > 0
    return torch.from_numpy(inside / inside.sum(axis=1, keepdims=True))


@corruption("is saved as JPEG and read again", quality=(80, 65, 58, 50, 40))
def jpeg_compression(
    images: Float[Tensor, "n c h w"],
    draws: Draws,  # noqa: ARG001  (nothing is random here)
    *,
    quality: int,
) -> Float[Tensor, "n c h w"]:
    """Pillow's JPEG with its usual chroma subsampling. The only corruption that goes image by image."""
    from PIL import Image

    channels_last = to_bytes(images).permute(0, 2, 3, 1).squeeze(3).numpy()
    decoded = []
    for pixels in channels_last:
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="JPEG", quality=quality)
        decoded.append(np.asarray(Image.open(file)))
    out = torch.from_numpy(np.stack(decoded)).double() / 255
    return out.unsqueeze(1) if out.ndim == 3 else out.permute(0, 3, 1, 2)
