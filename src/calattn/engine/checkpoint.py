"""The checkpoint: one safetensors file whose header holds the rest of the tree, a digest, and no pickle.

    checkpoints/state-00001200.safetensors                   all that a resumed run needs, named by step
    checkpoints/weights-00007-1f0c….safetensors              the weights of a best epoch, named by epoch and content

A state names the weights files that were best when it was written. Weights are written first and the state's rename
comes last: that one rename moves the run from one consistent whole to the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import re
import shutil
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from calattn.errors import InputError
from calattn.files.atomic import PathArg, atomic_write, is_partial, remove

FORMAT = "calattn-checkpoint"
VERSION = 1
KEPT_STATES = 2
_KEY = "calattn.checkpoint"
_FIELDS = {"kind", "spec_hash", "step", "epoch", "best", "tree", "sha256"}
_STATE = re.compile(r"state-(\d{8,})\.safetensors")
# The last is what safetensors writes under before it renames to the name that it was given.
_OURS = re.compile(r"state-\d{8,}\.safetensors|weights-\d{5,}-[0-9a-f]{16}\.safetensors|\.tmp\w{6}")
_BACK = "put {} back from a copy, or {}: the same command goes on from the checkpoint before it"

Tree = Any  # dict (str or int keys), list, tuple, Tensor, int, float, str, bool, None, nested


class CheckpointError(InputError):
    """A checkpoint that cannot be used or written; the message names the file and the remedy."""


class CheckpointWriteError(CheckpointError, OSError):
    """A checkpoint that could not be written (full disk, no permission). An OSError too, for callers who look for that."""


class CheckpointWarning(UserWarning):
    """A checkpoint was refused and an older one is used."""


@dataclasses.dataclass(frozen=True)
class BestRecord:
    """The weights file that a rule prefers so far, with its epoch and the validation value that made it so."""

    file: str
    epoch: int
    value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """A state as it was saved, tensors on the CPU."""

    tree: Tree
    step: int
    epoch: int
    best: dict[str, BestRecord]
    path: Path


class CheckpointFolder:
    """The checkpoints of one run. One process writes (the run folder's lock sees to that), any number read.

    `reached` is an update that the run is known to have come to: what an earlier state chose is not what the run chose.

    >>> import tempfile
    >>> folder = CheckpointFolder(tempfile.mkdtemp(), "spec-hash")
    >>> _ = folder.save_state({"weights": {"w": torch.ones(2)}, "lr": 0.1}, step=10, epoch=1)
    >>> folder.latest().tree
    {'weights': {'w': tensor([1., 1.])}, 'lr': 0.1}
    """

    def __init__(self, path: PathArg, spec_hash: str, *, reached: int = 0) -> None:
        self.path, self.spec_hash, self.reached = Path(path), spec_hash, reached
        self._refused: set[str] = set()

    def save_state(self, tree: Tree, *, step: int, epoch: int, best: Mapping[str, BestRecord] | None = None) -> Path:
        """Commit a state; then keep it and the one before, with the weights files these two name."""
        records = {rule: dataclasses.asdict(record) for rule, record in (best or {}).items()}
        for rule, record in records.items():
            if not (self.path / record["file"]).is_file():
                raise CheckpointError(f"best[{rule!r}] names {record['file']}, which is not in {self.path}")
        header, tensors = _packed(tree, kind="state", spec_hash=self.spec_hash, step=step, epoch=epoch, best=records)
        path = _write(self.path / f"state-{step:08d}.safetensors", header, tensors)
        self._tidy(path, {record["file"] for record in records.values()})
        return path

    def save_weights(self, tree: Tree, *, step: int, epoch: int) -> str:
        """Write weights under a name that their content decides, and return it: the `file` of a `BestRecord`."""
        header, tensors = _packed(tree, kind="weights", spec_hash=self.spec_hash, step=step, epoch=epoch, best={})
        return _write(self.path / f"weights-{epoch:05d}-{header['sha256'][:16]}.safetensors", header, tensors).name

    def latest(self, *, fall_back: bool = True) -> Loaded | None:
        """The newest whole state of this run, None where there is no file; what is refused is warned about, or an error."""
        reasons = []
        for path in self._states():
            try:
                return self._loaded(path)
            except FileNotFoundError:
                return self.latest(fall_back=fall_back)  # a run at work has saved a newer one and removed this
            except CheckpointError as error:
                if not fall_back:
                    raise CheckpointError(f"{error}; {_BACK.format('it', 'remove it and train again')}") from None
                reasons.append(str(error))
                self._refused.add(path.name)
                warnings.warn(f"{error}; refused, the one before it is used", CheckpointWarning, stacklevel=2)
        if reasons:
            raise CheckpointError(f"no usable checkpoint: {'; '.join(reasons)}; --overwrite starts the run again")
        return None

    def weights(self, rule: str) -> Tree:
        """What a rule chose, as of the newest state: "last" is its `tree["weights"]`, the others are files of their own."""
        state = self._state_for(rule)
        if rule == "last":
            return state.tree["weights"]
        path = self.path / state.best[rule].file
        try:
            return _read(path, kind="weights", spec_hash=self.spec_hash)[1]
        except FileNotFoundError:
            again = self.latest()
            if again is not None and again.step != state.step:
                return self.weights(rule)  # a run at work has found better weights meanwhile
            raise CheckpointError(f"{path} is named by {state.path.name} but missing; copy the folder again") from None

    def file(self, rule: str) -> Path:
        """The file that holds what a rule chose."""
        state = self._state_for(rule)
        return state.path if rule == "last" else self.path / state.best[rule].file

    def _state_for(self, rule: str) -> Loaded:
        """The newest state, if it is whole and has what the rule asks for."""
        state = self.latest(fall_back=False)
        if state is None:
            raise CheckpointError(f"no checkpoint in {self.path}; train first")
        if state.step < self.reached:
            raise CheckpointError(
                f"the run came to update {self.reached}, and the newest checkpoint in {self.path} is of update {state.step}; "
                + _BACK.format("the newest", "train again")
            )
        known = [*(["last"] if "weights" in state.tree else []), *state.best]
        if rule not in known:
            raise CheckpointError(
                f"no checkpoint for rule {rule!r} in {self.path}; available: {', '.join(known)}; a run keeps "
                "best-nll-ts only where its evaluation.checkpoints names it"
            )
        return state

    @property
    def is_behind(self) -> bool:
        """Whether there are states, and none of the update that the run had come to."""
        states = self._states()
        return bool(states) and _step(states[0]) < self.reached

    def _states(self) -> list[Path]:
        """State files, newest first."""
        if not self.path.is_dir():
            return []
        found = [path for path in self.path.iterdir() if _STATE.fullmatch(path.name) and path.is_file()]
        return sorted(found, key=_step, reverse=True)

    def _loaded(self, path: Path) -> Loaded:
        header, tree = _read(path, kind="state", spec_hash=self.spec_hash)
        best = {rule: BestRecord(**record) for rule, record in header["best"].items()}
        for rule, record in list(best.items()):
            if not (self.path / record.file).is_file() and path.is_file():
                del best[rule]
                message = f"{path} names {record.file} as {rule}, which is missing; {rule} is chosen anew from here on"
                warnings.warn(message, CheckpointWarning, stacklevel=3)
        return Loaded(tree=tree, step=header["step"], epoch=header["epoch"], best=best, path=path)

    def _tidy(self, newest: Path, named: set[str]) -> None:
        # States of a later step are of an attempt that this one has gone back behind; what was refused counts for nothing.
        before = [path for path in self._states() if _step(path) < _step(newest) and path.name not in self._refused]
        kept = [newest, *before][:KEPT_STATES]
        self._refused.clear()
        for path in kept[1:]:
            with contextlib.suppress(CheckpointError, OSError):
                named = named | {record["file"] for record in _header(path)["best"].values()}
        keep = named | {path.name for path in kept}
        for path in list(self.path.iterdir()):
            if is_checkpoint_file(path) and path.name not in keep:
                remove(path)


def is_checkpoint_file(path: Path) -> bool:
    """Whether the name is one that a `CheckpointFolder` gives."""
    return is_partial(path) or bool(_OURS.fullmatch(path.name))


def remove_unfinished(folder: Path) -> None:
    """What a killed writer left: the only one that may call this is the writer, or who holds its lock."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if is_partial(path) or path.name.startswith(".tmp"):
            remove(path)


def _step(path: Path) -> int:
    match = _STATE.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _packed(tree: Tree, **fields: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    packing = _Packing()
    header = {"format": FORMAT, "version": VERSION, **fields, "tree": packing.packed(tree, ())}
    return header | {"sha256": _digest(header, packing.tensors)}, packing.tensors


def _write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    needed = sum(tensor.nbytes for tensor in tensors.values()) + (1 << 20)
    try:
        with atomic_write(path) as partial:
            save_file(tensors, partial, metadata={_KEY: json.dumps(header)})
    except (SafetensorError, OSError) as error:
        with contextlib.suppress(OSError):
            remove_unfinished(path.parent)
        raise _write_error(path, needed, error) from error
    return path


def _write_error(path: Path, needed: int, error: Exception) -> CheckpointWriteError:
    free = ""
    with contextlib.suppress(OSError):
        free = f", {shutil.disk_usage(path.parent).free / 1e6:.1f} MB are free"
    raised = CheckpointWriteError(
        f"cannot write {path.name} to {path.parent}: {error}; it needs {needed / 1e6:.1f} MB{free}; "
        f"earlier checkpoints are untouched: make room and start the same run again, it resumes"
    )
    raised.errno = error.errno if isinstance(error, OSError) else errno.EIO
    return raised


def _read(path: Path, *, kind: Literal["state", "weights"], spec_hash: str) -> tuple[dict[str, Any], Tree]:
    """Header and tree of a checkpoint file, after every check; FileNotFoundError if it is gone."""
    header = _header(path)
    if header["kind"] != kind:
        raise CheckpointError(f"{path} holds {header['kind']!r}, not {kind!r}")
    if header["spec_hash"] != spec_hash:
        raise CheckpointError(
            f"{path} belongs to another spec (its hash is {header['spec_hash']}, this run's {spec_hash})"
        )
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned out of the map: an optimiser may keep these tensors, and the file will be replaced.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError, RuntimeError) as error:  # the last from torch, which opens the path again
        raise _unreadable(path, error) from None
    if _digest({key: value for key, value in header.items() if key != "sha256"}, tensors) != header["sha256"]:
        raise CheckpointError(f"{path} does not match its checksum: it was changed or damaged")
    return header, _restored(header["tree"], tensors)


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
        header = None if text is None else json.loads(text)
    except (SafetensorError, OSError, RuntimeError, RecursionError, json.JSONDecodeError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CheckpointError(f"{path} is a safetensors file, but no {FORMAT}")
    if not isinstance(header.get("version"), int) or header["version"] > VERSION:
        raise CheckpointError(
            f"{path} has format version {header.get('version')!r}; this calattn reads up to {VERSION}"
        )
    if missing := _FIELDS - header.keys():
        raise CheckpointError(f"{path} lacks {', '.join(sorted(missing))} in its header")
    return header


def _unreadable(path: Path, error: Exception) -> Exception:
    if not path.is_file():
        return FileNotFoundError(f"{path} is gone")
    reason = "is empty" if path.stat().st_size == 0 else f"is truncated or no safetensors file ({error})"
    return CheckpointError(f"{path} {reason}")


def _digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the header and every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _Packing:
    """Turns a tree into JSON with references, gathering the tensors. Tags begin with "$"; subclasses come back plain."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()

    def packed(self, value: Tree, at: tuple[str, ...]) -> Any:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Tensor):
            return {"$tensor": self._name(value, at)}
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            # Finite floats are exact in JSON text; the others go by their bits, which JSON has no words for.
            return float(value) if abs(value) < float("inf") else {"$float": struct.pack(">d", value).hex()}
        if isinstance(value, list | tuple):
            items = [self.packed(item, (*at, str(i))) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict):
            return self._packed_dict(value, at)
        raise CheckpointError(
            f"cannot checkpoint {'/'.join(at) or 'the tree'}: {type(value).__name__} is not a tensor, dict, list, tuple, "
            "number, string or None; convert it first"
        )

    def _packed_dict(self, value: dict[Any, Tree], at: tuple[str, ...]) -> Any:
        for key in value:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise CheckpointError(f"cannot checkpoint {'/'.join(at) or 'the tree'}: key {key!r} is no str or int")
        items = {key: self.packed(item, (*at, str(key))) for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in items):
            return items
        return {"$dict": [[key, item] for key, item in items.items()]}

    def _name(self, tensor: Tensor, at: tuple[str, ...]) -> str:
        """The name a tensor is stored under; tensors over the same memory (tied weights) share one."""
        where = "/".join(at).encode("utf-8", "backslashreplace").decode() or "tree"
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.dtype == torch.complex128:
            raise CheckpointError(
                f"cannot checkpoint {where}: a {tensor.layout} {tensor.dtype} tensor on {tensor.device}; "
                "make it dense, real and materialised"
            )
        signs = (tensor.is_conj(), tensor.is_neg())
        same = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), signs)
        if same not in self._names:
            name = where
            while name in self.tensors or name == "__metadata__":
                name += "'"
            self._names[same] = name
            self.tensors[name] = self._own(tensor)
        return self._names[same]

    def _own(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # safetensors refuses two names for one memory, such as two views that overlap.
        storage = tensor.untyped_storage().data_ptr()
        if storage in self._storages:
            return tensor.clone()
        self._storages.add(storage)
        return tensor


def _restored(node: Any, tensors: Mapping[str, Tensor]) -> Tree:
    if isinstance(node, list):
        return [_restored(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        return tensors[node["$tensor"]]
    if "$float" in node:
        return struct.unpack(">d", bytes.fromhex(node["$float"]))[0]
    if "$tuple" in node:
        return tuple(_restored(item, tensors) for item in node["$tuple"])
    if "$dict" in node:
        return {key: _restored(item, tensors) for key, item in node["$dict"]}
    return {key: _restored(item, tensors) for key, item in node.items()}
