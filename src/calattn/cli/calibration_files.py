"""The files of `calattn calibrate`: what may be written where, and the writing, all at once or not at all."""

from __future__ import annotations

import contextlib
import json as json_format
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calattn.cli.console import json_text, note
from calattn.cli.evaluate import check_output

if TYPE_CHECKING:
    from calattn import Predictions
    from calattn.cli.contest import Contest
    from calattn.posthoc import Calibrator

_PREDICTIONS, CALIBRATOR, _REPORT = "predictions", "calibrator.safetensors", "report.json"
_REPORTS = (_REPORT, "calibration.json")  # the latter is an earlier version's
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # line breaks, control characters, half letters
WRITTEN = (".npz", ".csv", ".parquet")


def check_outputs(out: Path | None, write: Path | None, inputs: list[Path], *, overwrite: bool) -> None:
    """Refuse early what could not be written in the end, and what would replace an input."""
    check_output(write, WRITTEN, "--write")
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder")
    if out is not None and write is not None and out.resolve() == write.resolve():
        raise ValueError(f"--out and --write are both {out}; --out is a folder and --write a file, name two")
    if out is not None and out.suffix.lower() in WRITTEN and not out.exists():
        raise ValueError(
            f"--out {out} is to be a folder and ends as a file does; for probabilities in a file, --write {out}"
        )
    for each in inputs:
        if write is not None and write.exists() and write.samefile(each):
            raise ValueError(f"--write {write} is the input {each}, which it would replace; name another file")
        if out is not None and each.resolve().is_relative_to(out.resolve()):
            raise ValueError(f"--out {out} holds the input {each}, which it would replace; name another folder")
    if out is not None:
        _check_folder(out, overwrite, write)


def _check_folder(folder: Path, overwrite: bool, write: Path | None) -> None:
    """Only a folder that holds an earlier result and nothing else is replaced; the file of --write is to be, anyway."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not any(_is_report(folder / name) for name in _REPORTS):
        raise ValueError(f"--out {folder} holds other things; choose a folder of its own")
    spared = None if write is None else write.resolve()
    other = next((each for each in _strangers(folder) if each.resolve() != spared), None)
    if other is not None:
        raise ValueError(
            f"--out {folder} holds other things beside a calibration: {other.relative_to(folder)}; "
            "move it, or choose a folder of its own"
        )
    if not overwrite:
        raise FileExistsError(f"{folder} already holds a calibration; pass --overwrite to replace it")


def _strangers(folder: Path) -> Iterator[Path]:
    """What is in an earlier --out, or in a method's folder there, that it did not write."""
    from calattn.posthoc import CALIBRATORS

    for place in sorted(folder.iterdir()):
        is_folder = place.is_dir() and not place.is_symlink()
        if is_folder and place.name == _PREDICTIONS:
            yield from _not_of_predictions(place)
        elif is_folder and place.name in CALIBRATORS:
            yield from _strangers(place)
        elif is_folder or not (place.name == CALIBRATOR or (place.name in _REPORTS and _is_report(place))):
            yield place


def _not_of_predictions(folder: Path) -> Iterator[Path]:
    from calattn.store import MANIFEST, PredictionFileError, read_manifest

    try:
        files = read_manifest(folder)["files"].values()
    except PredictionFileError:  # none, another program's, or damaged: not for us to say what the files are
        yield folder
        return
    names = {MANIFEST} | {file["name"] for file in files}
    yield from (place for place in sorted(folder.iterdir()) if place.name not in names)


def _is_report(path: Path) -> bool:
    """Whether an earlier --out wrote the file: others write a report.json too, so its content has to say so."""
    try:
        found = json_format.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError):  # not there; not JSON, or not text at all
        return False
    return isinstance(found, dict) and found.get("command") == "calibrate"


