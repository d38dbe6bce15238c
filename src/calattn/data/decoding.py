"""Encoded images: files or byte strings that are decoded one at a time, and the way to decode them all at once."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import io
import math
import os
import struct
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from calattn import checks
from calattn.data.images import ArrayImages, DataError, Images, as_tensor
from calattn.data.resize import Interpolation
from calattn.files.atomic import PathArg, atomic_write

Box = tuple[float, float, float, float]  # left, top, right, bottom

# Pillow resizes in fixed point: the same on every machine, and fast on big images.
_RESAMPLING: dict[str, Image.Resampling] = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}

# All that Pillow's decoders raise on damaged bytes.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
_CHUNK = 64  # images that a thread decodes in one go
# Pixels: two threads on two cores take about 1.5 times as long as one at 32 px, and half as long at 128 px.
_WORTH_A_THREAD = 96 * 96


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
            raise DataError(f"{path} is damaged; delete it, and it is made again")
        return cls(np.memmap(path, dtype=np.uint8, mode="r", shape=(start,)), offsets, path=path)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._data[self._offsets[index] : self._offsets[index + 1]].tobytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedBytes, (self._data, self._offsets)) if self._path is None else (PackedBytes.mapped, (self._path,))


def write_packed(path: PathArg, items: Iterable[bytes]) -> None:
    """Write byte strings as they come, for `PackedBytes.mapped`: the bytes, their offsets, their number."""
    ends = [0]
    with atomic_write(path) as partial, open(partial, "wb") as file:
        for item in items:
            ends.append(ends[-1] + file.write(item))
        file.write(np.array(ends, dtype="<i8").tobytes())
        file.write((len(ends) - 1).to_bytes(8, "little"))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LazyImages(Images):
    """Images that wait in encoded form. `rows` are those of the stored images that this split holds, in order.

    `declared_size` is what every image must turn out to be, if the data set knows it.
    """

    rows: Int[Tensor, " n"]
    num_channels: int = 3
    declared_size: tuple[int, int] | None = None

    @property
    def channels(self) -> int:
        return self.num_channels

    @property
    def size(self) -> tuple[int, int] | None:
        return self.declared_size

    @abstractmethod
    def encoded(self, index: int) -> bytes: ...

    def open(self, index: int) -> Image.Image:
        """Image `index` upright; DataError names it if it is damaged, or its white level is not known."""
        try:
            image = Image.open(io.BytesIO(self.encoded(index)))
            image.load()
            if has_known_range(image):
                return upright(image).convert("RGB" if self.channels == 3 else "L")
        except _DAMAGE as error:
            raise DataError(
                f"{self.source(index)} cannot be decoded as an image ({_reason(error)}); replace or remove it"
            ) from None
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise DataError(
            f"{self.source(index)} holds {kind} values, and their white level is not known; scale them yourself and save "
            "the image with 8 bits per channel"
        )

    def with_common_size(self) -> LazyImages:
        """The same images; if all have one size, which their headers tell, that is declared."""
        found: set[tuple[int, int]] = set()
        for index in range(len(self)):
            with contextlib.suppress(*_DAMAGE), Image.open(io.BytesIO(self.encoded(index))) as image:
                turned = image.getexif().get(ExifTags.Base.Orientation, 1) > 4
                found.add(image.size if turned else image.size[::-1])
            if len(found) > 1:
                return self
        return dataclasses.replace(self, declared_size=found.pop() if found else None)

    def decode(self, index: int) -> UInt8[Tensor, "c h w"]:
        tensor = as_tensor(self.open(index))
        if self.declared_size is not None and tuple(tensor.shape[1:]) != self.declared_size:
            want, got = _size_text(self.declared_size), _size_text(tuple(tensor.shape[1:]))
            raise DataError(f"{self.source(index)} is {got}, but images of this data set are {want} (height × width)")
        return tensor

    def select(self, index: Int[Tensor, " m"]) -> Self:
        return self._selected(index, rows=self.rows[index])


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FileImages(LazyImages):
    """One file per image: paths relative to `folder`."""

    folder: Path
    paths: PackedBytes

    def source(self, index: int) -> str:
        return str(self.folder / os.fsdecode(self.paths[int(self.rows[index])]))

    def encoded(self, index: int) -> bytes:
        return Path(self.source(index)).read_bytes()


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EncodedImages(LazyImages):
    """Encoded bytes that came out of larger files; `files` and `starts` (first row of each) say which."""

    content: PackedBytes
    files: tuple[str, ...]
    starts: tuple[int, ...]

    def source(self, index: int) -> str:
        row = int(self.rows[index])
        file = bisect.bisect_right(self.starts, row) - 1
        return f"{self.files[file]}, image {row - self.starts[file]}"

    def encoded(self, index: int) -> bytes:
        return self.content[int(self.rows[index])]


def has_known_range(image: Image.Image) -> bool:
    """Whether black and white are known: floats and 32-bit integers may be of any scale, and cut to 8 bits be all black.

    Mode I also stands for 16 bits: in PGM always (Pillow scales its maximum to 65535), in PNG up to Pillow 10.
    """
    return image.mode != "F" and (image.mode != "I" or image.format in ("PPM", "PNG"))


def upright(image: Image.Image) -> Image.Image:
    """Turned by its EXIF orientation, 16-bit grey cut to 8 bits, palettes and alpha resolved."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16") or image.mode == "I":
        return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
    # Straight from a palette to RGB, Pillow warns about transparency; by way of RGBA it does not.
    return image.convert("RGBA") if image.mode in ("P", "PA") else image


