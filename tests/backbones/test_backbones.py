"""Backbones: published parameter counts, timm's contract, native resolutions, helpful errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from calattn.backbones import BACKBONES, create
from calattn.backbones.cifar import CifarDenseNet, CifarResNet, WideResNet
from calattn.models.attach import attach

# Parameters for 10 and 100 classes. ResNet-50, WRN-28-10 and DenseNet-121 are the counts in circulation for these CIFAR
# networks; resnet110_he is He et al.'s 1.7 M (with projection shortcuts). ResNet-110 and WRN-26-10 follow from the
# focal-calibration protocol's definitions; no count was published for them.
COUNTS = {
    "resnet50_cifar": (23_520_842, 23_705_252),
    "resnet110_cifar": (45_864_522, 46_048_932),
    "resnet110_he_cifar": (1_730_714, 1_736_564),
    "resnet8_cifar": (78_042, 83_892),
    "wide_resnet26_10_cifar": (36_481_434, 36_539_124),
    "wide_resnet28_10_cifar": (36_479_194, 36_536_884),
    "densenet121_cifar": (6_956_298, 7_048_548),
}
TINY = {  # the same classes, small enough to run
    "basic": lambda **options: CifarResNet(stem=8, widths=(8, 16), depths=(1, 2), **options),
    "bottleneck": lambda **options: CifarResNet(stem=8, widths=(16, 32), depths=(1, 2), bottleneck=True, **options),
    "wide": lambda **options: WideResNet(depth=10, width=1, **options),
    "dense": lambda **options: CifarDenseNet(depths=(2, 2), growth=4, **options),
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("column", [0, 1])
def test_parameter_counts(name: str, column: int) -> None:
    with torch.device("meta"):
        assert count(create(name, num_classes=(10, 100)[column])) == COUNTS[name][column]


def test_every_cifar_network_is_counted() -> None:
    assert {name for name in BACKBONES if name.endswith("_cifar")} == set(COUNTS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50_cifar", (2048, 4)),
        ("resnet110_cifar", (2048, 4)),
        ("resnet110_he_cifar", (64, 8)),
        ("wide_resnet26_10_cifar", (640, 8)),
        ("wide_resnet28_10_cifar", (640, 8)),
        ("densenet121_cifar", (1024, 4)),
    ],
)
def test_feature_maps(name: str, expected: tuple[int, int]) -> None:
    """A 3×3 stem and no pooling: the last map of a 32 px image is 4 (four stages) or 8 (three stages) wide."""
    with torch.device("meta"):
        net = create(name, num_classes=10)
        maps = net.forward_features(torch.empty(2, 3, 32, 32))
    assert maps.shape == (2, expected[0], expected[1], expected[1])
    assert net.num_features == expected[0]


@pytest.mark.parametrize("key", TINY)
def test_timm_contract(key: str) -> None:
    torch.manual_seed(0)
    net = TINY[key](num_classes=7, in_chans=1).eval()
    images = torch.randn(2, 1, 16, 16)
    maps = net.forward_features(images)
    pooled = net.forward_head(maps, pre_logits=True)
    torch.testing.assert_close(pooled, maps.mean((2, 3)))
    assert torch.equal(net(images), net.get_classifier()(pooled))
    assert (net.num_classes, net.drop_rate, pooled.shape) == (7, 0.0, (2, net.num_features))
    assert torch.equal(attach(net)(images), net(images))
    net.reset_classifier(3)
    assert net(images).shape == (2, 3)
    net.reset_classifier(0)
    assert torch.equal(net(images), pooled)


@pytest.mark.parametrize("key", TINY)
def test_every_parameter_learns(key: str) -> None:
    torch.manual_seed(0)
    net = TINY[key](num_classes=7)
    nn.functional.cross_entropy(net(torch.randn(8, 3, 16, 16)), torch.arange(8) % 7).backward()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_residual_adds_its_input() -> None:
    """With the last normalisation at zero a block is relu(x), and a pre-activation block is x itself."""
    x = torch.randn(2, 8, 4, 4)
    block = CifarResNet(stem=8, widths=(8,), depths=(1,)).blocks[0].eval()
    nn.init.zeros_(block.branch[-1][1].weight)
    assert torch.equal(block(x), x.relu())
    wide = WideResNet(depth=16, width=1).blocks[1].eval()
    nn.init.zeros_(wide.conv2.weight)
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(wide(x), x)


def test_dense_block_keeps_what_came_before() -> None:
    net = CifarDenseNet(depths=(3,), growth=4).eval()
    x = torch.randn(2, 8, 4, 4)
    out = net.body[0](x)
    assert out.shape == (2, 8 + 3 * 4, 4, 4)
    assert torch.equal(out[:, :8], x)


def test_kaiming_initialisation() -> None:
    """Fan-out: the variance is 2 / (outputs · kernel area), here far from the fan-in's 2 / (3 · 9)."""
    torch.manual_seed(0)
    conv = CifarResNet(stem=64, widths=(64,), depths=(1,)).stem[0]
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.06)


