"""Families: one name for every size."""

from __future__ import annotations

import pytest
import torch

from calattn.backbones import FAMILIES, create, fitted


@pytest.mark.parametrize("size", [28, 32, 64, 224])
@pytest.mark.parametrize("family", [f for f in FAMILIES if "tiny" in f])
def test_a_family_takes_images_of_the_size(family, size):
    if family.startswith("swin") and size == 28:
        with pytest.raises(ValueError, match="multiple of 32"):
            fitted(family, size)
        return
    name, options = fitted(family, size)
    network = create(
        name, num_classes=3, in_chans=1, **options, **({"depths": (1, 1, 1, 1)} if "swin" in name else {"depth": 1})
    )
    assert network(torch.zeros(1, 1, size, size)).shape == (1, 3)


def test_the_papers_networks():
    assert fitted("vit_base", 224)[0] == "vit_base_patch16_224"
    assert fitted("deit_small", 224)[0] == "deit_small_patch16_224"
    assert fitted("swin_small", 224)[0] == "swin_small_patch4_window7_224"
    assert fitted("swin_small", 32)[0] == "swin_small_patch4_window4_32"


def test_other_names_stay_as_they_are():
    assert fitted("resnet50_cifar", 32) == ("resnet50_cifar", {})


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="does not fit 30 px"):
        fitted("deit_small", 30)
