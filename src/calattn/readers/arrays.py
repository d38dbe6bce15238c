"""Array files: .npy and .npz, read block by block from the (compressed) stream; safetensors; torch files without pickles."""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import struct
import tokenize
import warnings
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from calattn.files.predictions import PredictionFileError, PredictionFileMissing, not_whole, of_one_version, tensor_file
from calattn.readers.fields import Field, FieldFile, FieldType, Role, Values

# All the ways in which a damaged or foreign zip archive makes itself known.
_ZIP_DAMAGE: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError)
_ZIP_DAMAGE += (RuntimeError, UnicodeDecodeError, struct.error)
# What one array, or one block of it, may take in memory: so much, or so many times the file. Else it is a bomb.
_LARGEST, _EXPANSION = 1 << 28, 20
_LONGEST_TEXT = 1 << 16
_KINDS: dict[str, FieldType] = {"f": "real", "i": "integer", "u": "integer", "b": "integer", "U": "text", "S": "text"}
# torch's reader runs into these where the bytes are not a torch file: it takes them for instructions.
_TORCH_DAMAGE: tuple[type[Exception], ...] = (RuntimeError, EOFError, ValueError, OSError, LookupError, TypeError)
_TORCH_DAMAGE += (AttributeError, AssertionError, ArithmeticError, struct.error)


class NpyStream:
    """The array in one .npy stream, taken from the front a few rows at a time; nothing is ever unpickled."""

    def __init__(self, file: io.BufferedIOBase, size: int, where: str, *, on_disk: int) -> None:
        self._file, self._where, self._on_disk = file, where, on_disk
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
        kind = _KINDS.get(self.dtype.kind, "object")
        return Field.of_array(self.shape, kind, str(self.dtype), self.dtype.itemsize if kind == "text" else 0)

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
        if self.dtype.kind in "US" and self.dtype.itemsize > _LONGEST_TEXT:
            raise PredictionFileError(
                f"{self._where} has text of {self.dtype.itemsize:,} bytes per entry, {_LONGEST_TEXT:,} are read; "
                "save it again with shorter text"
            )
        needed = math.prod(shape) * self.dtype.itemsize
        if needed > max(_LARGEST, _EXPANSION * self._on_disk):
            raise PredictionFileError(
                f"{self._where} would take {needed / 1e9:,.1f} GB in memory for {self._on_disk / 1e6:,.1f} MB of file; "
                "save it again with numpy.ascontiguousarray and numpy.savez, one row per sample"
            )
        array = np.empty(shape, self.dtype)
        unfilled = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        while len(unfilled):
            count = self._file.readinto(unfilled)
            if not count:
                raise PredictionFileError(f"{self._where} ends early: it is truncated; copy it again")
            unfilled = unfilled[count:]
        return array.astype(self.dtype.newbyteorder("="), copy=False)


class NumpyFile(FieldFile):
    """The arrays of an .npz archive, or the one array of an .npy file under the name `arr_0`."""

    def __init__(self, path: Path, address: str | None = None) -> None:
        super().__init__(path, address)
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
            size = self.path.stat().st_size
            return NpyStream(archive, size, self.address, on_disk=size)
        info = archive.getinfo(f"{name}.npy")
        member: io.BufferedIOBase = archive.open(info)  # type: ignore[assignment]  # typeshed says IO[bytes]
        return NpyStream(member, info.file_size, f"{self.address}: {name!r}", on_disk=info.compress_size)

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except _ZIP_DAMAGE as error:
            raise not_whole(self.address, self.path.suffix, error) from error


