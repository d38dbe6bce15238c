"""The run folder: where a run's spec, log, checkpoints, predictions and summary lie, and who may write there.

spec.yaml  environment.json  splits.json  interface.json  log.jsonl  summary.json
checkpoints/   predictions/   trackers/   .lock
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Self

import pydantic

from calattn.engine.checkpoint import CheckpointFolder, is_checkpoint_file, remove_unfinished
from calattn.engine.log import plain
from calattn.errors import InputError
from calattn.files.atomic import PathArg, atomic_write, is_partial, remove
from calattn.files.predictions import MANIFEST, has_predictions, load_predictions
from calattn.runs.spec import RunSpec, first_problem, read_yaml, yaml_text
from calattn.types import Predictions

if sys.platform != "win32":
    import fcntl

SPEC = "spec.yaml"
_FILES = (SPEC, "environment.json", "splits.json", "interface.json", "log.jsonl", "summary.json")
_FOLDERS = ("checkpoints", "predictions", "trackers")
_LOCK = ".lock"
_SHOWN = 5
_SUMMARY = {"epochs": int, "updates": int, "spec": dict, "results": dict}
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class RunFolderError(InputError):
    """A folder that cannot be this run's; the message names it and the remedy."""


class RunFolderWriteError(RunFolderError, OSError):
    """A folder that cannot be written to (full disk, no permission). An OSError too, for callers who look for that."""


class Progress(NamedTuple):
    """Epochs trained, epochs that the spec asks for, and updates of the weights."""

    epochs: int
    planned: int
    updates: int


class RunFolder:
    """The paths of a run. `create_or_open` is for the one process that writes, `open` for readers.

    >>> RunFolder("runs/a").predictions_path("test", "best-nll").as_posix()
    'runs/a/predictions/test.best-nll'
    """

    def __init__(self, path: PathArg) -> None:
        self.path = Path(path)
        self.spec_path, self.environment_path, self.splits_path = (self.path / name for name in _FILES[:3])
        self.interface_path, self.log_path, self.summary_path = (self.path / name for name in _FILES[3:])
        self.checkpoints_path, self.all_predictions_path, self.trackers_path = (self.path / name for name in _FOLDERS)
        self._lock: FileIO | None = None

    @classmethod
    def create_or_open(cls, path: PathArg, spec: RunSpec, *, overwrite: bool = False) -> Self:
        """The folder of this spec, made or found again, locked until `close` or the end of a `with` block.

        Only the process that writes (rank 0) calls this. `evaluation` and `name` may differ from the spec that is
        there: they do not change what is learned.
        """
        folder = cls(path)
        with _explained(folder.path):
            folder._refuse_strangers()
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._lock = _locked(folder.path)
            try:
                if overwrite:
                    folder._clear()
                elif folder.spec_path.exists():
                    folder._refuse_other(spec)
                folder._remove_unfinished()
                write_spec(spec, folder.spec_path)
            except BaseException:
                folder.close()
                raise
        return folder

    @classmethod
    def open(cls, path: PathArg) -> Self:
        """An existing run folder, for reading."""
        folder = cls(path)
        if folder.spec_path.is_file():
            return folder
        if not folder.path.exists():
            raise RunFolderError(f"no run folder at {folder.path}: it does not exist; `calattn train` makes one")
        if not folder.path.is_dir():
            raise RunFolderError(f"{folder.path} is a file; name the folder of a run")
        inside = sorted(found.parent.name for found in folder.path.glob(f"*/{SPEC}"))
        hint = (
            f"name one of the runs in it: {', '.join(inside)}"
            if inside
            else f"it has no {SPEC}; name one that `calattn train` made"
        )
        raise RunFolderError(f"{folder.path} is not a run folder; {hint}")

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """While predictions are added no run starts here, and nobody clears away what looks unfinished; one at work goes on."""
        self.tidy()
        with contextlib.ExitStack() as stack:
            if (self.path / _LOCK).exists():  # it may have been copied without
                with contextlib.suppress(RunFolderError, OSError):
                    stack.enter_context(_locked(self.path, shared=True))
            yield

    def tidy(self) -> None:
        """Clears away what killed writers have left, unless one is at work."""
        if (self.path / _LOCK).exists():
            with contextlib.suppress(RunFolderError, OSError), _locked(self.path):
                self._remove_unfinished()

    def writer(self) -> str | None:
        """The number of the process that writes here now; None if there is none, or the system cannot say."""
        if sys.platform == "win32":
            return None
        with contextlib.suppress(OSError), (self.path / _LOCK).open("rb", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
        return None

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spec(self, *, otherwise: str = "") -> RunSpec:
        """The spec that the folder was made by; `otherwise` is what else helps where it cannot be read."""
        try:
            return RunSpec.model_validate(read_yaml(self.spec_path))
        except pydantic.ValidationError as error:
            raise RunFolderError(
                f"{self.spec_path} is no spec that this calattn reads ({first_problem(error)}); install the calattn that wrote "
                f"it{otherwise}"
            ) from None

    def summary(self) -> dict[str, Any]:
        """What `calattn.runs.summary` wrote at the end of the run."""
        found = read_json(self.summary_path)
        whole = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in _SUMMARY.items())
        if not whole or not all(isinstance(each, dict) for each in found["results"].values()):
            raise RunFolderError(f"{self.summary_path} is no summary; the same `calattn train` command writes it again")
        return found

    def progress(self) -> Progress | None:
        """How far the network was trained that the predictions are of; None without a summary, or with a damaged one."""
        try:
            found = self.summary()
            return Progress(int(found["epochs"]), int(found["spec"]["train"]["epochs"]), int(found["updates"]))
        except (RunFolderError, KeyError, TypeError, ValueError, OverflowError):
            return None

    def checkpoints(self, spec: RunSpec) -> CheckpointFolder:
        """For reading: what came before the update that the summary is of is refused."""
        progress = self.progress()
        return CheckpointFolder(self.checkpoints_path, spec.hash, reached=0 if progress is None else progress.updates)

    def predictions_path(self, split: str, rule: str = "last") -> Path:
        return self.all_predictions_path / (split if rule == "last" else f"{split}.{rule}")

    def predictions(self, split: str, rule: str = "last") -> Predictions:
        """The stored predictions of a split under a checkpoint rule."""
        path = self.predictions_path(split, rule)
        if not path.exists():
            known = sorted(found.parent.name for found in self.all_predictions_path.glob(f"*/{MANIFEST}"))
            raise RunFolderError(
                f"no predictions {path.name!r} in {self.path}; there are: {', '.join(known) or 'none'}"
            )
        return load_predictions(path)

    def _remove_unfinished(self) -> None:
        for place in (self.path, self.checkpoints_path, *self.all_predictions_path.glob("*/")):
            if not place.is_symlink():
                remove_unfinished(place)

    def _refuse_strangers(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file; a run needs a folder of its own, choose another --out")
        if self.path.is_dir() and not self.spec_path.exists():
            ours = {*_FILES, *_FOLDERS, _LOCK}
            strange = sorted(
                found.name for found in self.path.iterdir() if not (found.name in ours or is_partial(found))
            )
            if strange:
                raise RunFolderError(
                    f"{self.path} holds other files ({strange[0]!r}) and no {SPEC}: it is not a run folder; "
                    "choose another --out"
                )

    def _refuse_other(self, spec: RunSpec) -> None:
        old = self.spec(otherwise=", choose another --out, or --overwrite to start again here")
        if old.hash == spec.hash:
            return
        changes = _changes(old, spec)
        more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        raise RunFolderError(
            f"{self.path} holds a run of another spec: {', '.join(changes[:_SHOWN])}{more}; "
            "choose another --out, or --overwrite to start again here"
        )

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else; the spec last, so that a kill on the way leaves a run folder.

        Of a link the link is removed: what it points at may be another run's.
        """
        for folder in (self.trackers_path, self.checkpoints_path, self.all_predictions_path, self.path):
            if folder.is_symlink() and folder != self.path:
                folder.unlink()
            elif folder == self.trackers_path:
                shutil.rmtree(folder, ignore_errors=True)
            for found in list(folder.iterdir()) if folder.is_dir() else []:
                predictions = folder == self.all_predictions_path and found.is_dir() and has_predictions(found)
                if is_partial(found) or (_is_ours(found) and found.is_file()) or (predictions and found.is_symlink()):
                    remove(found)
                elif predictions:
                    _remove_predictions(found)
            if folder != self.path:
                _remove_if_empty(folder)
        self.spec_path.unlink(missing_ok=True)


def spec_text(spec: RunSpec) -> str:
    """A spec as YAML, its hash in a comment on the first line."""
    return f"# calattn run spec {spec.hash}\n{yaml_text(spec.model_dump(mode='json'))}"


def write_spec(spec: RunSpec, path: PathArg) -> None:
    with atomic_write(path) as partial:
        partial.write_text(spec_text(spec), encoding="utf-8")


def write_json(value: Any, path: PathArg) -> None:
    """Write JSON for people, whole or not at all; non-finite numbers become null, as in the log."""
    text = json.dumps(plain(value, Path(path).name), indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as partial:
        partial.write_bytes(f"{text}\n".encode("utf-8", "backslashreplace"))


def read_json(path: PathArg) -> Any:
    """What `write_json` wrote."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is not JSON ({error}); the run that writes it must be run again") from None


