"""Files that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PathArg = str | os.PathLike[str]

# What is untouched for this long belongs to a writer that was killed, wherever that ran.
STALE_SECONDS = 3600.0
_PARTIAL = ".part-"
_REPLACED = "replaced"
# What only writing fails with; of a file that is open, and from Arrow, the error does not say which.
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux
_tidied: set[Path] = set()


@contextlib.contextmanager
def atomic_write(path: PathArg) -> Iterator[Path]:
    """A temporary path beside the target that becomes `path` when the block ends without an error.

    It keeps the target's name, because many writers choose their format by it. A full disk, an exception or a kill inside the
    block leaves whatever stood at `path` untouched, and an exception no new folders.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with atomic_write(target) as partial:
    ...     _ = partial.write_text("ece,0.02")
    >>> target.read_text()
    'ece,0.02'
    """
    target = Path(os.path.realpath(path))  # writing through a symbolic link must not replace the link
    with made_folder(target.parent), partial_file(target, shown=path) as partial:
        yield partial
        commit(partial, target)


@contextlib.contextmanager
def atomic_folder(path: PathArg) -> Iterator[Path]:
    """A folder that takes the place of `path`, and of all that was in it, when the block ends without an error."""
    target = Path(os.path.realpath(path))
    with made_folder(target.parent), partial_file(target, shown=path) as partial:
        partial.mkdir()
        yield partial
        for each in partial.rglob("*"):
            _give_mode(each, partial.parent)
            _sync(each)
        if not target.exists():
            partial.rename(target)
        elif not _exchanged(partial, target):
            # Here a kill leaves no target for a moment: the next start takes it back (see `tidy`).
            replaced = partial.parent / _REPLACED
            replaced.mkdir()
            target.rename(replaced / target.name)
            try:
                partial.rename(target)
            except BaseException:
                (replaced / target.name).rename(target)
                raise
        _sync(target.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Gives each of two paths the place of the other in one step, where the system and its file system can."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux
        return False
    return call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, where the file system has locks; a kill gives it up."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_writable(path: PathArg) -> None:
    """Refuses a path that could not be written in the end: a file is made in its folder, or the nearest above it that exists.

    Nothing is left behind. The OSError names `path`.
    """
    target = Path(os.path.realpath(path))
    folder = next(above for above in target.parents if above.exists())
    try:
        tidy(folder)
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
def partial_file(target: Path, *, shown: PathArg | None = None) -> Iterator[Path]:
    """A path with the target's name, in a folder beside it that is removed at the end of the block.

    Whatever else a writer makes there (safetensors, a file of its own that it renames) goes with it. Errors about it name the
    target as `shown`, where that is given.
    """
    tidy(target.parent)
    folder = target.parent / f"{_own_name()}-{secrets.token_hex(6)}"
    try:
        folder.mkdir()
        yield folder / target.name
    except OSError as error:
        named = error.filename
        ours = isinstance(named, str | bytes | os.PathLike) and os.fsdecode(named).startswith(str(folder))
        if shown is not None and (ours or (named is None and error.errno in _OF_WRITING)):
            error.filename, error.filename2 = os.fspath(shown), None
        raise
    finally:
        remove(folder)


def commit(partial: Path, target: Path) -> None:
    """Give a finished partial file its name, in one step and durably."""
    if not partial.exists():
        raise FileNotFoundError(f"nothing was written for {target}: write to the path that atomic_write gives")
    if target.exists():
        shutil.copymode(target, partial)
    else:
        _give_mode(partial, partial.parent)
    # Without the two syncs a power cut may keep the rename and lose the data it points at.
    _sync(partial)
    os.replace(partial, target)
    _sync(target.parent)


def _give_mode(path: Path, folder: Path) -> None:
    """The mode that the umask gives to files, seen in that of a new folder: safetensors makes its files private."""
    if path.is_file():
        path.chmod(folder.stat().st_mode & 0o666)


def tidy(folder: Path) -> None:
    """Removes what writers that are dead left in a folder, once in a process; what they had put aside is put back."""
    if folder in _tidied:
        return
    _tidied.add(folder)
    with contextlib.suppress(OSError):  # a folder that may not be read, or another writer that does the same
        for partial in [each for each in folder.iterdir() if is_partial(each) and is_stale(each)]:
            for old in partial.glob(f"{_REPLACED}/*"):
                if not (folder / old.name).exists():
                    old.rename(folder / old.name)
            remove(partial)


def remove(path: Path) -> None:
    """Removes a file or a folder, as far as that is possible: another writer may do so too, or hold it open."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def is_partial(path: Path) -> bool:
    """Whether the name is one of those under which unfinished files are."""
    return path.name.startswith(_PARTIAL)


@functools.cache
def _machine() -> str:
    """What tells processes of this machine, or container, from those with the same number elsewhere."""
    known = [platform.node()]
    with contextlib.suppress(OSError):
        known += [os.readlink("/proc/self/ns/pid"), Path("/etc/machine-id").read_text()]
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:8]


def _own_name() -> str:
    return f"{_PARTIAL}{_machine()}-{os.getpid()}"


def is_stale(path: Path) -> bool:
    """Whether the writer of one of our leftovers is dead, or has not touched it for an hour."""
    machine, _, process = path.name.removeprefix(_PARTIAL).partition("-")
    if machine == _machine():
        try:
            os.kill(int(process.partition("-")[0]), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError, OverflowError):
            pass
    with contextlib.suppress(OSError):
        return time.time() - max(each.stat().st_mtime for each in (path, *path.rglob("*"))) > STALE_SECONDS
    return False


def _sync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX lets a folder be opened and synced
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
