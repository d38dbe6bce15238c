"""Backbones: `create(name, num_classes)` builds ours (CIFAR, native-resolution transformers) and timm's."""

from calattn.backbones import cifar  # noqa: F401  (registers its networks)
from calattn.backbones.registry import BACKBONES, create
from calattn.backbones.transformers import FAMILIES, fitted

__all__ = ["BACKBONES", "FAMILIES", "create", "fitted"]