_held: weakref.WeakSet[FileIO] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked worker shares the lock; without this, one that outlives a killed run would keep the folder locked."""
    for file in list(_held):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def _locked(folder: Path, *, shared: bool = False) -> FileIO:
    """The folder's lock file, locked as long as it is open; the system lets go of it when its holder dies."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    file = FileIO(descriptor, "r+")
    if sys.platform == "win32":
        return file  # no flock there: two runs at once are the user's to avoid
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            holder = _holder(file)
        raise RunFolderError(
            f"{folder} is being written by process {holder}; wait for it, stop it, or choose another --out"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        # Some network file systems have no locks: better a run without one than no run.
    file.truncate(0)
    file.write(f"{os.getpid()}\n".encode())
    _held.add(file)
    return file


def _holder(lock: FileIO) -> str:
    return (lock.read(32) or b"").decode("ascii", "replace").strip() or "unknown"


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        wrong_path = isinstance(error, FileExistsError | NotADirectoryError)
        raise (RunFolderError if wrong_path else RunFolderWriteError)(
            f"cannot write to {folder}: {error.strerror or error}; choose another --out, or make it writable"
        ) from error


def _changes(old: RunSpec, new: RunSpec) -> list[str]:
    """'train.epochs: 60 → 5' for each value that decides the result and differs."""
    exclude = {"name": True, "evaluation": True}
    before, after = (_dotted(spec.model_dump(mode="json", exclude=exclude)) for spec in (old, new))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [f"{key}: {before.get(key)} → {after.get(key)}" for key in keys]


def _dotted(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        key: item
        for name, part in value.items()
        for key, item in _dotted(part, f"{prefix}.{name}" if prefix else name).items()
    }


def _is_ours(path: Path) -> bool:
    if path.parent.name == "checkpoints":
        return is_checkpoint_file(path)
    return path.name in _FILES[1:] or is_partial(path)


def _remove_predictions(folder: Path) -> None:
    for found in list(folder.iterdir()):
        if found.name == MANIFEST or is_partial(found) or found.suffix == ".safetensors":
            remove(found)
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
