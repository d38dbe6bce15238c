"""Image tables: Parquet files in the layout of the Hugging Face hub, `image{bytes, path}` and `label`, or soft labels."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.data.decoding import EncodedImages, PackedBytes, write_packed
from calattn.data.images import DamagedFile, DataError, FilesMissing
from calattn.data.sources.datasets import Dataset, default_root
from calattn.data.sources.image_folder import channels_of, own_images

_TEXT = (pa.string(), pa.large_string())
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")
SOFT_COLUMNS = ("probs", "probabilities", "soft_label", "soft_labels", "label_probs")

# Our splits, by the names that people give them; the first that exists counts. Of benchmarks the hub's validation files are
# what a network is tested on, where there are no test files, or secret labels in them (all −1).
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
BENCHMARK_NAMES = SPLIT_NAMES | {"test": ("test", "validation", "valid", "val")}
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})")

# Encoded images beyond this many bytes are unpacked once into a file that is mapped, instead of held in memory.
MEMORY_LIMIT = 2 << 30


def describe(path: Path) -> Dataset:
    """What the files hold: classes as the training files state them; grey if the first images are."""
    splits = tuple(split for split in SPLIT_NAMES if _labelled_shards(path, split))
    if not splits:
        if not path.exists():
            raise DataError(
                f"{path} does not exist; parquet:PATH needs a folder with train-*.parquet and test-*.parquet"
            )
        raise DataError(f"{path} holds no train-*.parquet, test-*.parquet or validation-*.parquet with labels")
    files = _labelled_shards(path, splits[0])
    classes = _class_names(path, files, None)
    channels = channels_of(io.BytesIO(item) for item in itertools.islice(_image_bytes(files[:1]), 64))
    return own_images(f"parquet:{path}", channels, classes, splits, functools.partial(read, channels=channels))


def read(path: Path, split: str, *, dataset: Dataset | None = None, channels: int = 3) -> EncodedImages:
    """A split from a folder (or one file) of Parquet. `dataset` gives size, channels and class names of a known one."""
    files = _labelled_shards(path, split, SPLIT_NAMES if dataset is None else BENCHMARK_NAMES)
    if not files:
        raise FilesMissing(f"there is no {split}-*.parquet with labels in {path}")
    named = _labelled_shards(path, "train") or files
    class_names = _class_names(path, named, dataset)
    _check_same_names(files, class_names)
    labels, soft = _targets(files, class_names)
    counts = [_opened(file, lambda file=file: pq.read_metadata(file)).num_rows for file in files]
    return EncodedImages(
        labels=labels,
        class_names=class_names,
        soft_labels=soft,
        rows=torch.arange(len(labels)),
        num_channels=channels if dataset is None else dataset.channels,
        declared_size=None if dataset is None else dataset.size,
        content=_content(files),
        files=tuple(str(file) for file in files),
        starts=tuple(itertools.accumulate(counts[:-1], initial=0)),
    )


def shards(path: Path, name: str) -> list[Path]:
    """`name-*.parquet` or `name.parquet` in `path`, in its data folder, or in the one sub-folder that has them."""
    if path.is_file():
        return [path] if re.match(rf"{name}(?![a-z])", path.name) else []
    if not path.is_dir():
        return []
    folders = [
        path,
        path / "data",
        *sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name != "data"),
    ]
    found = [(folder, files) for folder in folders if (files := _shards_in(folder, name))]
    if len(found) > 1:
        raise DataError(f"{found[0][0]} and {found[1][0]} both hold {name}-*.parquet; give the path of one of them")
    return _all_there(found[0][1]) if found else []


def _shards_in(folder: Path, name: str) -> list[Path]:
    """`name-…`, `name_…`, `name.parquet`, or anything in a folder called `name`."""
    files = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    return files if folder.name == name else [file for file in files if re.match(rf"{name}(?![a-z])", file.name)]


def _all_there(files: list[Path]) -> list[Path]:
    """All of 00000-of-0000N must be there: half a training set would pass unnoticed."""
    numbers = [match for file in files if (match := _NUMBERED.search(file.name))]
    total = int(numbers[0][2]) if numbers else 0
    if gone := sorted(set(range(total)) - {int(match[1]) for match in numbers}):
        raise DataError(
            f"{files[0].parent} lacks shard {gone[0]:05d} of {total} ({files[0].name} is there); copy it too"
        )
    return files


def _labelled_shards(path: Path, split: str, names: dict[str, tuple[str, ...]] = SPLIT_NAMES) -> list[Path]:
    """The files of a split that have labels."""
    found = (shards(path, name) for name in names.get(split, ()))
    return next((files for files in found if files and not _unlabelled(files)), [])


def _unlabelled(files: list[Path]) -> bool:
    schema = _schema(files[0])
    column = _one_of(schema, LABEL_COLUMNS)
    if column is None or not pa.types.is_integer(schema.field(column).type):
        return False
    return all(bool((_column(file, column).to_numpy(zero_copy_only=False) == -1).all()) for file in files)


def _class_names(path: Path, files: list[Path], dataset: Dataset | None) -> tuple[str, ...]:
    """From the hub's own metadata, from a classes.txt next to the files, from `dataset`, else counted from the labels."""
    schema = _schema(files[0])
    column = _one_of(schema, LABEL_COLUMNS)
    stated = _hub_names(schema, column)
    if stated:
        return stated
    for folder in (path if path.is_dir() else path.parent, files[0].parent):
        if (folder / "classes.txt").is_file():
            return tuple((folder / "classes.txt").read_text(encoding="utf-8").strip().splitlines())
    if dataset is not None and dataset.class_names:
        return dataset.class_names
    if column is not None and schema.field(column).type in _TEXT:
        return tuple(sorted({name for file in files for name in _column(file, column).unique().to_pylist() if name}))
    return tuple(str(label) for label in range(_count(files, schema, column)))


