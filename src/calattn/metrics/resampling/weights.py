"""Resampling weights: multinomial for samples in memory, Poisson for a long stream, block by block.

A multinomial resample of N samples needs N, and all N weights at once. Independent weights of mean 1 and variance 1 need
neither, and give the same intervals up to terms of order 1/N once sums are divided by the sum of the weights (Præstgaard and
Wellner 1993, "exchangeable bootstrap"; Poisson(1) is what a multinomial weight tends to). At the 200,000 samples and more
where these weights are used, that difference is far below the noise of the resampling itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

HELD = 1 << 21  # weights held at a time: 8 MB of float32, and a few temporaries of that size
ROWS = 4096  # samples of one block of weights: 3 MB at 200 resamples
GROUP = 8  # resamples drawn together: any range of resamples that starts at a multiple of it can be drawn alone

# How many of 2**16 equally likely numbers stand for the weights 0, 1, 2, …: Poisson(1) rounded, and moved by at most 6 so that
# the mean and the variance are exactly 1. A lookup takes 4 ns a weight, torch.poisson 37 ns.
_COUNTS = (24109, 24112, 12049, 4022, 1005, 201, 32, 5, 1)
_WEIGHT = np.repeat(np.arange(len(_COUNTS), dtype=np.float32), _COUNTS)


def weight_blocks(n: int, count: int, generator: torch.Generator, width: int | None = None) -> Iterator[Tensor]:
    """Multinomial resampling weights [b, n], `count` rows in all."""
    width = min(count, max(1, HELD // n)) if width is None else width
    for start in range(0, count, width):
        size = min(width, count - start)
        draws = torch.randint(n, (size, n), generator=generator)
        draws += torch.arange(size).unsqueeze(1) * n
        yield torch.bincount(draws.view(-1), minlength=size * n).view(size, n).float()


class PoissonWeights:
    """Weights of the resamples `first` to `last` (not included), as [samples, resamples], found again from the seed alone.

    The weight of a sample depends on the seed, on the sample's number and on the resample, on nothing else: two streams of the
    same samples see the same weights, however either is cut into blocks.
    """

    def __init__(self, seed: int, first: int, last: int) -> None:
        assert first % GROUP == 0
        self.seed, self.first, self.last = seed, first, last
        self._held: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return self.last - self.first

    def rows(self, start: int, count: int) -> Float[Tensor, "n r"]:
        """The weights of `count` samples from number `start` on, which must lie in one block of `ROWS`."""
        index, place = divmod(start, ROWS)
        assert place + count <= ROWS
        if self._held is None or self._held[0] != index:
            self._held = index, self._drawn(index)
        return self._held[1][place : place + count]

    def _drawn(self, index: int) -> Float[Tensor, "n r"]:
        weights = np.empty((ROWS, len(self)), dtype=np.float32)
        for start in range(self.first, self.last, GROUP):
            # A counter-based generator: every (block, group) has a stream of its own, at no cost of getting there.
            bits = np.random.Philox(key=[self.seed, 0], counter=[0, start // GROUP, index, 0])
            drawn = _WEIGHT.take(bits.random_raw(ROWS * GROUP // 4).view(np.uint16)).reshape(ROWS, GROUP)
            place = start - self.first
            weights[:, place : place + GROUP] = drawn[:, : len(self) - place]
        return torch.from_numpy(weights)
