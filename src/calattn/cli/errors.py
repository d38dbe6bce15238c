"""Errors as people see them: one line that says what to do, and an exit code that scripts can rely on."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import inspect
import json
import logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import typer
from rich.markup import escape

from calattn.cli.console import errors_to, takes_any_letter
from calattn.errors import Args, InputError, InputWarning
from calattn.files.text import visible

OK, FAILED, WRONG_INPUT, BUG, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 1, 2, 70, 130, 141, 143
_STOPPED = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}

# ClickException: typer carries its own copy of click since 0.20, and both versions export this subclass of it.
_CLICK = typer.BadParameter.__mro__[2]
_LONGEST = 500  # characters of a message that was not meant for people
_PACKAGE = Path(__file__).parents[1]


def examples(*lines: str) -> str:
    """An epilog of example commands, kept line by line."""
    return "[bold]Examples[/bold]\n\n" + "\n\n".join(f"  {escape(line)}" for line in lines)


@dataclasses.dataclass
class ExitCode:
    code: int = OK


class MethodFailed(RuntimeError):
    """A method's own code broke: the message says whose mistake that is, and so does the exit code."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


_signals: list[int] = []


def notice_signals() -> None:
    """Remembers Ctrl-C and SIGTERM. A compiled module that is just being imported loses what they raise and fails with an error
    of its own, which is no bug then."""

    def interrupted(number: int, frame: Any) -> None:
        _signals.append(number)
        signal.default_int_handler(number, frame)

    def terminated(number: int, _: Any) -> None:
        _signals.append(number)
        sys.exit(TERMINATED)  # instead of sudden death: half-written files are removed on the way out

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background a shell has it ignored
        signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, terminated)


@contextlib.contextmanager
def reported(*, as_json: bool, debug: bool) -> Iterator[ExitCode]:
    """Whatever the block raises becomes a line on stderr and a code; our own warnings become lines too."""
    with readers_may_leave() as outcome, warnings.catch_warnings(), _logged():
        warnings.simplefilter("default")
        if not debug:
            warnings.showwarning = cast(Any, _warner())
        try:
            yield outcome
            sys.stdout.flush()
        except BaseException as error:  # the one place that catches everything: what is not expected gets exit code 70
            if _reader_left(error):
                raise
            outcome.code = code_of(error)
            stopped = outcome.code in _STOPPED
            if (isinstance(error, SystemExit) and not stopped) or _only_helps(error):
                return
            if debug and not stopped and not isinstance(error, _CLICK):
                raise
            tell(message_of(error), as_json=as_json, code=outcome.code)


@contextlib.contextmanager
def readers_may_leave() -> Iterator[ExitCode]:
    """`| head` has read enough: that is no error, and has a code of its own."""
    outcome = ExitCode()
    try:
        yield outcome
    except BaseException as error:
        if not _reader_left(error):
            raise
        outcome.code = BROKEN_PIPE
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:  # Python would complain once more when it flushes at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _reader_left(error: BaseException) -> bool:
    """Rich and click answer a broken pipe by leaving with code 1; what they caught is in the context."""
    return isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError)


def code_of(error: BaseException) -> int:
    """The exit code of an error: 2 if the caller can fix the input, 1 if the world has to change, 70 if we have to."""
    return _judged(error)[0]


def message_of(error: BaseException) -> str:
    """One line for an error, in the words of the command line."""
    return _judged(error)[1]


