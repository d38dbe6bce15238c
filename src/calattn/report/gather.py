"""Sources: what a figure is drawn from, predictions whole or in blocks, one or several by title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from calattn.metrics.columns import Columns, columns_of
from calattn.metrics.sources import PredictionSource, parts_of
from calattn.types import Predictions, check_source

Sources = PredictionSource | Mapping[str, PredictionSource]


class State(Protocol):
    """A metric's mergeable state."""

    def add(self, columns: Columns) -> Any: ...


def columns_in(part: Predictions, target: int | None = None) -> Columns:
    """Confidence, correctness and scores of each sample; probabilities that were stated are read as they stand.

    With a `target`, of P(class `target`) and of the event that it is the label.
    """
    if part.stated_probs is not None:
        return columns_of(part.stated_probs, part.labels, "probs", target=target)
    return columns_of(part.logits, part.labels, "logits", scale=part.scale, target=target)


def gather(predictions: PredictionSource, *states: State, target: int | None = None) -> None:
    """Fill metric states in one pass over the source, which may be a stream that can be read once."""
    check_source(predictions)
    for part in parts_of(predictions):
        columns = columns_in(part, target).cpu()
        for state in states:
            state.add(columns)


def named(predictions: Sources) -> dict[str, PredictionSource]:
    """Sources by title; a single one has the empty title."""
    if not isinstance(predictions, Mapping):
        return {"": predictions}
    if not predictions:
        raise ValueError("predictions is empty: there is nothing to draw")
    return dict(predictions)
