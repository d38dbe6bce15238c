"""Reading: a path and what the caller knows about it in, predictions out, at once or as a stream; or one column beside them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from calattn import checks
from calattn.errors import Args, InputError
from calattn.files.atomic import PathArg
from calattn.files.missing import why_missing
from calattn.files.predictions import PredictionFileError, PredictionFileMissing
from calattn.readers.arrays import NumpyFile
from calattn.readers.choice import LabelsArg, ReadOptions, choose
from calattn.readers.fields import FieldFile, Values
from calattn.readers.formats import opened_file
from calattn.readers.shards import Shards, find_shards, is_remote
from calattn.readers.stream import PredictionStream
from calattn.registry import nearest
from calattn.types import Predictions


def stream_predictions(
    path: PathArg | Sequence[PathArg],
    options: ReadOptions | None = None,
    *,
    rows_per_block: int | None = None,
    **changes: Any,
) -> PredictionStream:
    """Open a file of any program as a stream of `Predictions` blocks, in memory that stays small.

    `path` may also be a glob ("shards/*.parquet"), a folder of parts (part-0.csv, …), a URL (s3://…) or a list of these: one
    stream of all their rows. What the file does not state is in `options`, or given as keywords: the fields of `ReadOptions`.
    """
    options = dataclasses.replace(options or ReadOptions(), **changes)
    if options.kind not in (None, "logits", "probs"):
        raise InputError(f'must be "logits" or "probs", got {options.kind!r}', argument="kind")
    if rows_per_block is not None:
        checks.positive_int(rows_per_block, "rows_per_block")
    given, ignored = _given_labels(options.labels), _ignored(options.ignore_index)
    chosen = functools.partial(choose, options=options, labels_given=given is not None, ignored=ignored)
    source, choice = _opened(path, options, chosen)
    return PredictionStream(source, choice, options, labels=given, rows_per_block=rows_per_block)


def read_predictions(
    path: PathArg | Sequence[PathArg], options: ReadOptions | None = None, **changes: Any
) -> Predictions:
    """Read a whole file of any program; options as in `stream_predictions`.

    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "test.npz"
    >>> np.savez(path, scores=np.array([[2.0, 0.0], [0.5, 1.0]]), labels=np.array([0, 1]))
    >>> read_predictions(path, kind="logits", columns="scores").labels
    tensor([0, 1])
    """
    return stream_predictions(path, options, **changes).whole()


def read_column(path: PathArg, name: str, options: ReadOptions | None = None) -> np.ndarray:
    """The values of a column, one per row of the file; numbers in text files come as text.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("prob_0,prob_1,label,camera\\n0.9,0.1,0,left\\n0.4,0.6,1,right\\n")
    >>> read_column(path, "camera").tolist()
    ['left', 'right']
    """
    source, _ = _opened(path, options or ReadOptions(), lambda file: _column(file, name))
    blocks = [np.asarray(block[name]).reshape(-1) for block in source.blocks({name: "label"}, 1 << 18)]
    return np.concatenate(blocks)


def _ignored(given: int | Sequence[int]) -> tuple[int, ...]:
    found = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if wrong := [each for each in found if isinstance(each, bool) or not isinstance(each, int | np.integer)]:
        raise InputError(f"must be whole numbers, got {wrong[0]!r}", argument="ignore_index")
    return tuple(int(each) for each in found)


def _opened(
    path: PathArg | Sequence[PathArg], options: ReadOptions, chosen: Callable[[FieldFile], Any]
) -> tuple[FieldFile, Any]:
    """The file, or all shards as one, and what is `chosen` in it, which has to be the same in all."""
    named = [path] if isinstance(path, str | os.PathLike) else list(path)
    found = [each for one in named for each in find_shards(one)]
    text: dict[str, Any] = {"delimiter": options.delimiter, "header": options.header}
    if len(found) == 1 and not is_remote(found[0]):
        file = opened_file(Path(found[0]), **text)
        return file, chosen(file)
    shards = Shards(found, chosen, address=", ".join(map(str, named)), text=text)
    return shards, shards.chosen


def _given_labels(labels: LabelsArg) -> Values | None:
    """Labels that are not in the file: an array, or the Path of an .npy file."""
    if labels is None or isinstance(labels, str):
        return None
    if isinstance(labels, Path):
        if not labels.exists():
            raise PredictionFileMissing(why_missing(labels))
        if labels.suffix.lower() != ".npy":
            raise PredictionFileError((Args(labels=labels), " must be an .npy file"), remedy="save the labels as one")
        return NumpyFile(labels).whole("arr_0")
    values = labels.detach().cpu() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim == 0:
        raise InputError("must be one entry per row, got a single number", argument="labels")
    return values


def _column(source: FieldFile, name: str) -> SimpleNamespace:
    if name not in source.fields:
        near = nearest(name, source.fields)
        remedy = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(list(source.fields)[:12])}"
        raise PredictionFileError(f"there is no column {name!r}", subject=source.address, remedy=remedy)
    field = source.fields[name]
    if field.scalar or field.tail not in ((), (1,)):
        problem = f"{name!r} is {field}, one value per row is needed"
        also = ("name another column with ", Args(group=...))
        raise PredictionFileError(problem, subject=source.address, remedy=also)
    return SimpleNamespace(values=(name,))
