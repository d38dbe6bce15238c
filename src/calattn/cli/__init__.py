"""The command line: `calattn` in a shell, `python -m calattn` where there is no such command."""

from calattn.cli.app import main

__all__ = ["main"]
