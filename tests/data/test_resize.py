"""Resizing: Pillow is the reference, exact integer arithmetic the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from calattn.data.resize import LEVELS, resize, resize_matrix, resized_levels

CPU = torch.device("cpu")
SIZES = [((32, 32), (224, 224)), ((28, 28), (32, 32)), ((8, 8), (33, 17)), ((64, 48), (32, 32)), ((57, 91), (20, 20))]
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def pillow(image: torch.Tensor, size: tuple[int, int], interpolation: str) -> np.ndarray:
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    return np.array(Image.fromarray(array).resize(size[::-1], RESAMPLING[interpolation])).transpose(2, 0, 1)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_near_pillow(before, after, interpolation):
    """Weights of ten bits against Pillow's twenty-two: a level, and seldom; noise is the worst case.

    Bicubic weights have absolute sums up to 1.27, which can make two of a level's difference between the passes.
    """
    images = noise(4, 3, *before)
    ours = resize(images, after, interpolation=interpolation).numpy().astype(int)
    theirs = np.stack([pillow(image, after, interpolation) for image in images]).astype(int)
    difference = np.abs(ours - theirs)
    assert difference.max() <= (1 if interpolation == "bilinear" else 2)
    assert (difference > 0).mean() < 0.15
    assert (difference > 1).mean() < 1e-3


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_exact_in_integers(before, after, interpolation):
    images = noise(2, 3, *before)
    across, down = (
        (resize_matrix(a, b, interpolation, CPU).double().numpy() * LEVELS)
        for a, b in zip(before[::-1], after[::-1], strict=True)
    )
    assert np.array_equal(across, np.rint(across))
    across, down = across.astype(np.int64), down.astype(np.int64)
    levels = images.numpy().astype(np.int64)
    levels = np.clip((np.einsum("bchw,xw->bchx", levels, across) + LEVELS // 2) // LEVELS, 0, 255)
    levels = np.clip((np.einsum("bchw,yh->bcyw", levels, down) + LEVELS // 2) // LEVELS, 0, 255)
    assert np.array_equal(resize(images, after, interpolation=interpolation).numpy(), levels)
    assert np.array_equal(resized_levels(images, after, interpolation=interpolation).numpy(), levels.astype(np.float32))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("before", "after"), [(32, 224), (500, 224), (7, 7), (5, 1), (1, 9), (224, 3)])
def test_weights_fit_tf32_and_sum_to_one(before, after, interpolation):
    matrix = resize_matrix(before, after, interpolation, CPU)
    assert torch.equal(matrix.sum(dim=1), torch.ones(after))
    units = matrix * LEVELS
    assert torch.equal(units, units.round())
    assert units.abs().max() <= 2**11
    # A sum of |weight|·255 below 2**14 keeps every partial sum, a multiple of 2**-10, exact in float32.
    assert matrix.abs().sum(dim=1).max() * 255 < 2**14


def test_autocast_does_not_touch_it():
    images = noise(2, 3, 32, 32)
    plain = resize(images, (224, 224))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(resize(images, (224, 224)), plain)


def test_same_size_is_the_same_image():
    images = noise(2, 1, 9, 7)
    assert torch.equal(resize(images, (9, 7)), images)


@pytest.mark.usefixtures("untyped")
def test_errors():
    with pytest.raises(ValueError, match="bilinear, bicubic, got 'nearest'"):
        resize(noise(1, 1, 4, 4), (8, 8), interpolation="nearest")
    with pytest.raises(ValueError, match="size must be a positive integer, got 0"):
        resize(noise(1, 1, 4, 4), (8, 0))
