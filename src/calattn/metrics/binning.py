"""The only binning in the project.

Equal-width bins are `(k/m, (k+1)/m]`, and confidence 0 belongs to the first bin, so each confidence in [0, 1] has exactly
one bin and 1.0 is in the last. Edges are the correctly rounded k/m *in the precision of the confidences*: a float32 0.2
lies in (2/15, 3/15], although float32(0.2) is a hair above 1/5.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor


@functools.lru_cache(maxsize=64)
def _inner_edges(num_bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    edges = torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    return edges.to(dtype=dtype, device=device)


def bin_edges(num_bins: int) -> Float[Tensor, " edges"]:
    """The num_bins + 1 edges in float64, for plots."""
    return torch.arange(num_bins + 1, dtype=torch.float64) / num_bins


def bin_index(confidence: Float[Tensor, "..."], num_bins: int) -> Int[Tensor, "..."]:
    """Index of the bin `(k/m, (k+1)/m]` of each confidence.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.2001, 1.0]), 5).tolist()
    [0, 0, 1, 4]
    """
    return torch.bucketize(confidence, _inner_edges(num_bins, confidence.dtype, confidence.device), right=False)


def equal_count_bounds(n: int, num_bins: int) -> Int[Tensor, " edges"]:
    """Boundaries of `num_bins` runs over n sorted samples: bin k is [⌊kn/m⌋, ⌊(k+1)n/m⌋).

    Sizes differ by at most one, every sample is in exactly one bin, and with n < num_bins some bins are empty.

    >>> equal_count_bounds(7, 3).tolist()
    [0, 2, 4, 7]
    """
    return equal_count_bounds_of(torch.tensor([n]), num_bins).squeeze(0)


def equal_count_bounds_of(n: Int[Tensor, " b"], num_bins: int) -> Int[Tensor, "b edges"]:
    """The boundaries of several sets at once, one row a set."""
    return torch.arange(num_bins + 1, dtype=torch.int64) * n.unsqueeze(1) // num_bins
