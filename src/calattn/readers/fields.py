"""A source: named fields of one file, read in row blocks. What every format has to offer, and no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

Values = np.ndarray | Tensor
# A "cell" is a column of a text file whose first cells may be numbers: only reading it would tell.
FieldType = Literal["real", "integer", "text", "cell", "object"]
# What a field is wanted for. Text formats need it to convert; the others bring their own types.
Role = Literal["real", "label", "integer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """One array or column: its number of rows (None where only reading would tell) and a row's shape."""

    rows: int | None
    tail: tuple[int, ...]
    type: FieldType
    dtype: str
    # A single number for the whole file, such as one temperature: it has no rows at all.
    scalar: bool = False
    # Of text in arrays, all entries take as much as the longest.
    text_bytes: int = 0

    @classmethod
    def of_array(cls, shape: Sequence[int], type: FieldType, dtype: str, text_bytes: int = 0) -> Field:
        rows, tail = shape[0] if shape else None, tuple(shape[1:])
        return cls(rows=rows, tail=tail, type=type, dtype=dtype, scalar=not shape, text_bytes=text_bytes)

    def __str__(self) -> str:
        rows = () if self.scalar else ("n" if self.rows is None else self.rows,)
        return f"{self.dtype} [{', '.join(str(size) for size in (*rows, *self.tail))}]"


class FieldFile:
    """The fields of one file, and a way to read some of them block by block; each pass opens it anew.

    `address` is what messages call it, where that is not the path: the URL of a file that was copied.
    """

    fields: Mapping[str, Field]
    # What the file itself states about its split, apart from its fields.
    class_names: tuple[str, ...] | None = None
    split: str | None = None
    spec_hash: str | None = None
    # Text rounds probabilities to a few decimals, so their sums may be further from one than binary ones.
    is_text: bool = False
    # In a table every field has one entry per row, so none of them can be the list of class names.
    is_table: bool = False
    # Written by `save_predictions`: its labels are class indices, whatever the classes are called.
    is_ours: bool = False
    # The row of the stream that is the first of the file that is being read: of shards, not always 0.
    first_row: int = 0

    def __init__(self, path: Path, address: str | None = None) -> None:
        self.path, self.address = path, address or str(path)

    def blocks(self, wanted: Mapping[str, Role], rows: int) -> Iterator[dict[str, Values]]:
        """Consecutive blocks of at most `rows` rows of the wanted fields."""
        total = min(self.fields[name].rows or 0 for name in wanted)
        for start in range(0, total, rows):
            yield {name: self.part(name, start, min(start + rows, total)) for name in wanted}

    def part(self, name: str, start: int | None, stop: int | None) -> Values:
        """Some rows of a field, or (None) all of it, in files that are read in any order."""
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """The size of what is read."""
        return self.path.stat().st_size

    def whole(self, name: str) -> Values:
        """A small field at once, such as the class names or one temperature."""
        return self.part(name, None, None)
