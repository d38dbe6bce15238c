"""The data sets that we know: the table `published.toml`, and for each the functions that find and read its files."""

from __future__ import annotations

import importlib.resources
import tomllib
from typing import Any

from calattn.data.sources import array_files, cifar10_c, synsets
from calattn.data.sources.array_files import CifarFiles, IdxFiles
from calattn.data.sources.datasets import DATASETS, Dataset, NpmPackage, Remote


def _register() -> None:
    text = importlib.resources.files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
    for name, row in tomllib.loads(text).items():
        classes = tuple(row.get("class_names", ()))
        DATASETS.add(name, _dataset(name, row | {"class_names": classes} | _files(name, classes)))


def _files(name: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """What differs between data sets by more than constants."""
    if name in ("cifar10", "cifar100"):
        cifar = CifarFiles(classes)
        return {"read": cifar.read, "find": cifar.find}
    if name in ("mnist", "fashion_mnist"):
        idx = IdxFiles(classes)
        return {"read": idx.read, "find": idx.find}
    others: dict[str, dict[str, Any]] = {
        "cifar10_c": {"read": cifar10_c.read, "find": cifar10_c.find, "splits": cifar10_c.SPLITS},
        "digits": {"read": array_files.read_digits},
        "imagenet1k": {"read": synsets.read_imagenet, "find": synsets.find_imagenet},
        "svhn": {"read": array_files.read_svhn, "find": array_files.find_svhn},
        "tiny_imagenet": {"read": synsets.read_tiny, "find": synsets.find_tiny},
    }
    return others[name]


def _dataset(name: str, row: dict[str, Any]) -> Dataset:
    mirrors, files, size, npm = (row.pop(key, None) for key in ("mirrors", "files", "size", "npm"))
    return Dataset(
        name=name,
        size=None if size is None else tuple(size),
        num_classes=row.pop("num_classes", len(row["class_names"])),
        mean=tuple(row.pop("mean")),
        std=tuple(row.pop("std")),
        remotes=_remotes(files or {}, mirrors or []),
        npm=None if npm is None else NpmPackage(**(npm | {"files": _remotes(npm["files"], [])})),
        **row,
    )


def _remotes(files: dict[str, dict[str, Any]], mirrors: list[str]) -> tuple[Remote, ...]:
    found = []
    for name, stated in files.items():
        kind = "md5" if "md5" in stated else "sha256"
        urls = tuple(mirror.format(name) for mirror in mirrors)
        found.append(Remote(name=name, urls=urls, checksum=f"{kind}:{stated[kind]}", bytes=stated.get("bytes")))
    return tuple(found)


_register()
