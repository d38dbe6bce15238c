"""The same data: what is known of where predictions come from, for labels and sample indices can agree by chance."""

from __future__ import annotations

from collections.abc import Iterable


def data_warning(found: Iterable[tuple[str, str | None]], *, ranked: bool = False) -> str | None:
    """What is to be said of titles and the data that they were made of (None: not known), where these differ.

    They are compared in pairs or, `ranked`, shown in a table where each data set is ranked by itself.

    >>> data_warning([("a", "digits"), ("b", None)])
    >>> data_warning([("a", "digits"), ("b", "mnist"), ("c", "mnist")])[:55]
    'not the same data: a of digits; b and 1 more of mnist. '
    """
    titles: dict[str, dict[str, None]] = {}  # the keys in their order: a run and the same run scaled are one
    for title, data in found:
        if data is not None:
            titles.setdefault(data, {})[title] = None
    if len(titles) < 2:
        return None
    made = "; ".join(f"{_some(list(names))} of {data}" for data, names in titles.items())
    then = (
        "so each data set is ranked by itself (a folder under two paths counts as two)"
        if ranked
        else "and then paired differences and p mean nothing. Compare runs on the same data (one folder under two paths is the "
        "same)"
    )
    why = "Labels agree, which those of other images can too: the samples may not be the same"
    return f"not the same data: {made}. {why}, {then}"


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
