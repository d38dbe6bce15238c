"""Where the system's Chromium is, and why the browser tests cannot run where it is not."""

from __future__ import annotations

import importlib.util
import os
import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """`CALATTN_CHROMIUM` if it is set, else the first that the system has."""
    return os.environ.get("CALATTN_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


def missing() -> str | None:
    """Why there is no browser to test with; None where there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed (pip install -e '.[dev]')"
    if executable() is None:
        return "no Chromium (apt install chromium, or set CALATTN_CHROMIUM)"
    return None
