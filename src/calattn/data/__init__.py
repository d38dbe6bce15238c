"""Data sets: `load(name, split)` reads one, `DATASETS` says which there are."""

from calattn.data import cifar, cifar10_c, digits, idx, imagenet, svhn, tiny_imagenet  # noqa: F401  (each enters its data sets)
from calattn.data.catalogue import DATASETS, Dataset, Remote, default_root, describe, load
from calattn.data.decoding import EncodedImages, FileImages, LazyImages, in_memory
from calattn.data.images import ArrayImages, DataError, DataMissing, Images
from calattn.data.splits import load_splits, save_splits, validation_split

__all__ = [
    "DATASETS",
    "ArrayImages",
    "DataError",
    "DataMissing",
    "Dataset",
    "EncodedImages",
    "FileImages",
    "Images",
    "LazyImages",
    "Remote",
    "default_root",
    "describe",
    "in_memory",
    "load",
    "load_splits",
    "save_splits",
    "validation_split",
]
