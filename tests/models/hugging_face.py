"""Small configurations of the real Hugging Face classifiers, random weights, nothing downloaded."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from torch import nn

VIT = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.1,
}
_SWIN = {"image_size": 64, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
_STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
_BASIC = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}


def build(name: str, *, num_classes: int, **options: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(num_labels=num_classes, **options)
    return getattr(transformers, f"{name}ForImageClassification")(config)


# name: (options of its configuration, the layer that classifies, what that layer reads)
_FAMILIES: dict[str, tuple[dict[str, Any], str, int]] = {
    "ViT": (VIT, "classifier", 32),
    "DeiT": (VIT, "classifier", 32),
    "Beit": (VIT, "classifier", 32),
    "Dinov2": (VIT, "classifier", 64),  # class token and mean of the patches
    "Dinov2WithRegisters": (VIT, "classifier", 64),
    "Swin": (_SWIN, "classifier", 16),
    "Swinv2": (_SWIN, "classifier", 16),
    "ConvNext": (_STAGES, "classifier", 16),
    "ConvNextV2": (_STAGES, "classifier", 16),
    "ResNet": (_BASIC, "classifier.1", 16),
    "RegNet": ({**_STAGES, "embedding_size": 8, "groups_width": 8}, "classifier.1", 16),
    "MobileNetV2": ({"depth_multiplier": 0.25}, "classifier", 1280),
    "PoolFormer": (_STAGES, "classifier", 16),
}
NETWORKS = {name: (functools.partial(build, name), *rest) for name, rest in _FAMILIES.items()}
FEW = ["ViT", "Swin", "ResNet"]


def shaken(model: nn.Module) -> nn.Module:
    """The model, its head no longer the identity."""
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model
