"""The row file: a safetensors file whose tensors grow row by row, for more rows than memory holds."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

# In the order in which safetensors lays them out: wide types first, so that every tensor is aligned.
_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}
_ORDER = list(_NAMES)


class RowFile:
    """Tensors of `rows` rows each, with the types and row shapes of `like`; the bytes are those of `save_file`.

    safetensors itself writes whole tensors only. Its format is a header with the place of each, then their bytes: where the
    number of rows is known beforehand, so is every place.

    >>> import tempfile
    >>> from safetensors.torch import load_file
    >>> path, part = Path(tempfile.mkdtemp()) / "a.safetensors", {"labels": torch.tensor([3, 4])}
    >>> with RowFile(path, part, rows=4) as file:
    ...     file.add(part)
    ...     file.add(part)
    >>> load_file(path)["labels"]
    tensor([3, 4, 3, 4])
    """

    def __init__(self, path: Path, like: Mapping[str, Tensor], *, rows: int) -> None:
        self.path, self._rows, self._done = path, rows, 0
        self.tensors = {name: (tensor.dtype, (rows, *tensor.shape[1:])) for name, tensor in like.items()}
        header: dict[str, Any] = {}
        end = 0
        for name in sorted(like, key=lambda name: (_ORDER.index(like[name].dtype), name)):
            dtype, shape = self.tensors[name]
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._places = {name: 8 + len(text) + each["data_offsets"][0] for name, each in header.items()}
        self._file = path.open("wb", buffering=0)  # so that nothing is left to fail when it is closed
        self._write(0, struct.pack("<Q", len(text)) + text)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """The next rows of every tensor."""
        count = len(next(iter(tensors.values())))
        # Rows of another length would overwrite those of another tensor.
        alike = {name: (tensor.dtype, (self._rows, *tensor.shape[1:])) for name, tensor in tensors.items()}
        assert alike == self.tensors, f"{alike} among {self.tensors}"
        if self._done + count > self._rows:
            raise ValueError(f"blocks has more rows than the {self._rows} that it should have")
        for name, place in self._places.items():
            rows = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self._write(place + self._done * (len(rows) // count), rows.numpy().data)
        self._done += count

    def finish(self) -> None:
        """Refuses a file that lacks rows."""
        if self._done != self._rows:
            raise ValueError(f"blocks has {self._done} rows where it should have {self._rows}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, place: int, data: bytes | memoryview) -> None:
        self._file.seek(place)
        while len(data):  # one call takes 2 GB at most
            data = data[self._file.write(data) :]
