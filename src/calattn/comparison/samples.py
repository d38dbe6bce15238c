"""The same samples and the same data: predictions put in one order, or what shows that they are of others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from calattn.metrics.sources import PredictionSource, parts_of
from calattn.types import Predictions


class Labels(NamedTuple):
    """How many samples and classes there are, and a hash of all labels in their order."""

    samples: int
    classes: int
    digest: str


def labels_of(source: PredictionSource) -> Labels:
    """The labels of predictions, in memory or block by block."""
    count, classes, digest = 0, 0, hashlib.sha256()
    for part in parts_of(source):
        count, classes = count + len(part), part.num_classes
        digest.update(part.labels.cpu().contiguous().numpy().tobytes())
    return Labels(count, classes, digest.hexdigest())


def same_samples(sources: Mapping[str, PredictionSource]) -> dict[str, PredictionSource]:
    """Predictions by title, each in the order of the first, for `calattn.compare`.

    Rows are put in order by their sample indices, where both have some, and the labels must agree. Of predictions in blocks
    the labels are checked, and nothing is put in another order.

    >>> a = Predictions(logits=torch.eye(3), labels=torch.arange(3), indices=torch.tensor([5, 6, 7]))
    >>> found = same_samples({"a": a, "b": a.select(torch.tensor([2, 0, 1]))})
    >>> found["b"].indices
    tensor([5, 6, 7])
    """
    (first, a), *others = sources.items()
    result = {first: a}
    if isinstance(a, Predictions) and all(isinstance(b, Predictions) for _, b in others):
        for name, b in others:
            assert isinstance(b, Predictions)
            result[name] = _in_order(a, b, first, name)
        return result
    known = labels_of(a)
    for name, b in others:
        found = labels_of(b)
        _same_size(known[:2], found[:2], first, name)
        if known.digest != found.digest:
            raise ValueError(
                f"the labels of {first} and {name} differ; compare predictions of the same samples in the same order"
            )
        result[name] = b
    return result


def _same_size(a: tuple[int, int], b: tuple[int, int], name_a: str, name_b: str) -> None:
    for one, other, what, remedy in zip(
        a, b, ("samples", "classes"), ("of the same samples", "of the same task"), strict=True
    ):
        if one != other:
            raise ValueError(f"{name_a} has {one} {what} and {name_b} has {other}; compare predictions {remedy}")


def _in_order(a: Predictions, b: Predictions, name_a: str, name_b: str) -> Predictions:
    _same_size((len(a), a.num_classes), (len(b), b.num_classes), name_a, name_b)
    if a.indices is not None and b.indices is not None and not torch.equal(a.indices, b.indices):
        order_a, order_b = a.indices.argsort(stable=True), b.indices.argsort(stable=True)
        if not torch.equal(a.indices[order_a], b.indices[order_b]):
            missing = set(a.indices.tolist()) - set(b.indices.tolist())
            which = f"sample {min(missing)} of {name_a} is not in {name_b}" if missing else "indices repeat differently"
            raise ValueError(f"the sample indices differ: {which}; compare predictions of the same split")
        b = b.select(order_b[order_a.argsort()])
    wrong = a.labels != b.labels
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"{int(wrong.sum())} of {len(a)} labels differ, the first in row {row}: {int(a.labels[row])} in {name_a}, "
            f"{int(b.labels[row])} in {name_b}; compare predictions of the same samples in the same order"
        )
    return b


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
