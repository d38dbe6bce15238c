"""Noise of the sensor: Gaussian, shot and impulse."""

from __future__ import annotations

import functools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calattn.data.corruptions.draws import Draws
from calattn.data.corruptions.kinds import corruption


@corruption("adds normal noise of deviation σ to every value", sigma=(0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(images: Float[Tensor, "n c h w"], draws: Draws, *, sigma: float) -> Float[Tensor, "n c h w"]:
    """x + σ·N(0, 1)"""
    return images + sigma * draws.normal("noise", *images.shape[1:])


@corruption("counts photons, `photons` at full brightness", photons=(500, 250, 100, 75, 50))
def shot_noise(images: Float[Tensor, "n c h w"], draws: Draws, *, photons: int) -> Float[Tensor, "n c h w"]:
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
def impulse_noise(images: Float[Tensor, "n c h w"], draws: Draws, *, share: float) -> Float[Tensor, "n c h w"]:
    """0 with probability share / 2, 1 with probability share / 2, else x: each channel by itself."""
    chance = draws.uniform("impulse", *images.shape[1:])
    return images.masked_fill(chance < share / 2, 0.0).masked_fill(chance > 1 - share / 2, 1.0)
