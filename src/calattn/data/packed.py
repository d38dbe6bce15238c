"""Packed byte strings: many in one array, so that a million of them cost worker processes nothing to share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from calattn.files.atomic import PathArg, atomic_write


class PackedBytes:
    """A sequence of byte strings, in memory or mapped from a file; pickles as the file's name where there is one.

    A list of Python objects would be copied into every worker process page by page, as its reference counts change.

    >>> packed = PackedBytes.of([b"one", b"", b"three"])
    >>> len(packed), packed[2]
    (3, b'three')
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray, *, path: Path | None = None) -> None:
        self._data, self._offsets, self._path = data, offsets, path

    @classmethod
    def of(cls, items: Iterable[bytes]) -> PackedBytes:
        content, ends = bytearray(), [0]
        for item in items:
            content += item
            ends.append(len(content))
        return cls(np.frombuffer(bytes(content), dtype=np.uint8), np.array(ends, dtype=np.int64))

    @classmethod
    def mapped(cls, path: Path) -> PackedBytes:
        """What `write_packed` wrote; only the pages that are read come into memory."""
        size = path.stat().st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - 8))
            count = int.from_bytes(file.read(8), "little")
            start = size - 8 * (count + 2)  # of the offsets, which follow the bytes
            file.seek(max(0, start))
            offsets = np.fromfile(file, dtype="<i8", count=min(count + 1, size))
        if start < 0 or int(offsets[-1]) != start:
            raise ValueError(f"{path} is damaged; delete it and it is made again")
        return cls(np.memmap(path, dtype=np.uint8, mode="r", shape=(start,)), offsets, path=path)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._data[self._offsets[index] : self._offsets[index + 1]].tobytes()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path} if self._path is not None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state if "_data" in state else PackedBytes.mapped(state["path"]).__dict__)


def write_packed(path: PathArg, items: Iterable[bytes]) -> None:
    """Write byte strings as they come, for `PackedBytes.mapped`: the bytes, their offsets, their number."""
    ends = [0]
    with atomic_write(path) as partial, open(partial, "wb") as file:
        for item in items:
            ends.append(ends[-1] + file.write(item))
        file.write(np.array(ends, dtype="<i8").tobytes())
        file.write((len(ends) - 1).to_bytes(8, "little"))
