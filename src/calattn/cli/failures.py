"""Failures: a method whose own code broke, said in a line that names type and place, with whose mistake it is."""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from pathlib import Path

from calattn.cli.errors import BROKEN_PIPE, BUG, FAILED, INTERRUPTED, TERMINATED, WRONG_INPUT, code_of, message_of

_PACKAGE = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """An exception that a method raised and had not announced as a ValueError: in words, and the exit code it deserves."""

    error: Exception
    text: str
    code: int


def of(error: Exception, method: object) -> Failure:
    """The failure of a calibrator, or of what makes one."""
    code = code_of(error)
    if code not in (BUG, WRONG_INPUT) and not isinstance(error, ArithmeticError):  # memory, disk, a missing package
        return Failure(error=error, text=message_of(error), code=code)
    text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a message'} ({_place(error, method)})"
    if not _is_ours(method):
        return Failure(error=error, text=f"{text}; --debug with this method alone shows the traceback", code=FAILED)
    return Failure(
        error=error, text=f"{text}; this is a bug in calattn, please rerun with --debug and report it", code=BUG
    )


def reraise_if_stopped(error: Exception) -> None:
    """What is no failure of a method: Ctrl-C and SIGTERM that an import has made an error of its own of, a reader who left."""
    code = code_of(error)
    if code == INTERRUPTED:
        raise KeyboardInterrupt from error
    if code in (TERMINATED, BROKEN_PIPE):
        raise error


def _is_ours(method: object) -> bool:
    module = method.__module__ if hasattr(method, "__name__") else type(method).__module__
    return module.partition(".")[0] == "calattn"


def _place(error: Exception, method: object) -> str:
    """The innermost line of the method's own file, or, where none is, of all: "mine.py, line 12, in _fit"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(Path(frame.filename), method)]
    last = (own or frames)[-1]
    path = Path(last.filename)
    shown = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE) else path.name
    return f"{shown}, line {last.lineno}, in {last.name}"


def _is_own(path: Path, method: object) -> bool:
    if _is_ours(method):
        return path.is_relative_to(_PACKAGE)
    fit = inspect.unwrap(getattr(method, "_fit", None) or (lambda: None))
    return path == Path(getattr(getattr(fit, "__code__", None), "co_filename", "?"))
