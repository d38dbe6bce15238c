"""Subjects: the sets of predictions that a command is asked to judge, found from the paths on its line, with a title each."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.markup import escape

from calattn.cli import options
from calattn.cli.console import note, progress
from calattn.files.predictions import MANIFEST
from calattn.metrics import METRICS
from calattn.posthoc import Calibrator, TemperatureScaling
from calattn.readers import PredictionFileMissing, PredictionStream, ReadOptions, stream_predictions
from calattn.readers.stream import Rows, naming_rows_of_file
from calattn.types import Fingerprint, Predictions

if TYPE_CHECKING:
    from calattn.comparison import Training

# From this on, a file or folder is read block by block with a progress bar instead of whole.
STREAM_BYTES = 512 << 20
_SHOWN = 8


@dataclasses.dataclass
class Blocks:
    """Predictions of a large file, block by block and as often as one likes, with a progress bar each time.

    Whoever iterates works between two blocks, so that the bar shows the work and not the reading alone; a second pass is
    where intervals come from. Of a file that does not say how long it is (CSV), the first pass finds out.
    """

    stream: PredictionStream
    title: str
    calibrator: Calibrator | None = None
    passes: int = dataclasses.field(default=0, init=False)
    rows: int | None = dataclasses.field(default=None, init=False)
    _compared: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rows = self.stream.num_rows

    def __iter__(self) -> Iterator[Predictions]:
        self.passes += 1
        title = self.title.replace("\n", " ")
        seen = 0
        with progress() as bar:
            # The name is the user's: square brackets in it are not markup.
            task = bar.add_task(
                escape(f"reading {title}" + f", pass {self.passes}" * (self.passes > 1)), total=self.rows
            )
            for block in self._as_read():
                yield self._calibrated(block)
                seen += len(block)
                bar.update(task, completed=seen)
        self.rows = seen
        if self.passes == 1:
            _say_ignored(self.stream, seen)

    def _as_read(self) -> Iterator[Predictions]:
        """The file's own blocks; at the end of them, once, a warning where the calibrator was fitted on just these."""
        if self.calibrator is None or self._compared:
            yield from self.stream
            return
        # Text does not say how many rows it has, but is what was fitted on only if it has as many.
        rows = self.calibrator.num_samples_ if self.rows is None else self.rows
        fingerprint, seen = Fingerprint(rows), 0
        for block in self.stream:
            seen += len(block)
            if seen <= rows:  # of a longer file the fingerprint would grow in vain
                fingerprint.add(block)
            yield block
        self._compared = rows > 0
        if seen == rows:
            self.calibrator.warn_if_fitted_on(fingerprint.text())

    def count(self) -> int:
        """The number of samples; where the file does not say, by a pass over it."""
        if self.rows is None:
            plain = Blocks(self.stream, self.title)
            for _ in plain:
                pass
            self.rows, self.passes = plain.rows, plain.passes
        assert self.rows is not None
        return self.rows

    def _calibrated(self, block: Predictions) -> Predictions:
        with naming_rows_of_file(self.stream.block_rows):
            return block if self.calibrator is None else self.calibrator.apply_to_block(block)


def opened(stream: PredictionStream, title: str, calibrator: Calibrator | None = None) -> Predictions | Blocks:
    """What the stream holds, calibrated if it is to be: in memory, or block by block where it is large."""
    if stream.num_bytes >= STREAM_BYTES:
        return Blocks(stream, title, calibrator)
    return _whole(stream, calibrator)


def _whole(stream: PredictionStream, calibrator: Calibrator | None) -> Predictions:
    found = stream.whole()
    _say_ignored(stream, len(found))
    with naming_rows_of_file(stream.block_rows):
        return found if calibrator is None else calibrator(found)


