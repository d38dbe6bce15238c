"""The page as text: template, style, script and document in one file."""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calattn.files.atomic import PathArg, atomic_write

# In order: each script adds to `window.calattn` what those after it read, and later styles overrule earlier ones.
_STYLES = (
    *("base", "frame", "controls", "panels", "charts", "tables", "errors", "provenance", "leaderboard"),
    *("small", "print"),
)
_SHARED = ("elements", "numbers", "scroller", "tables", "frame")
_PAGE = (
    *_SHARED,
    *("chance", "profile", "plot", "chart", "state", "panel"),
    *("summary", "reliability", "temperature", "acting", "risk", "metrics", "scale", "dynamics", "errors", "classes"),
    *("provenance", "comparison", "controls", "page"),
)
_LEADERBOARD = (*_SHARED, "leaderboard")

# Inside a script element HTML looks for `</script` and `<!--`; two line separators end a line in old JavaScript.
_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page_html(document: Mapping[str, Any]) -> str:
    """The page of a document from `build_document`."""
    return _filled(_PAGE, document, skip="Skip to the results")


def leaderboard_html(document: Mapping[str, Any]) -> str:
    """The page of a leaderboard document."""
    return _filled(_LEADERBOARD, document, skip="Skip to the table")


def write_page(text: str, path: PathArg) -> Path:
    """The file, whole or not at all."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return Path(path)


def _filled(scripts: tuple[str, ...], document: Mapping[str, Any], *, skip: str) -> str:
    """Each marker once, in one pass: what a value contains is never taken for a marker."""
    parts = {
        "{{TITLE}}": html.escape(str(document["title"])),
        "{{SKIP}}": html.escape(skip),
        "/*CSS*/": "\n".join(_read(f"styles/{name}.css") for name in _STYLES),
        "/*DOCUMENT*/": json_for_script(document),
        "/*JS*/": "\n".join(_read(f"scripts/{name}.js") for name in scripts),
    }
    text = _read("page.html")
    places = sorted((text.index(marker), marker) for marker in parts)
    pieces, end = [], 0
    for place, marker in places:
        pieces += [text[end:place], parts[marker]]
        end = place + len(marker)
    return "".join([*pieces, text[end:]])


def json_for_script(document: Mapping[str, Any]) -> str:
    r"""JSON that cannot end the script element it stands in.

    >>> json_for_script({"a": "</script>"})
    '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_UNSAFE)


def _read(name: str) -> str:
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")
