"""Samples gathered by rank: a few thousand cells of about equally many, for resamples of more samples than can be sorted.

Within a cell, samples count as tied and have the cell's mean confidence. Both move a replicate by less than a cell's share of
the samples, 1/4096, and all replicates alike, so that the interval, which is moved onto the value, does not see it.
"""

from __future__ import annotations

import dataclasses
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.metrics.ranks import RankSums, odds_key

CELLS = 4096


@dataclasses.dataclass(frozen=True)
class RankCells:
    """Which cell an odds key belongs to, most confident first, and the mean confidence of every cell."""

    cell_of: Int[Tensor, " k"]
    confidence: Float[Tensor, " g"]

    @classmethod
    def of(cls, ranks: RankSums, most: int = CELLS) -> Self:
        """At most `most` cells that hold about equally many of the samples; a key with many of them is a cell by itself."""
        count, confidence, _ = ranks.by_key().cpu()
        middle = count.cumsum(0) - count / 2
        place = (middle * (most / count.sum())).long().clamp_(max=most - 1)
        # Keys that no sample has take the cell before them.
        used, inverse = place[count > 0].unique_consecutive(return_inverse=True)
        cell_of = inverse[((count > 0).cumsum(0) - 1).clamp_min_(0)]
        mass = torch.zeros(len(used), dtype=torch.float64).index_add_(0, cell_of, count)
        total = torch.zeros(len(used), dtype=torch.float64).index_add_(0, cell_of, confidence)
        return cls(cell_of, total / mass)

    def __len__(self) -> int:
        return len(self.confidence)

    def index(self, odds: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        return self.cell_of[odds_key(odds)]
