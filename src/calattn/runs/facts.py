"""What a run folder says about itself: as much as can be read, and a line about what cannot."""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from calattn.comparison.trainings import Training
from calattn.runs.folder import SPEC, RunFolder, read_json
from calattn.runs.spec import read_yaml
from calattn.types import Predictions

OWN_SPLITS = ("validation", "test")  # of a run; `calattn predict` makes others of other or of corrupted images
_THUMBNAIL = 96  # pixels of the longer side; small images are enlarged by the browser

T = TypeVar("T")


class RunFacts:
    """The facts of one run folder. `say` is told which file is damaged and left out."""

    def __init__(self, path: Path, say: Callable[[str], object] = warnings.warn) -> None:
        self.folder, self._say = RunFolder(path), say

    def provenance(self) -> list[tuple[str, str]]:
        """Who made the run, with what and on what."""
        summary, made = (
            self._read(place, read_json) for place in (self.folder.summary_path, self.folder.environment_path)
        )
        seconds, devices = at(summary, "training_seconds"), at(made, "devices")
        names = (
            [str(at(device, "name") or at(device, "type")) for device in devices] if isinstance(devices, list) else []
        )
        packages = [f"{name} {at(made, 'packages', name)}" for name in ("torch", "timm") if at(made, "packages", name)]
        found = {
            "spec hash": at(summary, "spec_hash"),
            "seed": at(summary, "seed"),
            "epochs": at(summary, "epochs"),
            "training time": f"{seconds:,.0f} s" if isinstance(seconds, float) and math.isfinite(seconds) else None,
            "started": at(made, "started"),
            "commit": at(made, "commit", "hash"),
            "hardware": ", ".join(names) or at(made, "cpu", "model"),
            "packages": ", ".join(packages),
        }
        return [(name, str(value)) for name, value in found.items() if value not in (None, "")]

    @property
    def unfinished(self) -> str | None:
        """ "3 of 30 epochs" for a run that was stopped before its last epoch; None for others, and where nothing is known."""
        done = self.folder.progress()
        return None if done is None or done.epochs >= done.planned else f"{done.epochs} of {done.planned} epochs"

    def spec_text(self) -> str | None:
        return self._read(self.folder.spec_path, lambda path: path.read_text(encoding="utf-8"))

    def spec(self) -> Any:
        """The spec as it stands in the file, whatever that is."""
        return self._read(self.folder.spec_path, read_yaml)

    def epochs(self) -> Sequence[Mapping[str, Any]]:
        """The epochs of the run's log."""
        from calattn.engine.log import RunLog

        return self._read(self.folder.log_path, lambda path: RunLog(path).epochs()) or []

    def marks(self) -> dict[str, int]:
        """The epoch that each rule chose."""
        results = at(self._read(self.folder.summary_path, read_json), "results")
        if not isinstance(results, Mapping):
            return {}
        found = {rule: at(result, "epoch") for rule, result in results.items() if rule != "last"}
        return {rule: epoch for rule, epoch in found.items() if isinstance(epoch, int)}

    def pictures(
        self, split: str | None, predictions: Predictions, data_root: Path | None
    ) -> Callable[[Sequence[int]], dict[int, bytes]] | None:
        """Something that gives thumbnails of samples; None where the data set is not at hand, or not the predictions' own."""
        from calattn import data
        from calattn.runs import build

        where = predictions.indices
        if where is None or split not in OWN_SPLITS:
            return None
        try:
            spec = self.folder.spec()
            found = build.load_data(spec, root=data_root)
        except (data.DataError, ValueError, OSError) as error:
            self._say(f"no pictures of mistakes: {error}")
            return None
        images = found.test if split == "test" else found.validation
        if images is None:
            return None
        inside = bool(((where >= 0) & (where < len(images))).all())
        if not inside or not torch.equal(images.labels[where], predictions.labels):
            self._say(f"no pictures of mistakes: the labels of {spec.data.name} are not those of the predictions")
            return None

        def thumbnails(rows: Sequence[int]) -> dict[int, bytes]:
            return {row: _png(images.decode(int(where[row]))) for row in rows}

        return thumbnails

    def training(self) -> Training:
        """Its method, which is its spec but for the seed, and the seed."""
        spec = self.folder.spec()
        return Training(spec.model_copy(update={"seed": 0}).hash, spec.seed)

    def _read(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """What a file says; None where there is none, or where it is damaged: whoever asks does without it."""
        if not path.is_file():
            return None
        try:
            return read(path)
        except (ValueError, OSError) as error:
            self._say(f"{path} cannot be read and is left out: {' '.join(str(error).split())}")
            return None


def data_of(predictions: Path, run: Path | None = None, split: str | None = None) -> str | None:
    """The data set that predictions were made of; None where nothing says so, which hinders nobody from comparing.

    Of a run's own splits that is `data.name`. Predictions of other data (`calattn predict --data`) are named by it. Which
    images of a data set they are, its split seed, validation share and limit, shows in the sample indices.
    """
    run = run or (predictions.parent.parent if predictions.parent.name == "predictions" else None)
    split = split or predictions.name.partition(".")[0]
    if run is None or not (run / SPEC).is_file():
        return None
    corruption = corruption_of(split)
    if split not in OWN_SPLITS and corruption is None:
        return split
    name = at(RunFacts(run, say=lambda _: None).spec(), "data", "name")
    return None if name is None else _one_spelling(str(name)) + ("" if corruption is None else f", {corruption}")


def corruption_of(split: str) -> str | None:
    """The corruption of the test images that predictions of this name are of (`calattn predict --corrupt`).

    >>> corruption_of("test-fog-5"), corruption_of("test"), corruption_of("svhn-test")
    ('fog-5', None, None)
    """
    from calattn.data.sources.cifar10_c import SPLITS

    name = split.removeprefix("test-")
    return name if name != split and name in SPLITS else None


def training_of_calibrated(folder: Path) -> Training:
    """The training of what `calattn calibrate --out` made of a run: another calibrator or checkpoint is another method.

    With several methods the report lies above their folders, which bear their names.
    """
    single = (folder / "report.json").is_file()
    try:
        report = json.loads((folder if single else folder.parent).joinpath("report.json").read_text(encoding="utf-8"))
        calibrator = report["methods"][0]["method"] if single else folder.name
        parts = (report["training"]["method"], calibrator, *(report[name] for name in ("checkpoint", "split", "floor")))
        return Training(" ".join(map(str, parts)), int(report["training"]["seed"]))
    except (OSError, LookupError, TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{folder} does not say which training it is of: it has no report.json that can be read, or was made from a file, "
            "with --validation or by --apply; make it again from the run folder alone: calattn calibrate "
            "RUN --out FOLDER"
        ) from None


def at(value: Any, *keys: str) -> Any:
    """The value under nested keys; None where something else stands on the way.

    >>> at({"a": {"b": 1}}, "a", "b"), at({"a": []}, "a", "b")
    (1, None)
    """
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _one_spelling(name: str) -> str:
    """`imagefolder:pets/` and `imagefolder:./pets` are one folder.

    >>> _one_spelling("digits"), _one_spelling("imagefolder:/a/../pets/")
    ('digits', 'imagefolder:/pets')
    """
    from calattn.data.sources.datasets import PREFIXES

    if not name.startswith(PREFIXES):
        return name
    prefix, _, path = name.partition(":")
    return f"{prefix}:{os.path.abspath(Path(path).expanduser())}"


def _png(image: torch.Tensor) -> bytes:
    from PIL import Image

    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True)
    return file.getvalue()