def _judged(error: BaseException) -> tuple[int, str]:
    said, stopped_by = _one_line(error), _signal_of(error)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else FAILED
        return code, _STOPPED.get(code, said)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED, _STOPPED[INTERRUPTED]
    if isinstance(error, MethodFailed):
        return error.code, str(error)
    if stopped_by is not None:
        return 128 + stopped_by, said
    # Imports and compiled functions that were cut short raise anything, torch a plain ValueError too.
    if _signals and not isinstance(error, InputError | OSError):
        return 128 + _signals[-1], _STOPPED[128 + _signals[-1]]
    if isinstance(error, _CLICK):
        return WRONG_INPUT, _usage(error)
    if _lost_peer(error):
        return FAILED, f"another process of this run has ended, see its own message ({said[:120]})"
    if isinstance(error, MemoryError) or _out_of_memory(error):
        return FAILED, f"out of memory: {said}; use a smaller batch or a smaller file, or a machine with more memory"
    if _not_installed(error):
        return FAILED, f"{said}; install what is missing; calattn doctor shows how"
    if not isinstance(error, ValueError | OSError | ArithmeticError):
        text = said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
        return BUG, f"{type(error).__name__}: {text}; this is a bug in calattn, please rerun with --debug and report it"
    if callable(details := getattr(error, "errors", None)):  # pydantic's, which has one entry a field
        said = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'spec'}: {each['msg']}" for each in details())
    elif isinstance(error, OSError) and error.errno is not None:
        said = _system(error)
    elif not str(error).strip():
        said = f"{said}; rerun with --debug to see where it comes from"
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE, said
    # An OSError that is a ValueError too (a checkpoint that could not be written) is the world's doing, unless a path is wrong.
    named_wrongly = FileNotFoundError | FileExistsError | NotADirectoryError | IsADirectoryError
    if isinstance(error, named_wrongly) or (isinstance(error, ValueError) and not isinstance(error, OSError)):
        return WRONG_INPUT, said
    return FAILED, said


def tell(message: str, *, as_json: bool, code: int) -> None:
    """The error line, on stderr."""
    if as_json:
        document = {"error": message, "exit_code": code}
        print(visible(json.dumps(document, ensure_ascii=not takes_any_letter(sys.stderr))), file=sys.stderr)
        return
    word = "" if code in _STOPPED else "[bold red]error[/bold red]: "
    errors_to().print(f"calattn: {word}{escape(message)}", soft_wrap=True, highlight=False)


# What Python calls otherwise than the command line; an argument that is neither here nor in `_ALIKE` has no flag.
_FLAGS = {"num_bins": "--bins", "num_bootstrap": "--bootstrap", "ignore_index": "--ignore-label", "root": "--data-root"}
_ALIKE = {"kind", "columns", "labels", "label_offset", "class_names", "ignore", "features", "sum_tolerance", "floor"}
_ALIKE |= {"delimiter", "header", "level", "threshold", "bandwidth", "target", "fraction", "folds", "overwrite"}
_ALIKE.add("source")
_PLACEHOLDER = {"class_names": "A,B,…", "header": "A,B,…"}  # a NAME for all others
_IN_FILE = {"features": "as an array named features (calattn predict --features)"}  # what no flag can give


def in_flags(args: Args) -> str:
    """Arguments as the command line has them.

    >>> in_flags(Args(kind="probs", ignore=["my id"])), in_flags(Args(num_bins=None)), in_flags(Args(features=False))
    ("--kind probs --ignore 'my id'", '--bins', '--no-features')
    """
    if not args.values.keys() <= _FLAGS.keys() | _ALIKE:
        return str(args)
    return " ".join(_flag(name, value) for name, value in args.values.items())


def _flag(name: str, value: object) -> str:
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is None or value is True:
        return flag
    if value is False:
        return f"--no-{flag.removeprefix('--')}"
    parts = value if isinstance(value, list | tuple) else [value]
    if parts[0] in (..., "…", ""):
        return _IN_FILE.get(name, f"{flag} {_PLACEHOLDER.get(name, 'NAME')}")
    text = ",".join(map(str, parts)).replace("\t", r"\t")  # a tab as --delimiter takes it
    return f"{flag} {shlex.quote(text)}"


def words_of(told: BaseException) -> str:
    """An error or a warning in one line; one of ours in flags."""
    return " ".join((told.sentence(in_flags) if isinstance(told, InputError | InputWarning) else str(told)).split())


def _only_helps(error: Any) -> bool:
    """A line without a command: the help was printed, and there is nothing to add."""
    return isinstance(error, _CLICK) and not cast(Any, error).format_message().strip()


def _usage(error: Any) -> str:
    message = _refused_value(error) or " ".join(error.format_message().split()).rstrip(".")
    message = message.replace("Value error, ", "")  # pydantic's prefix to our own words
    ctx = getattr(error, "ctx", None)
    where = ctx.command_path if ctx is not None else "calattn"
    return f"{message}{'' if message.endswith('?') else ';'} see {where} --help"


