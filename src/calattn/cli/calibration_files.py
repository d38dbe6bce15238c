"""The files of `calattn calibrate`: what may be written where, the writing, and a saved calibrator on new predictions."""

from __future__ import annotations

import dataclasses
import json as json_format
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calattn.cli.console import json_text, note, print_json, say
from calattn.cli.judgement import check_output
from calattn.files.atomic import atomic_folder, check_writable

if TYPE_CHECKING:
    from calattn import Predictions
    from calattn.cli.subjects import Blocks, PredictionSet
    from calattn.posthoc import Calibrator, Contest, PredictionSets

WRITTEN = (".npz", ".csv", ".parquet")  # by --write
_PREDICTIONS, CALIBRATOR, _SETS, _REPORT = "predictions", "calibrator.safetensors", "sets.safetensors", "report.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written: the folder of --out, which may replace that of an earlier calibration, and the file of --write."""

    out: Path | None
    write: Path | None
    overwrite: bool

    def check(self, inputs: Sequence[Path | None]) -> None:
        """Refuse early what could not be written in the end, and what would replace an input."""
        out, write = self.out, self.write
        check_output(write, WRITTEN, "--write")
        if out is not None and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file; name a folder")
        if out is not None and write is not None and out.resolve() == write.resolve():
            raise ValueError(f"--out and --write are both {out}; --out is a folder and --write a file, name two")
        if out is not None and out.suffix.lower() in WRITTEN and not out.exists():
            raise ValueError(
                f"--out {out} is to be a folder and ends as a file does; for probabilities in a file, --write {out}"
            )
        for each in (path for path in inputs if path is not None and path.exists()):
            if write is not None and write.exists() and write.samefile(each):
                raise ValueError(f"--write {write} is the input {each}, which it would replace; name another file")
            if out is not None and each.resolve().is_relative_to(out.resolve()):
                raise ValueError(f"--out {out} holds the input {each}, which it would replace; name another folder")
        if out is not None:
            self._check_folder(out)
            check_writable(out)

    def _check_folder(self, folder: Path) -> None:
        """Only a folder that holds an earlier result and nothing else is replaced; the file of --write is to be, anyway."""
        if not folder.exists() or not any(folder.iterdir()):
            return
        if not _is_report(folder / _REPORT):
            raise ValueError(f"--out {folder} holds other things; choose a folder of its own")
        spared = None if self.write is None else self.write.resolve()
        files = (each for each in sorted(folder.rglob("*")) if each.is_symlink() or not each.is_dir())
        other = next((each for each in files if each.resolve() != spared and not _is_ours(each)), None)
        if other is not None:
            raise ValueError(
                f"--out {folder} holds other things beside a calibration: {other.relative_to(folder)}; "
                "move it, or choose a folder of its own"
            )
        if not self.overwrite:
            raise FileExistsError(f"{folder} already holds a calibration; pass --overwrite to replace it")

    def keep_contest(self, found: Contest, report: dict[str, Any], sets: PredictionSets | None) -> None:
        """A folder for each of several methods; of a single one, what it left stands in --out itself."""
        if found.single:
            (row,) = found.rows
            self.keep({"": (row.calibrator, row.predictions)}, report, sets=sets)
            return
        leading = "" if found.best is None else f" (the leader's is {found.best.method})"
        kept = {row.method: (row.calibrator, row.predictions) for row in found.rows}
        self.keep(kept, report, sets=sets, what=f"one folder per method{leading}")

    def keep(
        self,
        kept: Mapping[str, tuple[Calibrator, Predictions | Blocks]],
        report: dict[str, Any],
        *,
        sets: PredictionSets | None = None,
        what: str = f"{_PREDICTIONS}, {CALIBRATOR}",
    ) -> None:
        """predictions, calibrator.safetensors and report.json; the first two in a folder below, where it has a name."""
        from safetensors import SafetensorError

        from calattn.cli.subjects import count
        from calattn.files.predictions import save_blocks
        from calattn.metrics.sources import parts_of

        if self.out is None:
            return
        with atomic_folder(self.out) as partial:
            for name, (calibrator, predictions) in kept.items():
                place = partial / name
                save_blocks(parts_of(predictions), place / _PREDICTIONS, rows=count(predictions))
                try:
                    calibrator.save(place / CALIBRATOR)
                except SafetensorError as error:  # of a full disk; it is no OSError
                    raise OSError(f"cannot write {self.out}: {error}; free some space, or write elsewhere") from error
                except ValueError as error:  # no registered class, an option that no file holds
                    if not name:  # else the others' files are sound
                        raise
                    note(f"{self.out / name} has no {CALIBRATOR}: {error}")
            if sets is not None:
                sets.save(partial / _SETS)
            (partial / _REPORT).write_text(json_text(report), encoding="utf-8")
            self._check_folder(self.out)  # again: somebody may have been quicker
        note(f"wrote {self.out}: {what}, {_REPORT}")

    def keep_probabilities(self, found: Predictions | Blocks, by: str) -> None:
        from calattn.cli.subjects import count
        from calattn.files import probabilities

        if self.write is None:
            return
        rows = count(found) if self.write.suffix == ".npz" else None
        probabilities.write_probabilities(found, self.write, rows=rows)
        note(f"wrote {self.write}: probabilities by {by}")