class SafetensorsFile(FieldFile):
    """The tensors of one or more safetensors files, which stay the same when a save replaces them."""

    def __init__(self, path: Path, address: str | None = None, *, files: tuple[Path, ...] | None = None) -> None:
        super().__init__(path, address)
        self.fields: dict[str, Field] = {}
        self._bytes = 0
        self._file_of: dict[str, Path] = {}
        for place in files or (path,):
            file_path = self._held(place)
            try:
                with safe_open(file_path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118  (not a mapping)
                        part = file.get_slice(name)
                        self.fields[name] = _safetensors_field(tuple(part.get_shape()), part.get_dtype())
                        self._file_of[name] = file_path
            except SafetensorError as error:
                raise not_whole(place if files else self.address, "safetensors", error) from None

    def _held(self, path: Path) -> Path:
        """A path of the file that outlives its name, where the system has one."""
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self._bytes += os.fstat(descriptor).st_size
        held = Path(f"/dev/fd/{descriptor}")
        return held if held.exists() else path

    @property
    def num_bytes(self) -> int:
        return self._bytes

    def part(self, name: str, start: int | None, stop: int | None) -> Tensor:
        # Opened for every block: pages of a mapped file count as ours while the map lives, and a file of 4 GB
        # would seem to need 4 GB. Opening costs 0.1 ms.
        try:
            with safe_open(self._file_of[name], framework="pt") as file:
                return file.get_tensor(name) if start is None else file.get_slice(name)[start:stop].clone()
        except (SafetensorError, RuntimeError, OSError) as error:
            raise not_whole(self.address, "safetensors", error) from None


class PredictionsFolder(SafetensorsFile):
    """A folder written by `save_predictions`, checked against its manifest."""

    is_ours = True

    def __init__(self, path: Path, address: str | None = None) -> None:
        def opened(manifest: dict[str, Any]) -> None:
            files = tuple(tensor_file(path, manifest, part, verify=True) for part in manifest["files"])
            try:
                SafetensorsFile.__init__(self, path, address, files=files)
            except FileNotFoundError as error:
                raise PredictionFileMissing(f"{error.filename} vanished while it was opened; start again") from None

        manifest, _ = of_one_version(path, opened)
        names = manifest["class_names"]
        self.class_names = None if names is None else tuple(names)
        self.split, self.spec_hash = manifest["split"], manifest["spec_hash"]


class TorchFile(FieldFile):
    """The tensors in a dict, list or lone tensor that torch.save wrote; list entries are named "0", "1", …"""

    def __init__(self, path: Path, address: str | None = None) -> None:
        super().__init__(path, address)
        content = _torch_load(path, self.address)
        if isinstance(content, Tensor):
            content = {"arr_0": content}
        elif isinstance(content, list | tuple):
            content = {str(position): value for position, value in enumerate(content)}
        if not isinstance(content, dict):
            raise PredictionFileError(f"{self.address} holds a {type(content).__name__}; save a dict of tensors")
        self._values = {str(name): _as_values(value) for name, value in content.items()}
        self.fields = {name: _torch_field(value) for name, value in self._values.items()}

    def part(self, name: str, start: int | None, stop: int | None) -> Values:
        return self._values[name] if start is None else self._values[name][start:stop]


def _check_records(path: Path, address: str) -> None:
    """Reads the records of the archive against their checksums, which torch.load does not look at: 0.06 s for 200 MB.

    A checksum of 0 was not computed (`torch.serialization.set_crc32_options(False)`).
    """
    try:
        if not zipfile.is_zipfile(path):
            return  # the format before torch 1.6 has no checksums; what is cut short is for torch to name
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                with archive.open(info) if info.CRC else contextlib.nullcontext() as record:
                    while record is not None and record.read(1 << 20):
                        pass
    except _ZIP_DAMAGE as error:
        raise PredictionFileError(f"{address} is damaged ({error}); copy or save it again") from None


def _torch_load(path: Path, address: str) -> object:
    _check_records(path, address)
    try:
        with warnings.catch_warnings():
            # Asks to report pickles of other programs to torch; the remedy is in our error below.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            try:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                return torch.load(path, map_location="cpu", weights_only=True)  # the format before torch 1.6
    except pickle.UnpicklingError as error:
        of = "torch.from_numpy({})".format if "numpy" in str(error) else "{}".format
        raise PredictionFileError(
            f"{address} holds more than tensors, and pickled objects are never loaded; "
            f'save plain tensors: torch.save({{"logits": {of("logits")}, "labels": {of("labels")}}}, path)'
        ) from None
    except _TORCH_DAMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise not_whole(address, "torch", reason) from None


def _as_values(value: object) -> Values:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return np.asarray(value)
    except ValueError:  # ragged lists
        return np.empty((), dtype=object)


def _torch_field(value: Values) -> Field:
    if not isinstance(value, Tensor):
        return Field.of_array(value.shape, _KINDS.get(value.dtype.kind, "object"), str(value.dtype))
    kind: FieldType = "real" if value.is_floating_point() else "integer"
    if value.is_complex() or value.layout != torch.strided:
        kind = "object"
    return Field.of_array(value.shape, kind, str(value.dtype).removeprefix("torch."))


def _safetensors_field(shape: tuple[int, ...], dtype: str) -> Field:
    if dtype in ("F64", "F32", "F16", "BF16"):
        return Field.of_array(shape, "real", dtype)
    whole = dtype.startswith(("I", "U")) or dtype == "BOOL"
    return Field.of_array(shape, "integer" if whole else "object", dtype)
