"""A frosted window pane, computed: ferns of ice whose directions change from patch to patch."""

from __future__ import annotations

import functools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

SIDE = 512
_SEED = 20190327
_DIRECTIONS = 8
_PATCHES = 320
_TINT = (0.72, 0.87, 1.0)  # ice is a little blue


@functools.lru_cache(maxsize=1)
def frost_texture() -> Float[Tensor, "3 side side"]:
    """The pane [3, 512, 512] in [0, 1], periodic in both directions; the same on every call and for every seed of `corrupt`."""
    random = np.random.Generator(np.random.Philox(_SEED))
    needles = np.stack([_needles(random, np.pi * k / _DIRECTIONS) for k in range(_DIRECTIONS)])
    nearest, edge = _patches(random)
    direction = random.integers(_DIRECTIONS, size=_PATCHES)
    ferns = np.take_along_axis(needles, direction[nearest][None], axis=0)[0]
    thickness = _unit(_smooth(random, 14.0, 14.0, 0.0))
    grains = _unit(_smooth(random, 0.7, 0.7, 0.0))
    ice = (0.10 + 1.1 * thickness) * (0.35 + 0.9 * ferns) + 0.2 * np.exp(-edge) + 0.3 * (grains - 0.5)
    grey = np.clip(ice, 0, 1)[None]
    tint = np.array(_TINT)[:, None, None]
    return torch.from_numpy(grey * (tint + (1 - tint) * grey**2))  # the thickest ice is white


def _needles(random: np.random.Generator, angle: float) -> np.ndarray:
    """Bright ridges along one direction: one minus the size of elongated noise, sharpened."""
    noise = _smooth(random, 9.0, 1.3, angle)
    return (1 - np.minimum(np.abs(noise) / 1.2, 1)) ** 1.5


def _smooth(random: np.random.Generator, along: float, across: float, angle: float) -> np.ndarray:
    """Normal noise of variance 1 under a periodic Gaussian filter with these widths in pixels."""
    fy, fx = np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE), indexing="ij")
    u, v = fx * np.cos(angle) + fy * np.sin(angle), fy * np.cos(angle) - fx * np.sin(angle)
    response = np.exp(-2 * np.pi**2 * ((along * u) ** 2 + (across * v) ** 2))
    noise = np.fft.ifft2(np.fft.fft2(random.standard_normal((SIDE, SIDE))) * response).real
    return noise / noise.std()


def _patches(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The nearest of some scattered points for each pixel (on the torus), and how much farther the next nearest is."""
    from scipy.spatial import cKDTree

    tree = cKDTree(random.uniform(0, SIDE, (_PATCHES, 2)), boxsize=SIDE)
    bent = [pixel + 5 * _smooth(random, 7.0, 7.0, 0.0) for pixel in np.indices((SIDE, SIDE))]  # no straight borders
    distance, index = tree.query(np.stack(bent, axis=-1) % SIDE, k=2)
    return index[..., 0], distance[..., 1] - distance[..., 0]


def _unit(noise: np.ndarray) -> np.ndarray:
    """Noise of variance 1 to [0, 1], two deviations either way."""
    return np.clip(0.5 + noise / 4, 0, 1)
