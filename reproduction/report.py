"""REPRODUCTION.md."""

from __future__ import annotations

from pathlib import Path

from reproduction.evidence import Results
from reproduction.reproduction import write_report as write


def write_report(results: Results, path: Path, *, folder: Path) -> list[Path]:
    write(results.store, path, tables=folder)
    return [path]
