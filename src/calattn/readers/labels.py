"""Labels as class indices: from integers of any width, whole floats, booleans, or class names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from calattn.checks import ONE_TRUE_CLASS
from calattn.errors import Args, InputError, Words
from calattn.readers.fields import Values

# What other programs write where there is no label: torch's ignore_index, scikit-learn's "unlabelled", the void of a mask.
_NO_LABEL = (-100, -1, 255)
_FILL_IN = "fill it in or remove the row"


class LabelParser:
    """Turns label blocks into int64 class indices; remembers the lowest, to tell labels that start at 1.

    Labels are names if one of them is not a number, or if all of them are class names: text unless `offset_given`, numbers
    where `numbers_may_be_names`. That holds for the whole file: the first block decides, or `settle` before it.
    One-hot labels are read as the class that has the one.

    >>> LabelParser(2, ("cat", "dog"), 0)(np.array(["dog", "cat"]))
    tensor([1, 0])
    >>> LabelParser(2, ("-1", "1"), 0, numbers_may_be_names=True)(np.array([1, -1]))
    tensor([1, 0])
    >>> LabelParser(3, None, 0)(np.array([[0.0, 0.0, 1.0]]))
    tensor([2])
    """

    def __init__(
        self,
        num_classes: int,
        class_names: tuple[str, ...] | None,
        offset: int,
        *,
        offset_given: bool = False,
        numbers_may_be_names: bool = False,
    ) -> None:
        self._num_classes, self._names, self._offset = num_classes, class_names, offset
        self._text_may_be_names, self._numbers_may_be_names = not offset_given, numbers_may_be_names
        self._form: Literal["text", "number", "index"] | None = None
        self._lowest: int | None = None

    def settle(self, labels: np.ndarray) -> None:
        """Decides from all labels that occur in the file; a block of them may be numbers where others are names."""
        self._form = self._form_of(_text(labels))

    def __call__(self, values: Values) -> Int[Tensor, " n"]:
        array = _column(values)
        if array.ndim != 1:
            return torch.from_numpy(self._from_one_hot(array))
        array = _text(array)
        if array.dtype.kind == "U":
            _refuse(array == "", "is missing", _FILL_IN)
        if self._form is None:
            self._form = self._form_of(array)
        if self._form == "text":
            return torch.from_numpy(self._from_names(array))
        if array.dtype.kind == "U":
            array = self._numbers(array)
        array = self._whole(array)
        if self._form == "number":
            return torch.from_numpy(self._from_names(_as_names(array)))
        return torch.from_numpy(self._in_range(array))

    def _form_of(self, array: np.ndarray) -> Literal["text", "number", "index"]:
        """Names as they stand, names written as numbers (1.0 for "1"), or class indices."""
        if array.dtype.kind == "U":
            numbers = _parsed(array)
            if numbers is None or (self._text_may_be_names and self._are_names(array)):
                return "text"
            array = numbers
        whole = array.dtype.kind in "iub" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all()))
        return "number" if self._numbers_may_be_names and whole and self._are_names(_as_names(array)) else "index"

    def _are_names(self, array: np.ndarray) -> bool:
        return set(np.unique(array).tolist()) <= set(self._names or ())

    def _numbers(self, array: np.ndarray) -> np.ndarray:
        """Text as the numbers that the labels before it were."""
        numbers = _parsed(array)
        if numbers is not None:
            return numbers
        if self._names is None:
            return self._from_names(array)  # its error names the remedy
        words = np.array([not is_number(str(label)) for label in array])
        why = "is not a number, which the labels before it are"
        _refuse(words, why, "save names or numbers, not both", shown=array)
        raise AssertionError("text that is not all numbers has a word in it")

    def _from_one_hot(self, array: np.ndarray) -> np.ndarray:
        if array.ndim != 2 or array.shape[1] != self._num_classes:
            raise ValueError(f"labels have shape {list(array.shape)}, not [n], nor one-hot [n, {self._num_classes}]")
        if array.dtype.kind not in "iubf":
            raise ValueError(f"labels are {array.dtype}; save them as integers or strings")
        soft = ((array != 0) & (array != 1)).any(axis=1)
        shares = "shares of classes (soft labels) are not read" if array.dtype.kind == "f" else "so it is not one-hot"
        _refuse(soft, f"has entries other than 0 and 1; {shares}", "save the class of each row")
        ones = (array == 1).sum(axis=1)
        _refuse(ones != 1, f"does not have exactly one 1: multi-label files are not read, because {ONE_TRUE_CLASS}")
        return array.argmax(axis=1).astype(np.int64)

    def _from_names(self, array: np.ndarray) -> np.ndarray:
        if self._names is None:
            remedy = ("pass ", Args(class_names=[...]), " in class order")
            raise InputError(f"labels are text such as {str(array[0])!r}", remedy=remedy)
        position = {name: index for index, name in enumerate(self._names)}
        names, inverse = np.unique(array, return_inverse=True)
        indices = np.array([position.get(str(name), -1) for name in names])[inverse]
        shown = ", ".join(self._names[:5]) + ("…" if len(self._names) > 5 else "")
        _refuse(indices < 0, f"is not among the class names ({shown})", shown=array)
        return indices.astype(np.int64)

    def _whole(self, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind == "b" and self._num_classes > 2:
            raise ValueError(f"labels are booleans, but there are {self._num_classes} classes; save class indices")
        if array.dtype.kind == "f":
            _refuse(np.isnan(array), "is missing", _FILL_IN)
            _refuse(
                ~np.isfinite(array) | (array != np.floor(array)),
                "is not a whole number",
                "save class indices",
                shown=array,
            )
        elif array.dtype.kind not in "iub":
            raise ValueError(f"labels are {array.dtype}; save them as integers or strings")
        return array

    def _in_range(self, array: np.ndarray) -> np.ndarray:
        lowest, highest = int(array.min()), int(array.max())
        self._lowest = lowest if self._lowest is None else min(lowest, self._lowest)
        low, high = self._offset, self._offset + self._num_classes - 1
        if lowest < low or highest > high:
            remedy = self._other_remedy(array, high)
            if self._offset == 0 and self._lowest == 1 and highest == self._num_classes:
                remedy = ("labels look 1-based: pass ", Args(label_offset=1))
            elif self._offset and lowest == 0:
                remedy = ("labels look 0-based: pass ", Args(label_offset=0))
            _refuse((array < low) | (array > high), f"is outside [{low}, {high}]", remedy, shown=array)
        return array.astype(np.int64) - self._offset

    def _other_remedy(self, array: np.ndarray, high: int) -> Words:
        """What may be wrong with labels out of range, in the order of how often it is."""
        found = [int(label) for label in np.unique(array)]
        outside = [label for label in found if not self._offset <= label <= high]
        named = len(found) == self._num_classes <= 8
        names = [str(label) for label in found] if named else [...]
        as_names = ("pass ", Args(class_names=names), " if the numbers are names, in class order")
        if len(outside) == 1 and outside[0] in _NO_LABEL:
            left_out = (Args(ignore_index=outside[0]), " to leave out rows that have no label")
            # −1 may be a class of its own (−1 and 1), as −100 and 255 are not.
            return (*as_names, ", or ", *left_out) if named and outside == [-1] else ("pass ", *left_out)
        if (highest := int(array.max())) <= high:
            return as_names
        missing = f"there are {self._num_classes} class columns but a label {highest}: is a column missing? Else "
        return (missing, *as_names)


def kept_rows(labels: Values, ignored: Sequence[int]) -> np.ndarray | None:
    """Positions of the rows whose label is none of `ignored`; None where that is all of them.

    >>> kept_rows(np.array(["2", "-100", "0"]), [-100]), kept_rows(np.array([2, 0]), [-100])
    (array([0, 2]), None)
    """
    array = _column(labels)
    if not ignored or array.ndim != 1:
        return None
    if array.dtype.kind in "US":
        texts = [text for label in ignored for text in (str(label), f"{label}.0")]
        left_out = np.isin(array.astype(np.str_), texts)
    else:
        left_out = np.isin(array, ignored)
    return np.flatnonzero(~left_out) if left_out.any() else None


def distinct_labels(blocks: Iterable[Values], ignored: Sequence[int]) -> np.ndarray:
    """The labels that occur in any block, as written there, without missing ones and those of `ignored`.

    >>> distinct_labels([np.array(["2", "x"]), np.array(["-100", "2", ""])], [-100])
    array(['2', 'x'], dtype='<U4')
    """
    found = [np.unique(_column(block)) for block in blocks]
    labels = np.unique(np.concatenate(found)) if found else np.array([], dtype=np.str_)
    labels = labels[~np.isnan(labels) if labels.dtype.kind == "f" else labels.astype(np.str_) != ""]
    kept = kept_rows(labels, ignored)
    return labels if kept is None else labels[kept]


def is_number(text: str) -> bool:
    """Whether a label, or a class name, can be read as a number.

    >>> is_number("3.0"), is_number("nan"), is_number("cat")
    (True, True, False)
    """
    return _parsed(np.array([text])) is not None


def _column(values: Values) -> np.ndarray:
    """Labels [n], also of [n, 1]; others as they are."""
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _text(array: np.ndarray) -> np.ndarray:
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _as_names(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int64).astype(np.str_)


def _parsed(array: np.ndarray) -> np.ndarray | None:
    """Text that is integers, or whole floats such as "3.0", as numbers; None if any entry is neither."""
    for dtype in (np.int64, np.float64):
        try:
            return array.astype(dtype)
        except ValueError:
            continue
    return None


def _refuse(bad: np.ndarray, why: str, remedy: Words = "", *, shown: np.ndarray | None = None) -> None:
    """An error about the first of the rows that are bad, with the entry itself where that is `shown`."""
    if bad.any():
        row = int(np.argmax(bad))
        found = "" if shown is None else f"is {shown[row]!s} and "
        raise InputError(f"{found}{why}", argument="labels", row=row, remedy=remedy)
