"""Shards: which Parquet files make up a split."""

from __future__ import annotations

import re
from pathlib import Path

from calattn.data.images import DataError

# Our splits, by the names that people give them; the first that is there counts. Where there are no test files, the
# validation files are what a network is tested on.
_HELD_OUT = ("validation", "valid", "val")
SPLIT_NAMES = {"train": ("train",), "validation": _HELD_OUT, "test": ("test", *_HELD_OUT)}
_OF = re.compile(r"-(\d{5})-of-(\d{5})")


def shards(path: Path, name: str) -> list[Path]:
    """`name-*.parquet` or `name.parquet` in `path`, in its data folder, or in the one sub-folder that has them."""
    if path.is_file():
        return [path] if re.match(rf"{name}(?![a-z])", path.name) else []
    if not path.is_dir():
        return []
    folders = [
        path,
        path / "data",
        *sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name != "data"),
    ]
    found = [(folder, files) for folder in folders if (files := _in(folder, name))]
    if len(found) > 1:
        raise DataError(f"{found[0][0]} and {found[1][0]} both hold {name}-*.parquet; give the path of one of them")
    return _complete(found[0][1]) if found else []


def _in(folder: Path, name: str) -> list[Path]:
    """`name-…`, `name_…`, `name.parquet`, or anything in a folder called `name`."""
    files = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    return files if folder.name == name else [file for file in files if re.match(rf"{name}(?![a-z])", file.name)]


def _complete(files: list[Path]) -> list[Path]:
    """All of 00000-of-0000N must be there: half a training set would pass unnoticed."""
    numbers = [match for file in files if (match := _OF.search(file.name))]
    if numbers:
        total = int(numbers[0][2])
        have = {int(match[1]) for match in numbers}
        gone = sorted(set(range(total)) - have)
        if gone:
            raise DataError(
                f"{files[0].parent} lacks shard {gone[0]:05d} of {total} ({files[0].name} is there); copy it too"
            )
    return files