def _count(files: list[Path], schema: pa.Schema, column: str | None) -> int:
    soft = _one_of(schema, SOFT_COLUMNS)
    if soft is not None:
        lengths = _column(files[0], soft).slice(0, 1).to_pylist()
        return len(lengths[0] or ()) if lengths else 0
    if column is None:
        raise DataError(
            f"{files[0]} has neither a label column ({', '.join(LABEL_COLUMNS)}) nor soft labels; rename one"
        )
    return 1 + max(int(_hard_labels(file, column, None).max(initial=-1)) for file in files)


def _hub_names(schema: pa.Schema, column: str | None) -> tuple[str, ...]:
    """ClassLabel names in the `huggingface` entry of the schema's metadata; none if there is no such thing."""
    raw = (schema.metadata or {}).get(b"huggingface")
    if raw is None or column is None:
        return ()
    try:
        names = json.loads(raw)["info"]["features"][column]["names"]
    except (ValueError, KeyError, TypeError):
        return ()
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=int)]
    return tuple(str(name) for name in names)


def _check_same_names(files: list[Path], class_names: tuple[str, ...]) -> None:
    """A file that numbers its classes otherwise than the training files would be read with wrong labels."""
    for file in files:
        schema = _schema(file)
        stated = _hub_names(schema, _one_of(schema, LABEL_COLUMNS))
        if stated and stated != class_names:
            pairs = enumerate(itertools.zip_longest(stated, class_names))
            number, (mine, theirs) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
            raise DataError(
                f"{file}: class {number} is {mine!r}, in the training files it is {theirs!r}; number the classes alike"
            )


def _targets(files: list[Path], class_names: tuple[str, ...]) -> tuple[Int[Tensor, " n"], Float[Tensor, "n k"] | None]:
    """Labels as the table has them, else the argmax of the soft labels."""
    schema = _schema(files[0])
    hard, soft = _one_of(schema, LABEL_COLUMNS), _one_of(schema, SOFT_COLUMNS)
    if hard is None and soft is None:
        raise DataError(
            f"{files[0]} has columns {', '.join(schema.names)}, but neither a label ({', '.join(LABEL_COLUMNS)}) "
            f"nor soft labels ({', '.join(SOFT_COLUMNS)}); rename the one you mean"
        )
    probs = None if soft is None else torch.cat([_soft_labels(file, soft, len(class_names)) for file in files])
    if hard is None:
        assert probs is not None
        return probs.argmax(dim=1), probs
    return torch.from_numpy(np.concatenate([_hard_labels(file, hard, class_names) for file in files])), probs


