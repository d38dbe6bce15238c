"""The command line: `calattn` in a shell, `python -m calattn` where there is no such command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The console command; Ctrl-C is answered in one line even while Typer is still being imported."""
    _open_streams()
    try:
        from calattn.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("calattn: interrupted", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        print("calattn: error: out of memory; use a machine with more, or free some", file=sys.stderr)
        sys.exit(1)


def _open_streams() -> None:
    """Streams that the caller has closed (`>&-`) go nowhere; else the next file that is opened would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))
