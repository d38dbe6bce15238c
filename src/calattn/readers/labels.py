"""Labels as class indices: from integers of any width, whole floats, booleans, or class names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from calattn.readers.source import Values

# What other programs write where there is no label: torch's ignore_index, scikit-learn's "unlabelled", the void of a mask.
_NO_LABEL = (-100, -1, 255)


class LabelReader:
    """Turns label blocks into int64 class indices; remembers the lowest, to tell labels that start at 1.

    `numbers_may_be_names` says that numbers among the class names are names; the first block settles it for the file.
    One-hot labels are read as the class that has the one.

    >>> LabelReader(2, ("cat", "dog"), 0)(np.array(["dog", "cat"]))
    tensor([1, 0])
    >>> LabelReader(2, ("-1", "1"), 0, numbers_may_be_names=True)(np.array([1, -1]))
    tensor([1, 0])
    >>> LabelReader(3, None, 0)(np.array([[0.0, 0.0, 1.0]]))
    tensor([2])
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
            return torch.from_numpy(self._from_one_hot(array))
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

    def _from_one_hot(self, array: np.ndarray) -> np.ndarray:
        if array.ndim != 2 or array.shape[1] != self._num_classes:
            raise ValueError(f"labels have shape {list(array.shape)}, not [n], nor one-hot [n, {self._num_classes}]")
        if array.dtype.kind not in "iubf":
            raise ValueError(f"labels are {array.dtype}; save them as integers or strings")
        soft = ((array != 0) & (array != 1)).any(axis=1)
        shares = "shares of classes (soft labels) are not read" if array.dtype.kind == "f" else "so it is not one-hot"
        _refuse(soft, "labels", array, f"has other entries than 0 and 1; {shares}; save the class of each row")
        ones = (array == 1).sum(axis=1)
        _refuse(
            ones != 1,
            "labels",
            array,
            "has not exactly one 1: multi-label files are not read, because every metric here is of one true class a "
            "row; save each class as a binary problem of its own",
        )
        return array.argmax(axis=1).astype(np.int64)

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
        found = [int(label) for label in np.unique(array)]
        outside = [label for label in found if not self._offset <= label <= high]
        named = len(found) == self._num_classes <= 8
        names = json.dumps([str(label) for label in found]) if named else "[…]"
        hint = f"pass class_names={names} if the numbers are names, in class order"
        if len(outside) == 1 and outside[0] in _NO_LABEL:
            left_out = f"ignore_index={outside[0]} to leave out rows that have no label"
            # −1 may be a class of its own (−1 and 1), as −100 and 255 are not.
            return f"; {hint}, or {left_out}" if named and outside == [-1] else f"; pass {left_out}"
        if (highest := int(array.max())) <= high:
            return f"; {hint}"
        return f"; there are {self._num_classes} class columns but a label {highest}: is a column missing? Else {hint}"


def kept_rows(labels: Values, ignored: Sequence[int]) -> np.ndarray | None:
    """Positions of the rows whose label is none of `ignored`; None where that is all of them.

    >>> kept_rows(np.array(["2", "-100", "0"]), [-100]), kept_rows(np.array([2, 0]), [-100])
    (array([0, 2]), None)
    """
    array = labels.numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if not ignored or array.ndim != 1:
        return None
    if array.dtype.kind in "US":
        texts = [text for label in ignored for text in (str(label), f"{label}.0")]
        left_out = np.isin(array.astype(np.str_), texts)
    else:
        left_out = np.isin(array, ignored)
    return np.flatnonzero(~left_out) if left_out.any() else None


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
        said = f"is {array[row]!s} and " if array.ndim == 1 else ""
        raise ValueError(f"{name}[{row}] {said}{why}".replace("is  and is missing", "is missing"))
