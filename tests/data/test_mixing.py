"""Mixup and cutmix: hand-computed mixtures, label masses, and the distribution of λ."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from calattn.data.augment.mixing import Mixing, partner, soft_labels
from calattn.data.epoch import draw_epoch


def mixing(mixup: float = 0.0, cutmix: float = 0.0, size: tuple[int, int] = (8, 6), num_classes: int = 4) -> Mixing:
    return Mixing(mixup=mixup, cutmix=cutmix, size=size, num_classes=num_classes)


def derived(mixer: Mixing, n: int) -> torch.Tensor:
    return draw_epoch(n, seed=0, epoch=0, num_draws=mixer.num_draws, derive=mixer.derive).draws


def test_mixup_by_hand():
    images = torch.tensor([1.0, 5.0, 10.0, -2.0]).view(4, 1, 1, 1).expand(4, 1, 8, 6)
    numbers = torch.tensor([[0.75, 0, 0, 0, 0, 0.75]] * 2 + [[0.5, 0, 0, 0, 0, 0.5]] * 2)
    mixed, targets = mixing(mixup=1.0)(images, torch.tensor([0, 3, 2, 2]), numbers)
    assert mixed[:, 0, 0, 0].tolist() == [2.0, 4.0, 4.0, 4.0]
    assert targets.tolist() == [[0.75, 0, 0, 0.25], [0.25, 0, 0, 0.75], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert targets.dtype == torch.float32


def test_cutmix_by_hand():
    images = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 3, 8, 6)
    numbers = torch.tensor([[1.0, 2, 1, 4, 3, 0.75]] * 2)
    mixed, targets = mixing(cutmix=1.0)(images, torch.tensor([1, 0]), numbers)
    expected = np.zeros((8, 6))
    expected[2:6, 1:4] = 1
    assert np.array_equal(mixed[0, 2].numpy(), expected)
    assert np.array_equal(mixed[1, 0].numpy(), 1 - expected)
    assert targets.tolist() == [[0.25, 0.75, 0, 0], [0.75, 0.25, 0, 0]]


def test_soft_labels_are_mixed_too():
    soft = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.25, 0.75]])
    numbers = torch.tensor([[0.5, 0, 0, 0, 0, 0.5]] * 2)
    _, targets = mixing(mixup=1.0)(torch.zeros(2, 1, 8, 6), soft, numbers)
    assert targets.tolist() == [[0.25, 0.25, 0.125, 0.375]] * 2


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 4.0])
def test_mixup_weights_are_beta_distributed(alpha):
    numbers = derived(mixing(mixup=alpha), 20_000)
    assert torch.equal(numbers[0::2], numbers[1::2])
    assert torch.equal(numbers[:, 0], numbers[:, 5])
    assert (numbers[:, 1:5] == 0).all()
    assert scipy.stats.kstest(numbers[0::2, 0].numpy(), scipy.stats.beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_cutmix_boxes(alpha):
    """Inside the image; λ is the share left over; the box before it is cut off has the Beta share."""
    numbers = derived(mixing(cutmix=alpha, size=(64, 48)), 20_000)
    assert torch.equal(numbers[0::2], numbers[1::2])
    assert (numbers[:, 0] == 1).all()
    top, left, tall, wide = numbers[:, 1:5].T
    assert (numbers[:, 1:5] >= 0).all()
    assert (top + tall).max() <= 64
    assert (left + wide).max() <= 48
    assert torch.allclose(numbers[:, 5], 1 - tall * wide / (64 * 48))
    whole = ((top > 0) & (top + tall < 64) & (left > 0) & (left + wide < 48))[0::2]
    share = (tall * wide / (64 * 48))[0::2][whole]
    assert 0.1 < whole.float().mean() < 0.9
    # Boxes that fit are mostly small ones: the share of area below a bound is compared where nearly every box fits.
    small = scipy.stats.beta(alpha, alpha).cdf(0.05)
    assert share.lt(0.05).float().mean() * whole.float().mean() == pytest.approx(small, rel=0.25)


def test_the_label_mass_is_what_of_the_image_is_seen():
    mixer = mixing(cutmix=1.0, size=(16, 16))
    images = torch.arange(200.0).view(-1, 1, 1, 1).expand(-1, 1, 16, 16)
    labels = torch.arange(200) % 4
    labels[1::2] = (labels[0::2] + 1) % 4
    mixed, targets = mixer(images, labels, derived(mixer, 200))
    own = (mixed == images).flatten(1).float().mean(dim=1)
    assert torch.allclose(targets[torch.arange(200), labels], own)
    assert torch.allclose(targets.sum(dim=1), torch.ones(200))
    assert len(own.unique()) > 30


def test_with_both_each_pair_takes_one():
    mixer = mixing(mixup=0.4, cutmix=1.0, size=(32, 32))
    numbers = derived(mixer, 10_000)
    boxed = numbers[:, 0] == 1
    assert torch.equal(boxed[0::2], boxed[1::2])
    assert boxed.float().mean() == pytest.approx(0.5, abs=0.03)
    assert (numbers[~boxed, 1:5] == 0).all()
    lam = numbers[~boxed, 0][0::2].numpy()
    assert scipy.stats.kstest(lam, scipy.stats.beta(0.4, 0.4).cdf).pvalue > 1e-3
    images = torch.randn(10_000, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    mixed, _ = mixer(images, torch.zeros(10_000, dtype=torch.int64), numbers)
    inside = (mixed == images) | (mixed == partner(images))
    assert inside[boxed].all()


def test_three_roundings():
    """Bit for bit what numpy gives in float32, one operation after the other."""
    g = torch.Generator().manual_seed(0)
    images = torch.randn(64, 3, 8, 6, generator=g)
    mixer = mixing(mixup=0.8)
    numbers = derived(mixer, 64)
    mixed, _ = mixer(images, torch.zeros(64, dtype=torch.int64), numbers)
    own = numbers[:, :1, None, None].numpy()
    x = images.numpy()
    assert np.array_equal(mixed.numpy(), own * x + (np.float32(1) - own) * x[np.arange(64) ^ 1])


def test_odd_epochs_leave_the_last_alone_in_the_plan():
    assert len(derived(mixing(mixup=1.0), 7)) == 7


def test_soft_labels_of_classes():
    assert soft_labels(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.usefixtures("untyped")
def test_errors():
    with pytest.raises(ValueError, match="a batch must be even, got 3 images"):
        mixing(mixup=1.0)(torch.zeros(3, 1, 8, 6), torch.zeros(3, dtype=torch.int64), torch.zeros(3, 6))
    with pytest.raises(ValueError, match=r"mixup is the α .* got -1"):
        mixing(mixup=-1)
    with pytest.raises(ValueError, match="nothing to mix"):
        mixing()
