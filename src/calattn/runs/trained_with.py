"""The plugins that a run was trained with: written down, told where a name is missing, and never imported for that."""

from __future__ import annotations

import contextlib
import shlex
import warnings
from collections.abc import Iterator
from typing import Any

from calattn import plugins
from calattn.registry import UnknownName
from calattn.runs.folder import RunFolder, RunFolderError, read_json

KEY = "plugins"  # in environment.json


def plugins_used() -> dict[str, Any]:
    """What environment.json says about plugins: nothing where there are none."""
    used = plugins.described()
    return {KEY: used} if used else {}


@contextlib.contextmanager
def naming_plugins(folder: RunFolder) -> Iterator[None]:
    """A name that is unknown in the block becomes an error that says which plugins the run had.

    They are not imported: a run folder may come from anybody, and importing is running their code.
    """
    try:
        yield
    except UnknownName as error:
        missing = [name for name in _known(folder) if name not in {used["name"] for used in plugins.described()}]
        if not missing:
            raise
        flags = " ".join(f"--plugin {shlex.quote(name)}" for name in missing)
        remedy = f"{folder.path} was trained with {flags}: pass that, if you trust the file, from the same folder"
        raise UnknownName.of(error, remedy=remedy) from None


def warn_of_changed_plugins(folder: RunFolder) -> None:
    """The code of a loss is not in the spec's hash: a run that goes on with other code than it began with says so."""
    known = _known(folder)
    changed = [
        str(used["name"])
        for used in plugins.described()
        if used["name"] in known and known[str(used["name"])] != used["sha256"]
    ]
    if changed:
        warnings.warn(
            f"{', '.join(changed)} has changed since the run in {folder.path} began; --overwrite starts it again",
            stacklevel=3,
        )


def _known(folder: RunFolder) -> dict[str, str | None]:
    """Name → SHA-256, as the folder has it; empty where it has none, or cannot be read."""
    try:
        found = read_json(folder.environment_path)
        return {str(each["name"]): each["sha256"] for each in found.get(KEY, ())}
    except (RunFolderError, OSError, AttributeError, KeyError, TypeError):
        return {}
