"""Shards: the files of a glob, a folder or a URL, and one source of rows made of them all."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from calattn.files.atomic import PathArg
from calattn.files.predictions import MANIFEST, PredictionFileError, PredictionFileMissing, has_predictions
from calattn.readers.fields import FieldFile, Role, Values
from calattn.readers.formats import PARQUET, SUFFIXES, opened_file
from calattn.readers.tables import ParquetFile

_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/+", re.IGNORECASE)
_PART = re.compile(r"(part|shard|chunk|block)s?[-_.]?\d|\d-of-\d")


def find_shards(pattern: PathArg) -> tuple[str, ...]:
    """The addresses that a glob, a folder of parts (part-0.csv, …) or a single file stands for, in alphabetical order.

    They are on this machine, or behind a URL for which fsspec has a driver: s3://, gs://, hf://, …

    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("part-1.csv", "part-0.csv"):
    ...     (folder / name).touch()
    >>> [Path(each).name for each in find_shards(folder)], find_shards(folder / "part-*") == find_shards(folder)
    (['part-0.csv', 'part-1.csv'], True)
    """
    address = os.fspath(pattern)
    if not is_remote(address):
        local = Path(address)
        if glob.has_magic(address) and not local.exists():
            return _shards(glob.iglob(address, recursive=True), address)
        parts = local.is_dir() and not has_predictions(local) and _parts(map(str, local.iterdir()))
        return parts or (address,)
    address = _SCHEME.sub(r"\g<scheme>://", address, count=1)  # a Path has taken one of the slashes
    with _driver(address) as (files, path):
        if glob.has_magic(path):
            return _shards(map(files.unstrip_protocol, files.glob(path)), address)
        if not files.exists(path):
            raise PredictionFileMissing(f"{address} does not exist")
        if not files.isdir(path) or files.exists(f"{path}/{MANIFEST}"):
            return (address,)
        inside = sorted(map(files.unstrip_protocol, files.ls(path, detail=False)))
        if parts := _parts(inside):
            return parts
        remedy = f"name a file in it ({', '.join(map(_name, inside[:8]))}), or a pattern of its parts"
        raise PredictionFileMissing(f"{address} is a folder without predictions", remedy=remedy)


def is_remote(address: str) -> bool:
    return _SCHEME.match(address) is not None and not os.path.exists(address)


def _shards(found: Iterable[str], pattern: str) -> tuple[str, ...]:
    kept = sorted(each for each in found if _is_shard(each) or os.path.isfile(os.path.join(each, MANIFEST)))
    if not kept:
        raise PredictionFileMissing(f"nothing matches {pattern}", remedy=f"known suffixes: {' '.join(SUFFIXES)}")
    return tuple(kept)


def _parts(files: Iterable[str]) -> tuple[str, ...]:
    """The files of a folder if their names say that they are parts of one set; others may be of several seeds or models."""
    found = tuple(sorted(filter(_is_shard, files)))
    names = {re.sub(r"\d+", "0", _name(each).lower()) for each in found}
    return found if len(names) == 1 and _PART.search(names.pop()) else ()


def _is_shard(address: str) -> bool:
    return address.lower().endswith(SUFFIXES) and not _name(address).startswith((".", "_"))


def _name(address: str) -> str:
    return re.split(r"[/\\]", address)[-1]


class Shards(FieldFile):
    """Several files as one: the rows of the first, then those of the next. One of them is open at a time.

    `chosen` gives what a caller reads of a file, as a dataclass with the names of its `values`: all have to be alike.
    Files of other machines that are no Parquet are copied when their rows are wanted, and looked at only then.
    """

    def __init__(
        self, addresses: Sequence[str], chosen: Callable[[FieldFile], Any], *, address: str, text: Mapping[str, Any]
    ) -> None:
        super().__init__(Path(address), address)
        self._addresses, self._choose, self._text = addresses, chosen, text
        self._first: str | None = None
        self._bytes, rows = 0, 0
        counted = True
        for each in addresses:
            if self._first is not None and is_remote(each) and not _is_parquet(each):
                counted = False
                continue
            with self._opened(each) as file:
                found = 0 if _is_empty(file) else file.fields[self.chosen.values[0]].rows
                counted, rows = counted and found is not None, rows + (found or 0)
                self._bytes += file.num_bytes
        if self._first is None:
            raise PredictionFileError("none of its files has a row", subject=address, remedy="save at least one sample")
        self.fields = {
            # One number for a file, such as a temperature, is one for each of its rows.
            name: dataclasses.replace(field, rows=rows if counted else None, scalar=False)
            for name, field in self._fields.items()
        }

    @property
    def num_bytes(self) -> int:
        return self._bytes

    def blocks(self, wanted: Mapping[str, Role], rows: int) -> Iterator[dict[str, Values]]:
        self.first_row, called = 0, self.address
        try:
            for each in self._addresses:
                self.address = each
                with self._opened(each) as file:
                    if _is_empty(file):
                        continue
                    seen = 0
                    alone = {name: file.whole(name) for name in wanted if file.fields[name].scalar}
                    for block in file.blocks({name: role for name, role in wanted.items() if name not in alone}, rows):
                        count = len(next(iter(block.values())))
                        yield block | {name: np.full(count, np.asarray(one)) for name, one in alone.items()}
                        seen += count
                    self.first_row += seen
        finally:
            self.address = called

    @contextlib.contextmanager
    def _opened(self, address: str) -> Iterator[FieldFile]:
        with _local_or_parquet(address, self._text) as file:
            if not _is_empty(file):
                self._check(file)
            yield file

    def _check(self, file: FieldFile) -> None:
        chosen = self._choose(file)
        ours = vars(chosen) | {"split": file.split, "spec_hash": file.spec_hash}
        if self._first is None:
            self._first, self._ours, self._fields, self.chosen = file.address, ours, file.fields, chosen
            for name in ("split", "spec_hash", "class_names", "is_text", "is_table", "is_ours"):
                setattr(self, name, getattr(file, name))
        for name, here in ours.items():
            if here != (there := self._ours[name]):
                problem = f"its {name.replace('_', ' ')} differ from those of {self._first}: {_difference(here, there)}"
                remedy = "shards have the same columns, in the same order, from one run"
                raise PredictionFileError(problem, subject=file.address, remedy=remedy)


def _difference(here: object, there: object) -> str:
    if isinstance(here, tuple) and isinstance(there, tuple):
        if len(here) != len(there):
            return f"{len(here)} instead of {len(there)}"
        here, there = next((a, b) for a, b in zip(here, there, strict=True) if a != b)
    return f"{here!r} instead of {there!r}"


def _is_empty(file: FieldFile) -> bool:
    return all(field.rows == 0 for field in file.fields.values())


def _is_parquet(address: str) -> bool:
    return address.lower().endswith(PARQUET)


@contextlib.contextmanager
def _local_or_parquet(address: str, text: Mapping[str, Any]) -> Iterator[FieldFile]:
    """The file at an address; one of another machine is read there if it is Parquet, and else copied for the block."""
    if not is_remote(address):
        yield opened_file(Path(address), **text)
        return
    if _is_parquet(address):
        with _driver(address) as (files, _):
            file = ParquetFile(Path(address), address, filesystem=files)
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="calattn-") as folder:
        copy = Path(folder) / (PurePosixPath(address).name or "file")
        with _driver(address) as (files, path):
            files.get(path, str(copy), recursive=files.isdir(path))
        yield opened_file(copy, address, **text)


@contextlib.contextmanager
def _driver(address: str) -> Iterator[tuple[Any, str]]:
    """fsspec's file system for a URL, and the path in it; whatever goes wrong names the URL."""
    import fsspec  # takes 0.1 s

    try:
        yield fsspec.core.url_to_fs(address)
    except PredictionFileError:
        raise
    except ImportError as error:  # "Install s3fs to access S3"
        remedy = 'or all drivers: pip install "calattn[remote]"'
        raise PredictionFileError(str(error), subject=address, remedy=remedy) from error
    except Exception as error:  # each driver has errors of its own
        reason = f"{type(error).__name__}: {error}"
        raise PredictionFileError(f"cannot be read ({reason})", subject=address, remedy="check the URL") from error
