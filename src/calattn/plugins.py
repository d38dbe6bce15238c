"""Plugins: modules of your own that register losses, heads, backbones, … before a command looks for their names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from calattn.errors import InputError

VARIABLE = "CALATTN_PLUGINS"

# name or absolute path → as it was first given, and the file behind it
_loaded: dict[str, tuple[str, Path | None]] = {}


class PluginError(InputError):
    """A plugin that cannot be imported; the message names it and the reason."""


def load(named: Iterable[str] = ()) -> None:
    """Imports what is named here and in `CALATTN_PLUGINS`, each once: modules, or paths of .py files, with commas between.

    The variable then names them all, a line each, files by their whole path, so that the processes which this one starts load
    the same.
    """
    named = list(named)
    if not all(text.strip() for text in named):
        raise PluginError("--plugin needs a module or a .py file after it")
    for text in [*named, *os.environ.get(VARIABLE, "").splitlines()]:
        # A comma may also be part of a path.
        names = [text] if _path(text).is_file() else text.split(",")
        for name in filter(None, (part.strip() for part in names)):
            key = str(_path(name).resolve()) if _is_path(name) else name
            if key not in _loaded:
                module = _imported(name)
                _loaded[key] = name, None if module.__file__ is None else Path(module.__file__)
    if _loaded:
        os.environ[VARIABLE] = "\n".join(_loaded)


def described() -> list[dict[str, str | None]]:
    """What was loaded, for a run's record: each as it was given, and the SHA-256 of its file."""
    import hashlib  # here, because `calattn --help` imports this module

    return [
        {"name": name, "sha256": None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()}
        for name, file in _loaded.values()
    ]


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or os.sep in name


def _path(name: str) -> Path:
    return Path(name).expanduser()


def _imported(name: str) -> ModuleType:
    try:
        return _from_file(name) if _is_path(name) else importlib.import_module(name)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # somebody else's code: whatever it raises is about the plugin
        missing = isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]
        reason = _not_found(name) if missing and not _is_path(name) else f"{_explained(error)}; fix the plugin"
        raise PluginError(f"the plugin {name} cannot be imported: {reason}") from error


def _from_file(name: str) -> ModuleType:
    path = _path(name).resolve()
    if path.suffix != ".py" or not path.is_file():
        there = "is not a .py file" if path.exists() else "does not exist"
        raise PluginError(f"the plugin {name} {there}; name a Python file, or a module that can be imported")
    if "." in path.stem or not _own(path):
        raise PluginError(
            f"the plugin {name} would be the module {path.stem}, which is another one or none; rename the file"
        )
    # Its folder comes last, so that it hides nothing: the plugin can import its neighbours, and a process that is spawned (with
    # the same sys.path) finds the module again when it unpickles something of it.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    importlib.invalidate_caches()
    return importlib.import_module(path.stem)


def _own(path: Path) -> bool:
    """Whether the name of a file is free for it, as a module's."""
    there = sys.modules.get(path.stem)
    found = importlib.util.find_spec(path.stem) if there is None else None
    origin = getattr(there, "__file__", None) or (None if found is None else found.origin)
    return (there is None and found is None) or (origin is not None and Path(origin).resolve() == path)


def _not_found(name: str) -> str:
    file = Path(*name.split(".")).with_suffix(".py")
    hint = f"did you mean the file {file}?" if file.is_file() else "install it, or name a file: --plugin PATH.py"
    return f"there is no such module; {hint}"


def _explained(error: BaseException) -> str:
    """The kind of error, its words, and the line where it arose."""
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    where = "" if isinstance(error, SyntaxError) else where  # its message has the line
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
