"""What commands print to: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

# Wide enough for a table of several files when nobody's terminal says otherwise (pipes, logs).
_PIPED_WIDTH = 160


def results_to() -> Console:
    """stdout; a new object each time, so that whoever has replaced sys.stdout gets the output."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def errors_to() -> Console:
    """stderr, for errors, notes and progress."""
    return Console(file=sys.stderr, highlight=False)


def note(text: str) -> None:
    """A remark about what was done, beside the results."""
    errors_to().print(text, style="dim", soft_wrap=True, markup=False)


def print_table(table: Table, **parts: int) -> None:
    """A table of numbers as results: in several, side columns repeated, where the terminal is too narrow for one."""
    from calattn.report.parting import parted

    console = results_to()
    for part in parted(table, console.width, **parts):
        console.print(part, crop=False)


def print_json(document: Any) -> None:
    """One JSON document on stdout: full precision, undefined numbers as null, infinite ones as text."""
    sys.stdout.write(json_text(document))


def json_text(document: Any) -> str:
    """Valid JSON whatever the numbers are.

    >>> json_text({"nll": math.inf, "auroc": math.nan}).split()
    ['{', '"nll":', '"Infinity",', '"auroc":', 'null', '}']
    """
    return json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