def save_contest(
    out: Path, found: Contest, report: dict[str, Any], *, overwrite: bool, single: bool, write: Path | None
) -> None:
    """For several methods, a folder each."""
    leading = "" if found.leader is None else f" (the leader's is {found.leader.method})"
    kept = {"" if single else entry.method: (entry.calibrator, entry.predictions) for entry in found.entries}
    what = None if single else f"a folder a method{leading}"
    save(out, kept, report, overwrite=overwrite, write=write, what=what)


def save(
    out: Path,
    kept: Mapping[str, tuple[Calibrator, Predictions]],
    report: dict[str, Any],
    *,
    overwrite: bool,
    write: Path | None,
    what: str | None = None,
) -> None:
    """`out`/predictions, calibrator.safetensors and report.json; the first two in a folder below, where it has a name."""
    from safetensors import SafetensorError

    from calattn.store import save_predictions

    with atomic_folder(out) as partial:
        for name, (calibrator, predictions) in kept.items():
            place = partial / name
            save_predictions(predictions, place / _PREDICTIONS)
            try:
                calibrator.save(place / CALIBRATOR)
            except SafetensorError as error:  # of a full disk; it is no OSError
                raise OSError(f"cannot write {out}: {error}; free some space, or write elsewhere") from error
        (partial / _REPORT).write_text(json_text(report), encoding="utf-8")
        _check_folder(out, overwrite, write)  # again: somebody may have been quicker
    note(f"wrote {out}: {what or f'{_PREDICTIONS}, {CALIBRATOR}'}, {_REPORT}")


def write_probabilities(path: Path, found: Predictions, by: str, *, labelled: bool = True) -> None:
    """Calibrated probabilities, with their labels if there are any, in names that every reader here knows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from calattn.atomic import atomic_write

    numbers = tuple(str(k) for k in range(found.num_classes))
    names = found.class_names or numbers
    probs, labels = found.probs.cpu().numpy(), found.labels.cpu().numpy()
    index: dict[str, Any] = {} if found.indices is None else {"index": found.indices.cpu().numpy()}
    with atomic_write(path) as partial:
        if path.suffix == ".npz":
            more = index | ({"labels": labels} if labelled else {})
            np.savez(partial, probs=probs, class_names=np.array(names), **more)
        else:
            if names != numbers and (why := _unfit(names)):
                note(f"{why}: the columns of {path} are p_0, p_1, … in class order, and labels are counted from 0")
                names = numbers
            # The label in the words of the column names, so that no reader has to count classes.
            own = {"label": labels if names == numbers else np.array(names)[labels]} if labelled else {}
            table = pa.table(index | own | {f"p_{name}": probs[:, k] for k, name in enumerate(names)})
            (pa.parquet.write_table if path.suffix == ".parquet" else pa.csv.write_csv)(table, partial)
    note(f"wrote {path}: probabilities by {by}")


def _unfit(names: tuple[str, ...]) -> str:
    """Why class names cannot name columns, and labels, that any reader takes back; empty if they can."""
    import pyarrow.csv as pa_csv

    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return f"several classes are named {twice!r}"
    missing = pa_csv.ConvertOptions().null_values  # NA, null, nan, …: a label of that name would read as none
    for name in names:
        if not name.strip() or name in missing or _NO_TEXT.search(name):
            return f"the class name {name!r} is no plain text"
        with contextlib.suppress(ValueError):
            float(name)
            return f"the class name {name!r} is a number, which readers take for a position"
    return ""


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` that takes its name when the block ends without an error."""
    from calattn.atomic import speaking_of

    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".part-{secrets.token_hex(6)}"
    old = target.parent / f".part-old-{secrets.token_hex(6)}"
    try:
        with speaking_of(path, instead_of=partial):
            partial.mkdir()
            yield partial
            if target.exists():
                target.rename(old)
            partial.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)  # the second rename failed: what was there comes back
        for leftover in (partial, old):
            shutil.rmtree(leftover, ignore_errors=True)
