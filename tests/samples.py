"""Prediction sets that the tests share, each made to be awkward in its own way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def logits_and_labels(name: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    n, c, sharpness, lift = {
        "ten_classes": (3000, 10, 2.0, 2.0),
        "many_classes": (1500, 200, 2.0, 5.0),
        "binary": (2400, 2, 1.5, 1.0),
        "overconfident": (3000, 10, 3.0, 2.0),
        "underconfident": (3000, 5, 0.3, 0.6),
    }[name]
    logits = torch.randn(n, c, generator=g, dtype=torch.float64) * sharpness
    labels = torch.randint(c, (n,), generator=g)
    logits[torch.arange(n), labels] += lift * torch.rand(n, generator=g, dtype=torch.float64)
    return logits, labels


def near(metric: dict[str, float | None], name: str, rel: float) -> dict[str, object]:
    """What a metric's row must be; without an interval its ends are None. Classwise sums are resampled in float32."""
    rel = 1e-6 if name == "classwise_ece" else rel
    return {key: value if value is None else pytest.approx(value, rel=rel) for key, value in metric.items()}


SETS = ("ten_classes", "many_classes", "binary", "overconfident", "underconfident")


def saturated(n: int = 3000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Half of the confidences exactly 1, as float32 softmax of sharp logits gives."""
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, generator=g, dtype=torch.float64) * 0.5 + 0.5
    p[: n // 2] = 1.0
    right = torch.rand(n, generator=g, dtype=torch.float64) < p * 0.95
    return torch.stack([p, 1 - p], dim=1), (~right).long()
