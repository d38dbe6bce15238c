"""Lets torchvision import with a CPU-only torch.

Registry wheels of torchvision are CUDA builds. With a CPU-only torch their compiled extension cannot load, and
`import torchvision` dies with "operator torchvision::nms does not exist", taking timm and torchmetrics with it.
Declaring the two missing operator schemas first is enough: nothing in calattn calls them. Where the extension does
load, it defines the operators itself and this module does nothing.

The fix waits for the first import of torchvision, because it needs torch, which takes a second to import.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_fragments: list[torch.library.Library] = []  # a schema lives as long as its Library object


class CureFirst(MetaPathFinder):
    """Finds nothing: it is only asked first, and cures before the others look for torchvision."""

    def __init__(self) -> None:
        self._busy = threading.local()
        self._cured = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name != "torchvision" or self._cured or getattr(self._busy, "now", False):
            return
        self._busy.now = True  # the cure looks for torchvision itself
        try:
            cure()
            self._cured = True  # only now: an interrupted cure is begun again
        finally:
            self._busy.now = False


def install() -> None:
    """From now on the first `import torchvision` of the process, whoever makes it, is preceded by the cure."""
    if "torchvision" not in sys.modules and not any(type(each).__name__ == "CureFirst" for each in sys.meta_path):
        sys.meta_path.insert(0, CureFirst())


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
    import torch  # before the extension, which is linked against it

    if _fragments or _extension_loads():
        return bool(_fragments)
    fragment = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        fragment.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _fragments.append(fragment)
    return True
