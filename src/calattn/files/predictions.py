"""The predictions folder: safetensors and a JSON manifest with their names and checksums.

    test/manifest.json                        what is in the folder, with shapes and checksums
    test/predictions-1f0c….safetensors        logits, labels, scale, indices
    test/features-77ab….safetensors           the optional sidecar

Tensor files are named by their content and the manifest is renamed into place last: that one rename turns the
old version into the new one, and there is no moment at which a kill leaves neither.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from calattn import distribution
from calattn.errors import Args, InputError
from calattn.files.atomic import (
    PathArg,
    atomic_write,
    commit,
    is_partial,
    is_stale,
    locked,
    made_folder,
    partial_file,
    remove,
)
from calattn.files.rows import RowFile
from calattn.types import Predictions

T = TypeVar("T")

FORMAT = "calattn-predictions"
VERSION = 1
MANIFEST = "manifest.json"
_PARTS = {"predictions": ("logits", "labels", "scale", "indices"), "features": ("features",)}
_NONE = "none"
_TEXT = (str, type(None))
_FIELDS: dict[str, Any] = {"files": dict, "class_names": (list, type(None)), "split": _TEXT, "spec_hash": _TEXT}
_ENTRY = {"name": str, "bytes": int, "sha256": str, "tensors": dict}
_TENSOR_FILE = re.compile(r"(predictions|features)-[0-9a-f]{16}\.safetensors")


class PredictionFileError(InputError):
    """A file that cannot be read as predictions; the message names the file and the remedy."""


class PredictionFileMissing(PredictionFileError, FileNotFoundError):
    """No such file or folder. A FileNotFoundError too, for callers who look for that."""


def not_whole(path: Path | str, kind: str, why: object, remedy: str = "copy or save it again") -> PredictionFileError:
    """The error about a file that is cut short, damaged or something else."""
    return PredictionFileError(f"{path} is not a whole {kind} file ({why}); {remedy}")


class PredictionsExist(InputError, FileExistsError):
    """The folder to save to holds predictions, and they are not to be overwritten."""


def save_predictions(predictions: Predictions, path: PathArg, *, overwrite: bool = False) -> Path:
    """Write `predictions` as the folder `path`, whole or not at all; equal predictions give equal bytes.

    >>> import tempfile, torch
    >>> test = Predictions(logits=torch.tensor([[2.0, 0.0]]), labels=torch.tensor([0]), split="test")
    >>> folder = save_predictions(test, Path(tempfile.mkdtemp()) / "test")
    >>> load_predictions(folder).logits
    tensor([[2., 0.]])
    """
    return save_blocks([predictions], path, rows=len(predictions), overwrite=overwrite)


def save_blocks(blocks: Iterable[Predictions], path: PathArg, *, rows: int | None, overwrite: bool = False) -> Path:
    """The same of predictions that come in consecutive blocks, `rows` samples in all: only one block is held at a time.

    All blocks must hold the same fields, of the same types and widths.
    """
    if rows is None:  # the stream of a text file does not know it
        raise ValueError("rows must be the number of samples in all blocks, got None; count them in a pass before")
    folder = Path(path)
    _replaceable(folder, overwrite)
    with made_folder(folder):
        parts = alike(blocks)
        if (first := next(parts, None)) is None:
            raise ValueError("blocks is empty: there are no predictions to save")
        with _row_files(folder, first, rows) as row_files:
            for block in itertools.chain([first], parts):
                for part, file in row_files.items():
                    with _disk(folder, part):
                        file.add(_tensors(block, part))
            with locked(folder), contextlib.ExitStack() as undo:  # each removes what no manifest names
                before = _replaceable(folder, overwrite)
                files = {}
                for part, file in row_files.items():
                    files[part] = entry = _kept(folder, part, file)
                    if entry["name"] not in before:
                        undo.callback((folder / entry["name"]).unlink, missing_ok=True)
                with atomic_write(folder / MANIFEST) as partial:
                    partial.write_text(_manifest_text(first, rows, files), encoding="utf-8")
                undo.pop_all()  # the manifest is in place: nothing is taken back from here on
                _clean(folder, {entry["name"] for entry in files.values()})
    return folder


def alike(blocks: Iterable[Predictions]) -> Iterator[Predictions]:
    """The blocks, after checking that each holds what the first holds.

    Indices that the first lacks are dropped: in a text file, names may look like numbers later on.
    """
    first: dict[str, str] | None = None
    for place, block in enumerate(blocks):
        if first is not None and first["indices"] == _NONE and block.indices is not None:
            block = block.replace(indices=None)
        found = _fields(block)
        first = found if first is None else first
        if found["indices"] == _NONE != first["indices"]:
            raise InputError(
                "indices are not whole numbers in every row: the first rows have them, later ones do not",
                remedy=("leave them out with ", Args(ignore=[...])),
            )
        for name, ours in first.items():
            if found[name] != ours:
                raise ValueError(
                    f"{name} of blocks[{place}]: {found[name]}; of blocks[0]: {ours}; "
                    "all blocks must hold the same fields, of the same types and widths"
                )
        yield block


def _fields(block: Predictions) -> dict[str, str]:
    """What has to be the same in all blocks."""
    found = {}
    for name in itertools.chain(*_PARTS.values()):
        tensor = getattr(block, name)
        width = "" if tensor is None or tensor.ndim == 1 else f" [n, {tensor.shape[1]}]"
        missing = tensor is None or (name == "labels" and not block.labelled)
        found[name] = _NONE if missing else str(tensor.dtype).removeprefix("torch.") + width
    found["class_names"] = _NONE if block.class_names is None else str(list(block.class_names))
    return found


def load_predictions(path: PathArg, *, features: bool | Literal["auto"] = "auto", verify: bool = True) -> Predictions:
    """Read a folder written by `save_predictions`, checking version, sizes, shapes and (`verify`) checksums.

    `features` is True (must be there), False (leave the sidecar alone) or "auto" (if there). Tensors are
    mapped, not copied.
    """
    folder = Path(path)

    def loaded(manifest: dict[str, Any]) -> dict[str, Tensor]:
        tensors = _load_part(folder, manifest, "predictions", verify)
        if features is True and "features" not in manifest["files"]:
            raise PredictionFileError(f"{folder} was saved without features; pass features=False or 'auto'")
        if features and "features" in manifest["files"]:
            tensors |= _load_part(folder, manifest, "features", verify)
        return tensors

    manifest, tensors = of_one_version(folder, loaded)
    names = manifest["class_names"]
    try:
        return Predictions(
            **tensors,
            class_names=None if names is None else tuple(names),
            split=manifest["split"],
            spec_hash=manifest["spec_hash"],
        )
    except (ValueError, TypeError) as error:
        raise PredictionFileError(f"{folder}: {error}; the folder is damaged, save the predictions again") from error


def of_one_version(folder: Path, read: Callable[[dict[str, Any]], T]) -> tuple[dict[str, Any], T]:
    """The manifest and what `read` makes of it; read anew where a save has replaced that version meanwhile."""
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, read(manifest)
        except PredictionFileMissing:
            if (again := read_manifest(folder)) == manifest:
                raise  # it was not replaced: files are missing
            manifest = again


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a predictions folder, checked for format and version, not against the tensor files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise PredictionFileMissing(_why_no_manifest(folder)) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or brackets in brackets in …
        raise PredictionFileError(f"{folder / MANIFEST} is not JSON ({error}); copy the folder again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise PredictionFileError(f"{folder / MANIFEST} is not the manifest of a {FORMAT} folder")
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise PredictionFileError(
            f"{folder} has format version {version!r}, this calattn reads up to {VERSION}; "
            f"it was written by calattn {manifest.get('calattn')}: upgrade to that version"
        )
    wrong = [name for name, kind in _FIELDS.items() if name not in manifest or not isinstance(manifest[name], kind)]
    if "files" not in wrong:
        files = manifest["files"]
        wrong += [
            f"files.{part}"
            for part in {"predictions": None} | files
            if not isinstance(entry := files.get(part), dict)
            or any(not isinstance(entry.get(name), kind) for name, kind in _ENTRY.items())
        ]
    if "class_names" not in wrong and not all(isinstance(name, str) for name in manifest["class_names"] or ()):
        wrong.append("class_names")
    if wrong:
        raise PredictionFileError(f"{folder / MANIFEST} lacks {', '.join(wrong)}; copy the folder again")
    return manifest


def has_features(folder: Path) -> bool:
    """Whether a predictions folder that can be read keeps features with the logits."""
    try:
        return "features" in read_manifest(folder)["files"]
    except (PredictionFileError, OSError):
        return False


def has_predictions(folder: Path) -> bool:
    """Whether a folder, or one in it, has a manifest, or a save that was interrupted left files there."""
    below = any(folder.glob(f"*/{MANIFEST}"))
    return below or (folder / MANIFEST).exists() or any(_is_ours(path) for path in folder.iterdir())


def tensor_file(folder: Path, manifest: Mapping[str, Any], part: str, *, verify: bool) -> Path:
    """The path of a part's tensor file, after checking that it is there, whole and (`verify`) unchanged."""
    entry = manifest["files"][part]
    if not _TENSOR_FILE.fullmatch(str(entry["name"])):  # also keeps "../elsewhere" out
        raise PredictionFileError(f"{folder / MANIFEST} names {entry['name']!r}, which is not a tensor file of ours")
    path = folder / entry["name"]
    try:
        size = path.stat().st_size
        digest = _sha256(path) if verify and size == entry["bytes"] else entry["sha256"]
    except FileNotFoundError:
        raise PredictionFileMissing(f"{path} is named by the manifest but missing; copy the folder again") from None
    if size != entry["bytes"]:
        raise PredictionFileError(
            f"{path} has {size} bytes, the manifest states {entry['bytes']}: truncated or changed; copy the folder again"
        )
    if digest != entry["sha256"]:
        raise PredictionFileError(f"{path} does not match its checksum: it was changed; copy the folder again")
    return path


