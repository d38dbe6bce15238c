"""SVHN, street-view house numbers: the cropped digits in the publisher's MATLAB files."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch

from calattn.data.images import ArrayImages, DamagedFile, FilesMissing
from calattn.data.sources.datasets import DATASETS, Dataset, Remote
from calattn.data.sources.digits import DIGIT_NAMES


def read(folder: Path, split: str) -> ArrayImages:
    """`X` is [32, 32, 3, n]; `y` is [n, 1] with 1…10, where 10 stands for the digit 0."""
    (path,) = find(folder, split)
    pixels, labels = _arrays(path)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise DamagedFile(f"{path}: X is {pixels.dtype} {pixels.shape}, not uint8 (32, 32, 3, n)")
    if labels.shape != (pixels.shape[3], 1) or not np.isin(labels, range(1, 11)).all():
        raise DamagedFile(f"{path}: y {labels.shape} must hold one label of 1…10 for each of {pixels.shape[3]} images")
    return ArrayImages(
        array=torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))),
        labels=torch.from_numpy(labels[:, 0].astype(np.int64) % 10),
        class_names=DIGIT_NAMES,
    )


def find(folder: Path, split: str) -> tuple[Path]:
    path = folder / f"{split}_32x32.mat"
    if not path.is_file():
        raise FilesMissing(f"there is no {path.name} in {folder}")
    return (path,)


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=["X", "y"])
        return content["X"], content["y"]
    except KeyError as error:
        raise DamagedFile(f"{path} has no variable {error}") from None
    except (MatReadError, ValueError, TypeError, IndexError, OSError, zlib.error, NotImplementedError) as error:
        raise DamagedFile(f"{path} is not a whole MATLAB 5 file ({error})") from None


DATASETS.add(
    "svhn",
    Dataset(
        name="svhn",
        title="SVHN: street-view house numbers, cropped digits (32 × 32, 73,257 + 26,032)",
        channels=3,
        size=(32, 32),
        num_classes=10,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        flip=False,
        read=read,
        find=find,
        class_names=DIGIT_NAMES,
        remotes=tuple(
            Remote(
                name=f"{split}_32x32.mat",
                urls=(f"http://ufldl.stanford.edu/housenumbers/{split}_32x32.mat",),
                checksum=f"md5:{md5}",
                bytes=size,
            )
            for split, md5, size in (
                ("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
                ("test", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
            )
        ),
        home="http://ufldl.stanford.edu/housenumbers/",
        licence="non-commercial use",
    ),
)
