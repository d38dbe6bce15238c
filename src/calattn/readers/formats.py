"""Formats: which suffix is read by what, and why a path is not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calattn.errors import Args, InputError
from calattn.files.missing import why_missing
from calattn.files.predictions import PredictionFileError, PredictionFileMissing, has_predictions
from calattn.readers.arrays import NumpyFile, PredictionsFolder, SafetensorsFile, TorchFile
from calattn.readers.fields import FieldFile
from calattn.readers.tables import CsvFile, ParquetFile

_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
_TORCH = (".pt", ".pth")
_PICKLE = (".pkl", ".pickle", ".joblib", ".dill")
_JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (".npz", ".npy", *_TEXT, *PARQUET, ".safetensors", *_TORCH)


def opened_file(
    path: Path, address: str | None = None, *, delimiter: str | None = None, header: Sequence[str] | None = None
) -> FieldFile:
    """The fields of a file on this machine; `address` as in `FieldFile`, the others of text files."""
    if not path.exists():
        raise PredictionFileMissing(why_missing(path))
    if path.is_dir():
        if not has_predictions(path):
            raise PredictionFileMissing(_why_foreign(path))
        return PredictionsFolder(path, address)
    name, shown = path.name.lower(), address or str(path)
    if name.endswith(_PICKLE):
        raise PredictionFileError(
            f"{shown} is a pickle, and unpickling runs whatever is in it; save it again from the program that made it, "
            "as an .npz file (numpy.savez) with arrays named logits (or probs) and labels"
        )
    if name.endswith(_JSON):
        raise PredictionFileError(f"{shown} is JSON, which is not read; convert it once: {_from_json(path)}")
    if not name.endswith(SUFFIXES):
        raise PredictionFileError(f"{shown} has a suffix that is not read; known: {' '.join(SUFFIXES)}")
    if path.stat().st_size == 0:
        raise PredictionFileError(f"{shown} is empty (0 bytes); copy or save it again")
    if name.endswith(_TEXT):
        return CsvFile(path, address, delimiter=delimiter, header=header)
    if delimiter is not None or header is not None:
        both = (Args(delimiter=None), " and ", Args(header=None))
        raise InputError((*both, f" are for text files, {shown} is not one"))
    if name.endswith(PARQUET):
        return ParquetFile(path, address)
    if name.endswith(_TORCH):
        return TorchFile(path, address)
    return SafetensorsFile(path, address) if name.endswith(".safetensors") else NumpyFile(path, address)


def _from_json(path: Path) -> str:
    """A command that makes Parquet of JSON: lines, a list of records, or columns by name. pyarrow is installed with us."""
    target = path.with_suffix(".parquet")
    if path.suffix.lower() != ".json":
        code = f"p.write_table(j.read_json('{path}'), '{target}')"
        return f'python -c "import pyarrow.json as j, pyarrow.parquet as p; {code}"'
    table = f"d = j.load(open('{path}')); t = a.Table.from_pylist(d) if isinstance(d, list) else a.table(d)"
    return f"python -c \"import json as j, pyarrow as a, pyarrow.parquet as p; {table}; p.write_table(t, '{target}')\""


def _why_foreign(folder: Path) -> str:
    files = sorted(
        entry.name for entry in folder.iterdir() if entry.is_file() and entry.name.lower().endswith(SUFFIXES)
    )
    if not files:
        return f"{folder} is a folder without predictions, and without a file that is read ({' '.join(SUFFIXES)})"
    hint = " (or a pattern, if they are parts of one set)" if len(files) > 1 else ""
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    return f"{folder} is a folder without predictions; name a file in it{hint}: {', '.join(files[:8])}{more}"
