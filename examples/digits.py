"""The data of the examples: 8 × 8 digits that come with scikit-learn, as (PIL image, label). Put yours in their place."""

import random

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits


def transform(image: Image.Image) -> torch.Tensor:
    """What the network takes for a test image: no augmentation."""
    return torch.from_numpy(np.array(image))[None] / 127.5 - 1


def _shuffled() -> list[tuple[Image.Image, int]]:
    pixels, labels = load_digits(return_X_y=True)
    pictures = [Image.fromarray((15 * row.reshape(8, 8)).astype(np.uint8)) for row in pixels]
    rows = list(zip(pictures, labels.tolist(), strict=True))
    random.Random(0).shuffle(rows)
    return rows


_ROWS = _shuffled()
TRAIN, VALIDATION, TEST = _ROWS[:1000], _ROWS[1000:1250], _ROWS[1250:]