def _hard_labels(file: Path, column: str, class_names: tuple[str, ...] | None) -> np.ndarray:
    values = _column(file, column)
    if values.null_count:
        raise DataError(f"{file}: row {values.to_pylist().index(None)} has no {column}; remove it or fill it in")
    if values.type in _TEXT:
        index = {name: label for label, name in enumerate(class_names or ())}
        names = values.to_pylist()
        unknown = next((row for row, name in enumerate(names) if name not in index), None)
        if unknown is not None:
            raise DataError(f"{file}: row {unknown} has {column} {names[unknown]!r}, which is not among the classes")
        return np.array([index[name] for name in names], dtype=np.int64)
    if not pa.types.is_integer(values.type):
        raise DataError(f"{file}: {column} is {values.type}; it must be integers or class names")
    labels = values.to_numpy(zero_copy_only=False).astype(np.int64)
    bad = labels < 0 if class_names is None else (labels < 0) | (labels >= len(class_names))
    if bad.any():
        row, upper = int(bad.argmax()), "" if class_names is None else f", outside [0, {len(class_names) - 1}]"
        raise DataError(f"{file}: row {row} has {column} {labels[row]}{upper}; fix the label or state the classes")
    return labels


def _soft_labels(file: Path, column: str, num_classes: int) -> Float[Tensor, "n k"]:
    """Rows of probabilities, checked: as long as there are classes, finite, non-negative, of sum 1."""
    values = _column(file, column)
    kind = values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise DataError(f"{file}: {column} is {kind}; soft labels must be a list with one number per class")
    rows = values.to_pylist()
    wrong = next((i for i, row in enumerate(rows) if row is None or len(row) != num_classes or None in row), None)
    if wrong is not None:
        length = None if rows[wrong] is None else len(rows[wrong])
        raise DataError(f"{file}: row {wrong} of {column} has {length} entries where there are {num_classes} classes")
    probs = torch.tensor(rows, dtype=torch.float32)
    tolerance = checks.sum_tolerance(torch.float16 if kind.value_type == pa.float16() else torch.float32)
    # NaN and infinity have no sum near 1.
    bad = ~((probs >= 0).all(1) & ((probs.sum(1) - 1).abs() <= tolerance))
    if bad.any():
        row = checks.first(bad)
        shown = ", ".join(f"{value:.4g}" for value in probs[row, :4].tolist())
        raise DataError(
            f"{file}: row {row} of {column} is not a distribution ({shown}, …; sum {float(probs[row].sum()):.6g}); "
            "it must be finite, non-negative and sum to 1"
        )
    return probs


def _content(files: list[Path]) -> PackedBytes:
    if sum(file.stat().st_size for file in files) <= MEMORY_LIMIT:
        return PackedBytes.of(_image_bytes(files))
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    path = default_root() / "unpacked" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.bin"
    if not path.exists():
        write_packed(path, _image_bytes(files))
    return PackedBytes.mapped(path)


def _image_bytes(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        column, row = _image_column(file), 0
        for values in _batches(file, column):
            if pa.types.is_struct(values.type):
                values = values.field("bytes")
            for item in values.to_pylist():
                if item is None:
                    raise DataError(f"{file}: row {row} has no image bytes; save the table with the images embedded")
                yield item
                row += 1


def _image_column(file: Path) -> str:
    schema = _schema(file)
    column = _one_of(schema, IMAGE_COLUMNS)
    if column is None:
        raise DataError(
            f"{file} has columns {', '.join(schema.names)}, but none named {' or '.join(IMAGE_COLUMNS)}; rename one"
        )
    kind = schema.field(column).type
    holder = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if not (pa.types.is_binary(holder) or pa.types.is_large_binary(holder)):
        raise DataError(f"{file}: {column} is {kind}; it must be the encoded bytes, or a struct with a field `bytes`")
    return column


def _one_of(schema: pa.Schema, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in schema.names), None)


def _column(file: Path, name: str) -> pa.ChunkedArray:
    if name not in _schema(file).names:
        raise DataError(f"{file} has no column {name!r}, which the other files have")
    values = _opened(file, lambda: pq.read_table(file, columns=[name], partitioning=None)[name])
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _batches(file: Path, column: str) -> Iterator[pa.Array]:
    batches = _opened(file, lambda: pq.ParquetFile(file).iter_batches(batch_size=256, columns=[column]))
    while (batch := _opened(file, lambda: next(batches, None))) is not None:
        yield batch.column(0)


def _schema(file: Path) -> pa.Schema:
    return _opened(file, lambda: pq.read_schema(file))


def _opened(file: Path, action):  # type: ignore[no-untyped-def]
    """Run an Arrow call, and report damaged files in our words."""
    try:
        return action()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        reason = str(error).split("\n")[0][:120]
        raise DamagedFile(f"{file} is not a whole Parquet file ({reason})") from None
