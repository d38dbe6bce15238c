"""Reading: a path and what the caller knows about it in, predictions out, at once or as a stream."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from calattn import checks
from calattn.errors import Args, InputError
from calattn.files.atomic import PathArg
from calattn.files.predictions import PredictionFileError, PredictionFileMissing, has_predictions
from calattn.readers.arrays import NumpyFile, PredictionsFolder, SafetensorsFile, TorchFile
from calattn.readers.choice import LabelsArg, ReadOptions, choose
from calattn.readers.fields import FieldFile, Values
from calattn.readers.stream import PredictionStream
from calattn.readers.tables import CsvFile, ParquetFile
from calattn.types import Predictions

_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_PARQUET = (".parquet", ".pq")
_TORCH = (".pt", ".pth")
_PICKLE = (".pkl", ".pickle", ".joblib", ".dill")
_JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (".npz", ".npy", *_TEXT, *_PARQUET, ".safetensors", *_TORCH)


def stream_predictions(
    path: PathArg, options: ReadOptions | None = None, *, rows_per_block: int | None = None, **changes: Any
) -> PredictionStream:
    """Open a file of any program as a stream of `Predictions` blocks, in memory that stays small.

    What the file does not state is in `options`, or given as keywords: the fields of `ReadOptions`.
    """
    options = dataclasses.replace(options or ReadOptions(), **changes)
    if options.kind not in (None, "logits", "probs"):
        raise InputError(f'must be "logits" or "probs", got {options.kind!r}', argument="kind")
    if rows_per_block is not None:
        checks.positive_int(rows_per_block, "rows_per_block")
    source = opened_file(Path(path), options.delimiter, options.header)
    given = _given_labels(options.labels)
    choice = choose(source, options, labels_given=given is not None, ignored=_ignored(options.ignore_index))
    return PredictionStream(source, choice, options, labels=given, rows_per_block=rows_per_block)


def read_predictions(path: PathArg, options: ReadOptions | None = None, **changes: Any) -> Predictions:
    """Read a whole file of any program; options as in `stream_predictions`.

    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "test.npz"
    >>> np.savez(path, scores=np.array([[2.0, 0.0], [0.5, 1.0]]), labels=np.array([0, 1]))
    >>> read_predictions(path, kind="logits", columns="scores").labels
    tensor([0, 1])
    """
    return stream_predictions(path, options, **changes).whole()


def _ignored(given: int | Sequence[int]) -> tuple[int, ...]:
    found = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if wrong := [each for each in found if isinstance(each, bool) or not isinstance(each, int | np.integer)]:
        raise InputError(f"must be whole numbers, got {wrong[0]!r}", argument="ignore_index")
    return tuple(int(each) for each in found)


def opened_file(path: Path, delimiter: str | None, header: Sequence[str] | None) -> FieldFile:
    if not path.exists():
        raise PredictionFileMissing(_why_missing(path))
    if path.is_dir():
        if not has_predictions(path):
            raise PredictionFileMissing(_why_foreign(path))
        return PredictionsFolder(path)
    name = path.name.lower()
    if name.endswith(_PICKLE):
        raise PredictionFileError(
            f"{path} is a pickle, and unpickling runs whatever is in it; save it again from the program that made it, "
            "as an .npz file (numpy.savez) with arrays named logits (or probs) and labels"
        )
    if name.endswith(_JSON):
        raise PredictionFileError(f"{path} is JSON, which is not read; convert it once: {_from_json(path)}")
    if not name.endswith(SUFFIXES):
        raise PredictionFileError(f"{path} has a suffix that is not read; known: {' '.join(SUFFIXES)}")
    if path.stat().st_size == 0:
        raise PredictionFileError(f"{path} is empty (0 bytes); copy or save it again")
    if name.endswith(_TEXT):
        return CsvFile(path, delimiter=delimiter, header=header)
    if delimiter is not None or header is not None:
        both = (Args(delimiter=None), " and ", Args(header=None))
        raise InputError((*both, f" are for text files, {path} is not one"))
    if name.endswith(_PARQUET):
        return ParquetFile(path)
    if name.endswith(_TORCH):
        return TorchFile(path)
    return SafetensorsFile(path) if name.endswith(".safetensors") else NumpyFile(path)


def _from_json(path: Path) -> str:
    """A command that makes Parquet of JSON: lines, a list of records, or columns by name. pyarrow is installed with us."""
    target = path.with_suffix(".parquet")
    if path.suffix.lower() != ".json":
        code = f"p.write_table(j.read_json('{path}'), '{target}')"
        return f'python -c "import pyarrow.json as j, pyarrow.parquet as p; {code}"'
    table = f"d = j.load(open('{path}')); t = a.Table.from_pylist(d) if isinstance(d, list) else a.table(d)"
    return f"python -c \"import json as j, pyarrow as a, pyarrow.parquet as p; {table}; p.write_table(t, '{target}')\""


def _given_labels(labels: LabelsArg) -> Values | None:
    """Labels that are not in the file: an array, or the Path of an .npy file."""
    if labels is None or isinstance(labels, str):
        return None
    if isinstance(labels, Path):
        if not labels.exists():
            raise PredictionFileMissing(_why_missing(labels))
        if labels.suffix.lower() != ".npy":
            raise PredictionFileError((Args(labels=labels), " must be an .npy file"), remedy="save the labels as one")
        return NumpyFile(labels).whole("arr_0")
    values = labels.detach().cpu() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim == 0:
        raise InputError("must be one entry per row, got a single number", argument="labels")
    return values


def _why_foreign(folder: Path) -> str:
    files = sorted(
        entry.name for entry in folder.iterdir() if entry.is_file() and entry.name.lower().endswith(SUFFIXES)
    )
    if not files:
        return f"{folder} is a folder without predictions, and without a file that is read ({' '.join(SUFFIXES)})"
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    return f"{folder} is a folder without predictions; name a file in it: {', '.join(files[:8])}{more}"


def _why_missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"{path} does not exist: there is no folder {folder}"
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=3, cutoff=0.5)
    return f"{path} does not exist" + (f"; near it: {', '.join(near)}" if near else f"; look in {folder}")