def test_head_dropout() -> None:
    torch.manual_seed(0)
    net = CifarResNet(stem=8, widths=(8,), depths=(1,), drop_rate=0.5)
    pooled = net.forward_head(torch.ones(4, 8, 2, 2), pre_logits=True)
    assert set(pooled.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(net.eval().forward_head(torch.ones(4, 8, 2, 2), pre_logits=True), torch.ones(4, 8))


NATIVE = [name for name in BACKBONES if not name.endswith("_cifar")]


@pytest.mark.parametrize("name", NATIVE)
def test_native_resolution(name: str) -> None:
    """The name tells the truth: patch size, window and image size, and gradients need no resizing."""
    pixels = int(name.rsplit("_", 1)[1])
    patch = int(name.split("patch")[1].split("_")[0])
    with torch.device("meta"):
        net = create(name, num_classes=10, in_chans=1)
        assert net(torch.empty(2, 1, pixels, pixels)).shape == (2, 10)
    assert net.patch_embed.grid_size == (pixels // patch, pixels // patch)
    widths = {"nano": 32, "tiny": 192, "small": 384, "base": 768}
    if not name.startswith(("swin", "vit_micro")):
        assert net.num_features == widths[name.split("_")[1]]


def test_fused_windows_compute_what_timm_computes() -> None:
    import timm

    options = {"num_classes": 5, "img_size": 32, "patch_size": 4, "window_size": 4}
    options |= {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    plain = timm.create_model("swin_tiny_patch4_window7_224", **options)
    assert not plain.layers[0].blocks[0].attn.fused_attn, "timm fuses by default now: fuse_window_attention can go"
    ours = create("swin_tiny_patch4_window7_224", **options)
    assert all(block.attn.fused_attn for layer in ours.layers for block in layer.blocks)
    ours.load_state_dict(plain.state_dict())
    for parameters in zip(plain.parameters(), ours.parameters(), strict=True):  # rough biases: a lost one would show
        if parameters[0].ndim == 2 and parameters[0].shape[0] == 49:
            for table in parameters:
                table.data.copy_(torch.linspace(-2, 2, table.numel()).view_as(table))
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = [network.eval()(images) for network in (plain, ours)]
    torch.testing.assert_close(found[1], found[0])
    for logits in found:
        logits.square().sum().backward()
    for (name, one), (_, two) in zip(plain.named_parameters(), ours.named_parameters(), strict=True):
        torch.testing.assert_close(
            two.grad, one.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_native_names() -> None:
    sizes = ("tiny", "small", "base")
    vit = {
        f"{family}_{size}_{tail}" for family in ("vit", "deit") for size in sizes for tail in ("patch4_32", "patch8_64")
    }
    tails = ("patch4_window4_32", "patch2_window4_32", "patch4_window4_64")
    swin = {f"swin_{size}_{tail}" for size in sizes for tail in tails}
    assert set(NATIVE) == vit | swin | {
        "vit_nano_patch8_32",
        "vit_micro_patch2_8",
        "vit_micro_patch7_28",
        "swin_nano_patch4_window4_32",
    }


def test_paper_names_fall_through_to_timm() -> None:
    for name, parameters in (
        ("vit_base_patch16_224", 85_806_346),
        ("deit_small_patch16_224", 21_669_514),
        ("swin_small_patch4_window7_224", 48_844_948),
    ):
        with torch.device("meta"):
            assert count(create(name, num_classes=10)) == parameters


def test_options_reach_timm_and_win_over_the_preset() -> None:
    net = create("vit_nano_patch8_32", num_classes=4, depth=1, global_pool="avg")
    assert (len(net.blocks), net.global_pool, net.num_classes) == (1, "avg", 4)


def test_unknown_names_list_near_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown backbone 'vit_base_patch16_242'.*vit_base_patch16_224"):
        create("vit_base_patch16_242", num_classes=10)
    with pytest.raises(ValueError, match=r"resnet50_cifr.*did you mean resnet50_cifar"):
        create("resnet50_cifr", num_classes=10)
    with pytest.raises(ValueError, match=r"our own are deit_base_patch4_32"):
        create("§§§", num_classes=10)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="depth must be 6n"):
        WideResNet(depth=26, width=1)
    with pytest.raises(ValueError, match="drop_rate"):
        WideResNet(depth=10, width=1, drop_rate=1.0)
    with pytest.raises(ValueError, match="same stages"):
        CifarResNet(stem=8, widths=(8, 16), depths=(1,))


def test_timm_is_imported_only_where_needed() -> None:
    code = (
        "import sys, calattn, calattn.backbones\n"
        "calattn.attach(calattn.backbones.create('resnet8_cifar', 10))\n"
        "sys.exit('timm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