def _tensors(predictions: Predictions, part: str) -> dict[str, Tensor]:
    found = {name: getattr(predictions, name) for name in _PARTS[part]}
    if not predictions.labelled:
        found["labels"] = None
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@contextlib.contextmanager
def _row_files(folder: Path, like: Predictions, rows: int) -> Iterator[dict[str, RowFile]]:
    """An unfinished file for each part; removed at the end of the block unless `_kept` has given it its name."""
    with contextlib.ExitStack() as stack:
        files = {}
        for part in _PARTS:
            if tensors := _tensors(like, part):
                partial = stack.enter_context(partial_file(folder / f"{part}.safetensors"))
                with _disk(folder, part):
                    files[part] = stack.enter_context(RowFile(partial, tensors, rows=rows))
        yield files


@contextlib.contextmanager
def _disk(folder: Path, part: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"cannot write {part} ({error.strerror or error}); nothing was changed, free space and retry"
        raise OSError(error.errno or errno.EIO, why, str(folder)) from error


def _kept(folder: Path, part: str, file: RowFile) -> dict[str, Any]:
    """A part's finished file under its name, and the manifest's entry for it."""
    file.finish()
    digest = _sha256(file.path)
    entry: dict[str, Any] = {
        "name": f"{part}-{digest[:16]}.safetensors",
        "bytes": file.path.stat().st_size,
        "sha256": digest,
        "tensors": {name: _described(dtype, shape) for name, (dtype, shape) in sorted(file.tensors.items())},
    }
    commit(file.path, folder / entry["name"])
    return entry


def _described(dtype: torch.dtype, shape: Sequence[int]) -> dict[str, Any]:
    return {"dtype": str(dtype).removeprefix("torch."), "shape": list(shape)}


def _manifest_text(predictions: Predictions, rows: int, files: Mapping[str, Any]) -> str:
    # No time of writing: the same predictions must give the same bytes.
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "calattn": distribution.version(),
        "num_rows": rows,
        "num_classes": predictions.num_classes,
        "split": predictions.split,
        "spec_hash": predictions.spec_hash,
        "class_names": None if predictions.class_names is None else list(predictions.class_names),
        "files": files,
    }
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def _load_part(folder: Path, manifest: Mapping[str, Any], part: str, verify: bool) -> dict[str, Tensor]:
    path, entry = tensor_file(folder, manifest, part, verify=verify), manifest["files"][part]
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (FileNotFoundError, RuntimeError):  # the latter from torch, which opens the path a second time
        if path.exists():
            raise
        raise PredictionFileMissing(f"{path} vanished while it was read; load again") from None
    except SafetensorError as error:
        raise not_whole(path, "safetensors", error, "copy the folder again") from None
    found = {name: _described(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if found != entry["tensors"]:
        raise PredictionFileError(
            f"{path} holds {found}, its manifest states {entry['tensors']}; copy the folder again"
        )
    return tensors


def _replaceable(folder: Path, overwrite: bool) -> set[str]:
    """The tensor files about to be replaced; refuses what is not ours or not to be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; predictions are saved as a folder, choose another name")
    if not folder.exists():
        return set()
    others = [p.name for p in folder.iterdir() if not (p.name == MANIFEST or _is_ours(p))]
    if others:
        raise FileExistsError(f"{folder} holds other things ({others[0]!r}); choose a folder of its own")
    if not (folder / MANIFEST).exists():
        return set()
    if not overwrite:
        raise PredictionsExist(
            f"{folder} already holds predictions", remedy=("pass ", Args(overwrite=True), " to replace them")
        )
    try:
        return {entry["name"] for entry in read_manifest(folder)["files"].values()}
    except PredictionFileError:
        return set()  # damaged: replacing it is what overwrite=True asks for


def _clean(folder: Path, now: set[str]) -> None:
    """Remove the replaced version, and what killed saves left."""
    for path in list(folder.iterdir()):
        if is_stale(path) if is_partial(path) else _TENSOR_FILE.fullmatch(path.name) and path.name not in now:
            remove(path)


def _is_ours(path: Path) -> bool:
    return is_partial(path) or bool(_TENSOR_FILE.fullmatch(path.name))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _why_no_manifest(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist"
    if not folder.is_dir():
        return f"{folder} is a file; read files of other programs with calattn.readers.read_predictions"
    inside = sorted(p.parent.name for p in folder.glob(f"*/{MANIFEST}"))
    if inside:
        return f"{folder} holds several predictions folders; name one of: {', '.join(inside)}"
    if not has_predictions(folder):
        return f"{folder} is a folder without predictions; read files with calattn.readers.read_predictions"
    return f"{folder} has no {MANIFEST}: it is not a predictions folder, or its save was interrupted; save again"
