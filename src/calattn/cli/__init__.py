"""The command line: `calattn` in a shell, `python -m calattn` where there is no such command."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """The console command; Ctrl-C is answered in one line even while Typer is still being imported."""
    try:
        from calattn.cli.app import main as run

        run()
    except KeyboardInterrupt:
        print("calattn: interrupted", file=sys.stderr)
        sys.exit(130)
