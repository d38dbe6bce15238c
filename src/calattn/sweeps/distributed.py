"""Evaluation of shards elsewhere: a shard is its address, read on the machine that has the work."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from calattn.metrics.evaluation import Evaluation, evaluate_shards
from calattn.posthoc import Calibrator
from calattn.readers import stream_predictions
from calattn.readers.shards import find_shards, is_remote
from calattn.report.verdict import verdict_of
from calattn.types import Predictions

Over = Callable[..., Iterable[Any]]  # `map`, or what does the same on other machines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A file of predictions that can be handed over to another machine, and read there as often as one likes."""

    address: str
    reading: Mapping[str, Any]
    calibrator: Calibrator | None = None

    def __iter__(self) -> Iterator[Predictions]:
        for block in stream_predictions(self.address, **self.reading):
            yield block if self.calibrator is None else self.calibrator.apply_to_block(block)


def shards_of(
    path: str | os.PathLike[str], reading: Mapping[str, Any], calibrator: Calibrator | None = None
) -> list[Shard]:
    """Those that a glob, a folder, a URL or a file stands for, checked here to be of one kind: all have the same classes."""
    stream_predictions(path, **reading)
    addresses = [each if is_remote(each) else os.path.abspath(each) for each in find_shards(path)]
    return [Shard(address=each, reading=reading, calibrator=calibrator) for each in addresses]


def evaluated_over(
    shards: Sequence[Shard], over: Over, *, target: str | None, **arguments: Any
) -> tuple[Evaluation, dict[str, str]]:
    """What `calattn.evaluate` gives for all rows, and the verdict on them."""
    evaluation = evaluate_shards(shards, over=over, target=target, **arguments)
    return evaluation, verdict_of(shards[0], target=target, gaps=evaluation.gaps)
