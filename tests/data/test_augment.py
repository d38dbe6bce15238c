"""The augmentation of a batch, each step against torchvision with the same parameters."""

from __future__ import annotations

import dataclasses
import math
import zlib

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F

from calattn.data.augment.distortions import RandAugment
from calattn.data.augment.pipeline import Augment, erased_boxes
from calattn.data.epoch import draw_epoch
from calattn.data.resize import resize

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def augment(**changes: object) -> Augment:
    return Augment(channels=3, size_in=(32, 28), mean=MEAN, std=STD, num_classes=10, **changes)  # type: ignore[arg-type]


def sample(n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, 32, 28), dtype=torch.uint8, generator=g), torch.randint(
        0, 10, (n,), generator=g
    )


def draws_for(a: Augment, n: int = 64) -> torch.Tensor:
    return draw_epoch(n, seed=0, epoch=0, num_draws=a.num_draws, derive=a.derive).draws


def uniform(a: Augment, n: int = 64) -> torch.Tensor:
    return draw_epoch(n, seed=0, epoch=0, num_draws=a.num_draws).draws


def normalised(images: torch.Tensor) -> torch.Tensor:
    shift = (255 * torch.tensor(MEAN, dtype=torch.float64)).float().view(3, 1, 1)
    scale = (1 / (255 * torch.tensor(STD, dtype=torch.float64))).float().view(3, 1, 1)
    return (images.float() - shift) * scale


def test_normalising_is_torchvisions():
    images, _ = sample()
    expected = F.normalize(F.to_dtype(images, torch.float32, scale=True), MEAN, STD)
    ours = augment().test(images)
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=1e-6)
    assert torch.equal(ours, normalised(images))


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_crop_and_flip_are_torchvisions(padding, flip):
    a, (images, labels) = augment(crop=padding, flip=flip), sample()
    u = uniform(a)
    top, left = (u[:, :2] * (2 * padding + 1)).floor().int().T.tolist()
    mirrored = (u[:, 4] < 0.5).tolist()
    expected = []
    for i, image in enumerate(images):
        part = F.crop(F.pad(image, [padding] * 4, fill=0), top[i], left[i], 32, 28)
        expected.append(F.horizontal_flip(part) if flip and mirrored[i] else part)
    result, targets = a.train(images, labels, a.derive(u))
    assert torch.equal(result, normalised(torch.stack(expected)))
    assert torch.equal(targets, labels)
    if padding:
        assert set(top) == set(range(2 * padding + 1))
    assert 16 < sum(mirrored) < 48


def test_erasing_fills_boxes_with_the_mean_colour():
    a, (images, labels) = augment(erasing=0.5), sample()
    d = draws_for(a)
    expected = images.clone()
    colour = torch.tensor([round(255 * m) for m in MEAN], dtype=torch.uint8).view(3, 1, 1)
    for i, (top, left, tall, wide) in enumerate(d[:, 5:9].int().tolist()):
        expected[i, :, top : top + tall, left : left + wide] = colour
    assert torch.equal(a.train(images, labels, d)[0], normalised(expected))
    assert 16 < (d[:, 7] > 0).sum() < 48


def test_boxes_of_the_erasing():
    u = draw_epoch(20_000, seed=0, epoch=0, num_draws=5).draws
    top, left, tall, wide = erased_boxes(u, (200, 200), 0.25).double().numpy().T
    erased = tall > 0
    assert erased.mean() == pytest.approx(0.25, abs=0.02)
    assert np.array_equal(erased, wide > 0)
    assert min(top.min(), left.min()) >= 0
    assert max((top + tall).max(), (left + wide).max()) <= 200
    share, aspect = (tall * wide)[erased] / 200**2, np.log(tall[erased] / wide[erased])
    assert 0.018 < share.min() < 0.022
    assert 0.32 < share.max() < 0.335
    assert share.mean() == pytest.approx((0.02 + 0.33) / 2, abs=0.01)
    assert aspect.min() == pytest.approx(np.log(0.3), abs=0.1)
    assert aspect.max() == pytest.approx(np.log(3.3), abs=0.1)
    assert aspect.mean() == pytest.approx(np.log(0.3 * 3.3) / 2, abs=0.05)
    # The top left corner is uniform over all places where the box fits.
    assert (top / (200 - tall).clip(1))[erased].mean() == pytest.approx(0.5, abs=0.02)
    assert (erased_boxes(u, (200, 200), 0.0)[:, 2:] == 0).all()


