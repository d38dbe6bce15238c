"""Sources: what a figure is drawn from, predictions whole or in blocks, one or several by title."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from calattn.metrics.columns import Columns, columns_of
from calattn.types import Predictions, check_source

Source = Predictions | Iterable[Predictions]
Sources = Predictions | Iterable[Predictions] | Mapping[str, Source]


class State(Protocol):
    """A metric's mergeable state."""

    def add(self, columns: Columns) -> Any: ...


def parts_of(predictions: Source) -> Iterator[Predictions]:
    """The blocks of a source, each checked to be predictions; there must be one."""
    check_source(predictions)
    empty = True
    for part in [predictions] if isinstance(predictions, Predictions) else predictions:
        if not isinstance(part, Predictions):
            raise ValueError(
                "predictions must be calattn.Predictions, or blocks of them; build it with "
                f"Predictions(logits=…, labels=…) or read_predictions(path); got {type(part).__name__}"
            )
        empty = False
        yield part
    if empty:
        raise ValueError("predictions has no blocks: there is nothing to draw")


def columns_in(part: Predictions, target: int | None = None) -> Columns:
    """Confidence, correctness and scores of each sample; probabilities that were stated are read as they stand.

    With a `target`, of P(class `target`) and of the event that it is the label.
    """
    if part.stated_probs is not None:
        return columns_of(part.stated_probs, part.labels, "probs", target=target)
    return columns_of(part.logits, part.labels, "logits", scale=part.scale, target=target)


def gather(predictions: Source, *states: State, target: int | None = None) -> None:
    """Fill metric states in one pass over the source, which may be a stream that can be read once."""
    for part in parts_of(predictions):
        columns = columns_in(part, target).cpu()
        for state in states:
            state.add(columns)


def named(predictions: Sources) -> dict[str, Source]:
    """Sources by title; a single one has the empty title."""
    if not isinstance(predictions, Mapping):
        return {"": predictions}
    if not predictions:
        raise ValueError("predictions is empty: there is nothing to draw")
    return dict(predictions)
