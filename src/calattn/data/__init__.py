"""Data sets: `load(name, split)` reads one, `DATASETS` says which there are."""

from calattn.data.catalogue import DATASETS, Dataset, default_root
from calattn.data.images import ArrayImages, DataError, DataMissing, Images

__all__ = ["DATASETS", "ArrayImages", "DataError", "DataMissing", "Dataset", "Images", "default_root"]
