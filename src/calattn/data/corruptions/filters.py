"""Linear filters that several corruptions share."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

Pixels = Float[Tensor, "n c h w"]  # float64 in [0, 1]


def separable(images: Pixels, rows: Float[Tensor, "i h"], columns: Float[Tensor, "j w"]) -> Float[Tensor, "n c i j"]:
    """rows · x · columnsᵀ for every channel: any filter or resize that treats the two directions apart."""
    return rows @ (images @ columns.T)


def gaussian_matrix(size: int, sigma: float, *, mode: str, truncate: float) -> Float[Tensor, "size size"]:
    """The matrix of scipy's Gaussian filter on `size` pixels; `mode` decides what is beyond the edge; no blur at σ = 0."""
    from scipy.ndimage import gaussian_filter1d

    if sigma == 0:
        return torch.eye(size, dtype=torch.float64)
    return torch.from_numpy(gaussian_filter1d(np.eye(size), sigma, axis=0, mode=mode, truncate=truncate))


def gaussian_blur(images: Pixels, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> Pixels:
    rows, columns = (gaussian_matrix(size, sigma, mode=mode, truncate=truncate) for size in images.shape[2:])
    return separable(images, rows, columns)


def zoom_matrix(size: int, factor: float) -> Float[Tensor, "size size"]:
    """Bilinear enlargement of the middle by `factor` ≥ 1: pixel p shows the point centre + (p − centre) / factor."""
    centre = (size - 1) / 2
    point = centre + (torch.arange(size, dtype=torch.float64) - centre) / factor
    return (1 - (point.unsqueeze(1) - torch.arange(size, dtype=torch.float64)).abs()).clamp_min(0)


def correlate(images: Pixels, kernel: Float[Tensor, "k k"]) -> Pixels:
    """Every pixel's neighbourhood weighted by the kernel (of odd side); the image is mirrored about its edge pixels."""
    height, width = images.shape[2:]
    reach = len(kernel) // 2
    padded = images[:, :, mirrored(height, reach)][:, :, :, mirrored(width, reach)]
    total = torch.zeros_like(images)
    for y, x in kernel.nonzero().tolist():
        total += kernel[y, x] * padded[:, :, y : y + height, x : x + width]
    return total


def mirrored(size: int, reach: int) -> Int[Tensor, " m"]:
    """Indices of `size` pixels with `reach` more on either side, mirrored about the edge pixels (c b | a b c | b a)."""
    return torch.from_numpy(np.pad(np.arange(size), reach, mode="reflect" if size > 1 else "edge"))


def smear(images: Pixels, angles: Float[Tensor, " n"], *, radius: int, sigma: float) -> Pixels:
    """Each image blurred along its own direction (radians; y grows downwards), edge pixels continued.

    The 2·radius + 1 weights are half a Gaussian, w_i ∝ exp(−i²/2σ²), i ≥ 0, at the pixels nearest to i·(cos, sin): what
    ImageMagick's motion blur does, by which the official files were made.
    """
    n, _, height, width = images.shape
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    down, right = (torch.ceil(steps * along.unsqueeze(1) - 0.5).long() for along in (angles.sin(), angles.cos()))
    reach = 2 * radius
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [n, c, shift down, shift right, h, w], a view
    total, number = torch.zeros_like(images), torch.arange(n)
    for i, weight in enumerate(weights):
        if weight > 1e-9:  # the far end of the half Gaussian is below anything a byte can show
            total += weight * windows[number, :, down[:, i] + reach, right[:, i] + reach]
    return total
