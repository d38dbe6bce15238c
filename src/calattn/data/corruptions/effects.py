"""The fifteen corruptions, in the paper's order: noise, blur, weather, and what cameras, screens and files do."""

from __future__ import annotations

import functools
import io
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from calattn.data.corruptions.filters import Pixels, correlate, gaussian_blur, separable, smear, zoom_matrix
from calattn.data.corruptions.frost_texture import SIDE, frost_texture
from calattn.data.corruptions.kinds import Draws, corruption, to_bytes


@corruption("adds normal noise of deviation σ to every value", sigma=(0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(images: Pixels, draws: Draws, *, sigma: float) -> Pixels:
    """x + σ·N(0, 1)"""
    return images + sigma * draws.normal("noise", *images.shape[1:])


@corruption("counts photons, `photons` at full brightness", photons=(500, 250, 100, 75, 50))
def shot_noise(images: Pixels, draws: Draws, *, photons: int) -> Pixels:
    """Poisson(photons · x) / photons, by the inverse of the distribution function."""
    starts, steps = _poisson_steps(photons)
    values = (images * 255).round()
    # One search for all rates: the steps of byte b lie in (b, b + 1], and so does b + u.
    place = torch.searchsorted(steps, values + draws.uniform("photons", *images.shape[1:]))
    return (place - starts[values.long()]).double() / photons


@functools.lru_cache(maxsize=8)
def _poisson_steps(photons: int) -> tuple[Tensor, Tensor]:
    """The distribution functions of the 256 rates end to end, each raised by its byte, and (start of each − its first count)."""
    from scipy.stats import poisson  # a second to import, and every command that knows the data sets would wait for it

    starts, steps, length = [], [], 0
    for byte in range(256):
        rate = photons * byte / 255
        low, high = (int(poisson.ppf(tail, rate)) for tail in (1e-12, 1 - 1e-12)) if byte else (0, 0)
        function = poisson.cdf(np.arange(low, high), rate)  # the last step is the next byte's floor
        starts.append(length - low)
        steps.append(np.append(byte + function, byte + 1.0))
        length += len(function) + 1
    return torch.tensor(starts), torch.from_numpy(np.concatenate(steps))


@corruption("turns a share of the values black or white, equally often", share=(0.01, 0.02, 0.03, 0.05, 0.07))
def impulse_noise(images: Pixels, draws: Draws, *, share: float) -> Pixels:
    """0 with probability share / 2, 1 with probability share / 2, else x: each channel by itself."""
    chance = draws.uniform("impulse", *images.shape[1:])
    return images.masked_fill(chance < share / 2, 0.0).masked_fill(chance > 1 - share / 2, 1.0)


@corruption("blurs by a disc with softened edge", radius=(0.3, 0.4, 0.5, 1.0, 1.5), softness=(0.4, 0.5, 0.6, 0.2, 0.1))
def defocus_blur(images: Pixels, _: Draws, *, radius: float, softness: float) -> Pixels:
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
def glass_blur(images: Pixels, draws: Draws, *, sigma: float, rounds: int) -> Pixels:
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
def motion_blur(images: Pixels, draws: Draws, *, radius: int, sigma: float) -> Pixels:
    return smear(images, draws.between(-math.pi / 4, math.pi / 4, "angle"), radius=radius, sigma=sigma)


@corruption("averages enlargements by 1, 1.01, … up to `largest`", largest=(1.05, 1.10, 1.15, 1.20, 1.25))
def zoom_blur(images: Pixels, _: Draws, *, largest: float) -> Pixels:
    """The mean of the image and of its enlargements, the first of which (by 1) is the image once more."""
    total, steps = 2 * images, round(100 * (largest - 1))
    for step in range(1, steps + 1):
        rows, columns = (zoom_matrix(size, 1 + step / 100) for size in images.shape[2:])
        total = total + separable(images, rows, columns)
    return total / (steps + 2)


class Flakes(NamedTuple):
    """Normal noise, enlarged, blackened below the threshold and smeared downwards."""

    mean: float
    deviation: float
    zoom: float
    threshold: float
    radius: int
    sigma: float

    def drawn(self, draws: Draws, height: int, width: int) -> Float[Tensor, "n 1 h w"]:
        noise = self.mean + self.deviation * draws.normal("flakes", 1, height, width)
        noise = separable(noise, zoom_matrix(height, self.zoom), zoom_matrix(width, self.zoom))
        bright = torch.where(noise < self.threshold, 0.0, noise).clamp(0, 1)
        angles = draws.between(-3 * math.pi / 4, -math.pi / 4, "angle")
        return smear(bright, angles, radius=self.radius, sigma=self.sigma)


@corruption(
    "whitens the scene and lets smeared flakes fall over it",
    flakes=(
        Flakes(0.1, 0.2, 1.0, 0.6, radius=8, sigma=3.0),
        Flakes(0.1, 0.2, 1.0, 0.5, radius=10, sigma=4.0),
        Flakes(0.15, 0.3, 1.75, 0.55, radius=10, sigma=4.0),
        Flakes(0.25, 0.3, 2.25, 0.6, radius=12, sigma=6.0),
        Flakes(0.3, 0.3, 1.25, 0.65, radius=14, sigma=12.0),
    ),
    keep=(0.95, 0.90, 0.90, 0.85, 0.80),
)
def snow(images: Pixels, draws: Draws, *, flakes: Flakes, keep: float) -> Pixels:
    """keep·x + (1 − keep)·max(x, 1.5·grey + 0.5) + flakes + flakes turned by 180°."""
    falling = flakes.drawn(draws, *images.shape[2:])
    pale = torch.maximum(images, 1.5 * _grey(images) + 0.5)
    return keep * images + (1 - keep) * pale + falling + falling.flip(2, 3)


def _grey(images: Pixels) -> Float[Tensor, "n 1 h w"]:
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
def frost(images: Pixels, draws: Draws, *, keep: float, frost: float) -> Pixels:
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
def fog(images: Pixels, draws: Draws, *, density: float, decay: float) -> Pixels:
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


@corruption("raises the value of HSV", shift=(0.05, 0.10, 0.15, 0.20, 0.30))
def brightness(images: Pixels, _: Draws, *, shift: float) -> Pixels:
    """V = max(r, g, b) becomes min(V + shift, 1); hue and saturation stay, which is a common factor for r, g and b."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + shift).clamp_max(1)
    return torch.where(value > 0, images * (raised / value.clamp_min(1e-9)), raised)  # black has no hue: it turns grey


@corruption("draws the values towards their mean", factor=(0.75, 0.50, 0.40, 0.30, 0.15))
def contrast(images: Pixels, _: Draws, *, factor: float) -> Pixels:
    """(x − m)·factor + m, with m the mean of the image's channel."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return (images - mean) * factor + mean


@corruption(
    "moves three points by up to `affine`, then every pixel by smooth noise (all in parts of the side)",
    strength=(0.0, 0.05, 0.08, 0.10, 0.10),
    smoothness=(0.0, 0.20, 0.06, 0.04, 0.03),
    affine=(0.08, 0.07, 0.06, 0.05, 0.03),
)
def elastic_transform(images: Pixels, draws: Draws, *, strength: float, smoothness: float, affine: float) -> Pixels:
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


def sample(images: Pixels, points: Float[Tensor, "n h w 2"], *, about_pixels: bool) -> Pixels:
    """The images at points (x, y) in pixels, bilinear; beyond the edge mirrored about edge pixels or about their outer border."""
    size = torch.tensor([images.shape[3], images.shape[2]], dtype=torch.float64)
    span = (size - 1).clamp_min(1) if about_pixels else size
    grid = 2 * (points if about_pixels else points + 0.5) / span - 1
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=about_pixels)


@corruption("shrinks to `scale` of the side and enlarges again", scale=(0.95, 0.90, 0.85, 0.75, 0.65))
def pixelate(images: Pixels, _: Draws, *, scale: float) -> Pixels:
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
    """Each new pixel is the mean of the old ones whose centres are in its box: Pillow decides which (there are ties)."""
    from PIL import Image

    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    inside = np.asarray(unit.resize((size, new), Image.Resampling.BOX)) > 0
    return torch.from_numpy(inside / inside.sum(axis=1, keepdims=True))


@corruption("is saved as JPEG and read again", quality=(80, 65, 58, 50, 40))
def jpeg_compression(images: Pixels, _: Draws, *, quality: int) -> Pixels:
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
