"""Packed ranks: the state of the rank metrics as one tensor whose shape never changes, for torchmetrics to gather and merge.

The first 2**18 columns are the odds histogram (see `ranks`), the last `SLOTS` hold samples as they are: odds, confidence, and
1 for wrong or 2 for right, 0 where a slot is free. Up to `SLOTS` samples are held exactly; beyond, all are in the histogram. A
state that grew with the samples would need none of this, but torchmetrics stacks the tensors of all processes, which takes equal
shapes, and one tensor, because samples that overflow have to reach the histogram in the same step.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.ranks import RankSums, empty_histogram

SLOTS = 1 << 16  # 1.6 MB beside the histogram's 6.3 MB; holds the 50,000 test images of ImageNet
_CELLS = empty_histogram().shape[1]


def empty_packed() -> Float[Tensor, "3 k"]:
    return torch.zeros(3, _CELLS + SLOTS, dtype=torch.float64)


def unpacked(packed: Float[Tensor, "3 k"]) -> RankSums:
    """The state in a tensor; a histogram is the tensor's own and is added to in place."""
    slots = packed[:, _CELLS:]
    samples = slots[:, slots[2] > 0]
    samples[2] -= 1
    full = samples.shape[1] == 0 and bool(packed[0, :_CELLS].any())
    return RankSums(SLOTS, samples, packed[:, :_CELLS] if full else None)


def pack(ranks: RankSums, packed: Float[Tensor, "3 k"]) -> Float[Tensor, "3 k"]:
    """Writes a state into the tensor it was unpacked from, or into an empty one."""
    slots = packed[:, _CELLS:]
    if ranks.histogram is not None:
        if ranks.histogram.data_ptr() != packed.data_ptr():
            packed[:, :_CELLS] = ranks.histogram
            slots.zero_()
        return packed
    held = ranks.samples.shape[1]
    slots[:, :held] = ranks.samples
    slots[2, :held] += 1
    return packed


def merged(stacked: Float[Tensor, "p 3 k"]) -> Float[Tensor, "3 k"]:
    """What several processes, or several batches, have seen; their order does not matter."""
    states = [unpacked(each) for each in stacked]
    return pack(functools.reduce(RankSums.merge, states), torch.zeros_like(stacked[0]))
