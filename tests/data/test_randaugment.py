"""RandAugment: every operation against Pillow, through torchvision's own functions and ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image

from calattn.data.augment.distortions import OPERATIONS, RandAugment, blend, histogram
from calattn.data.epoch import draw_epoch

UNSIGNED = ("identity", "autocontrast", "equalize", "solarize", "posterize")

# Strengths are fractions of torchvision's ranges: m / 10 here, m / 30 with torchvision's 31 bins.
REFERENCE = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: F.autocontrast(image),
    "equalize": lambda image, _: F.equalize(image),
    "rotate": lambda image, s: F.rotate(image, 30 * s),
    "solarize": lambda image, s: F.solarize(image, 255 * (1 - s)),
    "color": lambda image, s: F.adjust_saturation(image, 1 + 0.9 * s),
    "posterize": lambda image, s: F.posterize(image, 8 - round(4 * s)),
    "contrast": lambda image, s: F.adjust_contrast(image, 1 + 0.9 * s),
    "brightness": lambda image, s: F.adjust_brightness(image, 1 + 0.9 * s),
    "sharpness": lambda image, s: F.adjust_sharpness(image, 1 + 0.9 * s),
    "shear_x": lambda image, s: F.affine(
        image, 0.0, [0, 0], 1.0, [math.degrees(math.atan(0.3 * s)), 0.0], center=[0, 0]
    ),
    "shear_y": lambda image, s: F.affine(
        image, 0.0, [0, 0], 1.0, [0.0, math.degrees(math.atan(0.3 * s))], center=[0, 0]
    ),
    "translate_x": lambda image, s: F.affine(image, 0.0, [int(150 / 331 * image.width * s), 0], 1.0, [0.0, 0.0]),
    "translate_y": lambda image, s: F.affine(image, 0.0, [0, int(150 / 331 * image.height * s)], 1.0, [0.0, 0.0]),
}

# Pillow multiplies in floating point and cuts off: a product that is a whole number in truth may fall a level short there.
# (Autocontrast most often: its brightest level is 255·span / span.)
LEVEL_OFF = ("autocontrast", "color", "contrast", "brightness", "sharpness")


def photographs(channels: int, size: tuple[int, int]) -> torch.Tensor:
    """Noise of several ranges, a smooth ramp, and constant images (no contrast to stretch, nothing to equalise)."""
    g = torch.Generator().manual_seed(0)
    wide = torch.randint(0, 256, (3, channels, *size), generator=g)
    narrow = torch.randint(90, 140, (2, channels, *size), generator=g)
    ramp = torch.linspace(20, 230, size[0] * size[1]).view(1, 1, *size).expand(1, channels, *size)
    few = torch.randint(0, 2, (1, channels, *size), generator=g) * 200
    flat = torch.full((1, channels, *size), 77)
    return torch.cat([wide, narrow, ramp.long(), few, flat]).to(torch.uint8)


def reference(name: str, images: torch.Tensor, strength: float) -> np.ndarray:
    results = []
    for image in images:
        array = image[0].numpy() if len(image) == 1 else np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        result = np.array(REFERENCE[name](Image.fromarray(array), strength))
        results.append(result[None] if result.ndim == 2 else result.transpose(2, 0, 1))
    return np.stack(results)


def code(name: str, sign: int) -> int:
    return 2 * OPERATIONS.index(name) + (sign < 0)


@pytest.mark.parametrize("size", [(32, 32), (28, 40)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("magnitude", [0.0, 3.0, 9.0, 10.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_pillows(name, magnitude, channels, size):
    images = photographs(channels, size)
    augment = RandAugment(num_ops=1, magnitude=magnitude, size=size)
    for sign in (1, -1):
        ours = augment.apply(images, torch.full((len(images),), code(name, sign))).numpy()
        strength = magnitude / 10 * (1 if name in UNSIGNED else sign)
        difference = np.abs(ours.astype(int) - reference(name, images, strength).astype(int))
        assert difference.max() <= (1 if name in LEVEL_OFF else 0), sign
        assert (difference > 0).mean() < (0.1 if name == "autocontrast" else 0.02), sign


def test_autocontrast_leaves_pillow_only_where_pillow_falls_short_of_a_whole_number():
    images = photographs(3, (32, 32))
    ours = RandAugment(num_ops=1, magnitude=9.0, size=(32, 32)).apply(
        images, torch.full((len(images),), code("autocontrast", 1))
    )
    low, high = (extreme.int() for extreme in (images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)))
    whole = (255 * (images.int() - low)) % (high - low).clamp_min(1) == 0
    off = ours.int() - torch.from_numpy(reference("autocontrast", images, 0.9)).int()
    assert set(off[whole].unique().tolist()) <= {0, 1}
    assert (off[~whole] == 0).all()


def test_each_image_its_own_operation():
    images = torch.cat([photographs(3, (32, 32))] * 4)[:28]
    augment = RandAugment(num_ops=1, magnitude=7.0, size=(32, 32))
    together = augment.apply(images, torch.arange(28))
    for i in range(28):
        assert torch.equal(together[i : i + 1], augment.apply(images[i : i + 1], torch.tensor([i]))), OPERATIONS[i // 2]


def test_operations_follow_one_another():
    images = photographs(3, (32, 32))
    augment = RandAugment(num_ops=2, magnitude=5.0, size=(32, 32))
    codes = torch.tensor([[code("rotate", 1), code("equalize", 1)]] * len(images))
    assert torch.equal(augment(images, codes), augment.apply(augment.apply(images, codes[:, 0]), codes[:, 1]))
    assert not torch.equal(augment(images, codes), augment(images, codes.flip(1)))


def test_codes_are_uniform_over_operations_and_signs():
    augment = RandAugment(num_ops=3, magnitude=9.0, size=(8, 8))
    plan = draw_epoch(28_000, seed=0, epoch=0, num_draws=augment.num_draws, derive=augment.derive)
    assert tuple(plan.draws.shape) == (28_000, 3)
    for column in plan.draws.T:
        counts = torch.bincount(column.long(), minlength=28)
        assert len(counts) == 28
        assert (counts - 1000).abs().max() < 5 * math.sqrt(1000)
    assert augment.derive(torch.tensor([[1 - 2**-24, 0.0] * 3])).tolist() == [[27.0] * 3]


def test_histogram_is_numpys():
    images = photographs(3, (9, 13))
    expected = [[np.bincount(channel.ravel(), minlength=256) for channel in image] for image in images.numpy()]
    assert np.array_equal(histogram(images).numpy(), np.array(expected))


def test_blend_is_exact_where_binary_fractions_are_not():
    assert blend(torch.tensor([0]), torch.tensor([100]), torch.tensor([18_100])).tolist() == [181]
    assert blend(torch.tensor([200]), torch.tensor([10]), torch.tensor([19_000])).tolist() == [0]


@pytest.mark.usefixtures("untyped")
def test_errors():
    with pytest.raises(ValueError, match=r"randaugment_magnitude must be in \[0, 10\] or .any., got 11"):
        RandAugment(num_ops=1, magnitude=11, size=(8, 8))
    with pytest.raises(ValueError, match="randaugment_ops must be a positive integer, got 0"):
        RandAugment(num_ops=0, magnitude=1.0, size=(8, 8))
