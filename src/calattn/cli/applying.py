"""`calattn calibrate --apply`: a saved calibrator on new predictions, which need no labels."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from calattn.cli import calibration_files, options, subjects
from calattn.cli.calibration_files import CALIBRATOR, WRITTEN, save
from calattn.cli.console import note, print_json, results_to
from calattn.cli.contest_report import learned
from calattn.files.predictions import PredictionFileError
from calattn.posthoc import Calibrator, TemperatureScaling, load
from calattn.readers import stream_predictions


def apply(
    calibrator_path: Path,
    path: Path,
    *,
    choice: options.Choice,
    reader: options.Reader,
    out: Path | None,
    write: Path | None,
    overwrite: bool,
    json: bool,
) -> None:
    """Calibrates the predictions at `path`, and writes them; of large files, block by block."""
    if out is None and write is None:
        raise ValueError(
            f"--apply needs to know where the probabilities go: --write calibrated.npz ({' '.join(WRITTEN)})"
        )
    file = _file(calibrator_path)
    calibrator = load(file)
    found = subjects.find([path], reader=reader, choice=choice)
    if len(found) > 1:
        raise ValueError("--split names several splits; calibrate takes one at a time")
    subject = found[0]
    stream = stream_predictions(subject.path, **reader.arguments(), labels_optional=True)
    if out is not None and not stream.labelled:
        raise PredictionFileError(
            f"{subject.path} has no labels, and the predictions that --out keeps have; --write FILE takes probabilities without "
            "(or name the labels with --labels)"
        )
    calibrator.check_classes(stream.num_classes)  # before a large file is read to its end
    calibrated = subjects.opened(stream, subject.title, calibrator)
    name = type(calibrator).__name__
    described = subject.described()
    del described["temperature"]

    def report() -> dict[str, Any]:
        return {
            "schema": 1,
            "command": "calibrate",
            **described,
            "applied": subjects.text_of(file),
            "calibrator": name,
            "samples": subjects.count(calibrated),
            "classes": stream.num_classes,
            "labelled": stream.labelled,
            "written": [subjects.text_of(each) for each in (out, write) if each is not None],
        }

    if out is not None:
        save(out, {"": (calibrator, calibrated)}, report(), overwrite=overwrite, write=write)
    if write is not None:
        calibration_files.write(write, calibrated, name, labelled=stream.labelled)
    if json:
        print_json(report())  # not before it is written: then the number of rows is known
        return
    rows = f"{subjects.count(calibrated):,} samples of {subject.title}"
    results_to().print(f"applied {_in_words(calibrator)} to {rows}", markup=False, soft_wrap=True)
    if stream.labelled and out is not None:
        note(f"what it changed: {shlex.join(['calattn', 'compare', str(path), str(out)])}")


def _file(path: Path) -> Path:
    """The calibrator's file; of a folder that `calattn calibrate --out` wrote, the one in it."""
    if not path.is_dir():
        return path
    if (path / CALIBRATOR).is_file():
        return path / CALIBRATOR
    several = sorted(each.parent.name for each in path.glob(f"*/{CALIBRATOR}"))
    which = f"; it holds several, name one: {subjects.leader_in(path) or path / several[0]}" if several else ""
    raise FileNotFoundError(f"no {CALIBRATOR} in {path}{which}")


def _in_words(calibrator: Calibrator) -> str:
    name = type(calibrator).__name__
    return f"{name}, {learned(calibrator)}," if isinstance(calibrator, TemperatureScaling) else name
