"""Which training predictions come from: its method, which is its spec but for the seed, and the seed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from calattn.cli import subjects


class Training(NamedTuple):
    """`method` is equal for trainings that differ in their seed alone."""

    method: str
    seed: int


def training_of(subject: subjects.Subject) -> Training:
    """Of a run, or of what `calattn calibrate --out` made of one: there, another calibrator or checkpoint is another method."""
    if subject.run is not None:
        return _of_run(subject.run)
    folder = Path(os.path.abspath(subject.path)).parent  # "." has no name, and its methods' report lies above it
    if not subjects.is_calibrated(folder):
        raise ValueError(
            f"{subject.path} is no run folder; --over-seeds needs them, or what calibrate --out made of them: their specs say "
            "which runs differ in their seed alone"
        )
    return _of_calibrated(folder)


def described(run: Path | None) -> dict[str, Any] | None:
    """What a report of calibrated predictions keeps of their run; None where there is none, or no spec that can be read."""
    try:
        return None if run is None else _of_run(run)._asdict()
    except (OSError, ValueError):
        return None


def _of_run(run: Path) -> Training:
    from calattn.runs.folder import RunFolder

    spec = RunFolder(run).spec()
    return Training(spec.model_copy(update={"seed": 0}).hash, spec.seed)


def _of_calibrated(folder: Path) -> Training:
    """With `--method all` the report lies above the folders of the methods, which bear their names."""
    single = (folder / "report.json").is_file()
    report = _read(folder / "report.json" if single else folder.parent / "report.json")
    try:
        calibrator = report["methods"][0]["method"] if single else folder.name
        parts = (report["training"]["method"], calibrator, *(report[name] for name in ("checkpoint", "split", "floor")))
        return Training(" ".join(map(str, parts)), int(report["training"]["seed"]))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{folder} does not say which training it is of: it has no report.json that can be read, or was made from a file, "
            "with --validation, by --apply or by an earlier version; make it again from the run folder alone: calattn calibrate "
            "RUN --out FOLDER"
        ) from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
