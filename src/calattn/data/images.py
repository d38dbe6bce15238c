"""Images with labels: one split of a data set, in memory or decoded one at a time."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from calattn import checks
from calattn.errors import InputError


class DataError(InputError):
    """Data that cannot be used; the message names the file or row and the remedy."""


class DataMissing(DataError, FileNotFoundError):
    """A data set that is not on this machine; the message is the command that gets it."""


class FilesMissing(DataMissing):
    """Raised by a reader whose files are not in the folder; `load` adds the command that gets them."""


class DamagedFile(DataError):
    """Raised by a reader whose file is cut short, corrupt or something else; `load` adds the command that fixes it."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Images(ABC):
    """One split: `labels` in [0, C), `decode(i)` gives image i as uint8 [c, h, w].

    `soft_labels`, where the data has them, are rows of probabilities; `labels` is their argmax unless the data states its own.
    `channels` is 1 or 3 for all images; `size` is (height, width) if all images have the same, else None.
    """

    labels: Int[Tensor, " n"]
    class_names: tuple[str, ...]
    soft_labels: Float[Tensor, "n k"] | None = None

    def __post_init__(self) -> None:
        n, k = len(self.labels), len(self.class_names)
        if n == 0:
            raise DataError("there are no images in this split")
        if k == 0:
            raise DataError("there are no classes in this split")
        checks.labels_for(self.labels, "labels", torch.Size((n, k)), torch.device("cpu"))
        if self.soft_labels is not None and tuple(self.soft_labels.shape) != (n, k):
            raise DataError(f"soft labels must have shape [{n}, {k}], got {list(self.soft_labels.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    @abstractmethod
    def channels(self) -> int: ...

    @property
    @abstractmethod
    def size(self) -> tuple[int, int] | None: ...

    @abstractmethod
    def decode(self, index: int) -> UInt8[Tensor, "c h w"]: ...

    @abstractmethod
    def select(self, index: Int[Tensor, " m"]) -> Self:
        """The rows named by an index tensor, in that order."""

    def _selected(self, index: Int[Tensor, " m"], **own: Any) -> Self:
        """With the labels of these rows, and `own`: the fields that hold their images."""
        soft = None if self.soft_labels is None else self.soft_labels[index]
        return dataclasses.replace(self, labels=self.labels[index], soft_labels=soft, **own)

    def open(self, index: int) -> Image.Image:
        """Image `index` as a Pillow image, in mode RGB or L."""
        return as_image(self.decode(index))

    def source(self, index: int) -> str:
        """Where image `index` is stored, for messages."""
        return f"image {index}"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ArrayImages(Images):
    """All images as one uint8 tensor [n, c, h, w].

    >>> array = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> digits = ArrayImages(array=array, labels=torch.tensor([0, 1]), class_names=("a", "b"))
    >>> len(digits), digits.channels, digits.size
    (2, 1, (8, 8))
    """

    array: UInt8[Tensor, "n c h w"]

    def __post_init__(self) -> None:
        if self.array.ndim != 4 or self.array.dtype != torch.uint8 or self.array.shape[1] not in (1, 3):
            got = f"{self.array.dtype} {list(self.array.shape)}"
            raise DataError(f"images must be uint8 [n, 1 or 3, h, w], got {got}")
        if len(self.array) != len(self.labels):
            raise DataError(f"there are {len(self.array)} images and {len(self.labels)} labels")
        super().__post_init__()

    @property
    def channels(self) -> int:
        return self.array.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        return self.array.shape[2], self.array.shape[3]

    def decode(self, index: int) -> UInt8[Tensor, "c h w"]:
        return self.array[index]

    def select(self, index: Int[Tensor, " m"]) -> Self:
        return self._selected(index, array=self.array[index])


def as_tensor(image: Image.Image) -> UInt8[Tensor, "c h w"]:
    """An RGB or L image as uint8 [3 or 1, h, w]."""
    array = torch.from_numpy(np.array(image))
    return array.unsqueeze(0) if array.ndim == 2 else array.permute(2, 0, 1).contiguous()


def as_image(tensor: UInt8[Tensor, "c h w"]) -> Image.Image:
    """The inverse of `as_tensor`."""
    array = np.ascontiguousarray(tensor.permute(1, 2, 0).numpy())
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, without waiting for the copy: from pinned memory a copy to a GPU is only queued."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