def centre_box(size: tuple[int, int], wanted: tuple[int, int]) -> Box:
    """The largest centred part with the wanted aspect: the shorter side resized and the longer cut, in one step.

    >>> centre_box((16, 24), (8, 8)), centre_box((8, 11), (8, 8))
    ((4.0, 0.0, 20.0, 16.0), (1, 0, 9.0, 8.0))
    """
    scale = min(size[0] / wanted[0], size[1] / wanted[1])
    tall, wide = wanted[0] * scale, wanted[1] * scale
    # Rounding may make the part slightly larger than the image (450 px for 224), and Pillow refuses a corner below zero.
    top, left = max((size[0] - tall) / 2, 0.0), max((size[1] - wide) / 2, 0.0)
    if scale == 1:  # only cut: from half a pixel on, every pixel would become the mean of two
        top, left = math.floor(top), math.floor(left)
    return left, top, min(left + wide, size[1]), min(top + tall, size[0])


def resized_part(image: Image.Image, box: Box, size: tuple[int, int], *, interpolation: Interpolation) -> Image.Image:
    """The part of the image in `box` as height × width, antialiased where it shrinks."""
    if interpolation not in _RESAMPLING:
        raise ValueError(f"interpolation must be one of {', '.join(_RESAMPLING)}, got {interpolation!r}")
    return image.resize(size[::-1], _RESAMPLING[interpolation], box=box)


def resized_part_of(
    images: Images,
    index: int,
    size: tuple[int, int],
    *,
    interpolation: Interpolation,
    box_of: Callable[[tuple[int, int]], Box] | None = None,
) -> UInt8[Tensor, "c h w"]:
    """A part of image `index` as height × width: what `box_of` its own size is, else the centre. DataError names the image."""
    image = images.open(index)
    own = image.height, image.width
    try:
        box = centre_box(own, size) if box_of is None else box_of(own)
        return as_tensor(resized_part(image, box, size, interpolation=interpolation))
    except ValueError as error:
        raise DataError(
            f"{images.source(index)} cannot be resized to {_size_text(size)} px ({_reason(error)}); replace or remove it"
        ) from None


def fitted(image: Image.Image, size: int, *, interpolation: Interpolation = "bilinear") -> Image.Image:
    """The largest centred square as size × size."""
    box = centre_box((image.height, image.width), (size, size))
    return resized_part(image, box, (size, size), interpolation=interpolation)


def in_memory(
    images: Images,
    *,
    size: int | None = None,
    interpolation: Interpolation = "bilinear",
    progress: Callable[[str, int, int], None] | None = None,
) -> ArrayImages:
    """All images decoded into one array; with `size`, each is fitted to size × size first, as a stream would.

    Without `size` all must have the same height and width.
    """
    if size is not None:
        checks.positive_int(size, "size")
    if isinstance(images, ArrayImages) and (size is None or images.size == (size, size)):
        return images
    first = _one(images, 0, size, interpolation)
    array = torch.empty((len(images), *first.shape), dtype=torch.uint8)

    def put(start: int) -> int:
        end = min(start + _CHUNK, len(images))
        for index in range(start, end):
            image = _one(images, index, size, interpolation)
            if image.shape != first.shape:
                raise DataError(
                    f"{images.source(index)} is {_size_text(tuple(image.shape[1:]))} but the first image is "
                    f"{_size_text(tuple(first.shape[1:]))} (height × width); choose one size for all, with size=… "
                    "(in a run: data.size)"
                )
            array[index] = image
        return end

    starts = range(0, len(images), _CHUNK)
    with ThreadPoolExecutor(max_workers=_decoding_threads(images)) as pool:
        for end in pool.map(put, starts):
            if progress is not None:
                progress("decoding", end, len(images))
    return ArrayImages(
        array=array, labels=images.labels, class_names=images.class_names, soft_labels=images.soft_labels
    )


def _decoding_threads(images: Images) -> int:
    """Pillow's decoders release the interpreter lock, so threads help; with small images they only fight over that lock."""
    width, height = images.open(0).size
    return 1 if width * height < _WORTH_A_THREAD else min(16, os.cpu_count() or 1)


def _one(images: Images, index: int, size: int | None, interpolation: Interpolation) -> Tensor:
    if size is None:
        return images.decode(index)
    return resized_part_of(images, index, (size, size), interpolation=interpolation)


def _size_text(size: tuple[int, ...]) -> str:
    return " × ".join(str(side) for side in size)


def _reason(error: BaseException) -> str:
    """Pillow's message, without the address of the in-memory stream, which helps nobody."""
    if "cannot identify image file" in str(error):
        return "not an image file that is known"
    return " ".join(str(error).split())[:120] or type(error).__name__