def count(source: Predictions | Blocks) -> int:
    """The number of samples."""
    return source.count() if isinstance(source, Blocks) else len(source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionSet:
    """One column of a table: a file, a predictions folder, or a split of a run folder."""

    path: Path
    reader: options.FileFlags
    title: str = ""
    run: Path | None = None
    split: str | None = None
    checkpoint: str | None = None
    calibrator: Calibrator | None = None

    def predictions(self) -> Predictions:
        """All of it in memory, calibrated if it is to be."""
        return self.with_rows()[0]

    def with_rows(self) -> tuple[Predictions, Rows]:
        """The same, and which rows of the file they are."""
        stream = stream_predictions(self.path, **self.reader.arguments())
        return _whole(stream, self.calibrator), stream.block_rows

    def source(self) -> Predictions | Blocks:
        """The same, but large files and folders as blocks."""
        return opened(stream_predictions(self.path, **self.reader.arguments()), self.title, self.calibrator)

    def with_columns(
        self, *, groups: str | None = None, clusters: str | None = None
    ) -> tuple[Predictions | Blocks, dict[str, np.ndarray]]:
        """The source, and the columns of its file for `calattn.evaluate`.

        A split under all corruptions has the columns "corruption" and "image", and its clusters are its images.
        """
        from calattn.readers.reading import read_column

        named = {"groups": groups, "clusters": clusters or ("image" if self._corrupted else None)}
        wanted = {what: name for what, name in named.items() if name is not None}
        if not wanted:
            return self.source(), {}
        found, rows = self.with_rows()
        columns = _corruption_columns(len(found)) if self._corrupted else {}
        flags = self.reader.arguments()
        reading = ReadOptions(delimiter=flags["delimiter"], header=flags["header"])
        values = {
            what: columns[name] if name in columns else read_column(self.path, name, reading)[np.asarray(rows)]
            for what, name in wanted.items()
        }
        return found, values

    def images(self) -> np.ndarray | None:
        """Of a split under all corruptions, the image of each row."""
        return _corruption_columns(len(self.predictions()))["image"] if self._corrupted else None

    @property
    def _corrupted(self) -> bool:
        """Whether it is all of a split under all corruptions: a run's, or what `calattn calibrate --out` made of it."""
        from calattn.files.predictions import MANIFEST, load_predictions, read_manifest

        if self.split is not None or not (self.path / MANIFEST).is_file():
            return (self.split or "").startswith("test-all-")
        if not str(read_manifest(self.path).get("split")).startswith("test-all-"):
            return False
        indices = load_predictions(self.path, features=False, verify=False).indices
        return indices is not None and indices.tolist() == list(range(len(indices)))  # no random part (--fraction)

    @property
    def name(self) -> str:
        """The title without what was done to it."""
        return self.title.split("\n")[0]

    @property
    def named(self) -> Path:
        """What names it on a command line: a file or folder, of a run or of what `calibrate --out` wrote all of it."""
        return self.run or (self.path.parent if is_calibrated(self.path.parent) else self.path)

    def data(self) -> str | None:
        """The data set that the predictions were made of, where that is known."""
        from calattn.runs.facts import data_of

        return data_of(self.path, self.run, self.split)

    def training(self) -> Training:
        """Of a run, or of what `calattn calibrate --out` made of one: method and seed."""
        from calattn.runs.facts import RunFacts, training_of_calibrated

        if self.run is not None:
            return RunFacts(self.run).training()
        folder = Path(os.path.abspath(self.path)).parent  # "." has no name, and its methods' report lies above it
        if is_calibrated(folder):
            return training_of_calibrated(folder)
        raise ValueError(
            f"{self.path} is no run folder; --over-seeds needs them, or what calibrate --out made of them: their specs say "
            "which runs differ in their seed alone"
        )

    def validation(self) -> PredictionSet:
        """The validation predictions of the same run and checkpoint: what may be fitted on."""
        if self.run is None:
            raise ValueError(
                f"{self.path} is no run folder, so its validation predictions are not known; name them with --validation FILE"
            )
        path = _in_run(self.run, "validation", self.checkpoint or "last")
        return dataclasses.replace(
            self, path=path, split="validation", title=f"{self.title} validation", calibrator=None
        )

    def scaled(self, validation: PredictionSet) -> Self:
        """Itself after temperature scaling fitted on the validation predictions."""
        fitted_on, rows = validation.with_rows()
        with naming_rows_of_file(rows):
            scaling = TemperatureScaling().fit(fitted_on)
        title = f"{self.title}\n+ T = {scaling.temperature_:.3g} by NLL"
        return dataclasses.replace(self, title=title, calibrator=scaling)

    @property
    def temperature(self) -> float | None:
        return None if self.calibrator is None else float(self.calibrator.temperature_)

    def described(self) -> dict[str, Any]:
        """What JSON says about where the numbers come from."""
        return {
            "title": self.title.replace("\n", " "),
            "path": text_of(self.path),
            "split": self.split,
            "checkpoint": self.checkpoint,
            "temperature": self.temperature,
            "unfinished": None if self.run is None else unfinished(self.run),
        }


def _corruption_columns(rows: int) -> dict[str, np.ndarray]:
    """Of a split under all corruptions, which has all images once per corruption, one after another."""
    from calattn.data.corruptions import CORRUPTIONS

    images = rows // len(CORRUPTIONS)
    return {"corruption": np.repeat(list(CORRUPTIONS), images), "image": np.tile(np.arange(images), len(CORRUPTIONS))}


def unfinished(run: Path) -> str | None:
    from calattn.runs.facts import RunFacts

    return RunFacts(run).unfinished


def scaled(found: Sequence[PredictionSet], scaling: options.Scaling) -> list[PredictionSet]:
    """Each after temperature scaling, fitted on its own validation predictions or on the files that were named."""
    files = scaling.files
    if files and len(files) != len(found):
        raise ValueError(f"there are {len(found)} predictions and {len(files)} --validation; give one for each")
    on = [of_file(path, each.reader) for path, each in zip(files, found, strict=True)] if files else None
    validations = on or [each.validation() for each in found]
    return [each.scaled(on) for each, on in zip(found, validations, strict=True)]


def of_file(path: Path, reader: options.FileFlags) -> PredictionSet:
    """What a --validation names; of a run folder, its validation split."""
    return find([path], reader=reader, part=options.RunPart(split=["validation"] if is_run(path) else None))[0]


def named(path: Path) -> tuple[str | None, Path]:
    """A name and a path from NAME=FILE, where there is no file of that whole name.

    >>> named(Path("ours=runs/a.npz")), named(Path("a.npz"))
    (('ours', PosixPath('runs/a.npz')), (None, PosixPath('a.npz')))
    """
    name, equals, rest = str(path).partition("=")
    return (name, Path(rest)) if equals and name and rest and not path.exists() else (None, path)


def find(paths: Sequence[Path], *, reader: options.FileFlags, part: options.RunPart) -> list[PredictionSet]:
    """The subjects that the paths name, a run folder giving one for each split; titles tell them apart, or NAME=FILE does."""
    given = {path: name for name, path in map(named, paths)}
    paths = [path for _, path in map(named, paths)]
    options.check_rule(part.checkpoint)
    part.check_of_runs(is_run(path) for path in paths if path.exists())
    found = []
    for path in paths:
        if str(path) in METRICS and not path.exists():
            raise PredictionFileMissing(
                f"{path} does not exist, and is the name of a metric; metrics are given with commas: --metrics ece,nll"
            )
        if not is_run(path):
            _refuse_contest(path)
            _refuse_folder_of_runs(path)
            found.append(PredictionSet(path=path / "predictions" if is_calibrated(path) else path, reader=reader))
            continue
        if (partly := unfinished(path)) is not None:
            note(f"{path} is unfinished: these are predictions after {partly}")
        for split in part.splits():
            place = _in_run(path, split, part.checkpoint)
            found.append(PredictionSet(path=place, reader=reader, run=path, split=split, checkpoint=part.checkpoint))
    names = titles([each.named for each in found], [each.split for each in found], given)
    return [dataclasses.replace(each, title=title) for each, title in zip(found, names, strict=True)]


def _say_ignored(stream: PredictionStream, kept: int) -> None:
    if stream.ignored:
        labels = " or ".join(map(str, stream.ignored))
        rows = f"{stream.num_ignored:,} of {stream.num_ignored + kept:,} rows"
        note(f"{text_of(stream.path)}: {rows} left out: their label is {labels} (--ignore-label)")


def text_of(path: Path) -> str:
    """A path as text that any file can hold: bytes that are no UTF-8 are written as escapes.

    >>> text_of(Path("a/b.npz"))
    'a/b.npz'
    """
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def is_run(path: Path) -> bool:
    """Whether a folder is a run's: it has a spec, or a folder of predictions by split."""
    return (path / "spec.yaml").is_file() or ((path / "predictions").is_dir() and not is_calibrated(path))


def _refuse_contest(path: Path) -> None:
    """`calattn calibrate --method all --out` writes a folder for each method: one of them has to be named."""
    leader = leader_in(path)
    if leader is not None and is_calibrated(leader):
        raise PredictionFileMissing(f"{path} holds the predictions of several methods; name one, such as {leader}")


def _refuse_folder_of_runs(path: Path) -> None:
    if not path.is_dir() or (path / MANIFEST).is_file() or is_calibrated(path):
        return
    runs = sorted(each.name for each in path.iterdir() if is_run(each))
    if runs:
        more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        raise PredictionFileMissing(
            f"{path} is not a run folder; name one of the runs in it: {', '.join(runs[:_SHOWN])}{more}; all of them: "
            f"calattn report {shlex.quote(str(path))}"
        )


def leader_in(path: Path) -> Path | None:
    """The folder of the leader, where `path` is what `calattn calibrate --method all --out` wrote and there is one."""
    try:
        report = json.loads((path / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    leader = report.get("leader") if isinstance(report, dict) else None
    return path / leader if isinstance(leader, str) else None


def is_calibrated(path: Path) -> bool:
    """Whether a folder is what `calattn calibrate --out` wrote: predictions beside their calibrator."""
    return (path / "predictions" / MANIFEST).is_file() and not (path / "spec.yaml").is_file()


def _in_run(run: Path, split: str, rule: str) -> Path:
    """Where a run keeps the predictions of a split by the checkpoint of a rule."""
    from calattn.runs.facts import OWN_SPLITS, corruption_of

    folder = run / "predictions"
    path = folder / (split if rule == "last" else f"{split}.{rule}")
    if (path / MANIFEST).is_file():
        return path
    have = sorted(each.parent.name for each in folder.glob(f"*/{MANIFEST}"))
    said = f"no predictions of {path.name}; it has {', '.join(have)}" if have else "no predictions yet"
    command = f"calattn predict {shlex.quote(str(run))}"
    without = _no_checkpoint(run)
    corruption = corruption_of(split)
    if split in OWN_SPLITS or corruption is not None:
        flag = f"--split {split}" if corruption is None else f"--corrupt {corruption}"
        how = without or f"make them with: {command} {flag}" + f" --checkpoint {rule}" * (rule != "last")
    else:
        how = without or f"those of other images are made with: {command} --data DATA"
        how = f"its own are {' and '.join(OWN_SPLITS)}; {how}"
    raise PredictionFileMissing(f"{run} has {said}; {how}")


def _no_checkpoint(run: Path) -> str | None:
    """What to do where `calattn predict` has nothing to predict with; None where it has."""
    from calattn.runs.folder import RunFolder

    folder = RunFolder(run)
    if any(folder.checkpoints_path.glob("state-*.safetensors")):
        return None
    if (process := folder.writer()) is not None:
        return f"it has no checkpoint yet either, and is being written by process {process}: wait for it"
    if not folder.spec_path.is_file():
        return f"it has no checkpoint and no {folder.spec_path.name}, so they cannot be made: name what it has"
    command = shlex.join(["calattn", "train", str(folder.spec_path), "--out", str(run)])
    return f"it has no checkpoint to make them with either; train it: {command}"


def titles(
    paths: Sequence[Path], splits: Sequence[str | None] | None = None, given: Mapping[Path, str | None] | None = None
) -> list[str]:
    """The name that was given, or the end of each path, as long as it takes to tell them apart; and the split where it is
    not the test images alone."""
    splits = [None] * len(paths) if splits is None else splits
    parts = [path.absolute().parts for path in paths]
    distinct = len(set(parts))
    length = next((n for n in range(1, 64) if len({part[-n:] for part in parts}) == distinct), 64)
    ends = [text_of(Path(*part[-length:])) for part in parts]
    names = [(given or {}).get(path) or end for path, end in zip(paths, ends, strict=True)]
    tests_only = {split for split in splits if split is not None} <= {"test"}
    shown = [f"{name} {split}" if split and not tests_only else name for name, split in zip(names, splits, strict=True)]
    # The same path twice on a line is still two columns.
    return [f"{name} ({shown[:i].count(name) + 1})" if name in shown[:i] else name for i, name in enumerate(shown)]
