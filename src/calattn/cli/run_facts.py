"""What a run folder says about itself, for its page: as much as can be read, and a note about what cannot."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from calattn.cli.console import note
from calattn.types import Predictions

if TYPE_CHECKING:
    from calattn.runs.folder import RunFolder

_THUMBNAIL = 96  # pixels of the longer side; small images are enlarged by the browser

T = TypeVar("T")


def provenance(folder: RunFolder) -> list[tuple[str, str]]:
    """Who made the run, with what and on what."""
    from calattn.runs.folder import read_json

    summary, made = side_file(folder.summary_path, read_json), side_file(folder.environment_path, read_json)
    seconds = at(summary, "training_seconds")
    devices = at(made, "devices")
    names = [str(at(device, "name") or at(device, "type")) for device in devices] if isinstance(devices, list) else []
    packages = [f"{name} {at(made, 'packages', name)}" for name in ("torch", "timm") if at(made, "packages", name)]
    found = {
        "spec hash": at(summary, "spec_hash"),
        "seed": at(summary, "seed"),
        "epochs": at(summary, "epochs"),
        "training time": f"{seconds:,.0f} s" if isinstance(seconds, int | float) and math.isfinite(seconds) else None,
        "started": at(made, "started"),
        "commit": at(made, "commit", "hash"),
        "hardware": ", ".join(names) or at(made, "cpu", "model"),
        "packages": ", ".join(packages),
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def unfinished(place: Path) -> str | None:
    """ "3 of 30 epochs" for a run that was stopped before its last epoch; None for others, and where nothing is known."""
    from calattn.runs.folder import RunFolder

    progress = RunFolder(place).progress()
    return None if progress is None else progress.unfinished


def spec_text(folder: RunFolder) -> str | None:
    return side_file(folder.spec_path, lambda path: path.read_text(encoding="utf-8"))


def epochs(folder: RunFolder) -> list[Mapping[str, Any]]:
    """The epochs of the run's log."""
    from calattn.engine.log import RunLog

    rows = side_file(folder.log_path, lambda path: list(RunLog(path).rows())) or []
    return [row for row in rows if at(row, "event") == "epoch" and isinstance(at(row, "epoch"), int)]


def marks(folder: RunFolder) -> dict[str, int]:
    """The epoch that each rule chose."""
    from calattn.runs.folder import read_json

    results = at(side_file(folder.summary_path, read_json), "results")
    if not isinstance(results, Mapping):
        return {}
    found = {rule: at(result, "epoch") for rule, result in results.items() if rule != "last"}
    return {rule: epoch for rule, epoch in found.items() if isinstance(epoch, int)}


def pictures(
    folder: RunFolder, split: str | None, predictions: Predictions, data_root: Path | None
) -> Callable[[Sequence[int]], dict[int, bytes]] | None:
    """Something that gives thumbnails of samples; None where the data set is not at hand, or not the predictions' own."""
    from calattn import data
    from calattn.runs import build

    where = predictions.indices
    if where is None or split not in ("test", "validation"):
        return None
    try:
        found = build.load_data(folder.spec(), root=data_root)
    except (data.DataError, ValueError, OSError) as error:
        note(f"no pictures of mistakes: {error}")
        return None
    images = found.test if split == "test" else found.train
    inside = bool(((where >= 0) & (where < len(images))).all())
    if not inside or not torch.equal(images.labels[where], predictions.labels):
        note(f"no pictures of mistakes: the labels of {folder.spec().data.name} are not those of the predictions")
        return None

    def thumbnails(rows: Sequence[int]) -> dict[int, bytes]:
        return {row: _png(images.decode(int(where[row]))) for row in rows}

    return thumbnails


def side_file(path: Path, read: Callable[[Path], T]) -> T | None:
    """What a file beside the predictions says; None, and a note, where it is damaged: the page does without it."""
    if not path.is_file():
        return None
    try:
        return read(path)
    except (ValueError, OSError) as error:
        note(f"{path} cannot be read and is left out: {' '.join(str(error).split())}")
        return None


def at(value: Any, *keys: str) -> Any:
    """The value under nested keys; None where something else stands on the way.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": []}, "a", "b")
    (1, None)
    """
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _png(image: torch.Tensor) -> bytes:
    from PIL import Image

    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return file.getvalue()
