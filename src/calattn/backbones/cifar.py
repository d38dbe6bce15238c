"""Networks in CIFAR form: a 3×3 stem at full resolution, no max-pooling, and timm's contract around the body.

ResNet-110 means two networks. He et al. (2016, section 4.2) stack 54 basic blocks of 16, 32 and 64 channels:
1.7 M parameters, here `resnet110_he_cifar`. The focal-calibration protocol (Mukhoti et al., 2020), whose rows
the paper's tables continue, stacks 36 bottlenecks in the four stages of ResNet-50: 46 M, here
`resnet110_cifar`. That protocol's Wide-ResNet-26-10 applies its activations after the addition, and so is a
`CifarResNet`. It has 4 blocks a stage, as the published WRN-28-10 has: the name counts without the shortcuts.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn import checks
from calattn.backbones.registry import BACKBONES


class CifarNet(nn.Module):
    """A body that gives feature maps, global average pooling, and one linear classifier.

    A subclass passes these options on, builds its layers, calls `finish`, and says how `forward_features` goes.
    `drop_rate` is dropout on the pooled features, as in timm.
    """

    def __init__(self, *, num_classes: int = 10, in_chans: int = 3, drop_rate: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= drop_rate < 1.0:
            raise ValueError(f"drop_rate must be in [0, 1), got {drop_rate!r}")
        self.num_classes, self.in_chans = num_classes, in_chans
        self.drop_rate = drop_rate

    def finish(self, num_features: int) -> None:
        """Adds the classifier; draws the convolutions from He's normal distribution (fan-out)."""
        self.num_features = self.head_hidden_size = num_features
        self.reset_classifier(self.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @abstractmethod
    def forward_features(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]: ...

    def forward_head(self, x: Float[Tensor, "b d h w"], pre_logits: bool = False) -> Float[Tensor, "b k"]:
        pooled = functional.dropout(x.mean(dim=(2, 3)), self.drop_rate, self.training)
        return pooled if pre_logits else self.fc(pooled)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh classifier; 0 classes leave the pooled features."""
        self.num_classes = num_classes
        self.fc: nn.Module = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()


def stages(widths: tuple[int, ...], depths: tuple[int, ...]) -> list[tuple[int, int]]:
    """(width, stride) of every block: the first block of each stage but the first halves the resolution."""
    if len(widths) != len(depths):
        raise ValueError(f"widths={widths} and depths={depths} must name the same stages")
    blocks = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for block in range(checks.positive_int(depth, f"depths[{stage}]")):
            blocks.append((width, 2 if stage > 0 and block == 0 else 1))
    return blocks


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
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.stem = _conv_norm(self.in_chans, stem, 3)
        blocks, inputs = [], stem
        for width, stride in stages(widths, depths):
            blocks.append(Residual(inputs, width, stride, bottleneck=bottleneck))
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.finish(inputs)

    def forward_features(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        return self.blocks(functional.relu(self.stem(x)))


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class PreActivation(nn.Module):
    """x + conv(relu(norm(conv(a)))) with a = relu(norm(x)).

    Where the shape changes, a 1×1 convolution of a stands for x.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv3(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv3(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        active = functional.relu(self.norm1(x))
        out = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        return out + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(CifarNet):
    """WRN-depth-width as published: three stages of (depth − 4) / 6 pre-activation blocks, 16, 32 and 64 × width channels.

    Zagoruyko and Komodakis (2016): activations come before convolutions.

    >>> sum(p.numel() for p in WideResNet(depth=16, width=1).parameters())  # published: 0.2 M
    175066
    """

    def __init__(self, *, depth: int, width: int, **options: Any) -> None:
        super().__init__(**options)
        per_stage, rest = divmod(depth - 4, 6)
        if rest or per_stage < 1:
            raise ValueError(f"depth must be 6n + 4 with n ≥ 1, got {depth}")
        self.stem = _conv3(self.in_chans, 16)
        blocks, inputs = [], 16
        for outputs, stride in stages((16 * width, 32 * width, 64 * width), (per_stage,) * 3):
            blocks.append(PreActivation(inputs, outputs, stride))
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.finish(inputs)

    def forward_features(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        return functional.relu(self.norm(self.blocks(self.stem(x))))


class NormConv(nn.Module):
    """conv(relu(norm(x))), the one unit of which a DenseNet is made."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        return self.conv(functional.relu(self.norm(x)))


class DenseBlock(nn.ModuleList):
    """Layers that each append `growth` channels to all before them, through a bottleneck of 4 × growth."""

    def __init__(self, inputs: int, depth: int, growth: int) -> None:
        super().__init__(
            nn.Sequential(NormConv(inputs + i * growth, 4 * growth, 1), NormConv(4 * growth, growth, 3))
            for i in range(depth)
        )
        self.outputs = inputs + depth * growth

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        for layer in self:
            x = torch.cat([x, layer(x)], dim=1)
        return x


class CifarDenseNet(CifarNet):
    """Dense blocks with halving transitions between them (Huang et al., 2017; compression ½).

    >>> net = CifarDenseNet(depths=(16, 16, 16), growth=12)
    >>> sum(p.numel() for p in net.parameters())  # DenseNet-BC-100, k = 12; published: 0.8 M
    769162
    """

    def __init__(self, *, depths: tuple[int, ...], growth: int, **options: Any) -> None:
        super().__init__(**options)
        width = 2 * growth
        self.stem = nn.Conv2d(self.in_chans, width, 3, padding=1, bias=False)
        body: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            if stage > 0:
                body += [NormConv(width, width // 2, 1), nn.AvgPool2d(2)]
                width //= 2
            block = DenseBlock(width, depth, growth)
            width = block.outputs
            body.append(block)
        self.body = nn.Sequential(*body)
        self.norm = nn.BatchNorm2d(width)
        self.finish(width)

    def forward_features(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        return functional.relu(self.norm(self.body(self.stem(x))))


@BACKBONES.register("resnet50_cifar")
def resnet50(**options: Any) -> CifarResNet:
    """ResNet-50 with a 3×3 stem at full resolution and no max-pooling."""
    return CifarResNet(stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 6, 3), bottleneck=True, **options)


@BACKBONES.register("resnet110_cifar")
def resnet110(**options: Any) -> CifarResNet:
    """ResNet-110 of the focal-calibration protocol: bottlenecks in the four stages of ResNet-50, 46 M parameters."""
    return CifarResNet(stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 26, 3), bottleneck=True, **options)


@BACKBONES.register("resnet110_he_cifar")
def resnet110_he(**options: Any) -> CifarResNet:
    """ResNet-110 of He et al. (2016): 54 basic blocks, 1.7 M parameters."""
    return CifarResNet(stem=16, widths=(16, 32, 64), depths=(18, 18, 18), **options)


@BACKBONES.register("resnet8_cifar")
def resnet8(**options: Any) -> CifarResNet:
    """One block a stage: for examples and tests."""
    return CifarResNet(stem=16, widths=(16, 32, 64), depths=(1, 1, 1), **options)


@BACKBONES.register("wide_resnet26_10_cifar")
def wide_resnet26_10(**options: Any) -> CifarResNet:
    """WRN-26-10 of the focal-calibration protocol: activations after the addition."""
    return CifarResNet(stem=16, widths=(160, 320, 640), depths=(4, 4, 4), **options)


@BACKBONES.register("wide_resnet28_10_cifar")
def wide_resnet28_10(**options: Any) -> WideResNet:
    """WRN-28-10 as published: activations before convolutions."""
    return WideResNet(depth=28, width=10, **options)


@BACKBONES.register("densenet121_cifar")
def densenet121(**options: Any) -> CifarDenseNet:
    """DenseNet-BC-121 behind a 3×3 stem at full resolution."""
    return CifarDenseNet(depths=(6, 12, 24, 16), growth=32, **options)
