"""The random numbers of a run of images, addressed by image number and not by the order of asking."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

_NUMBERS_A_COUNTER = 8  # a step of Philox's counter gives four 64-bit words, each two numbers


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """Numbers for the images `first` … `first + count − 1` of a set.

    Every (seed, stream, purpose) is a Philox stream of its own, cut into stretches of equal length: image i has the i-th. So an
    image's numbers do not depend on which images are corrupted beside it. Numbers come from the raw bits, whose order numpy
    promises to keep, and not from its distributions, which it may change.

    >>> both, second = Draws(seed=1, stream="fog", first=0, count=2), Draws(seed=1, stream="fog", first=1, count=1)
    >>> bool((both.uniform("angle", 3)[1] == second.uniform("angle", 3)[0]).all())
    True
    """

    seed: int
    stream: str
    first: int
    count: int

    def uniform(self, purpose: str, *shape: int) -> Float[Tensor, "count ..."]:
        """Numbers in (0, 1), never the ends, as float64 [count, *shape]."""
        wanted = math.prod(shape)
        counters = -(-wanted // _NUMBERS_A_COUNTER)
        key = np.array([self.seed, _number_of(f"{self.stream}/{purpose}")], dtype=np.uint64)
        philox = np.random.Philox(key=key)
        philox.advance(self.first * counters)
        words = philox.random_raw(self.count * counters * _NUMBERS_A_COUNTER // 2)
        halves = words.astype("<u8", copy=False).view("<u4").reshape(self.count, -1)[:, :wanted]
        return torch.from_numpy((halves + 0.5) * 2.0**-32).reshape(self.count, *shape)

    def between(self, low: float, high: float, purpose: str, *shape: int) -> Float[Tensor, "count ..."]:
        return low + (high - low) * self.uniform(purpose, *shape)

    def normal(self, purpose: str, *shape: int) -> Float[Tensor, "count ..."]:
        """Standard normal numbers, by the inverse of the distribution function: one uniform number each."""
        return torch.from_numpy(ndtri(self.uniform(purpose, *shape).numpy()))

    def whole(self, below: int, purpose: str, *shape: int) -> Tensor:
        """Integers in [0, below)."""
        return (self.uniform(purpose, *shape) * below).long()


def _number_of(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
