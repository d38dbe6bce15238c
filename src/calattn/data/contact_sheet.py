"""The contact sheet: some images of each class with their names, to see what a data set is."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from calattn import checks
from calattn.data.decoding import fitted
from calattn.data.images import Images
from calattn.files.atomic import PathArg, atomic_write

_TILE, _GAP, _MARGIN = 96, 10, 24
_LABEL, _TITLE = 13, 20  # font sizes
_INK, _FAINT, _PAPER = (28, 28, 30), (110, 110, 115), (255, 255, 255)


def contact_sheet(
    images: Images, path: PathArg, *, rows: int = 6, columns: int = 10, title: str | None = None, seed: int = 0
) -> Path:
    """Write a PNG of rows × columns images, as many of each class as there is room for; classes run across.

    Small images are enlarged by a whole factor without smoothing, large ones fitted.
    """
    columns = _whole_cycles(checks.positive_int(columns, "columns"), len(images.labels.unique()))
    chosen = balanced(images, checks.positive_int(rows, "rows") * columns, seed=seed)
    tiles = _tiles([images.open(index) for index in chosen])
    side = max(max(tile.size) for tile in tiles)
    head = _MARGIN + (_TITLE + _LABEL + 22 if title else 0)
    step_x, step_y = side + _GAP, side + _LABEL + 8 + _GAP
    width = 2 * _MARGIN + columns * step_x - _GAP
    sheet = Image.new("RGB", (width, head - (-len(tiles) // columns) * step_y - _GAP + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        _write_head(draw, title, images, width)
    for place, (index, tile) in enumerate(zip(chosen, tiles, strict=True)):
        x, y = _MARGIN + place % columns * step_x, head + place // columns * step_y
        sheet.paste(tile, (x + (side - tile.width) // 2, y + (side - tile.height) // 2))
        text = shortened(_label(images, index), _font(_LABEL), side + _GAP - 4)
        draw.text((x + side // 2, y + side + 5), text, font=_font(_LABEL), fill=_INK, anchor="ma")
    with atomic_write(path) as partial:
        sheet.save(partial, format="PNG", optimize=True)
    return Path(path)


def balanced(images: Images, count: int, *, seed: int) -> list[int]:
    """Up to `count` indices, the classes taking turns; which of a class is drawn by seed."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    labels = images.labels[order]
    by_class = [order[labels == label].tolist() for label in labels.unique().tolist()]
    turns = max(len(members) for members in by_class)
    return [members[turn] for turn in range(turns) for members in by_class if turn < len(members)][:count]


def shortened(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """The text, with an ellipsis where it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _whole_cycles(columns: int, num_classes: int) -> int:
    """Columns as a multiple of the classes where they fit, so that each column is of one class."""
    return columns // num_classes * num_classes if num_classes <= columns else columns


def _tiles(pictures: list[Image.Image]) -> list[Image.Image]:
    """Small pictures all enlarged by the same whole factor; if any is large, all fitted to one square."""
    longest = max(max(picture.size) for picture in pictures)
    if longest > _TILE:
        return [fitted(picture, _TILE + _TILE // 4).convert("RGB") for picture in pictures]
    factor = max(1, round(_TILE / longest))
    return [
        picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST).convert("RGB")
        for picture in pictures
    ]


def _label(images: Images, index: int) -> str:
    name = images.class_names[int(images.labels[index])]
    if images.soft_labels is None:
        return name
    return f"{name} {float(images.soft_labels[index, images.labels[index]]):.2f}"


def _write_head(draw: ImageDraw.ImageDraw, title: str, images: Images, width: int) -> None:
    big, small = _font(_TITLE), _font(_LABEL)
    size = "sizes differ" if images.size is None else f"{images.size[0]} × {images.size[1]}"
    facts = f"{len(images):,} images, {images.num_classes:,} classes, {size}, {'colour' if images.channels == 3 else 'grey'}"
    draw.text((_MARGIN, _MARGIN - 6), shortened(title, big, width - 2 * _MARGIN), font=big, fill=_INK)
    draw.text((_MARGIN, _MARGIN + _TITLE + 4), shortened(facts, small, width - 2 * _MARGIN), font=small, fill=_FAINT)


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which Matplotlib carries: Pillow's own font lacks most of Unicode, × among it."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)
