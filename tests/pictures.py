"""Folders of images, a folder a class, as `imagefolder:` reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from PIL import Image


def class_folders(root: Path, names: Iterable[str], draw: Callable[[int, int], Image.Image], **counts: int) -> Path:
    """`root`/SPLIT/NAME/NUMBER.png, so many of each class in each split; `draw` gets the place of the class and the number."""
    for split, count in counts.items():
        for label, name in enumerate(names):
            place = root / split / name
            place.mkdir(parents=True)
            for number in range(count):
                draw(label, number).save(place / f"{number}.png")
    return root
