"""Array files: publishers' formats that hold many small images in one file (CIFAR, MNIST, SVHN), and scikit-learn's digits."""

from __future__ import annotations

import dataclasses
import gzip
import math
import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from calattn.data.images import ArrayImages, DamagedFile, FilesMissing

_PIXELS = 3 * 32 * 32  # of a CIFAR image
_LARGEST = 1 << 28  # bytes of one file in an archive; CIFAR's largest has 154 MB
_DIGITS_SHARE, _DIGITS_SEED = 0.65, 0  # of the training split
_DIGIT_NAMES = tuple("0123456789")


@dataclasses.dataclass(frozen=True)
class CifarFiles:
    """CIFAR-10 or CIFAR-100 from the binary files: label bytes, then 3 × 32 × 32 pixels, record after record.

    CIFAR-100 has two label bytes, coarse and fine; the last one is the class.
    """

    class_names: tuple[str, ...]

    @property
    def archive(self) -> str:
        return f"cifar-{len(self.class_names)}-binary.tar.gz"

    def files(self, split: str) -> tuple[str, ...]:
        if len(self.class_names) == 100:
            return (f"{split}.bin",)
        return tuple(f"data_batch_{i}.bin" for i in range(1, 6)) if split == "train" else ("test_batch.bin",)

    def read(self, folder: Path, split: str) -> ArrayImages:
        """A split from the archive as it was published, or from its extracted .bin files."""
        label_bytes = 1 if len(self.class_names) == 10 else 2
        parts = []
        for source, content in self._contents(folder, split):
            records = np.frombuffer(content, dtype=np.uint8)
            if records.size == 0 or records.size % (_PIXELS + label_bytes):
                raise DamagedFile(f"{source} has {records.size} bytes, not a multiple of {_PIXELS + label_bytes}")
            records = records.reshape(-1, _PIXELS + label_bytes)
            check_labels(records[:, label_bytes - 1], len(self.class_names), source)
            parts.append(records)
        rows = np.concatenate(parts)
        return ArrayImages(
            array=torch.from_numpy(rows[:, label_bytes:].copy()).view(-1, 3, 32, 32),
            labels=torch.from_numpy(rows[:, label_bytes - 1].astype(np.int64)),
            class_names=self.class_names,
        )

    def find(self, folder: Path, split: str) -> list[Path]:
        """The archive alone, or the .bin files of a split, wherever they lie in the folder."""
        # The archive first: it comes from the publisher, checked.
        if (folder / self.archive).is_file():
            return [folder / self.archive]
        names = self.files(split)
        paths = [next(iter(sorted(folder.rglob(name))), None) for name in names]
        if not any(paths):
            pickled = next((path for path in folder.rglob("*batches.meta") if path.is_file()), None)
            hint = f" (files like {pickled} are pickles, which are not read)" if pickled else ""
            raise FilesMissing(f"there is no {self.archive} and no {names[0]} in {folder}{hint}")
        for name, path in zip(names, paths, strict=True):
            if path is None:
                raise DamagedFile(f"{name} is missing in {folder}")
        return [path for path in paths if path is not None]

    def _contents(self, folder: Path, split: str) -> list[tuple[Path, bytes]]:
        paths, names = self.find(folder, split), self.files(split)
        if paths[0].name not in names:
            return _archived(paths[0], names)
        return [(path, path.read_bytes()) for path in paths]


def _archived(path: Path, names: tuple[str, ...]) -> list[tuple[Path, bytes]]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|*") as tar:  # a stream: members are read in passing, nothing is unpacked
            for member in tar:
                if (name := Path(member.name).name) in names:
                    found[name] = content_of(tar, member)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFile(f"{path} is not a whole tar.gz archive ({error})") from None
    for name in names:
        if name not in found:
            raise DamagedFile(f"{path} holds no {name}: it is another archive, or cut short")
    return [(path / name, found[name]) for name in names]


