"""The one binning, at 0, at 1 and at every boundary."""

import pytest
import torch

from calattn.metrics.binning import bin_edges, bin_index, equal_count_bounds


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_bins", [1, 2, 3, 7, 10, 15, 20, 49, 100])
def test_boundaries_belong_to_the_bin_below(num_bins, dtype):
    for k in range(1, num_bins + 1):
        edge = torch.tensor([k / num_bins], dtype=dtype)
        above = torch.nextafter(edge, torch.tensor([2.0], dtype=dtype))
        below = torch.nextafter(edge, torch.tensor([-1.0], dtype=dtype))
        assert bin_index(edge, num_bins).item() == k - 1
        assert bin_index(below, num_bins).item() == k - 1
        if k < num_bins:
            assert bin_index(above, num_bins).item() == k


def test_zero_is_in_the_first_bin_and_one_in_the_last():
    ends = torch.tensor([0.0, 1.0])
    for num_bins in (1, 2, 15):
        assert bin_index(ends, num_bins).tolist() == [0, num_bins - 1]


def test_edges():
    assert bin_edges(4).tolist() == [0, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize(("n", "num_bins"), [(0, 3), (1, 15), (14, 15), (15, 15), (17, 5), (1000, 7)])
def test_equal_counts_cover_everything_and_differ_by_at_most_one(n, num_bins):
    sizes = equal_count_bounds(n, num_bins).diff()
    assert int(sizes.sum()) == n
    assert int(sizes.max() - sizes.min()) <= 1
