"""Wide residual networks as published (Zagoruyko and Komodakis, 2016): activations come before convolutions.

WRN-28-10 has (28 − 4) / 6 = 4 blocks a stage. The focal-calibration protocol's WRN-26-10 has 4 as well: it
counts without the shortcuts, and activates after the addition. It is in `resnet_cifar.py`.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn.backbones.cifar import CifarNet, stages
from calattn.backbones.registry import BACKBONES


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
    """WRN-depth-width: three stages of (depth − 4) / 6 pre-activation blocks, 16, 32 and 64 × width channels.

    >>> sum(p.numel() for p in WideResNet(depth=16, width=1).parameters())  # published: 0.2 M
    175066
    """

    def __init__(
        self, *, depth: int, width: int, num_classes: int = 10, in_chans: int = 3, drop_rate: float = 0.0
    ) -> None:
        super().__init__(num_classes=num_classes, drop_rate=drop_rate)
        per_stage, rest = divmod(depth - 4, 6)
        if rest or per_stage < 1:
            raise ValueError(f"depth must be 6n + 4 with n ≥ 1, got {depth}")
        self.stem = _conv3(in_chans, 16)
        blocks, inputs = [], 16
        for outputs, stride in stages((16 * width, 32 * width, 64 * width), (per_stage,) * 3):
            blocks.append(PreActivation(inputs, outputs, stride))
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.finish(inputs)

    def forward_features(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        return functional.relu(self.norm(self.blocks(self.stem(x))))


@BACKBONES.register("wide_resnet28_10_cifar")
def wide_resnet28_10(**options: object) -> WideResNet:
    return WideResNet(depth=28, width=10, **options)  # type: ignore[arg-type]