def content_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The bytes of a plain file in an archive; links, names that lead elsewhere and bombs are not read."""
    path = PurePosixPath(member.name)
    if not member.isreg() or path.is_absolute() or ".." in path.parts or member.size > _LARGEST:
        raise tarfile.ReadError(f"{member.name!r} is not a plain file of at most {_LARGEST >> 20} MiB")
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def check_labels(labels: np.ndarray, num_classes: int, file: Path) -> None:
    """A label that no class has is damage."""
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        row = int(wrong.argmax())
        raise DamagedFile(f"{file}: label {row} is {labels[row]}, outside [0, {num_classes - 1}]")


@dataclasses.dataclass(frozen=True)
class IdxFiles:
    """MNIST and its relatives: big-endian header, then bytes."""

    class_names: tuple[str, ...]

    def read(self, folder: Path, split: str) -> ArrayImages:
        """`train-images-idx3-ubyte` and its three companions, as they are or gzipped."""
        images_path, labels_path = self.find(folder, split)
        images, labels = read_idx(images_path, ndim=3), read_idx(labels_path, ndim=1)
        if len(images) != len(labels):
            raise DamagedFile(f"{images_path} has {len(images)} images but {labels_path.name} has {len(labels)} labels")
        check_labels(labels, len(self.class_names), labels_path)
        return ArrayImages(
            array=torch.from_numpy(images.copy()).unsqueeze(1),
            labels=torch.from_numpy(labels.astype(np.int64)),
            class_names=self.class_names,
        )

    def find(self, folder: Path, split: str) -> tuple[Path, Path]:
        """The files of images and of labels."""
        stem = "train" if split == "train" else "t10k"
        images, labels = f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"
        return _plain_or_gzipped(folder, images), _plain_or_gzipped(folder, labels)


def read_idx(path: Path, *, ndim: int) -> np.ndarray:
    """An IDX file of unsigned bytes: magic 00 00 08 ndim, one 32-bit length per dimension, then the bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFile(f"{path} is not a whole gzip file ({error})") from None
    start = 4 + 4 * ndim
    if len(content) < start or content[:4] != bytes((0, 0, 8, ndim)):
        raise DamagedFile(
            f"{path} is not an IDX file of {ndim}-dimensional bytes: it begins with {content[:4].hex(' ')!r}"
        )
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(ndim))
    if len(content) > _LARGEST:
        raise DamagedFile(f"{path} has more than {_LARGEST >> 20} MiB of data")
    if len(content) - start != math.prod(shape):
        raise DamagedFile(f"{path} has {len(content) - start} bytes of data where its header states {math.prod(shape)}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _plain_or_gzipped(folder: Path, name: str) -> Path:
    # Gzipped first: those come from the publisher, checked.
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FilesMissing(f"there is no {name}[.gz] in {folder}")


def read_svhn(folder: Path, split: str) -> ArrayImages:
    """`X` is [32, 32, 3, n]; `y` is [n, 1] with 1…10, where 10 stands for the digit 0."""
    (path,) = find_svhn(folder, split)
    pixels, labels = _matlab_arrays(path)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise DamagedFile(f"{path}: X is {pixels.dtype} {pixels.shape}, not uint8 (32, 32, 3, n)")
    if labels.shape != (pixels.shape[3], 1) or not np.isin(labels, range(1, 11)).all():
        raise DamagedFile(f"{path}: y {labels.shape} must hold one label of 1…10 for each of {pixels.shape[3]} images")
    return ArrayImages(
        array=torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))),
        labels=torch.from_numpy(labels[:, 0].astype(np.int64) % 10),
        class_names=_DIGIT_NAMES,
    )


def find_svhn(folder: Path, split: str) -> tuple[Path]:
    path = folder / f"{split}_32x32.mat"
    if not path.is_file():
        raise FilesMissing(f"there is no {path.name} in {folder}")
    return (path,)


def _matlab_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=["X", "y"])
        return content["X"], content["y"]
    except KeyError as error:
        raise DamagedFile(f"{path} has no variable {error}") from None
    except (MatReadError, ValueError, TypeError, IndexError, OSError, zlib.error, NotImplementedError) as error:
        raise DamagedFile(f"{path} is not a whole MATLAB 5 file ({error})") from None


def read_digits(folder: Path, split: str) -> ArrayImages:  # noqa: ARG001  (embedded: there is no folder)
    """Pixel values 0…16 become 0…255 as round(255 v / 16); 65 % of a seeded permutation is the training split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).to(torch.int64)
    array = ((pixels * 255 + 8) // 16).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_DIGITS_SEED))
    cut = round(_DIGITS_SHARE * len(labels))
    rows = order[:cut] if split == "train" else order[cut:]
    return ArrayImages(array=array[rows], labels=labels[rows], class_names=_DIGIT_NAMES)
