"""What the tests of data share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def image_folder(base: Path, *images: str, size: tuple[int, int] = (4, 4), mode: str = "RGB") -> str:
    """Black images such as "train/cat/1.png" under `base`, and the data set's name."""
    for name in images:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size).save(base / name)
    return f"imagefolder:{base}"
