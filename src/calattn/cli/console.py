"""What commands print to: results on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from calattn.files.text import visible

if TYPE_CHECKING:
    from calattn.report import Table

# Wide enough for a table of several files when nobody's terminal says otherwise (pipes, logs).
_PIPED_WIDTH = 160
# For streams that have no such letters; all others become escapes.
_IN_ASCII = dict(
    zip("−–·“”’×✓✗∞λσ", ("-", "-", "-", '"', '"', "'", "x", "+", "x", "inf", "lambda", "sigma"), strict=True)
)
_IN_ASCII |= {"…": "...", "→": "->", "±": "+/-", "²": "^2", "≥": ">=", "≤": "<=", "≠": "!="}


def print_in_any_encoding() -> None:
    """What a stream's encoding lacks (ASCII under LC_ALL=C, Latin-1) is spelt out: no letter is worth losing results for."""
    codecs.register_error("calattn.spelt_out", _spelt_out)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="calattn.spelt_out")


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    spelt = (_IN_ASCII.get(each) or each.encode("ascii", "backslashreplace").decode("ascii") for each in letters)
    return "".join(spelt), error.end


class PlainConsole(Console):
    """A console on which names are seen as they are: control characters in text become escapes, and `:bug:` no picture."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=visible(part.text))

    def render_str(self, text: str, **more: Any) -> Text:
        return super().render_str(visible(text), **more)  # Rich would drop some


def results_to() -> Console:
    """stdout; a new object each time, so that whoever has replaced sys.stdout gets the output."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return PlainConsole(file=sys.stdout, width=width, highlight=False, emoji=False)


def errors_to() -> Console:
    """stderr, for errors, notes and progress."""
    return PlainConsole(file=sys.stderr, highlight=False, emoji=False)


def only_helps(processes: int, *, on_machine: bool = False) -> bool:
    """Whether this is one of several processes of a command and not the first of all, or of its machine, which speaks for it.

    `processes`: how many were asked for. SLURM numbers those too that have nothing to do with each other.
    """
    names = ("LOCAL_RANK", "SLURM_LOCALID") if on_machine else ("RANK", "SLURM_PROCID", "LOCAL_RANK")
    places = (os.environ.get(name, "") for name in names if processes > 1 or not name.startswith("SLURM"))
    return int(next((place for place in places if place.isdecimal()), "0")) > 0


def say(text: str, *, style: str | None = None) -> None:
    """A result, on stdout as it is: lines that are too long for the terminal are not broken."""
    results_to().print(text, style=style, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """A remark about what was done, beside the results."""
    errors_to().print(text, style="dim", soft_wrap=True, markup=False)


def print_table(table: Table) -> None:
    """A table of numbers as results: in several, side columns repeated, where the terminal is too narrow for one."""
    from calattn.report.table import parted

    console = results_to()
    for part in parted(table.terminal(), console.width, lead=table.lead, group=table.group):
        console.print(part, crop=False)


def print_json(document: Any) -> None:
    """One JSON document on stdout: full precision, undefined numbers as null, infinite ones as text."""
    sys.stdout.write(json_text(document, ascii_only=not takes_any_letter(sys.stdout)))


def takes_any_letter(stream: TextIO) -> bool:
    return (stream.encoding or "utf").lower().startswith("utf")


def json_text(document: Any, *, ascii_only: bool = False) -> str:
    """Valid JSON whatever the numbers are; `ascii_only` for streams where other letters would be spelt out.

    >>> json_text({"nll": math.inf, "auroc": math.nan}).split()
    ['{', '"nll":', '"Infinity",', '"auroc":', 'null', '}']
    """
    return visible(json.dumps(_plain(document), indent=2, ensure_ascii=ascii_only, allow_nan=False)) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers; float("Infinity") reads the text back.
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextlib.contextmanager
def progress(*, quiet: bool = False, unit: Literal["rows", "bytes"] = "rows") -> Iterator[Any]:
    """A progress bar on stderr that leaves nothing behind; none where stderr is not a terminal."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = errors_to()
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield bar


@contextlib.contextmanager
def starting(text: str = "starting") -> Iterator[None]:
    """A word on stderr while the block runs, on a terminal: seconds of silence look like a hang."""
    console = errors_to()
    with console.status(text) if console.is_terminal else contextlib.nullcontext():
        yield
