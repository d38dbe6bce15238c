"""The command line: `calattn` in a shell, `python -m calattn` where there is no such command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The console command; Ctrl-C is answered in one line even while Typer is still being imported."""
    for place, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # closed by the caller (>&-): the next file to be opened would take its place
            while (opened := os.open(os.devnull, os.O_RDWR)) < place:
                pass
            setattr(sys, name, os.fdopen(opened, "w"))
    try:
        from calattn.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("calattn: interrupted", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        print("calattn: error: out of memory; use a machine with more, or free some", file=sys.stderr)
        sys.exit(1)
