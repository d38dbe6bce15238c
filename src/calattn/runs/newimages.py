"""New images: which files a path means, and what a classifier says about them."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor

from calattn.data.images import DataError
from calattn.files.atomic import PathArg, atomic_write
from calattn.files.text import cell_text

FORMATS = (".csv", ".parquet", ".json")


def image_files(path: PathArg) -> Iterator[Path]:
    """The files that a path means: itself, the images in a folder and below it, or those that a pattern matches.

    Whatever is named is given, an image or not; of a folder only files with the suffix of an image.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        known = Image.registered_extensions()
        yield from sorted(file for file in place.rglob("*") if file.suffix.lower() in known and file.is_file())
    elif place.exists() or not glob.has_magic(str(path)):
        yield place
    else:
        found = sorted(glob.glob(os.path.expanduser(os.fspath(path)), recursive=True))
        if not found:
            raise DataError(f"{path} matches no file; check the pattern, or name a folder")
        for each in found:
            yield from image_files(glob.escape(each) if not Path(each).exists() else each)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagePredictions:
    """One row per image that could be read: its name, probabilities in the order of `class_names`, the head's temperature.

    Where prediction sets were asked for, `sets` says which classes are in each. There are no labels: `evaluate` and its like
    take `calattn.Predictions`. `skipped` has the images that could not be read, with the reason.

    >>> import torch
    >>> found = ImagePredictions(
    ...     names=("a.png",), probs=torch.tensor([[0.25, 0.75]]), temperature=torch.tensor([1.5]), class_names=("cat", "dog")
    ... )
    >>> found.rows(top=1)
    [{'file': 'a.png', 'temperature': 1.5, 'top': [{'class': 'dog', 'probability': 0.75}]}]
    """

    names: tuple[str, ...]
    probs: Float[Tensor, "n c"]
    temperature: Float[Tensor, " n"]
    class_names: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    sets: Bool[Tensor, "n c"] | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def classes(self) -> tuple[str, ...]:
        """The likeliest class of each image."""
        return tuple(self.class_names[k] for k in self.probs.argmax(dim=1).tolist())

    def rows(self, *, top: int = 5) -> list[dict[str, Any]]:
        """The likeliest `top` classes of each image, for JSON."""
        best = self.probs.topk(min(top, self.probs.shape[1]), dim=1)
        rows: list[dict[str, Any]] = []
        for row, (name, temperature) in enumerate(zip(self.names, self.temperature.tolist(), strict=True)):
            pairs = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
            listed = [{"class": self.class_names[k], "probability": p} for k, p in pairs]
            rows.append({"file": name, "temperature": temperature, "top": listed})
            if self.sets is not None:
                rows[-1]["set"] = [self.class_names[k] for k in self.sets[row].nonzero().squeeze(1).tolist()]
        return rows

    def write(self, path: PathArg, *, top: int = 5) -> None:
        """A table (.csv, .parquet) with the columns file, temperature, top1, top1_probability, top2, …, set; or .json."""
        path, rows = Path(path), self.rows(top=top)
        if path.suffix.lower() not in FORMATS:
            raise ValueError(f"{path} must end in {', '.join(FORMATS)}")
        with atomic_write(path) as partial:
            if path.suffix.lower() == ".json":
                partial.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                return
            import pyarrow as pa
            import pyarrow.csv
            import pyarrow.parquet

            count = min(top, len(self.class_names))
            columns: dict[str, Any] = {key: [row[key] for row in rows] for key in ("file", "temperature")}
            for place in range(count):
                columns[f"top{place + 1}"] = [row["top"][place]["class"] for row in rows]
                columns[f"top{place + 1}_probability"] = [row["top"][place]["probability"] for row in rows]
            if self.sets is not None:
                lists = [row["set"] for row in rows]
                columns["set"] = lists if path.suffix.lower() == ".parquet" else [json.dumps(each) for each in lists]
            if path.suffix.lower() == ".csv":
                harmless = {
                    key: [cell_text(each) if isinstance(each, str) else each for each in values]
                    for key, values in columns.items()
                }
                pyarrow.csv.write_csv(pa.table(harmless), partial)
            else:
                pyarrow.parquet.write_table(pa.table(columns), partial)
