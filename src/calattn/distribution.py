"""Which calattn this is: version and requirements, stated once, in pyproject.toml."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]  # of the checkout; where a wheel was installed there is no pyproject.toml in it


def version() -> str:
    """The installed version; of a source tree that was not installed, its own with `+source`; else `unknown`.

    >>> version()[0].isdigit()
    True
    """
    if installed := version_of("calattn"):
        return installed
    project = _project()
    return f"{project['version']}+source" if project else "unknown"


def version_of(package: str) -> str | None:
    """The installed version of any package; None where pip does not know it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_installed() -> bool:
    """Whether pip knows this package: without it there is no command `calattn`, only `python -m calattn`."""
    return version_of("calattn") is not None


def requirements() -> list[str]:
    """What calattn needs, as pip writes it; extras carry their marker."""
    if is_installed():
        return importlib.metadata.requires("calattn") or []
    return list(_project().get("dependencies", ()))


def _project() -> dict[str, Any]:
    """The source tree's own statement, empty if this is no source tree."""
    import tomllib

    try:
        project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text()).get("project", {})
    except OSError:
        return {}
    return project if project.get("name") == "calattn" else {}
