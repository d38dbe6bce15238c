"""Every corruption at every severity: `python -m examples.corruption_sheet docs/images/corruptions.png --first 5`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from calattn.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from calattn.files.atomic import PathArg, atomic_write

_LABEL, _HEAD, _GAP = 150, 24, 4


def corruption_sheet(images: UInt8[Tensor, "15 c h w"], path: PathArg, *, seed: int = 0, enlarge: int = 3) -> None:
    """One row per corruption, each with its own image: clean, then severities 1 to 5, labelled, as PNG."""
    from PIL import Image, ImageDraw, ImageFont

    if len(images) != len(CORRUPTIONS):
        raise ValueError(f"images must be {len(CORRUPTIONS)}, one for each corruption, got {len(images)}")
    height, width = (enlarge * side + _GAP for side in images.shape[2:])
    columns = 1 + len(SEVERITIES)
    sheet = Image.new("RGB", (_LABEL + columns * width, _HEAD + len(images) * height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for column, head in enumerate(("clean", *(str(severity) for severity in SEVERITIES))):
        pen.text((_LABEL + column * width + (width - _GAP) / 2, _HEAD / 2), head, "black", font, anchor="mm")
    for row, (name, image) in enumerate(zip(CORRUPTIONS, images, strict=True)):
        top = _HEAD + row * height
        pen.text((_LABEL - 8, top + (height - _GAP) / 2), name, "black", font, anchor="rm")
        for column, shown in enumerate(_versions(image.unsqueeze(0), name, seed)):
            tile = Image.fromarray(shown.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
            tile = tile.resize((width - _GAP, height - _GAP), Image.Resampling.NEAREST)
            sheet.paste(tile, (_LABEL + column * width, top))
    with atomic_write(path) as partial:
        sheet.save(partial, format="PNG", optimize=True)


def _versions(image: UInt8[Tensor, "1 c h w"], name: str, seed: int) -> list[Tensor]:
    made = [corrupt(image, name, severity, generator=torch.Generator().manual_seed(seed)) for severity in SEVERITIES]
    return [image[0], *(version[0] for version in made)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command: the first test images of a data set, CIFAR-10 by default."""
    from calattn.data import load

    parser = argparse.ArgumentParser(prog="python -m examples.corruption_sheet", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--first", type=int, default=0, help="number of the first of the fifteen images")
    given = parser.parse_args(arguments)
    images = load(given.data, "test")
    chosen = torch.stack([images.decode(given.first + row) for row in range(len(CORRUPTIONS))])
    corruption_sheet(chosen, given.out)


if __name__ == "__main__":
    main()
