"""The validation split: drawn by seed, stored as indices, checked when it is read back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from calattn.data.images import DataError
from calattn.files.atomic import PathArg, atomic_write

_FORMAT, _VERSION = "calattn-splits", 1
_ELSEWHERE = "a split of its own"
_REMEDY = "restore the file, or train into a new folder"


def validation_split(
    labels: Int[Tensor, " n"], *, fraction: float, seed: int
) -> tuple[Int[Tensor, " t"], Int[Tensor, " v"]]:
    """Sorted (training, validation) indices: round(fraction · n) images drawn at random, whatever their class.

    >>> train, validation = validation_split(torch.zeros(100, dtype=torch.int64), fraction=0.05, seed=0)
    >>> len(train), len(validation)
    (95, 5)
    """
    n = len(labels)
    if not 0 < fraction < 1:
        raise DataError(f"fraction must be between 0 and 1, got {fraction!r}")
    count = round(fraction * n)
    if not 0 < count < n:
        raise DataError(
            f"fraction={fraction} of {n} images leaves {n - count} for training and {count} for validation; "
            "change data.validation, or the fraction"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[count:].sort().values, order[:count].sort().values


def save_splits(
    path: PathArg, validation: Int[Tensor, " v"] | None, labels: Int[Tensor, " n"], *, fraction: float, seed: int
) -> None:
    """Write the validation indices as JSON; all other images are for training. None: validation images lie elsewhere."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "images": len(labels),
        "labels_sha256": _digest(labels),
        "fraction": fraction,
        "seed": seed,
        "validation": _ELSEWHERE if validation is None else validation.tolist(),
    }
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(content) + "\n", encoding="utf-8")


def load_splits(path: PathArg, labels: Int[Tensor, " n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " v"] | None]:
    """(training, validation) indices from a file, which must have been made for these very labels."""
    content = _parsed(path)
    if (content.get("images"), content.get("labels_sha256")) != (len(labels), _digest(labels)):
        raise DataError(
            f"{path} was made for {content.get('images')} images with other labels than these {len(labels)}: the data set "
            "has changed; put the old one back, or train into a new folder"
        )
    rows = content.get("validation")
    if rows == _ELSEWHERE:
        return torch.arange(len(labels)), None
    if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < len(labels) for row in rows):
        raise DataError(f"{path}: validation must be a list of indices below {len(labels)}; {_REMEDY}")
    if rows != sorted(set(rows)) or not 0 < len(rows) < len(labels):
        raise DataError(f"{path}: the indices of validation must rise without repeats and leave some images; {_REMEDY}")
    validation = torch.tensor(rows)
    train = torch.ones(len(labels), dtype=torch.bool)
    train[validation] = False
    return train.nonzero().squeeze(1), validation


def _parsed(path: PathArg) -> dict[str, object]:
    try:
        content = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not whole JSON ({error}); {_REMEDY}") from None
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (_FORMAT, _VERSION):
        raise DataError(f"{path} is not a split file of this version; {_REMEDY}")
    return content


def _digest(labels: Tensor) -> str:
    return hashlib.sha256(labels.to(torch.int64).contiguous().numpy().astype("<i8").tobytes()).hexdigest()
