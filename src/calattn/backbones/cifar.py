"""What the CIFAR networks share: timm's contract around a convolutional body."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from calattn import checks


class CifarNet(nn.Module):
    """A body that gives feature maps, global average pooling, and one linear classifier.

    A subclass builds its layers, calls `finish`, and says how `forward_features` goes. `drop_rate` is dropout
    on the pooled features, as in timm.
    """

    def __init__(self, *, num_classes: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= drop_rate < 1.0:
            raise ValueError(f"drop_rate must be in [0, 1), got {drop_rate!r}")
        self.num_classes = num_classes
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
