"""Resampling weights: how often each sample is in each of many resamples, a block of samples at a time.

Few samples get multinomial weights. Many get independent Poisson weights of mean 1 and variance 1, which need no memory and give
the same intervals up to terms of order 1/N once sums are divided by the sum of the weights (Præstgaard and Wellner 1993,
"exchangeable bootstrap"; Poisson(1) is what a multinomial weight tends to).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

ROWS = 4096  # samples of one block of weights, and the most that get multinomial ones
GROUP = 8  # resamples drawn together: any range of resamples that starts at a multiple of it can be drawn alone

# How many of 2**16 equally likely numbers stand for the weights 0, 1, 2, …: Poisson(1) rounded, and moved by at most 6 so that
# the mean and the variance are exactly 1. A lookup takes 4 ns a weight, torch.poisson 37 ns.
_COUNTS = (24109, 24112, 12049, 4022, 1005, 201, 32, 5, 1)
_WEIGHT = np.repeat(np.arange(len(_COUNTS), dtype=np.float32), _COUNTS)


class Weights(Protocol):
    """The weights of some resamples."""

    def __len__(self) -> int: ...

    def rows(self, start: int, count: int) -> Float[Tensor, "n r"]:
        """Of `count` samples from number `start` on, which must lie in one block of `ROWS`."""


def weights_of(
    n: int, count: int, seed: int, width: int, clusters: Int[Tensor, " n"] | None = None
) -> Iterator[Weights]:
    """Weights of n samples in `count` resamples, `width` (a multiple of `GROUP`) resamples at a time.

    With `clusters`, the number of each sample's cluster, whole clusters are drawn: a sample has the weight of its cluster.
    """
    generator = torch.Generator().manual_seed(seed)
    units = n if clusters is None else int(clusters.max()) + 1
    for first in range(0, count, width):
        last = min(count, first + width)
        few = units <= ROWS
        drawn = HeldWeights(multinomial(units, last - first, generator)) if few else PoissonWeights(seed, first, last)
        if clusters is None:
            yield drawn
        else:
            parts = [drawn.rows(start, min(ROWS, units - start)) for start in range(0, units, ROWS)]
            yield HeldWeights(torch.cat(parts), clusters)


def multinomial(n: int, count: int, generator: torch.Generator) -> Float[Tensor, "n r"]:
    """Weights that sum to n in each of `count` resamples."""
    draws = torch.randint(n, (count, n), generator=generator)
    draws += torch.arange(count).unsqueeze(1) * n
    return torch.bincount(draws.view(-1), minlength=count * n).view(count, n).t().to(torch.float32)


class HeldWeights:
    """Weights in memory, of each sample or of the cluster that it is in."""

    def __init__(self, table: Float[Tensor, "u r"], clusters: Int[Tensor, " n"] | None = None) -> None:
        self.table, self.clusters = table, clusters

    def __len__(self) -> int:
        return self.table.shape[1]

    def rows(self, start: int, count: int) -> Float[Tensor, "n r"]:
        rows = slice(start, start + count)
        return self.table[rows] if self.clusters is None else self.table[self.clusters[rows]]


class PoissonWeights:
    """Weights of the resamples `first` to `last` (not included), found again from the seed alone.

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
