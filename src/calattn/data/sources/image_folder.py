"""Image folders: PATH/train/CLASS/image, PATH/test/CLASS/image and, if you have one, PATH/val/CLASS/image; any Pillow format."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from PIL import Image

from calattn.data.decoding import FileImages, PackedBytes
from calattn.data.images import DataError, Images
from calattn.data.sources.datasets import IMAGENET_MEAN, IMAGENET_STD, Dataset

SPLIT_FOLDERS = {"train": ("train",), "validation": ("val", "validation", "valid"), "test": ("test",)}
# Grey images: about the mean and deviation of ImageNet's three channels taken together.
GREY_MEAN, GREY_STD = (0.449,), (0.226,)
GREY_MODES = ("1", "L", "LA", "I", "F")


def describe(path: Path) -> Dataset:
    """What the folder holds: classes are the sub-folders of train; grey if the first, middle and last of every class are."""
    splits = tuple(split for split in SPLIT_FOLDERS if _split_folder(path, split))
    if not splits:
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; imagefolder:PATH needs PATH/train/CLASS/image files")
        has = ", ".join(_subfolders(path)[:4]) or "no folder at all"
        raise DataError(
            f"{path} has neither a train nor a test or val folder, but {has}; lay it out as PATH/train/CLASS/image"
        )
    classes = class_folders(path)
    first = _split_folder(path, splits[0])
    assert first is not None
    samples = [sample for name in classes[:64] for sample in _some_of(list(image_files(first, name)))]
    channels = channels_of(first / os.fsdecode(sample) for sample in samples)
    reader = functools.partial(read, folder_names=classes, class_names=classes, channels=channels)
    return own_images(f"imagefolder:{path}", channels, classes, splits, reader)


def own_images(
    name: str, channels: int, classes: tuple[str, ...], splits: tuple[str, ...], read: Callable[[Path, str], Images]
) -> Dataset:
    """A description of the user's own images: sizes may differ, a mirrored image keeps its label."""
    return Dataset(
        name=name,
        title="your own images",
        size=None,
        num_classes=len(classes),
        mean=IMAGENET_MEAN if channels == 3 else GREY_MEAN,
        std=IMAGENET_STD if channels == 3 else GREY_STD,
        flip=True,
        read=read,
        splits=splits,
        class_names=classes,
    )


def read(
    folder: Path, split: str, *, folder_names: tuple[str, ...], class_names: tuple[str, ...], channels: int
) -> FileImages:
    """A split whose class c is in the sub-folder `folder_names[c]`."""
    base = _split_folder(folder, split)
    if base is None:
        raise DataError(f"{folder} has no {' or '.join(SPLIT_FOLDERS[split])} folder")
    return read_base(base, folder_names, class_names, channels=channels, needs_all=split == "train")


def read_base(
    base: Path, folder_names: tuple[str, ...], class_names: tuple[str, ...], *, channels: int, needs_all: bool
) -> FileImages:
    """The images of one folder; `needs_all`: of every class."""
    unknown = sorted(set(_subfolders(base)) - set(folder_names))
    if unknown:
        raise DataError(f"{base / unknown[0]} is a class that the training images do not have; remove or rename it")
    paths: list[bytes] = []
    labels: list[int] = []
    for label, name in enumerate(folder_names):
        found = list(image_files(base, name))
        if not found and needs_all:
            raise DataError(f"{base / name} holds no image; add some or remove the folder")
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise DataError(f"there are no images in {base}; lay them out as {base}/CLASS/image")
    return FileImages(
        labels=torch.tensor(labels),
        class_names=class_names,
        rows=torch.arange(len(paths)),
        num_channels=channels,
        folder=base,
        paths=PackedBytes.of(paths),
    )


def class_folders(path: Path) -> tuple[str, ...]:
    """The classes, sorted: sub-folders of the training split, or of another if there is none."""
    base = next((found for split in SPLIT_FOLDERS if (found := _split_folder(path, split))), None)
    names = _subfolders(base) if base is not None else ()
    if not names:
        raise DataError(f"there are no class folders in {base or path}; lay images out as PATH/train/CLASS/image")
    return names


def image_files(base: Path, name: str) -> Iterator[bytes]:
    """The images under base/name, sorted, relative to `base`; hidden files and other suffixes are passed over."""
    suffixes = image_suffixes()
    for folder, folders, files in os.walk(base / name, followlinks=True):
        folders.sort()
        for file in sorted(files):
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in suffixes:
                yield os.fsencode(os.path.relpath(os.path.join(folder, file), base))


def channels_of(files: Iterable[Path | io.BytesIO]) -> int:
    """1 if all these images are grey, else 3. An image that does not open decides nothing: decoding will name it."""
    modes = set()
    for file in files:
        with contextlib.suppress(OSError), Image.open(file) as image:
            modes.add(image.mode)
    return 1 if modes and all(mode in GREY_MODES or mode.startswith("I;16") for mode in modes) else 3


@functools.cache
def image_suffixes() -> frozenset[str]:
    return frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in Image.OPEN)


def _split_folder(path: Path, split: str) -> Path | None:
    return next((path / name for name in SPLIT_FOLDERS[split] if (path / name).is_dir()), None)


def _some_of(files: list[bytes]) -> list[bytes]:
    """The first, the middle and the last: scans in grey often come before photographs in colour, or after."""
    return [files[i] for i in sorted({0, len(files) // 2, len(files) - 1})] if files else []


def _subfolders(base: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(base) if entry.is_dir() and not entry.name.startswith(".")))
