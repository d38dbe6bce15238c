"""From predictions to a page, one file: template, style, script and document."""

from __future__ import annotations

import contextlib
import html
import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calattn.comparison import same_samples
from calattn.files.atomic import PathArg, atomic_write
from calattn.files.text import visible
from calattn.metrics.evaluation import compare, evaluate
from calattn.report.canvas import with_validation
from calattn.report.page.document import Exhibit, build_document
from calattn.types import Predictions

# In order: each script adds to `window.calattn` what those after it read, and later styles overrule earlier ones.
_STYLES = (
    *("base", "frame", "controls", "panels", "charts", "tables", "errors", "provenance", "leaderboard"),
    *("small", "print"),
)
_SHARED = ("elements", "numbers", "scroller", "tables", "frame")
_PAGE = (
    *_SHARED,
    *("chance", "profile", "plot", "copying", "chart", "state", "panel"),
    *("summary", "reliability", "temperature", "acting", "risk", "metrics", "scale", "dynamics", "errors", "classes"),
    *("provenance", "forest", "groups", "comparison", "contest", "sets", "overview", "controls", "page"),
)
_LEADERBOARD = (*_SHARED, "leaderboard")

_MADE_BY = b'<meta name="generator" content="calattn">'
# Inside a script element HTML looks for `</script` and `<!--`; two line separators end a line in old JavaScript.
_UNSAFE = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page_html(document: Mapping[str, Any]) -> str:
    """The page of a document from `build_document`."""
    return _filled(_PAGE, document, skip="Skip to the results")


def leaderboard_html(document: Mapping[str, Any]) -> str:
    """The page of a leaderboard document."""
    return _filled(_LEADERBOARD, document, skip="Skip to the table")


def check_page(path: PathArg, flag: str, *, overwrite: bool = False) -> None:
    """Refuses to replace a file that is none of our pages, unless it is asked to."""
    place = Path(path)
    if overwrite or not place.is_file():
        return
    with place.open("rb") as file:
        if _MADE_BY not in file.read(4096):
            raise ValueError(f"{flag} {path} is a file that calattn did not write; name another, or add --overwrite")


def write_page(text: str, path: PathArg) -> Path:
    """The file, whole or not at all."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return Path(path)


def _filled(scripts: tuple[str, ...], document: Mapping[str, Any], *, skip: str) -> str:
    """Each marker once, in one pass: what a value contains is never taken for a marker."""
    parts = {
        "{{TITLE}}": html.escape(visible(str(document["title"]))),
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
    r"""JSON that cannot end the script element it stands in; text in it cannot turn the direction of the text around it.

    >>> json_for_script({"a": "</script>"})
    '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(_visible(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter, escape in _UNSAFE.items():  # ten times as fast as `translate`
        text = text.replace(letter, escape)
    return text


def _visible(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_visible(key): _visible(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(each) for each in value]
    return visible(value) if isinstance(value, str) else value


def _read(name: str) -> str:
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")


def write_html(
    predictions: Predictions | Mapping[str, Predictions],
    path: PathArg,
    *,
    validation: Predictions | Mapping[str, Predictions] | None = None,
    title: str | None = None,
    **options: Any,
) -> Path:
    """Writes the page of one set of predictions, or of several by title, each compared with the first.

    `validation` (by the same titles) is what T* is fitted on; without it the page says that T* was fitted on what it
    shows. `options` are those of `calattn.evaluate`. Sets of other samples than the first's are shown, not compared.
    """
    given = {title or "predictions": predictions} if isinstance(predictions, Predictions) else dict(predictions)
    exhibits = [
        Exhibit(title=name, predictions=p, evaluation=evaluate(p, **options), validation=held_out)
        for name, (p, held_out) in with_validation(given, validation).items()
    ]
    (name, first), *others = given.items()
    paired = {}
    for place, (other_name, predicted) in enumerate(others, start=1):
        with contextlib.suppress(ValueError):  # other samples
            paired[place] = same_samples({name: first, other_name: predicted})[other_name]
    resampled = options.get("num_bootstrap") != 0
    differences = {place: compare(first, other, **options) for place, other in paired.items() if resampled}
    return write_page(page_html(build_document(exhibits, comparisons=differences, title=title)), path)
