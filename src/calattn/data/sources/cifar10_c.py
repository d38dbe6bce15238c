"""CIFAR-10-C: the test images of CIFAR-10 under fifteen corruptions, from the official files or made here."""

from __future__ import annotations

import dataclasses
import math
import tarfile
from pathlib import Path
from typing import IO, Literal, final

import numpy as np
import torch
from torch import Tensor

from calattn.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from calattn.data.images import ArrayImages, DamagedFile, DataError, DataMissing, FilesMissing
from calattn.data.sources.datasets import DATASETS, default_root, get_command

SEED = 0  # of the images made here; part of what they are, so not an option
ARCHIVE, FOLDER = "CIFAR-10-C.tar", "CIFAR-10-C"
SPLITS = tuple(f"{name}-{severity}" for name in (*CORRUPTIONS, "all") for severity in SEVERITIES)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CorruptedImages(ArrayImages):
    """Images with where they come from: "official" files, or "made" from CIFAR-10 by `corrupt`."""

    origin: Literal["official", "made"]
    split: str

    @property
    def title(self) -> str:
        source = {"official": "official files", "made": f"made from CIFAR-10 by calattn's corruptions, seed {SEED}"}
        return f"CIFAR-10-C {self.split} ({source[self.origin]})"


def read(folder: Path, split: str) -> CorruptedImages:
    """A split such as "fog-5", or "all-5" for the fifteen one after another.

    Official files are used if there are any: `CIFAR-10-C.tar` as published, or its `.npy` files unpacked. Otherwise the images
    are made from the CIFAR-10 next to `folder`. The two are never mixed.
    """
    names, (_, severity) = _corruptions(split), parse_split(split)
    classes = DATASETS["cifar10"].class_names
    files = _official_files(folder)
    if files is None:
        array, labels = _made(folder, names, severity)
        return CorruptedImages(array=array, labels=labels, class_names=classes, origin="made", split=split)
    parts = [_official(files, one, severity) for one in names]
    array, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return CorruptedImages(array=array, labels=labels, class_names=classes, origin="official", split=split)


def parse_split(split: str) -> tuple[str, int]:
    """
    >>> parse_split("motion_blur-3")
    ('motion_blur', 3)
    """
    name, _, severity = split.rpartition("-")
    if split not in SPLITS:
        raise DataError(
            f"there is no corruption {split!r}; write CORRUPTION-SEVERITY such as fog-5, or all-5 for all fifteen"
        )
    return name, int(severity)


def _made(folder: Path, names: tuple[str, ...], severity: int) -> tuple[Tensor, Tensor]:
    from calattn.data import in_memory, load

    root = None if folder.parent == default_root() else folder.parent
    try:
        clean = load("cifar10", "test", root=folder.parent)
    except DataMissing:
        raise FilesMissing(
            f"there are neither CIFAR-10-C's files in {folder} nor CIFAR-10's beside it to make them from "
            f"(that smaller one: {get_command(DATASETS['cifar10'], root)})"
        ) from None
    array = in_memory(clean).array
    made = [corrupt(array, name, severity, generator=torch.Generator().manual_seed(SEED)) for name in names]
    return torch.cat(made), clean.labels.repeat(len(names))


def _official(files: _Files, name: str, severity: int) -> tuple[Tensor, Tensor]:
    """One severity of one file: fifths of [5n, 32, 32, 3], severity 1 first."""
    pixels, labels = files.array(f"{name}.npy"), files.array("labels.npy")
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (32, 32, 3) or len(pixels) % 5:
        raise DamagedFile(
            f"{files.where}/{name}.npy must be uint8 [5 n, 32, 32, 3], it is {pixels.dtype} {list(pixels.shape)}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != pixels.shape[:1]:
        raise DamagedFile(
            f"{files.where}/labels.npy must be {len(pixels)} integers, as {name}.npy has images; "
            f"it is {labels.dtype} {list(labels.shape)}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() <= 9:
        raise DamagedFile(f"{files.where}/labels.npy must hold 0 … 9, it holds {labels.min()} … {labels.max()}")
    share = len(pixels) // 5
    rows = slice((severity - 1) * share, severity * share)
    array = torch.from_numpy(np.ascontiguousarray(pixels[rows].transpose(0, 3, 1, 2)))
    return array, torch.from_numpy(labels[rows].astype(np.int64))


@dataclasses.dataclass(frozen=True)
class _Files:
    """The .npy files in a folder or in a tar archive. Both are mapped into memory, so only the fifth in use is read."""

    where: Path

    def array(self, name: str) -> np.ndarray:
        try:
            if self.where.is_dir():
                return np.load(self.where / name, mmap_mode="r", allow_pickle=False)
            return self._member(name)
        except (FileNotFoundError, KeyError):
            raise DamagedFile(f"{self.where} holds CIFAR-10-C, but not its {name}") from None
        except (ValueError, EOFError, OSError, tarfile.TarError) as error:
            raise DamagedFile(f"{self.where}/{name} cannot be read: {error}") from None

    def _member(self, name: str) -> np.ndarray:
        with tarfile.open(self.where, "r:") as archive:
            member = archive.extractfile(f"{FOLDER}/{name}")
            if member is None:
                raise KeyError(name)
            with member:
                shape, fortran, dtype = _header(member)
                entry, head = archive.getmember(f"{FOLDER}/{name}"), member.tell()
        if entry.size - head != math.prod(shape) * dtype.itemsize:  # a short file would run on into the next one
            raise ValueError(f"it has {entry.size - head} bytes for an array of {dtype} {list(shape)}")
        order: Literal["F", "C"] = "F" if fortran else "C"
        return np.memmap(self.where, dtype=dtype, mode="r", offset=entry.offset_data + head, shape=shape, order=order)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of .npy version {version}")
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    return shape, fortran, dtype


def find(folder: Path, split: str) -> list[Path]:
    """The official files of a split, or the archive; that images can be made without them does not count."""
    files = _official_files(folder)
    if files is None:
        raise FilesMissing(f"there are no files of CIFAR-10-C in {folder}")
    if not files.where.is_dir():
        return [files.where]
    found = [files.where / f"{one}.npy" for one in (*_corruptions(split), "labels")]
    for path in found:
        if not path.is_file():
            raise DamagedFile(f"{files.where} holds CIFAR-10-C, but not its {path.name}")
    return found


def _corruptions(split: str) -> tuple[str, ...]:
    name, _ = parse_split(split)
    return tuple(CORRUPTIONS) if name == "all" else (name,)


def _official_files(folder: Path) -> _Files | None:
    names = {f"{name}.npy" for name in (*CORRUPTIONS, "labels")}
    for place in (folder / FOLDER, folder):
        if any((place / name).exists() for name in names):
            return _Files(place)
    return _Files(folder / ARCHIVE) if (folder / ARCHIVE).exists() else None
