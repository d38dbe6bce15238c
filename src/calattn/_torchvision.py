"""Lets torchvision import beside a CPU-only torch.

Registry wheels of torchvision are CUDA builds. Beside a CPU-only torch their compiled extension cannot load, and
`import torchvision` dies with "operator torchvision::nms does not exist", taking timm and torchmetrics with it.
Declaring the two missing operator schemas first is enough: nothing in calattn calls them. Where the extension does
load, it defines the operators itself and this module does nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import torch

_fragments: list[torch.library.Library] = []  # a schema lives as long as its Library object


def _extension_loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # no torchvision: nothing to cure
    for extension in Path(spec.origin).parent.glob("_C*.*"):
        if extension.suffix not in {".so", ".pyd", ".dylib"}:
            continue
        try:
            ctypes.CDLL(str(extension))
        except OSError:
            return False
        return True
    return False


def cure() -> bool:
    """Declares the operators if torchvision's extension cannot; returns whether it had to."""
    if _fragments or _extension_loads():
        return bool(_fragments)
    fragment = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _fragments.append(fragment)
    return True


cure()
