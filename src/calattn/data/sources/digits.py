"""The handwritten digits that come with scikit-learn: 1,797 images of 8 × 8, for trials without a network."""

from __future__ import annotations

from pathlib import Path

import torch

from calattn.data.images import ArrayImages
from calattn.data.sources.datasets import DATASETS, Dataset

TRAIN_SHARE, SPLIT_SEED = 0.65, 0
DIGIT_NAMES = tuple("0123456789")


def read(folder: Path, split: str) -> ArrayImages:  # noqa: ARG001  (embedded: there is no folder)
    """Pixel values 0…16 become 0…255 as round(255 v / 16); 65 % of a seeded permutation is the training split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).to(torch.int64)
    array = ((pixels * 255 + 8) // 16).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    cut = round(TRAIN_SHARE * len(labels))
    rows = order[:cut] if split == "train" else order[cut:]
    return ArrayImages(array=array[rows], labels=labels[rows], class_names=DIGIT_NAMES)


DATASETS.add(
    "digits",
    Dataset(
        name="digits",
        title="Handwritten digits of scikit-learn (8 × 8, 1,797 images)",
        channels=1,
        size=(8, 8),
        num_classes=10,
        mean=(0.3048,),
        std=(0.3755,),
        flip=False,
        read=read,
        class_names=DIGIT_NAMES,
        home="https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0",
    ),
)
