"""The contact sheet: balanced, labelled, images as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from calattn import data
from calattn.data.contact_sheet import _font, balanced, contact_sheet, shortened
from tests.data.conftest import image_folder


def images(counts: list[int], side: int = 16, channels: int = 3) -> data.ArrayImages:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    array = torch.randint(256, (len(labels), channels, side, side), generator=torch.Generator().manual_seed(0))
    names = tuple(f"class {i}" for i in range(len(counts)))
    return data.ArrayImages(array=array.to(torch.uint8), labels=labels, class_names=names)


def test_classes_take_turns():
    some = images([50, 3, 50, 0])
    chosen = balanced(some, 12, seed=0)
    assert some.labels[chosen].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2, 0]
    assert len(set(chosen)) == 12
    assert balanced(some, 12, seed=0) == chosen
    assert balanced(some, 12, seed=1) != chosen
    assert sorted(balanced(some, 1000, seed=0)) == list(range(103))


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_enlarged_pixel_by_pixel(tmp_path, channels):
    """The first tile, read back from the PNG, is the first chosen image with each pixel six times as wide and high."""
    some = images([9, 9, 9], channels=channels)
    path = contact_sheet(some, tmp_path / "out" / "sheet.png", rows=2, columns=10)
    sheet = np.asarray(Image.open(path))
    first = some.array[balanced(some, 18, seed=0)[0]].permute(1, 2, 0).numpy()
    expected = np.broadcast_to(first.repeat(6, axis=0).repeat(6, axis=1), (96, 96, 3))
    np.testing.assert_array_equal(sheet[24:120, 24:120], expected)
    assert sheet.shape[1] == 24 * 2 + 9 * 106 - 10  # nine columns: a multiple of the three classes
    below = sheet[121:140, 24:120]
    assert below.min() < 100  # the label is written
    assert (sheet[:, :24] == 255).all()  # and the margin is clear


def test_title_and_soft_labels_change_the_sheet(tmp_path):
    plain = images([4, 4])
    soft = data.ArrayImages(
        array=plain.array, labels=plain.labels, class_names=plain.class_names, soft_labels=torch.full((8, 2), 0.5)
    )
    sizes = {}
    for name, some, title in (("plain", plain, None), ("soft", soft, None), ("titled", plain, "A × B")):
        sizes[name] = np.asarray(Image.open(contact_sheet(some, tmp_path / f"{name}.png", title=title)))
    assert sizes["plain"].shape == sizes["soft"].shape
    assert (sizes["plain"] != sizes["soft"]).any()
    assert sizes["titled"].shape[0] > sizes["plain"].shape[0]


def test_large_images_are_fitted(tmp_path):
    name = image_folder(tmp_path, "train/a/x.png", "train/b/x.png", size=(500, 300))
    path = contact_sheet(data.load(name, "train"), tmp_path / "sheet.png")
    assert (np.asarray(Image.open(path))[24:144, 24:144] == 0).all()


def test_long_names_are_shortened():
    font = _font(13)
    assert shortened("cat", font, 100) == "cat"
    short = shortened("a very long class name that nobody can read", font, 100)
    assert short.endswith("…")
    assert font.getlength(short) <= 100
    assert font.getmask("×").getbbox() != font.getmask("\ue000").getbbox()  # the font has the glyph


@pytest.mark.usefixtures("untyped")
def test_bad_counts(tmp_path):
    for wrong in ({"rows": 0}, {"columns": -1}, {"rows": 1.5}):
        with pytest.raises(ValueError, match="must be a positive integer"):
            contact_sheet(images([2, 2]), tmp_path / "sheet.png", **wrong)
