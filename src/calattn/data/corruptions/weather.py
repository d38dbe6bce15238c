"""Weather: snow, frost and fog."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.data.corruptions.draws import Draws
from calattn.data.corruptions.filters import separable, smear, zoom_matrix
from calattn.data.corruptions.frost_texture import SIDE, frost_texture
from calattn.data.corruptions.kinds import corruption


@corruption(
    "whitens the scene and lets smeared flakes fall over it",
    mean=(0.1, 0.1, 0.15, 0.25, 0.3),
    deviation=(0.2, 0.2, 0.3, 0.3, 0.3),
    zoom=(1.0, 1.0, 1.75, 2.25, 1.25),
    threshold=(0.6, 0.5, 0.55, 0.6, 0.65),
    radius=(8, 10, 10, 12, 14),
    sigma=(3.0, 4.0, 4.0, 6.0, 12.0),
    keep=(0.95, 0.90, 0.90, 0.85, 0.80),
)
def snow(
    images: Float[Tensor, "n c h w"],
    draws: Draws,
    *,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
) -> Float[Tensor, "n c h w"]:
    """keep·x + (1 − keep)·max(x, 1.5·grey + 0.5) + flakes + flakes turned by 180°.

    Flakes are normal noise, enlarged, blackened below the threshold and smeared downwards.
    """
    height, width = images.shape[2:]
    flakes = mean + deviation * draws.normal("flakes", 1, height, width)
    flakes = separable(flakes, zoom_matrix(height, zoom), zoom_matrix(width, zoom))
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    angles = draws.between(-3 * math.pi / 4, -math.pi / 4, "angle")
    flakes = smear(flakes, angles, radius=radius, sigma=sigma)
    pale = torch.maximum(images, 1.5 * _grey(images) + 0.5)
    return keep * images + (1 - keep) * pale + flakes + flakes.flip(2, 3)


def _grey(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 1 h w"]:
    """Luma of ITU-R BT.601; one channel is its own."""
    if images.shape[1] == 1:
        return images
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    return (images * weights.view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


@corruption(
    "dims the scene and adds a piece of a frosted pane",
    keep=(1.0, 1.0, 0.9, 0.85, 0.75),
    frost=(0.2, 0.3, 0.4, 0.4, 0.45),
)
def frost(images: Float[Tensor, "n c h w"], draws: Draws, *, keep: float, frost: float) -> Float[Tensor, "n c h w"]:
    """keep·x + frost·pane. The pane is computed (`frost_texture`), where the official files use photographs."""
    height, width = images.shape[2:]
    corner = draws.whole(SIDE, "corner", 2)
    row = (corner[:, :1] + torch.arange(height)) % SIDE
    column = (corner[:, 1:] + torch.arange(width)) % SIDE
    pane = frost_texture()  # [3, SIDE, SIDE]; its edges meet, so a piece may cross them
    pane = pane if images.shape[1] == 3 else pane.mean(dim=0, keepdim=True)
    pieces = pane[:, row.unsqueeze(2), column.unsqueeze(1)].transpose(0, 1)
    return keep * images + frost * pieces


@corruption(
    "adds a cloud and darkens to the old maximum",
    density=(0.2, 0.5, 0.75, 1.0, 1.5),
    decay=(3.0, 3.0, 2.5, 2.0, 1.75),
)
def fog(images: Float[Tensor, "n c h w"], draws: Draws, *, density: float, decay: float) -> Float[Tensor, "n c h w"]:
    """(x + density·cloud) · m / (m + density), with m the image's largest value."""
    height, width = images.shape[2:]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    haze = density * cloud(draws, max(height, width), decay)[:, :, :height, :width]
    return (images + haze) * brightest / (brightest + density)


def cloud(draws: Draws, side: int, decay: float) -> Float[Tensor, "n 1 side side"]:
    """A plasma fractal in [0, 1] by midpoint displacement on a torus whose side is the next power of two.

    Each halving of the step divides the displacement by decay²: the official loop multiplies its amplitude with itself.
    """
    size = 1 << max(1, (side - 1).bit_length())
    height = torch.zeros(draws.count, size, size, dtype=torch.float64)
    step, amplitude = size, 1.0
    while step > 1:
        half = step // 2
        push = amplitude * draws.between(-1, 1, f"cloud {step}", 3, size // step, size // step)
        corner = height[:, ::step, ::step].clone()
        right, below = corner.roll(-1, 2), corner.roll(-1, 1)
        centre = (corner + right + below + right.roll(-1, 1)) / 4 + push[:, 0]
        height[:, half::step, half::step] = centre
        height[:, ::step, half::step] = (corner + right + centre + centre.roll(1, 1)) / 4 + push[:, 1]
        height[:, half::step, ::step] = (corner + below + centre + centre.roll(1, 2)) / 4 + push[:, 2]
        step, amplitude = half, amplitude / decay**2
    height -= height.amin(dim=(1, 2), keepdim=True)
    return (height / height.amax(dim=(1, 2), keepdim=True)).unsqueeze(1)
