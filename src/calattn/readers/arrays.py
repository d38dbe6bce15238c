"""NumPy files: .npy and .npz, read row block by row block straight from the (compressed) stream."""

from __future__ import annotations

import contextlib
import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from calattn.files.predictions import PredictionFileError
from calattn.readers.source import Field, FieldType, Role, Source, Values

# All the ways in which a damaged or foreign zip archive makes itself known.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)
_KINDS: dict[str, FieldType] = {"f": "real", "i": "integer", "u": "integer", "b": "integer", "U": "text", "S": "text"}


class NpyStream:
    """The array in one .npy stream, taken from the front a few rows at a time; nothing is ever unpickled."""

    def __init__(self, file: io.BufferedIOBase, size: int, where: str) -> None:
        self._file, self._where = file, where
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                self.shape, self._fortran, self.dtype = np.lib.format.read_array_header_1_0(file)
            else:
                # Version 3 differs from 2 in the encoding of record names, and records are not for us.
                self.shape, self._fortran, self.dtype = np.lib.format.read_array_header_2_0(file)
        except (ValueError, SyntaxError, tokenize.TokenError) as error:
            raise PredictionFileError(f"{where} is not a whole .npy array ({error}); save it again") from None
        expected = file.tell() + math.prod(self.shape) * self.dtype.itemsize
        if not self.dtype.hasobject and size != expected:
            raise PredictionFileError(
                f"{where} has {size} bytes where its header promises {expected}: truncated; copy it again"
            )
        self._all: np.ndarray | None = None

    @property
    def field(self) -> Field:
        return Field.of_array(self.shape, _KINDS.get(self.dtype.kind, "object"), str(self.dtype))

    def take(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop, which must follow on those taken before."""
        if self._fortran:
            # The rows of a Fortran-ordered array are scattered over the stream: it has to be read at once.
            self._all = self.whole() if self._all is None else self._all
            return np.ascontiguousarray(self._all[start:stop])
        return self._take((stop - start, *self.shape[1:]))

    def whole(self) -> np.ndarray:
        return self._take(self.shape[::-1]).T if self._fortran else self._take(self.shape)

    def _take(self, shape: tuple[int, ...]) -> np.ndarray:
        if self.dtype.hasobject or self.dtype.kind == "V":
            raise PredictionFileError(
                f"{self._where} holds Python objects or records ({self.dtype}), which are never unpickled; "
                "save it again as a plain numeric or string array"
            )
        array = np.empty(shape, self.dtype)
        unfilled = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        while len(unfilled):
            count = self._file.readinto(unfilled)
            if not count:
                raise PredictionFileError(f"{self._where} ends early: it is truncated; copy it again")
            unfilled = unfilled[count:]
        return array.astype(self.dtype.newbyteorder("="), copy=False)


class NumpySource(Source):
    """The arrays of an .npz archive, or the one array of an .npy file under the name `arr_0`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._damage(), self._archive() as archive:
            self.fields = {name: self._opened(archive, name).field for name in self._names(archive)}

    def blocks(self, wanted: Mapping[str, Role], rows: int) -> Iterator[dict[str, Values]]:
        with self._damage(), self._archive() as archive:
            streams = {name: self._opened(archive, name) for name in wanted}
            total = min(stream.shape[0] for stream in streams.values())
            for start in range(0, total, rows):
                stop = min(start + rows, total)
                yield {name: stream.take(start, stop) for name, stream in streams.items()}

    def whole(self, name: str) -> Values:
        with self._damage(), self._archive() as archive:
            return self._opened(archive, name).whole()

    def _archive(self) -> contextlib.AbstractContextManager[zipfile.ZipFile | io.BufferedIOBase]:
        return zipfile.ZipFile(self.path) if self.path.suffix.lower() == ".npz" else self.path.open("rb")

    def _names(self, archive: zipfile.ZipFile | io.BufferedIOBase) -> list[str]:
        if not isinstance(archive, zipfile.ZipFile):
            return ["arr_0"]
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    def _opened(self, archive: zipfile.ZipFile | io.BufferedIOBase, name: str) -> NpyStream:
        if not isinstance(archive, zipfile.ZipFile):
            archive.seek(0)
            return NpyStream(archive, self.path.stat().st_size, str(self.path))
        info = archive.getinfo(f"{name}.npy")
        member: io.BufferedIOBase = archive.open(info)  # type: ignore[assignment]  # typeshed says IO[bytes]
        return NpyStream(member, info.file_size, f"{self.path}: {name!r}")

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except PredictionFileError:
            raise
        except _DAMAGE as error:
            raise PredictionFileError(
                f"{self.path} is not a whole {self.path.suffix} file ({error}); copy or save it again"
            ) from error
