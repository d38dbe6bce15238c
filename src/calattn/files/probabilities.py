"""Probabilities for other tools, written block by block: .npz, .csv or .parquet."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from calattn.files.atomic import PathArg, atomic_write
from calattn.files.predictions import alike
from calattn.files.text import is_formula, visible
from calattn.types import Predictions

if TYPE_CHECKING:
    import pyarrow as pa

# Of a row group of Parquet. Its description takes 1.6 MB of memory per thousand columns: one for each block of 4 MB would add up.
_GROUP_BYTES = 64 << 20


def write_probabilities(found: Predictions | Iterable[Predictions], path: PathArg, *, rows: int | None = None) -> None:
    """Probabilities, with their labels if there are any, in names that every reader here knows.

    The .npz format states first how many `rows` there are: blocks are counted for it, where that is not given.

    >>> import tempfile, torch
    >>> target = Path(tempfile.mkdtemp()) / "probabilities.csv"
    >>> found = Predictions(logits=torch.zeros(2, 2), labels=torch.tensor([0, 1]))
    >>> write_probabilities(found, target)
    >>> target.read_text().split()
    ['"label","p_0","p_1"', '0,0.5,0.5', '1,0.5,0.5']
    """
    path = Path(path)
    with atomic_write(path) as partial:
        if path.suffix == ".npz":
            parts = [found] if isinstance(found, Predictions) else found
            _write_npz(partial, parts, sum(map(len, parts)) if rows is None else rows)
        else:
            _write_table(partial, found, path)


def _write_npz(partial: Path, found: Predictions | Iterable[Predictions], rows: int) -> None:
    """As np.savez does. An archive takes one array after the other: labels and indices wait in files without a name."""
    done = 0
    first, blocks = _first_and_all(found)
    with zipfile.ZipFile(partial, "w") as archive, contextlib.ExitStack() as stack:
        waiting = {name: stack.enter_context(tempfile.TemporaryFile(dir=partial.parent)) for name in _beside(first)}
        with _member(archive, "probs") as member:
            for block in blocks:
                probs = block.probs.cpu().contiguous().numpy()
                if not done:
                    _write_header(member, probs, rows)
                member.write(probs.data)
                for name, values in _beside(block).items():
                    waiting[name].write(values.data)
                done += len(block)
        if done != rows:
            raise ValueError(f"there were {rows} rows at first and {done} when they were read again; start again")
        with _member(archive, "class_names") as member:
            np.lib.format.write_array(member, np.array(first.class_names or _numbers(first)), allow_pickle=False)
        for name, values in _beside(first).items():
            waiting[name].seek(0)
            with _member(archive, name) as member:
                _write_header(member, values, rows)
                shutil.copyfileobj(waiting[name], member)


def _write_table(partial: Path, found: Predictions | Iterable[Predictions], path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    first, blocks = _first_and_all(found)
    names = first.class_names or _numbers(first)
    if names != _numbers(first) and (why := _unfit(names)):
        columns = f"the columns of {path} are p_0, p_1, … in class order, and labels are counted from 0"
        warnings.warn(f"{why}: {columns}", stacklevel=3)
        names = _numbers(first)
    tables: Iterator[pa.Table] = (_table(block, names) for block in blocks)
    tables = _grouped(tables) if path.suffix == ".parquet" else tables
    head = next(tables)
    file: Any
    if path.suffix == ".parquet":
        # Probabilities seldom repeat: a dictionary of them made 2.0 GB of a file 2.9 GB.
        # With checksums a flipped bit is found when it is read; they took 0.1 of 2.6 s for 289 MB.
        file = pyarrow.parquet.ParquetWriter(partial, head.schema, use_dictionary=["label"], write_page_checksum=True)
    else:
        file = pyarrow.csv.CSVWriter(partial, head.schema)
    with file:
        for table in itertools.chain([head], tables):
            file.write_table(table)


def _table(block: Predictions, names: tuple[str, ...]) -> pa.Table:
    import pyarrow as pa

    columns = _beside(block)
    if (labels := columns.pop("labels", None)) is not None:
        # The label in the words of the column names, so that no reader has to count classes.
        columns["label"] = labels if names == _numbers(block) else np.array(names)[labels]
    probs = block.probs.cpu().numpy()
    return pa.table(columns | {f"p_{name}": probs[:, k] for k, name in enumerate(names)})


def _grouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    import pyarrow as pa

    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(each.nbytes for each in held) >= _GROUP_BYTES:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _first_and_all(found: Predictions | Iterable[Predictions]) -> tuple[Predictions, Iterator[Predictions]]:
    """The first block, whose fields all others have, and all blocks."""
    blocks = alike([found] if isinstance(found, Predictions) else found)
    first = next(blocks)
    return first, itertools.chain([first], blocks)


def _beside(block: Predictions) -> dict[str, np.ndarray]:
    """What a row has besides its probabilities."""
    index = {} if block.indices is None else {"index": block.indices.cpu().numpy()}
    return index | ({"labels": block.labels.cpu().numpy()} if block.labelled else {})


def _numbers(block: Predictions) -> tuple[str, ...]:
    return tuple(str(k) for k in range(block.num_classes))


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    return archive.open(f"{name}.npy", "w", force_zip64=True)


def _write_header(file: IO[bytes], like: np.ndarray, rows: int) -> None:
    shape = (rows, *like.shape[1:])
    header = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _unfit(names: tuple[str, ...]) -> str:
    """Why class names cannot name columns, and labels, that any reader takes back; empty if they can."""
    import pyarrow.csv as pa_csv

    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        return f"several classes are named {twice!r}"
    missing = pa_csv.ConvertOptions().null_values  # NA, null, nan, …: a label of that name would read as none
    for name in names:
        if not name.strip() or name in missing or visible(name) != name or "\n" in name or "\t" in name:
            return f"the class name {name!r} is not plain text"
        with contextlib.suppress(ValueError):
            float(name)
            return f"the class name {name!r} is a number, which readers take for a position"
        if is_formula(name):
            return f"the class name {name!r} is a formula for spreadsheets"
    return ""
