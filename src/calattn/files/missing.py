"""What to say of a path at which there is nothing."""

from __future__ import annotations

import difflib
from pathlib import Path


def why_missing(path: Path) -> str:
    """That it does not exist, and what is near it."""
    folder = path.parent
    if not folder.is_dir():
        return f"{path} does not exist: there is no folder {folder}"
    place = "the current folder" if folder == Path() else folder
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=3, cutoff=0.5)
    return f"{path} does not exist" + (f"; near it: {', '.join(near)}" if near else f"; look in {place}")
