"""Residual networks in CIFAR form: a 3×3 stem at full resolution and no max-pooling.

ResNet-110 means two networks. He et al. (2016, section 4.2) stack 54 basic blocks of 16, 32 and 64 channels:
1.7 M parameters, here `resnet110_he_cifar`. The focal-calibration protocol (Mukhoti et al., 2020), whose rows
the paper's tables continue, stacks 36 bottlenecks in the four stages of ResNet-50: 46 M, here
`resnet110_cifar`. That protocol's Wide-ResNet-26-10 applies its activations after the addition, and so is a
residual network of this file as well.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn.backbones.cifar import CifarNet, stages
from calattn.backbones.registry import BACKBONES


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut is a 1×1 projection where the shape changes, else x.

    The branch is two 3×3 convolutions (basic), or 1×1 → 3×3 → 1×1 with a quarter of the outputs inside
    (bottleneck).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            inner = outputs // 4
            layers = [
                _conv_norm(inputs, inner, 1),
                _conv_norm(inner, inner, 3, stride),
                _conv_norm(inner, outputs, 1),
            ]
        else:
            layers = [_conv_norm(inputs, outputs, 3, stride), _conv_norm(outputs, outputs, 3)]
        self.branch = nn.ModuleList(layers)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        out = x
        for layer in self.branch[:-1]:
            out = functional.relu(layer(out))
        return functional.relu(self.branch[-1](out) + self.shortcut(x))


class CifarResNet(CifarNet):
    """Stem, stages of residual blocks (each but the first starts by halving the map), pooled classifier.

    >>> net = CifarResNet(stem=16, widths=(16, 32, 64), depths=(3, 3, 3))
    >>> sum(p.numel() for p in net.parameters())  # He et al.'s ResNet-20: 0.27 M
    272474
    """

    def __init__(
        self,
        *,
        stem: int,
        widths: tuple[int, ...],
        depths: tuple[int, ...],
        bottleneck: bool = False,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes=num_classes, drop_rate=drop_rate)
        self.stem = _conv_norm(in_chans, stem, 3)
        blocks, inputs = [], stem
        for width, stride in stages(widths, depths):
            blocks.append(Residual(inputs, width, stride, bottleneck=bottleneck))
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.finish(inputs)

    def forward_features(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        return self.blocks(functional.relu(self.stem(x)))


_BOTTLENECK_WIDTHS = (256, 512, 1024, 2048)


@BACKBONES.register("resnet50_cifar")
def resnet50(**options: object) -> CifarResNet:
    return CifarResNet(stem=64, widths=_BOTTLENECK_WIDTHS, depths=(3, 4, 6, 3), bottleneck=True, **options)  # type: ignore[arg-type]


@BACKBONES.register("resnet110_cifar")
def resnet110(**options: object) -> CifarResNet:
    return CifarResNet(stem=64, widths=_BOTTLENECK_WIDTHS, depths=(3, 4, 26, 3), bottleneck=True, **options)  # type: ignore[arg-type]


@BACKBONES.register("resnet110_he_cifar")
def resnet110_he(**options: object) -> CifarResNet:
    return CifarResNet(stem=16, widths=(16, 32, 64), depths=(18, 18, 18), **options)  # type: ignore[arg-type]


@BACKBONES.register("resnet8_cifar")
def resnet8(**options: object) -> CifarResNet:
    """One block a stage: for examples and tests."""
    return CifarResNet(stem=16, widths=(16, 32, 64), depths=(1, 1, 1), **options)  # type: ignore[arg-type]


@BACKBONES.register("wide_resnet26_10_cifar")
def wide_resnet26_10(**options: object) -> CifarResNet:
    return CifarResNet(stem=16, widths=(160, 320, 640), depths=(4, 4, 4), **options)  # type: ignore[arg-type]
