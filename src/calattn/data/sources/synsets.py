"""Images by synset: ImageNet-1k as folders, Tiny ImageNet as the publisher's folder or straight from its zip."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from calattn.data.decoding import EncodedImages, FileImages, LazyImages, PackedBytes
from calattn.data.images import DamagedFile, FilesMissing
from calattn.data.sources import image_folder

_IMAGENET_CLASSES = 1000
_TINY = "tiny-imagenet-200"
_TEXTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
_TRAIN = re.compile(r"train/(?P<wnid>n\d+)/images/[^/]+\.JPEG")


def read_imagenet(folder: Path, split: str) -> FileImages:
    """From train/n01440764/*.JPEG and val/n01440764/*.JPEG.

    The validation images are our test split: labels of the true test images were never published.
    """
    (base,), wnids = find_imagenet(folder, split), image_folder.class_folders(folder)
    return image_folder.read_base(base, wnids, _words(folder, wnids), channels=3, needs_all=split == "train")


def find_imagenet(folder: Path, split: str) -> tuple[Path]:
    """The folder of a split, if the classes are in it or next to it."""
    base = folder / ("train" if split == "train" else "val")
    if not base.is_dir():
        raise FilesMissing(f"there is no {base}")
    wnids = image_folder.class_folders(folder)
    loose = next(base.glob("*.JPEG"), None)
    if loose is not None:
        raise DamagedFile(f"{loose} is not in a class folder; sort the images into {base}/WNID/")
    if len(wnids) != _IMAGENET_CLASSES:
        raise DamagedFile(f"{folder} has {len(wnids)} class folders where ImageNet-1k has {_IMAGENET_CLASSES}")
    return (base,)


def _words(folder: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word of each synset if LOC_synset_mapping.txt is there, else the synset's number."""
    path = folder / "LOC_synset_mapping.txt"
    if not path.is_file():
        return wnids
    lines = (line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines())
    words = {wnid: text.split(",")[0].strip() for wnid, _, text in lines if text.strip()}
    return _unique_names(wnids, words)


def _unique_names(wnids: tuple[str, ...], words: dict[str, str]) -> tuple[str, ...]:
    """A word for each synset; where two share one (crane the bird, crane the machine), the number is added."""
    found = [words.get(wnid, wnid) for wnid in wnids]
    return tuple(
        word if found.count(word) == 1 else f"{word} ({wnid})" for word, wnid in zip(found, wnids, strict=True)
    )


def read_tiny(folder: Path, split: str) -> LazyImages:
    """Classes are the sorted synsets. The published validation images are our test split: the test labels are secret."""
    found = find_tiny(folder, split)
    if found[0].suffix == ".zip":
        return _from_zip(found[0], split)
    base = found[0].parent
    texts = {name: _text(base / name) for name in _TEXTS}
    names, labels, class_names = _listing(base, split, texts, _walk(base / "train", base))
    return FileImages(
        labels=labels,
        class_names=class_names,
        rows=torch.arange(len(names)),
        declared_size=(64, 64),
        folder=base,
        paths=PackedBytes.of(os.fsencode(name) for name in names),
    )


def find_tiny(folder: Path, split: str) -> list[Path]:
    """The zip alone, or the three lists of the folder that it unpacks to and the folder of the split's images."""
    archive = folder / f"{_TINY}.zip"
    if archive.is_file():
        return [archive]
    base = next((path for path in (folder / _TINY, folder) if (path / "wnids.txt").is_file()), None)
    if base is None:
        raise FilesMissing(f"there is no {_TINY}.zip and no {_TINY}/wnids.txt in {folder}")
    found = [base / name for name in (*_TEXTS, "train" if split == "train" else "val/images")]
    for path in found:
        if not path.exists():
            raise DamagedFile(f"{path} is missing")
    return found


def _from_zip(archive: Path, split: str) -> EncodedImages:
    try:
        with zipfile.ZipFile(archive) as file:
            members = {name.removeprefix(f"{_TINY}/") for name in file.namelist()}
            texts = {name: file.read(f"{_TINY}/{name}").decode() for name in _TEXTS}
            names, labels, class_names = _listing(archive, split, texts, iter(sorted(members)))
            content = PackedBytes.of(file.read(f"{_TINY}/{name}") for name in names)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, UnicodeDecodeError) as error:
        reason = error.args[0] if error.args else type(error).__name__
        raise DamagedFile(f"{archive} is not the whole zip of Tiny ImageNet ({reason})") from None
    return EncodedImages(
        labels=labels,
        class_names=class_names,
        rows=torch.arange(len(names)),
        declared_size=(64, 64),
        content=content,
        files=(str(archive),),
        starts=(0,),
    )


def _listing(
    source: Path, split: str, texts: dict[str, str], train_names: Iterator[str]
) -> tuple[list[str], torch.Tensor, tuple[str, ...]]:
    """Image names, labels and class names of a split, from the three lists and, for training, the files themselves."""
    wnids = tuple(sorted(texts["wnids.txt"].split()))
    pairs = _training(train_names) if split == "train" else _annotated(source, texts["val/val_annotations.txt"])
    index = {wnid: label for label, wnid in enumerate(wnids)}
    for name, wnid in pairs:
        if wnid not in index:
            raise DamagedFile(f"{source}: {name} is of {wnid}, which wnids.txt does not name")
    if not pairs:
        raise DamagedFile(f"{source} has no {split} images")
    words = {
        wnid: text.split(",")[0].strip()
        for wnid, _, text in (line.partition("\t") for line in texts["words.txt"].splitlines())
    }
    return [name for name, _ in pairs], torch.tensor([index[w] for _, w in pairs]), _unique_names(wnids, words)


def _training(names: Iterator[str]) -> list[tuple[str, str]]:
    return [(name, match["wnid"]) for name in names if (match := _TRAIN.fullmatch(name))]


def _annotated(source: Path, text: str) -> list[tuple[str, str]]:
    """Lines of val_annotations.txt: file name, synset, then a box that is not needed."""
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DamagedFile(f"{source}: line {number} of val/val_annotations.txt has no synset: {line[:40]!r}")
        pairs.append((f"val/images/{fields[0]}", fields[1]))
    return pairs


def _walk(folder: Path, base: Path) -> Iterator[str]:
    for path, below, files in os.walk(folder):
        below.sort()
        for file in sorted(files):
            yield Path(path, file).relative_to(base).as_posix()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DamagedFile(f"{path} is not text") from None
