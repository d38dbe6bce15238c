"""From predictions to a page in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calattn.comparison import same_samples
from calattn.files.atomic import PathArg
from calattn.metrics.evaluation import compare, evaluate
from calattn.report.page.document import Exhibit, build_document
from calattn.report.page.html import page_html, write_page
from calattn.types import Predictions


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
    if not given:
        raise ValueError("predictions is empty: there is nothing to show")
    if isinstance(validation, Predictions) and not isinstance(predictions, Predictions):
        raise ValueError("validation is one set for several predictions; pass those of each model by title")
    held_out = dict.fromkeys(given, validation) if isinstance(validation, Predictions) else dict(validation or {})
    strangers = held_out.keys() - given.keys()
    if strangers:
        raise ValueError(
            f"validation has {sorted(strangers)[0]!r}, which predictions has not; titles: {', '.join(given)}"
        )
    exhibits = [
        Exhibit(title=name, predictions=p, evaluation=evaluate(p, **options), validation=held_out.get(name))
        for name, p in given.items()
    ]
    (name, first), *others = given.items()
    paired = {}
    for place, (other_name, predicted) in enumerate(others, start=1):
        with contextlib.suppress(ValueError):  # other samples
            paired[place] = same_samples({name: first, other_name: predicted})[other_name]
    resampled = options.get("num_bootstrap") != 0
    differences = {place: compare(first, other, **options) for place, other in paired.items() if resampled}
    return write_page(page_html(build_document(exhibits, comparisons=differences, title=title)), path)
