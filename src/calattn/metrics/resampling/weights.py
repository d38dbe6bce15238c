"""Resampling weights: how often each sample is in each of many resamples, any samples of any resamples at a time.

Few samples get multinomial weights. Many get independent Poisson weights of mean 1 and variance 1, which need no memory and give
the same intervals up to terms of order 1/N once sums are divided by the sum of the weights (Præstgaard and Wellner 1993,
"exchangeable bootstrap"; Poisson(1) is what a multinomial weight tends to).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

MOST_MULTINOMIAL = 4096  # samples (or clusters)
GROUP = 4  # resamples drawn together: any range of resamples that starts at a multiple of it can be drawn alone

# How many of 2**16 equally likely numbers stand for the weights 0, 1, 2, …: Poisson(1) rounded, and moved by at most 6 so that
# the mean and the variance are exactly 1.
COUNTS = (24109, 24112, 12049, 4022, 1005, 201, 32, 5, 1)
_STEPS = [step - 2**15 for step in itertools.accumulate(COUNTS[:-1])]  # from which signed 16-bit number on
_IN_CACHE = 1 << 17  # weights of the CPU that are made from start to end while they are in its cache


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of n samples in the resamples `first` to `last` (not included).

    A Poisson weight depends on the seed, on the sample's number and on the resample, on nothing else: streams and shards of the
    same samples see the same weights, however they are cut, and on every device. With `clusters`, the number of each sample's
    cluster, whole clusters are drawn: a sample has the weight of its cluster.
    """

    n: int
    seed: int
    first: int
    last: int
    clusters: Int[Tensor, " n"] | None = None

    def rows(self, start: int, count: int, device: torch.device | None = None) -> Float[Tensor, "n r"]:
        """Of `count` samples from number `start` on."""
        drawn = slice(start, start + count) if self.clusters is None else self.clusters[start : start + count]
        if self._table is not None:
            return self._table[drawn].to(device)
        units = torch.arange(start, start + count, device=device) if isinstance(drawn, slice) else drawn.to(device)
        return poisson(units, self.seed, self.first, self.last)

    @functools.cached_property
    def _table(self) -> Float[Tensor, "u r"] | None:
        """The weights of few samples."""
        units = self.n if self.clusters is None else int(self.clusters.max()) + 1
        if units > MOST_MULTINOMIAL:
            return None
        return multinomial(units, self.last, self.seed)[:, self.first :]


def multinomial(n: int, count: int, seed: int) -> Float[Tensor, "n r"]:
    """Weights that sum to n in each of `count` resamples."""
    draws = torch.randint(n, (count, n), generator=torch.Generator().manual_seed(seed))
    draws += torch.arange(count).unsqueeze(1) * n
    return torch.bincount(draws.view(-1), minlength=count * n).view(count, n).t().to(torch.float32)


def poisson(units: Int[Tensor, " n"], seed: int, first: int, last: int) -> Float[Tensor, "n r"]:
    """Weights of the samples with these numbers, in the resamples `first` (a multiple of `GROUP`) to `last`."""
    assert first % GROUP == 0
    groups = torch.arange(first // GROUP, -(-last // GROUP), device=units.device)
    of_group = _mixed(groups * 2 + (_signed(seed * _ODD) ^ 1))
    of_unit = _mixed(units * 2 + _signed(seed * _ODD + 0x632BE59BD9B4E019))
    out = torch.empty(len(units), GROUP * len(groups), device=units.device)
    step = len(units) if units.device.type != "cpu" else max(1, _IN_CACHE // (GROUP * len(groups)))
    for start in range(0, len(units), step):
        bits = _mixed(of_unit[start : start + step].unsqueeze(1) + of_group).view(torch.int16)
        out[start : start + step] = _counted(bits)
    return out[:, : last - first]


def _counted(bits: Int[Tensor, "n r"]) -> Num[Tensor, "n r"]:
    """The weight that each number stands for; numpy compares twice as fast as torch on the CPU."""
    if bits.device.type == "cpu":
        found, weight = bits.numpy(), np.zeros(bits.shape, np.int8)
        for step in _STEPS:
            weight += (found >= step).view(np.int8)
        return torch.from_numpy(weight)
    return torch.stack([bits >= step for step in _STEPS]).sum(dim=0, dtype=torch.float32)


_ODD = 0x9E3779B97F4A7C15


def _signed(number: int) -> int:
    """The 64 low bits, as torch's integers have them."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


def _mixed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Scrambled in place so that each of the 64 bits depends on every bit (the finalizer of SplitMix64, Steele et al. 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        high = torch.bitwise_right_shift(x, shift)
        high &= (1 << (64 - shift)) - 1  # torch shifts the sign in
        x ^= high
        if factor != 1:
            x *= _signed(factor)
    return x
