"""A source of predictions: one set in memory or an iterable of blocks, read in pieces of bounded size."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import SupportsIndex

from torch import Tensor

from calattn import checks
from calattn.metrics.columns import Block, Columns, LabelledValues, blocks_of, columns_of
from calattn.types import Predictions

_REMEDY = "pass Predictions(logits=…, labels=…), read_predictions(path) or stream_predictions(path)"

PredictionSource = Predictions | Iterable[Predictions]

# Rows reduced at a time: large inputs leave no column of their length behind, small ones are one piece.
MOST_ROWS = 1 << 18


def pieces(source: PredictionSource, rows: int) -> Iterator[tuple[int, LabelledValues]]:
    """The source in order, so many rows at most at a time, each piece with the number of its first sample."""
    offset = 0
    for predictions in parts_of(source):
        whole = labelled_values(predictions)
        for start in range(0, len(predictions), rows):
            yield offset + start, whole.select(slice(start, start + rows))
        offset += len(predictions)


def blocks_in(source: PredictionSource, rows: int) -> Iterator[tuple[int, Block]]:
    """The rows themselves, so many at most at a time (a GPU takes more), each block with the number of its first sample."""
    for start, piece in pieces(source, MOST_ROWS):
        for block in blocks_of(piece, most_rows=rows):
            yield start + block.rows.start, block


def columns_in(part: Predictions, target: int | None = None, visit: Callable[[Block], None] | None = None) -> Columns:
    """Confidence, correctness and scores of each sample; probabilities that were stated are read as they stand.

    With a `target`, of P(class `target`) and of the event that it is the label.
    """
    return columns_of(labelled_values(part), target=target, visit=visit)


def target_of(target: object, source: PredictionSource) -> tuple[int | None, str | None]:
    """The number and the name of a class that is given by either."""
    if target is None:
        return None, None
    names = _class_names(source)
    if isinstance(target, str):
        if names is not None and target in names:
            return names.index(target), target
        if not target.isdecimal():
            known = "predictions has no class names" if names is None else f"class names: {', '.join(names)}"
            raise ValueError(f"target {target!r} is no class ({known}); pass its number, counted from 0")
        target = int(target)
    if isinstance(target, bool) or not isinstance(target, SupportsIndex):
        raise ValueError(f"target must be a class number, a class name or None, got {target!r}")
    target = operator.index(target)
    return target, names[target] if names is not None and 0 <= target < len(names) else None


def check_paired(a: Predictions, b: Predictions) -> None:
    if len(a) != len(b):
        raise ValueError(f"a has {len(a)} samples and b has {len(b)}: a paired comparison needs the same samples")
    for name in ("labels", "indices"):
        left, right = getattr(a, name), getattr(b, name)
        if left is not None and right is not None and bool((left != right).any()):
            index = checks.first(left != right)
            raise ValueError(
                f"{name}[{index}] is {int(left[index])} in a and {int(right[index])} in b: not the same samples"
            )


def repeatable(source: PredictionSource) -> bool:
    """Whether it can be read a second time: a generator cannot."""
    return not isinstance(source, Iterator)


def parts_of(source: PredictionSource) -> Iterator[Predictions]:
    """Its blocks, each checked to be predictions; there must be one. A set in memory is one block."""
    if isinstance(source, Predictions):
        yield source
        return
    if isinstance(source, str | bytes | Tensor | dict) or not isinstance(source, Iterable):
        raise ValueError(f"predictions is {type(source).__name__}; {_REMEDY}")
    part = None
    for part in source:
        if not isinstance(part, Predictions):
            raise ValueError(f"predictions holds {type(part).__name__}; {_REMEDY}")
        yield part
    if part is None:
        raise ValueError(f"predictions is empty: it has no blocks; {_REMEDY}")


def labelled_values(predictions: Predictions) -> LabelledValues:
    """What to reduce: probabilities that were stated as such, else logits and scale."""
    predictions.check_labelled()
    if predictions.stated_probs is not None:
        return LabelledValues(predictions.stated_probs, predictions.labels, "probs")
    return LabelledValues(predictions.logits, predictions.labels, "logits", predictions.scale)


def _class_names(source: PredictionSource) -> tuple[str, ...] | None:
    """The class names, where the source has some and can be read again after a look at its first block."""
    if isinstance(source, Iterator):
        return None
    return next((part.class_names for part in parts_of(source)), None)
