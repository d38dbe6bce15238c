"""Files that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PathArg = str | os.PathLike[str]

# A partial file that is untouched for this long belongs to a writer that was killed, not to one at work.
STALE_SECONDS = 3600.0
_PARTIAL = ".part-"
# What only writing fails with; of a file that is open, and from Arrow, the error does not say which.
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextlib.contextmanager
def atomic_write(path: PathArg) -> Iterator[Path]:
    """A temporary path in the target's own folder that becomes `path` when the block ends without an error.

    The temporary name keeps the suffix, because many writers choose their format by it. A full disk, an
    exception or a kill inside the block leaves whatever stood at `path` untouched, and an exception no new folders.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with atomic_write(target) as partial:
    ...     _ = partial.write_text("ece,0.02")
    >>> target.read_text()
    'ece,0.02'
    """
    target = Path(os.path.realpath(path))  # writing through a symbolic link must not replace the link
    with (
        made_folder(target.parent),
        partial_file(target.parent, target.suffix) as partial,
        speaking_of(path, instead_of=partial),
    ):
        yield partial
        commit(partial, target)


@contextlib.contextmanager
def atomic_folder(path: PathArg) -> Iterator[Path]:
    """A folder next to `path` that takes its name when the block ends without an error."""
    target = Path(os.path.realpath(path))
    partial = target.parent / f"{_PARTIAL}{secrets.token_hex(6)}"
    old = target.parent / f"{_PARTIAL}old-{secrets.token_hex(6)}"
    with made_folder(target.parent):
        try:
            with speaking_of(path, instead_of=partial):
                partial.mkdir()
                yield partial
                if target.exists():
                    target.rename(old)
                partial.rename(target)
        finally:
            if old.exists() and not target.exists():
                old.rename(target)  # the second rename failed: what was there comes back
            for leftover in (partial, old):
                shutil.rmtree(leftover, ignore_errors=True)


def check_writable(path: PathArg) -> None:
    """Refuses a path that could not be written in the end: a file is made in its folder, or the nearest above it that exists.

    Nothing is left behind. The OSError names `path`.
    """
    target = Path(os.path.realpath(path))
    folder = next(above for above in target.parents if above.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None
        raise


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """The folder is there in the block; if that fails, it and its parents are removed if new and empty."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty, or not made at all: then neither are those that hold it
            for each in new:
                each.rmdir()
        raise


@contextlib.contextmanager
def partial_file(folder: Path, suffix: str) -> Iterator[Path]:
    """A temporary path in `folder`, removed at the end of the block unless `commit` has renamed it."""
    partial = folder / f"{_PARTIAL}{secrets.token_hex(6)}{suffix}"
    try:
        yield partial
    finally:
        if partial.exists():  # a read-only file system refuses to remove even what is not there
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def speaking_of(path: PathArg, *, instead_of: Path) -> Iterator[None]:
    """Errors about the temporary name (or files in it) name what the caller named."""
    try:
        yield
    except OSError as error:
        named = error.filename
        if isinstance(named, str | bytes | os.PathLike) and Path(os.fsdecode(named)).is_relative_to(instead_of):
            error.filename, error.filename2 = os.fspath(path), None
        elif named is None and error.errno in _OF_WRITING:
            error.filename = os.fspath(path)
        raise


def commit(partial: Path, target: Path) -> None:
    """Give a finished partial file its name, in one step and durably."""
    if not partial.exists():
        raise FileNotFoundError(f"nothing was written for {target}: write to the path that atomic_write gives")
    if target.exists():
        shutil.copymode(target, partial)
    # Without the two syncs a power cut may keep the rename and lose the data it points at.
    _sync(partial)
    os.replace(partial, target)
    _sync(target.parent)


def remove_stale(paths: Iterable[Path], *, older_than: float = STALE_SECONDS) -> None:
    """Remove those of our leftovers that have not been touched for `older_than` seconds."""
    for path in paths:
        # Another writer may clean up at the same time, or hold the file open: it can wait.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older_than:
                path.unlink()


def is_partial(path: Path) -> bool:
    """Whether the name is one that `atomic_write` gives to unfinished files."""
    return path.name.startswith(_PARTIAL)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX lets a folder be opened and synced
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
