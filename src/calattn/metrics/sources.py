"""A source of predictions: one set in memory or an iterable of blocks, read in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from calattn.metrics.columns import Kind
from calattn.types import Predictions

_REMEDY = "pass Predictions(logits=…, labels=…), read_predictions(path) or stream_predictions(path)"

Source = Predictions | Iterable[Predictions]


class Piece(NamedTuple):
    """Some rows to reduce, and the number of the first of them in the whole source."""

    start: int
    values: Tensor
    labels: Tensor
    kind: Kind
    scale: Tensor | None


def pieces(source: Source, rows: int) -> Iterator[Piece]:
    """The source in order, cut where the number of a sample is a multiple of `rows`, and where it comes in blocks."""
    offset = 0
    for predictions in _parts(source):
        values, labels, kind, scale = _values(predictions)
        start = 0
        while start < len(labels):
            stop = min(len(labels), start + rows - (offset + start) % rows)
            cut = slice(start, stop)
            yield Piece(offset + start, values[cut], labels[cut], kind, None if scale is None else scale[cut])
            start = stop
        offset += len(labels)


def repeatable(source: Source) -> bool:
    """Whether it can be read a second time: a generator cannot."""
    return not isinstance(source, Iterator)


def _parts(source: Source) -> Iterator[Predictions]:
    if isinstance(source, Predictions):
        yield source
        return
    if isinstance(source, str | bytes | Tensor | dict) or not isinstance(source, Iterable):
        raise ValueError(f"predictions is {type(source).__name__}; {_REMEDY}")
    for part in source:
        if not isinstance(part, Predictions):
            raise ValueError(f"predictions holds {type(part).__name__}; {_REMEDY}")
        yield part


def _values(predictions: Predictions) -> tuple[Tensor, Tensor, Kind, Tensor | None]:
    """What to reduce: probabilities that were stated as such, else logits and scale."""
    if predictions.stated_probs is not None:
        return predictions.stated_probs, predictions.labels, "probs", None
    return predictions.logits, predictions.labels, "logits", predictions.scale
