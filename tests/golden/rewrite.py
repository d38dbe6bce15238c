"""Writes the expected files again, and prints what changes: `python -m tests.golden.rewrite`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from tests.golden.documents import EXPECTED, NAMES, differences, machine, made


def rewrite() -> None:
    torch.set_num_threads(1)  # as in the tests
    EXPECTED.mkdir(exist_ok=True)
    for name in NAMES:
        path = EXPECTED / f"{name}.json"
        with tempfile.TemporaryDirectory() as folder:
            found = made(name, Path(folder))
        if path.exists():
            changes = list(differences(json.loads(path.read_text(encoding="utf-8")), found, rel=0.0))
            print(f"{name}: {len(changes)} changes", *changes[:20], sep="\n  ")
        _write(path, found)
    _write(EXPECTED / "machine.json", machine())


def _write(path: Path, document: object) -> None:
    path.write_text(f"{json.dumps(document, indent=1, ensure_ascii=False)}\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite()
