"""Backbones: `create(name, num_classes)` builds ours (CIFAR, native-resolution transformers) and timm's."""

from calattn.backbones import densenet_cifar, native, resnet_cifar, wide_resnet  # noqa: F401  (they register themselves)
from calattn.backbones.families import FAMILIES, fitted
from calattn.backbones.registry import BACKBONES, create

__all__ = ["BACKBONES", "FAMILIES", "create", "fitted"]
