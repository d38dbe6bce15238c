"""Labels as class indices: from integers of any width, whole floats, booleans, or class names."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from calattn.readers.source import Values


class LabelReader:
    """Turns label blocks into int64 class indices; remembers the lowest, to tell labels that start at 1.

    `numbers_may_be_names` says that numbers among the class names are names; the first block settles it for the file.

    >>> LabelReader(2, ("cat", "dog"), 0)(np.array(["dog", "cat"]))
    tensor([1, 0])
    >>> LabelReader(2, ("-1", "1"), 0, numbers_may_be_names=True)(np.array([1, -1]))
    tensor([1, 0])
    """

    def __init__(
        self,
        num_classes: int,
        class_names: tuple[str, ...] | None,
        offset: int,
        *,
        numbers_may_be_names: bool = False,
    ) -> None:
        self._num_classes, self._names, self._offset = num_classes, class_names, offset
        self._form: Literal["text", "number", "index"] | None = None if numbers_may_be_names else "index"
        self._lowest: int | None = None

    def __call__(self, values: Values) -> Int[Tensor, " n"]:
        array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ValueError(f"labels have shape {list(array.shape)}, not [n]; save the argmax of one-hot labels")
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind == "U":
            _refuse(array == "", "labels", array, "is missing; fill it in or remove the row")
            numbers = _parsed(array)
            if numbers is None or self._named("text", array):
                return torch.from_numpy(self._from_names(array))
            array = numbers
        array = self._whole(array)
        if self._form != "index":
            names = array.astype(np.int64).astype(np.str_)
            if self._named("number", names):
                return torch.from_numpy(self._from_names(names))
            self._form = "index"
        return torch.from_numpy(self._in_range(array))

    def _named(self, form: Literal["text", "number"], names: np.ndarray) -> bool:
        """Whether labels in this form are class names: as the first block had it."""
        if self._form is None and set(np.unique(names).tolist()) <= set(self._names or ()):
            self._form = form
        return self._form == form

    def _from_names(self, array: np.ndarray) -> np.ndarray:
        if self._names is None:
            raise ValueError(f"labels are text such as {str(array[0])!r}; pass class_names=[…] in class order")
        position = {name: index for index, name in enumerate(self._names)}
        names, inverse = np.unique(array, return_inverse=True)
        indices = np.array([position.get(str(name), -1) for name in names])[inverse]
        shown = ", ".join(self._names[:5]) + ("…" if len(self._names) > 5 else "")
        _refuse(indices < 0, "labels", array, f"is not among the class names ({shown})")
        return indices.astype(np.int64)

    def _whole(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "b" and self._num_classes > 2:
            raise ValueError(f"labels are booleans, but there are {self._num_classes} classes; save class indices")
        if array.dtype.kind == "f":
            _refuse(np.isnan(array), "labels", array, "is missing; fill it in or remove the row")
            _refuse(array != np.floor(array), "labels", array, "is no whole number; save class indices")
        elif array.dtype.kind not in "iub":
            raise ValueError(f"labels are {array.dtype}; save them as integers or strings")
        return array

    def _in_range(self, array: np.ndarray) -> np.ndarray:
        lowest, highest = int(array.min()), int(array.max())
        self._lowest = lowest if self._lowest is None else min(lowest, self._lowest)
        low, high = self._offset, self._offset + self._num_classes - 1
        if lowest < low or highest > high:
            hint = self._other_hint(array, high)
            if self._offset == 0 and self._lowest == 1 and highest == self._num_classes:
                hint = "; labels look 1-based: pass label_offset=1"
            elif self._offset and lowest == 0:
                hint = "; labels look 0-based: pass label_offset=0"
            _refuse((array < low) | (array > high), "labels", array, f"is outside [{low}, {high}]{hint}")
        return array.astype(np.int64) - self._offset

    def _other_hint(self, array: np.ndarray, high: int) -> str:
        """What may be wrong with labels out of range, in the order of how often it is."""
        found = [str(int(label)) for label in np.unique(array)]
        names = json.dumps(found) if len(found) == self._num_classes <= 8 else "[…]"
        hint = f"pass class_names={names} if the numbers are names, in class order"
        if (highest := int(array.max())) <= high:
            return f"; {hint}"
        return f"; there are {self._num_classes} class columns but a label {highest}: is a column missing? Else {hint}"


def _parsed(array: np.ndarray) -> np.ndarray | None:
    """Text that is integers, or whole floats such as "3.0", as numbers; None if any entry is neither."""
    for dtype in (np.int64, np.float64):
        try:
            return array.astype(dtype)
        except ValueError:
            continue
    return None


def _refuse(bad: np.ndarray, name: str, array: np.ndarray, why: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{name}[{row}] is {array[row]!s} and {why}".replace("is  and is missing", "is missing"))
