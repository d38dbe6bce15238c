"""Whether subjects are of the same data: what their runs say, for labels and sample indices can agree by chance."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from calattn.cli import run_facts
from calattn.cli.subjects import Subject


def data_of(subject: Subject) -> str | None:
    """The data set that the predictions were made of; None where nothing says so.

    Of a run's own splits that is `data.name`. Predictions of other data (`calattn predict --data`) are named by it. Which
    images of a data set they are, its split seed, validation share and limit, shows in the sample indices.
    """
    from calattn.workbench.folder import SPEC

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
    titles: dict[str, list[str]] = {}
    for each in found:
        if (data := data_of(each)) is not None:
            titles.setdefault(data, []).append(each.title.split("\n")[0])
    if len(titles) < 2:
        return None
    made = "; ".join(f"{_some(names)} of {data}" for data, names in titles.items())
    return (
        f"not the same data: {made}. Labels agree, which those of other images can too: the samples may not be the same, and "
        "then paired differences and p mean nothing. Compare runs on the same data (one folder under two paths is the same)"
    )


def _data_name(spec: Path) -> str | None:
    """`data.name` as it stands in the file; None where that cannot be read, which hinders nobody from comparing."""
    from calattn.workbench.yamlfile import read_yaml

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
    from calattn.data.catalogue import PREFIXES

    if not name.startswith(PREFIXES):
        return name
    prefix, _, path = name.partition(":")
    whole = os.path.abspath(Path(path).expanduser())
    return f"{prefix}:{whole}"


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