def _is_ours(path: Path) -> bool:
    """Whether an earlier --out may have written the file."""
    from calattn.files.predictions import MANIFEST

    if path.parent.name == _PREDICTIONS:
        return path.name == MANIFEST or path.suffix == ".safetensors"
    return path.name in (CALIBRATOR, _SETS) or (path.name == _REPORT and _is_report(path))


def _is_report(path: Path) -> bool:
    """Whether an earlier --out wrote the file: others write a report.json too, so its content has to say so."""
    try:
        found = json_format.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):  # not there; no JSON, or no text at all
        return False
    return isinstance(found, dict) and found.get("command") == "calibrate"


def apply(saved: Path, subject: PredictionSet, outputs: Outputs, *, json: bool) -> None:
    """Calibrates predictions, which need no labels, by a saved calibrator, and writes them; of large files, block by block."""
    from calattn.cli import subjects
    from calattn.files.predictions import PredictionFileError
    from calattn.posthoc import TemperatureScaling, load
    from calattn.readers import stream_predictions
    from calattn.report.contest import learned

    file = _calibrator_file(saved)
    calibrator = load(file)
    stream = stream_predictions(subject.path, **subject.reader.arguments(), labels_optional=True)
    if outputs.out is not None and not stream.labelled:
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
            "written": [subjects.text_of(each) for each in (outputs.out, outputs.write) if each is not None],
        }

    if outputs.out is not None:  # to know the number of rows before they are written is one more pass
        outputs.keep({"": (calibrator, calibrated)}, report())
    outputs.keep_probabilities(calibrated, name)
    if json:
        print_json(report())  # not before it is written: then the number of rows is known
        return
    rows = f"{subjects.count(calibrated):,} samples of {subject.title}"
    what = f"{name}, {learned(calibrator)}," if isinstance(calibrator, TemperatureScaling) else name
    say(f"applied {what} to {rows}")
    if stream.labelled and outputs.out is not None:
        note(f"what it changed: {shlex.join(['calattn', 'compare', str(subject.named), str(outputs.out)])}")


def _calibrator_file(path: Path) -> Path:
    """The calibrator's file; of a folder that `calattn calibrate --out` wrote, the one in it."""
    from calattn.cli import subjects

    if not path.exists():
        raise FileNotFoundError(f"no calibrator file at {path}; name what calattn calibrate --out has written")
    if not path.is_dir():
        return path
    if (path / CALIBRATOR).is_file():
        return path / CALIBRATOR
    several = sorted(each.parent.name for each in path.glob(f"*/{CALIBRATOR}"))
    which = f"; it holds several, name one: {subjects.leader_in(path) or path / several[0]}" if several else ""
    raise FileNotFoundError(f"no {CALIBRATOR} in {path}{which}")
