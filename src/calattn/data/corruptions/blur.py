"""Blurs: out of focus, through glass, by motion, by zooming."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.data.corruptions.draws import Draws
from calattn.data.corruptions.filters import correlate, gaussian_blur, separable, smear, zoom_matrix
from calattn.data.corruptions.kinds import corruption


@corruption("blurs by a disc with softened edge", radius=(0.3, 0.4, 0.5, 1.0, 1.5), softness=(0.4, 0.5, 0.6, 0.2, 0.1))
def defocus_blur(
    images: Float[Tensor, "n c h w"],
    draws: Draws,  # noqa: ARG001  (nothing is random here)
    *,
    radius: float,
    softness: float,
) -> Float[Tensor, "n c h w"]:
    return correlate(images, disc(radius, softness))


def disc(radius: float, softness: float) -> Float[Tensor, "k k"]:
    """The pixels within `radius`, equal, then blurred by the 3 × 3 Gaussian of deviation `softness`; sums to 1."""
    reach = math.floor(radius) + 1
    along = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (along.unsqueeze(1) ** 2 + along**2 <= radius**2).double()
    edge = math.exp(-1 / (2 * softness**2))
    distance = (along.unsqueeze(1) - along).abs()
    soften = ((distance == 0) + edge * (distance == 1).double()) / (1 + 2 * edge)
    return soften @ (inside / inside.sum()) @ soften.T


@corruption(
    "blurs a little, moves each pixel's colour by up to one pixel, blurs again",
    sigma=(0.05, 0.25, 0.4, 0.25, 0.4),
    rounds=(1, 1, 1, 2, 2),
)
def glass_blur(
    images: Float[Tensor, "n c h w"], draws: Draws, *, sigma: float, rounds: int
) -> Float[Tensor, "n c h w"]:
    """Each pixel takes the colour of one of the four at (0 or −1, 0 or −1) from it, `rounds` times.

    The official loop swaps in name but copies in effect, always from pixels it has not reached yet, so it is this gather.
    """
    height, width = images.shape[2:]
    images = gaussian_blur(images, sigma)
    number = torch.arange(len(images)).view(-1, 1, 1)
    for turn in range(rounds):
        step = draws.whole(2, f"step {turn}", 2, height, width)
        row = (torch.arange(height).view(-1, 1) - step[:, 0]).clamp_min(0)
        column = (torch.arange(width) - step[:, 1]).clamp_min(0)
        images = images.permute(0, 2, 3, 1)[number, row, column].permute(0, 3, 1, 2)
    return gaussian_blur(images, sigma)


@corruption(
    "smears along a direction within 45° of horizontal", radius=(6, 6, 6, 8, 9), sigma=(1.0, 1.5, 2.0, 2.0, 2.5)
)
def motion_blur(
    images: Float[Tensor, "n c h w"], draws: Draws, *, radius: int, sigma: float
) -> Float[Tensor, "n c h w"]:
    return smear(images, draws.between(-math.pi / 4, math.pi / 4, "angle"), radius=radius, sigma=sigma)


@corruption("averages enlargements by 1, 1.01, … up to `largest`", largest=(1.05, 1.10, 1.15, 1.20, 1.25))
def zoom_blur(
    images: Float[Tensor, "n c h w"],
    draws: Draws,  # noqa: ARG001  (nothing is random here)
    *,
    largest: float,
) -> Float[Tensor, "n c h w"]:
    """The mean of the image and of its enlargements, the first of which (by 1) is the image once more."""
    total, steps = 2 * images, round(100 * (largest - 1))
    for step in range(1, steps + 1):
        rows, columns = (zoom_matrix(size, 1 + step / 100) for size in images.shape[2:])
        total = total + separable(images, rows, columns)
    return total / (steps + 2)