def test_a_box_of_the_erasing_by_hand():
    """0.175 of 200 × 100 pixels, 3.3 times as high as wide: in the first corner, and in the last."""
    end = 1 - 2**-24  # the largest float32 below one
    u = torch.tensor([[0.0, 0.5, end, 0.0, 0.0], [0.0, 0.5, end, end, end]])
    tall, wide = round(math.sqrt(3500 * 3.3)), round(math.sqrt(3500 / 3.3))
    boxes = erased_boxes(u, (200, 100), 1.0).tolist()
    assert boxes == [[0, 0, tall, wide], [200 - tall, 100 - wide, tall, wide]]


def test_everything_in_its_order():
    """Crop and flip, RandAugment, erasing, resizing, normalising, mixing: composed by hand from the tested parts."""
    a = augment(
        crop=4,
        flip=True,
        randaugment_ops=2,
        randaugment_magnitude=7.0,
        erasing=0.7,
        size_out=40,
        interpolation="bicubic",
        mixup=0.8,
        cutmix=1.0,
    )
    images, labels = sample()
    d = draws_for(a)

    def steps(**only: object) -> Augment:
        return dataclasses.replace(augment(), **only)  # type: ignore[arg-type]

    def levels(step: Augment, images: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        result, _ = step.train(images, labels, numbers)
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
        return ((result * std + mean) * 255).round().to(torch.uint8)

    x = levels(steps(crop=4, flip=True), images, d)
    x = RandAugment(num_ops=2, magnitude=7.0, size=(32, 28))(x, d[:, 15:].long())
    x = levels(steps(erasing=0.7), x, d)
    x = resize(x, (40, 40), interpolation="bicubic")
    assert a._mixing is not None
    expected, targets = a._mixing(normalised(x), labels, d[:, 9:15])
    boxed = d[:, 9] == 1
    assert torch.allclose(d[boxed, 14], 1 - d[boxed, 12] * d[boxed, 13] / 40**2)  # boxes of what the network sees
    ours, ours_targets = a.train(images, labels, d)
    assert torch.equal(ours, expected)
    assert torch.equal(ours_targets, targets)
    assert ours.shape == (64, 3, 40, 40)
    assert ours_targets.shape == (64, 10)


def test_test_time_only_resizes_and_normalises():
    images, _ = sample(4)
    a = augment(crop=4, flip=True, randaugment_ops=2, erasing=1.0, mixup=1.0, size_out=48)
    assert torch.equal(a.test(images), normalised(resize(images, (48, 48))))
    assert a.size == (48, 48)


def test_an_option_leaves_the_draws_of_the_others():
    few, many = augment(crop=4, flip=True), augment(crop=4, flip=True, erasing=0.5, mixup=1.0, randaugment_ops=2)
    assert torch.equal(draws_for(few)[:, :5], draws_for(many)[:, :5])


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": (0.5,)}, "mean has 1 entries for 3 channels"),
        ({"std": (0.5, 0.0, 0.5)}, "std must be positive"),
        ({"crop": -1}, 'pixels ≥ 0 or "resized", got -1'),
        ({"crop": "centre"}, "pixels ≥ 0 or \"resized\", got 'centre'"),
        ({"erasing": 1.5}, r"erasing must be in \[0, 1\], got 1.5"),
        ({"interpolation": "nearest"}, "bilinear or bicubic, got 'nearest'"),
        ({"mixup": -0.1}, "mixup is the α"),
        ({"randaugment_ops": 1, "randaugment_magnitude": 12.0}, "got 12.0"),
    ],
)
def test_arguments_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(augment(), **changes)


@pytest.mark.usefixtures("untyped")
def test_foreign_batches_are_refused():
    images, labels = sample(2)
    with pytest.raises(ValueError, match=r"uint8 \[b, 3, 32, 28\], got torch.uint8 \[2, 3, 31, 28\]"):
        augment().train(images[:, :, 1:], labels, draws_for(augment(), 2))
    with pytest.raises(ValueError, match="must have 14 columns"):
        augment().derive(torch.zeros(2, 3))


# Made once, to be kept: a run that is resumed must see the images that it would have seen. Numbers are derived on the CPU.
CHECKSUMS = [
    ({"crop": 2, "flip": True, "erasing": 0.5}, 4207920834),
    ({"randaugment_ops": 2, "randaugment_magnitude": 7.0, "size_out": 20}, 2291958227),
    ({"randaugment_ops": 3, "randaugment_magnitude": "any"}, 2708073795),
    ({"shifts": True}, 2090713506),
]


@pytest.mark.parametrize(("options", "checksum"), CHECKSUMS)
def test_the_same_images_in_every_version(options, checksum):
    a, (images, labels) = augment(**options), sample()
    assert zlib.crc32(a.train(images, labels, draws_for(a))[0].numpy().tobytes()) == checksum
