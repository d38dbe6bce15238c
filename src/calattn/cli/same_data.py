"""Whether subjects are of the same data: what their runs say, for labels and sample indices can agree by chance."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from calattn.cli import run_facts
from calattn.cli.subjects import Subject


def data_of(subject: Subject) -> str | None:
    """The data set that the predictions were made of; None where nothing says so.

    Of a run's own splits that is `data.name`. Predictions of other data (`calattn predict --data`) are named by it. Which
    images of a data set they are, its split seed, validation share and limit, shows in the sample indices.
    """
    from calattn.runs.folder import SPEC

    inside = subject.path.parent.name == "predictions"
    run = subject.run or (subject.path.parent.parent if inside else None)
    split = subject.split or subject.path.name.partition(".")[0]
    if run is None or not (run / SPEC).is_file():
        return None
    if split not in ("validation", "test"):
        return split
    return _data_name(run / SPEC)


def warning(found: Sequence[Subject]) -> str | None:
    """What is to be said of a paired comparison of subjects that were made of different data; None where none is known."""
    if (doubt := _doubt((each.title.split("\n")[0], data_of(each)) for each in found)) is None:
        return None
    return (
        f"{doubt}, and then paired differences and p mean nothing. Compare runs on the same data (one folder under two paths "
        "is the same)"
    )


def warning_of_ranking(found: Iterable[tuple[str, str | None]]) -> str | None:
    """The same of a table of titles and their data, where runs on other data are ranked apart."""
    doubt = _doubt(found)
    return (
        None
        if doubt is None
        else f"{doubt}, so each data set is ranked by itself (a folder under two paths counts as two)"
    )


def _doubt(found: Iterable[tuple[str, str | None]]) -> str | None:
    titles: dict[str, dict[str, None]] = {}  # the keys in their order: a run and the same run scaled are one
    for title, data in found:
        if data is not None:
            titles.setdefault(data, {})[title] = None
    if len(titles) < 2:
        return None
    made = "; ".join(f"{_some(list(names))} of {data}" for data, names in titles.items())
    return (
        f"not the same data: {made}. Labels agree, which those of other images can too: the samples may not be the same"
    )


def _data_name(spec: Path) -> str | None:
    """`data.name` as it stands in the file; None where that cannot be read, which hinders nobody from comparing."""
    from calattn.runs.yamlfile import read_yaml

    try:
        name = run_facts.at(read_yaml(spec), "data", "name")
    except (ValueError, OSError):
        return None
    return None if name is None else _one_spelling(str(name))


def _one_spelling(name: str) -> str:
    """`imagefolder:pets/` and `imagefolder:./pets` are one folder.

    >>> _one_spelling("digits"), _one_spelling("imagefolder:/a/../pets/")
    ('digits', 'imagefolder:/pets')
    """
    from calattn.data.sources.datasets import PREFIXES

    if not name.startswith(PREFIXES):
        return name
    prefix, _, path = name.partition(":")
    whole = os.path.abspath(Path(path).expanduser())
    return f"{prefix}:{whole}"


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
