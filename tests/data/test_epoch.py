"""The plan of an epoch: a function of (seed, epoch), column by column."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from calattn.data.epoch import draw_epoch, epoch_seed


def test_same_seed_and_epoch_same_plan_whatever_the_global_generator():
    torch.manual_seed(1)
    first = draw_epoch(100, seed=3, epoch=7, num_draws=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = draw_epoch(100, seed=3, epoch=7, num_draws=5)
    assert torch.equal(first.order, second.order)
    assert torch.equal(first.draws, second.draws)
    assert torch.equal(state, torch.get_rng_state())
    assert len(first) == 100


@pytest.mark.parametrize("other", [{"seed": 4, "epoch": 7}, {"seed": 3, "epoch": 8}, {"seed": 7, "epoch": 3}])
def test_another_seed_or_epoch_is_another_plan(other):
    first, second = draw_epoch(100, seed=3, epoch=7, num_draws=5), draw_epoch(100, num_draws=5, **other)
    assert not torch.equal(first.order, second.order)
    assert not (first.draws == second.draws).any(dim=0).all()


def test_order_is_a_permutation_and_draws_are_uniform():
    plan = draw_epoch(20_000, seed=0, epoch=0, num_draws=3)
    assert np.array_equal(np.sort(plan.order), np.arange(20_000))
    assert plan.order.dtype == torch.int64
    assert plan.draws.dtype == torch.float32
    for column in plan.draws.T:
        assert 0 <= column.min() <= column.max() < 1
        assert scipy.stats.kstest(column.numpy(), "uniform").pvalue > 1e-3


def test_more_columns_leave_the_first_as_they_were():
    few, many = draw_epoch(50, seed=0, epoch=1, num_draws=2), draw_epoch(50, seed=0, epoch=1, num_draws=9)
    assert torch.equal(few.order, many.order)
    assert torch.equal(few.draws, many.draws[:, :2])


def test_derive_sees_the_uniform_numbers():
    raw = draw_epoch(10, seed=0, epoch=0, num_draws=4)
    derived = draw_epoch(10, seed=0, epoch=0, num_draws=4, derive=lambda draws: draws[:, :2] * 10)
    assert torch.equal(derived.draws, raw.draws[:, :2] * 10)


def test_pinned_on_every_machine():
    """The stream behind saved runs: a change here changes every run."""
    plan = draw_epoch(6, seed=0, epoch=0, num_draws=1)
    assert epoch_seed(0, 0) == 1262522203071683378
    assert plan.order.tolist() == [4, 2, 5, 1, 0, 3]
    assert (plan.draws[:2, 0] * 2**24).int().tolist() == [12204731, 16471267]


@pytest.mark.usefixtures("untyped")
def test_nothing_to_plan():
    with pytest.raises(ValueError, match="n must be a positive integer, got 0"):
        draw_epoch(0, seed=0, epoch=0, num_draws=1)