def _refused_value(error: Any) -> str | None:
    """Of a flag whose value pydantic refuses: what it takes and what was given, where typer shows pydantic's own words."""
    details, param = getattr(error.__cause__, "errors", None), getattr(error, "param", None)
    if not callable(details) or param is None:
        return None
    first = details()[0]
    _, said, wish = first["msg"].partition("Input should be ")
    if not said:
        return None
    wish = wish.partition(", ")[0].replace("valid integer", "whole number").replace("valid number", "number")
    return f"{max(param.opts, key=len)} must be {wish}, got {first['input']!r}"


_SYSTEM = {
    errno.ENOSPC: "the disk is full: free some space, or write elsewhere",
    errno.EDQUOT: "your disk quota is used up: free some space, or write elsewhere",
    errno.EFBIG: "the file is larger than this system allows: write elsewhere, or raise `ulimit -f`",
    errno.EROFS: "the file system is read-only: write elsewhere",
    errno.EACCES: "permission denied: choose a place that you may use, or change its permissions",
    errno.EPERM: "permission denied: choose a place that you may use, or change its permissions",
    errno.ENOENT: "there is no such file or folder: check the path",
    errno.ENOTDIR: "a part of that path is a file: choose another path",
    errno.EISDIR: "that is a folder: name a file",
}


def _system(error: OSError) -> str:
    """An error of the operating system, with the path and what helps."""
    if error.strerror is None or error.errno not in _SYSTEM:
        return _one_line(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
    return f"{where}{_SYSTEM[error.errno]}"


def _signal_of(error: BaseException) -> int | None:
    """The signal behind an error that says so: the engine's, which stopped in good order. Importing it would cost seconds."""
    number = getattr(error, "signal", None)
    return int(number) if isinstance(number, signal.Signals) else None


# What torch, oneDNN, Python's threads and the loader of compiled modules say where there is none.
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "could not create a primitive",
    "can't start new thread",
    "Cannot allocate memory",
    "failed to map segment",
)


def _out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError | ImportError) and any(sign in str(error) for sign in _NO_MEMORY)
    )


def _not_installed(error: BaseException) -> bool:
    """A package that is not there; a module of our own that is not there is a bug."""
    return isinstance(error, ModuleNotFoundError) and not (error.name or "calattn").startswith("calattn")


def _lost_peer(error: BaseException) -> bool:
    """What gloo and NCCL say in the processes that are left when one has died."""
    signs = ("Connection closed by peer", "Connection reset by peer", "remote process exited")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def _one_line(error: BaseException) -> str:
    return words_of(error) or f"{type(error).__name__} without a message"


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _warning_line(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """What the library logs as a warning (a fallback it took) becomes a line, as its Python warnings do."""
    logger, handler = logging.getLogger("calattn"), _Lines(logging.WARNING)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _warning_line(text: str) -> None:
    errors_to().print(f"calattn: [yellow]warning[/yellow]: {escape(text)}", soft_wrap=True, highlight=False)


def _warner() -> Callable[..., None]:
    """What shows warnings, each once: Python tells them apart by the line that reads a file, and a command may have several."""
    said: set[str] = set()

    def warn(message: Warning, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        # Other packages' warnings are about their code, not about what the user asked for.
        ours = category.__module__.startswith("calattn") or filename.startswith(str(_PACKAGE))
        if ours and (line := words_of(message)) not in said:
            said.add(line)
            _warning_line(line)

    return warn


def failure_of(error: Exception, method: object) -> MethodFailed:
    """What a calibrator, or what makes one, raised and had not announced as a ValueError: in words, with the code it deserves."""
    code = code_of(error)
    if code not in (BUG, WRONG_INPUT) and not isinstance(error, ArithmeticError):  # memory, disk, a missing package
        return MethodFailed(message_of(error), code=code)
    text = f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a message'} ({_place(error, method)})"
    if not _is_ours(method):
        return MethodFailed(f"{text}; --debug with this method alone shows the traceback", code=FAILED)
    return MethodFailed(f"{text}; this is a bug in calattn, please rerun with --debug and report it", code=BUG)


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
