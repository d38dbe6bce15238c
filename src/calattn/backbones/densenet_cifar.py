"""Densely connected networks in CIFAR form: DenseNet-BC behind a 3×3 stem at full resolution."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn.backbones.cifar import CifarNet
from calattn.backbones.registry import BACKBONES


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

    def __init__(
        self,
        *,
        depths: tuple[int, ...],
        growth: int,
        num_classes: int = 10,
        in_chans: int = 3,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(num_classes=num_classes, drop_rate=drop_rate)
        width = 2 * growth
        self.stem = nn.Conv2d(in_chans, width, 3, padding=1, bias=False)
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


@BACKBONES.register("densenet121_cifar")
def densenet121(**options: object) -> CifarDenseNet:
    return CifarDenseNet(depths=(6, 12, 24, 16), growth=32, **options)  # type: ignore[arg-type]
