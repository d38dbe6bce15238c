"""ImageNet-1k as folders of synsets: train/n01440764/*.JPEG and val/n01440764/*.JPEG."""

from __future__ import annotations

from pathlib import Path

from calattn.data.decoding import FileImages
from calattn.data.images import DamagedFile, FilesMissing
from calattn.data.sources import folder as folders
from calattn.data.sources.datasets import DATASETS, IMAGENET_MEAN, IMAGENET_STD, Dataset

NUM_CLASSES = 1000


def read(folder: Path, split: str) -> FileImages:
    """The validation images are our test split: labels of the true test images were never published."""
    find(folder, split)
    wnids = folders.class_folders(folder)
    names = _words(folder, wnids)
    return folders.read(folder, split, folder_names=wnids, class_names=names, channels=3)


def find(folder: Path, split: str) -> tuple[Path]:
    """The folder of a split, if the classes are in it or beside it."""
    base = folder / ("train" if split == "train" else "val")
    if not base.is_dir():
        raise FilesMissing(f"there is no {base}")
    wnids = folders.class_folders(folder)
    loose = next(base.glob("*.JPEG"), None)
    if loose is not None:
        raise DamagedFile(f"{loose} lies outside a class folder; sort the images into {base}/WNID/")
    if len(wnids) != NUM_CLASSES:
        raise DamagedFile(f"{folder} has {len(wnids)} class folders where ImageNet-1k has {NUM_CLASSES}")
    return (base,)


def _words(folder: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word of each synset if LOC_synset_mapping.txt lies beside, else the synset's number."""
    path = folder / "LOC_synset_mapping.txt"
    if not path.is_file():
        return wnids
    lines = (line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines())
    words = {wnid: text.split(",")[0].strip() for wnid, _, text in lines if text.strip()}
    return unique_names(wnids, words)


def unique_names(wnids: tuple[str, ...], words: dict[str, str]) -> tuple[str, ...]:
    """A word for each synset; where two share one (crane the bird, crane the machine), the number is added."""
    found = [words.get(wnid, wnid) for wnid in wnids]
    return tuple(
        word if found.count(word) == 1 else f"{word} ({wnid})" for word, wnid in zip(found, wnids, strict=True)
    )


DATASETS.add(
    "imagenet1k",
    Dataset(
        name="imagenet1k",
        title="ImageNet-1k (ILSVRC 2012; 1,281,167 + 50,000, 1,000 classes)",
        channels=3,
        size=None,
        num_classes=NUM_CLASSES,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        flip=True,
        read=read,
        find=find,
        manual=(
            "ImageNet needs an account: get it from https://image-net.org/download.php and put train/WNID/*.JPEG and "
            "val/WNID/*.JPEG (or the Parquet files of hf.co/datasets/ILSVRC/imagenet-1k) into a folder or link named "
            "imagenet1k under CALATTN_DATA"
        ),
        home="https://image-net.org/",
        licence="non-commercial research, by agreement",
    ),
)
