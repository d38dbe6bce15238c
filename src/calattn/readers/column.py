"""One column beside the scores, such as the camera or the image of each row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from calattn.errors import Args
from calattn.files.atomic import PathArg
from calattn.files.predictions import PredictionFileError
from calattn.readers.choice import ReadOptions
from calattn.readers.fields import FieldFile
from calattn.readers.reading import opened_source
from calattn.registry import nearest


def read_column(path: PathArg, name: str, options: ReadOptions | None = None) -> np.ndarray:
    """The values of a column, one per row of the file; numbers in text files come as text.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("prob_0,prob_1,label,camera\\n0.9,0.1,0,left\\n0.4,0.6,1,right\\n")
    >>> read_column(path, "camera").tolist()
    ['left', 'right']
    """
    source, _ = opened_source(path, options or ReadOptions(), lambda file: _check(file, name))
    blocks = [np.asarray(block[name]).reshape(-1) for block in source.blocks({name: "label"}, 1 << 18)]
    return np.concatenate(blocks)


def _check(source: FieldFile, name: str) -> SimpleNamespace:
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
