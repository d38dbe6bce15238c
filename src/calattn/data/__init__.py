"""Data sets: `load(name, split)` reads one, `DATASETS` lists all."""

from calattn.data.decoding import EncodedImages, FileImages, LazyImages, in_memory
from calattn.data.images import ArrayImages, DataError, DataMissing, Images
from calattn.data.sources import published  # noqa: F401  (it registers)
from calattn.data.sources.datasets import DATASETS, Dataset, Remote, default_root, describe, load
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
