"""CIFAR-10-C: the test images of CIFAR-10 under fifteen corruptions, from the official files or made here."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from calattn.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from calattn.data.images import ArrayImages, DamagedFile, DataError, DataMissing, FilesMissing
from calattn.data.sources.array_files import check_labels, content_of
from calattn.data.sources.datasets import DATASETS, default_root, get_command

SEED = 0  # of the images made here; part of what they are, so not an option
ARCHIVE, FOLDER = "CIFAR-10-C.tar", "CIFAR-10-C"
SPLITS = tuple(f"{name}-{severity}" for name in (*CORRUPTIONS, "all") for severity in SEVERITIES)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CorruptedImages(ArrayImages):
    """Images with where they come from: "official" files, or "made" from CIFAR-10 by `corrupt`."""

    origin: Literal["official", "made"]


def read(folder: Path, split: str) -> CorruptedImages:
    """A split such as "fog-5", or "all-5" for the fifteen one after another.

    Official files are used if there are any: `CIFAR-10-C.tar` as published, or its `.npy` files unpacked. Otherwise the images
    are made from the CIFAR-10 next to `folder`. The two are never mixed.
    """
    names, severity = _corruptions(split)
    place = _official_place(folder)
    parts = _made(folder, names, severity) if place is None else [_official(place, one, severity) for one in names]
    array, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return CorruptedImages(
        array=array,
        labels=labels,
        class_names=DATASETS["cifar10"].class_names,
        origin="made" if place is None else "official",
    )


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


def find(folder: Path, split: str) -> list[Path]:
    """The official files of a split, or the archive; that images can be made without them does not count."""
    place = _official_place(folder)
    if place is None:
        raise FilesMissing(f"there are no files of CIFAR-10-C in {folder}")
    if not place.is_dir():
        return [place]
    found = [place / f"{one}.npy" for one in (*_corruptions(split)[0], "labels")]
    for path in found:
        if not path.is_file():
            raise DamagedFile(f"{place} holds CIFAR-10-C, but not its {path.name}")
    return found


def _made(folder: Path, names: tuple[str, ...], severity: int) -> list[tuple[Tensor, Tensor]]:
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
    made = (corrupt(array, name, severity, generator=torch.Generator().manual_seed(SEED)) for name in names)
    return [(images, clean.labels) for images in made]


def _official(place: Path, name: str, severity: int) -> tuple[Tensor, Tensor]:
    """One severity of one file: fifths of [5n, 32, 32, 3], severity 1 first."""
    pixels, labels = _array(place, f"{name}.npy"), _array(place, "labels.npy")
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (32, 32, 3) or len(pixels) % 5:
        raise DamagedFile(
            f"{place}/{name}.npy must be uint8 [5 n, 32, 32, 3], it is {pixels.dtype} {list(pixels.shape)}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != pixels.shape[:1]:
        raise DamagedFile(
            f"{place}/labels.npy must be {len(pixels)} integers, as {name}.npy has images; "
            f"it is {labels.dtype} {list(labels.shape)}"
        )
    check_labels(labels, 10, place / "labels.npy")
    share = len(pixels) // 5
    rows = slice((severity - 1) * share, severity * share)
    array = torch.from_numpy(np.ascontiguousarray(pixels[rows].transpose(0, 3, 1, 2)))
    return array, torch.from_numpy(labels[rows].astype(np.int64))


def _array(place: Path, name: str) -> np.ndarray:
    """A .npy file of a folder (mapped, so that only the fifth in use is read) or of a tar archive."""
    try:
        if place.is_dir():
            return np.load(place / name, mmap_mode="r", allow_pickle=False)
        with tarfile.open(place, "r:") as archive:
            content = content_of(archive, archive.getmember(f"{FOLDER}/{name}"))
            return np.load(io.BytesIO(content), allow_pickle=False)
    except (FileNotFoundError, KeyError):
        raise DamagedFile(f"{place} holds CIFAR-10-C, but not its {name}") from None
    except (ValueError, EOFError, OSError, tarfile.TarError) as error:
        raise DamagedFile(f"{place}/{name} cannot be read: {error}") from None


def _corruptions(split: str) -> tuple[tuple[str, ...], int]:
    """The names and the severity of a split."""
    name, severity = parse_split(split)
    return (tuple(CORRUPTIONS) if name == "all" else (name,)), severity


def _official_place(folder: Path) -> Path | None:
    """The folder of the .npy files, or the archive."""
    names = {f"{name}.npy" for name in (*CORRUPTIONS, "labels")}
    for place in (folder / FOLDER, folder):
        if any((place / name).exists() for name in names):
            return place
    return folder / ARCHIVE if (folder / ARCHIVE).exists() else None
