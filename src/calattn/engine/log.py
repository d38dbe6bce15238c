"""The run log: what is measured after every epoch, one JSON object a line, mirrored by any of Lightning's loggers."""

from __future__ import annotations

import itertools
import json
import math
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.files.atomic import PathArg, atomic_write
from calattn.metrics.evaluation import evaluate
from calattn.types import Predictions

METRICS = ("accuracy", "nll", "brier", "ece")
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
HISTOGRAM_BINS = 40

Row = dict[str, Any]
Logger = Any  # of lightning_fabric or of lightning, whose classes of that name are not the same


def measure(predictions: Predictions) -> dict[str, Any]:
    """Accuracy, NLL, Brier and ECE, and the dynamics of the paper's figure: scale, inverse scale and feature norms.

    A model without a head has scale 1 throughout; its row says so with a standard deviation of 0.
    """
    found: dict[str, Any] = {
        name: row.value for name, row in evaluate(predictions, metrics=METRICS, num_bootstrap=0).rows.items()
    }
    if predictions.scale is not None:
        found["scale"] = distribution(predictions.scale)
        found["inverse_scale"] = distribution(predictions.scale.reciprocal())
    if predictions.features is not None:
        found["feature_norm"] = distribution(predictions.features.float().norm(dim=1))
    return found


def distribution(values: Float[Tensor, " n"]) -> dict[str, Any]:
    """Mean, standard deviation, coefficient of variation, quantiles and a 40-bin histogram between the extremes.

    >>> distribution(torch.tensor([1.0, 3.0]))["cv"]
    0.5
    """
    values = values.detach().double().cpu()
    mean, std = float(values.mean()), float(values.std(correction=0))
    # quantile() refuses more than 16 million values; a stride through them is as good.
    thinned = values[:: max(1, len(values) // 1_000_000)]
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + max(abs(low) * 1e-6, 1e-12)
    counts, edges = torch.histogram(values, bins=HISTOGRAM_BINS, range=(low, high))
    return {
        "mean": mean,
        "std": std,
        "cv": std / abs(mean) if mean else 0.0,
        "quantiles": {f"{q:g}": float(thinned.quantile(q)) for q in QUANTILES},
        "histogram": {"counts": [int(count) for count in counts], "edges": [float(edge) for edge in edges]},
    }


class RunLog:
    """Rows of `log.jsonl`. NaN and infinities become null, because JSON has no words for them.

    `loggers` opens those of Lightning that rows are mirrored in, told the last epoch that stands: numbers by their path, and
    histograms where a logger takes them.

    >>> import tempfile
    >>> log = RunLog(Path(tempfile.mkdtemp()) / "log.jsonl")
    >>> log.append({"epoch": 1, "validation": {"nll": 0.7, "ece": float("nan")}})
    >>> log.rows()
    [{'epoch': 1, 'validation': {'nll': 0.7, 'ece': None}}]
    """

    def __init__(self, path: PathArg, *, loggers: Callable[[int | None], Sequence[Logger]] | None = None) -> None:
        self.path = Path(path)
        self._open_loggers = loggers
        self._loggers: Sequence[Logger] | None = None
        self._resumed_after: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. A kill leaves it whole or cut off at the end, where reading drops it."""
        line = json.dumps(plain(row, "row"), allow_nan=False, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._mend()
        with self.path.open("ab") as file:
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        if self._open_loggers is not None and row.get("epoch") is not None:
            # Opened by the first row: only the process that logs may leave their files.
            self._loggers = self._open_loggers(self._resumed_after) if self._loggers is None else self._loggers
            for logger in self._loggers:
                _mirror(logger, row)

    def close(self) -> None:
        """Nothing more comes: some loggers send the last rows only then."""
        for logger in self._loggers or ():
            logger.finalize("success")
            if callable(finish := getattr(logger.experiment, "finish", None)):
                finish()

    def rows(self) -> list[Row]:
        """All whole rows; a last line that was cut off is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # of the encoding, of JSON, of brackets without end
                if number == len(lines):
                    break
                raise ValueError(f"{self.path}, line {number} is not JSON ({error}); remove the line") from None
            if not isinstance(row, dict):
                raise ValueError(f"{self.path}, line {number} is no JSON object; remove the line")
            rows.append(row)
        return rows

    def epochs(self) -> list[Row]:
        """The rows of epochs, each with what an epoch's row has."""
        rows = [row for row in self.rows() if row.get("event") == "epoch"]
        for row in rows:
            numbers = [row.get(name) for name in ("seconds", "images_per_second")]
            train, validation = row.get("train"), row.get("validation")
            if not (
                type(row.get("epoch")) is int
                and all(isinstance(number, int | float) and abs(number) < 1e300 for number in numbers)
                and isinstance(train, Mapping)
                and isinstance(validation, Mapping)
                and isinstance(validation.get("nll"), int | float | None)
            ):
                epoch = reprlib.repr(row.get("epoch"))
                raise ValueError(f"{self.path} does not say what epoch {epoch} was like; put the log back from a copy")
        return rows

    def rewind(self, epoch: int) -> None:
        """Drop the rows of later epochs. Rows without an epoch stay: they say what happened, not what was learned."""
        self._resumed_after, self._loggers = epoch, None
        if self.path.exists():
            self._replace([row for row in self.rows() if row.get("epoch") is None or row["epoch"] <= epoch])

    def drop(self, event: str) -> None:
        """Without the rows of an event, which is about to happen again."""
        self._replace([row for row in self.rows() if row.get("event") != event])

    def _mend(self) -> None:
        """End the last line, or drop it where it was cut off: the next row needs a line of its own."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            return
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            whole = file.read(1) == b"\n"
        if not whole:
            self._replace(self.rows())

    def _replace(self, rows: list[Row]) -> None:
        with atomic_write(self.path) as partial:
            text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
            partial.write_bytes(text.encode("utf-8", "backslashreplace"))


def _mirror(logger: Logger, row: Mapping[str, Any]) -> None:
    entries = dict(_entries({key: value for key, value in row.items() if key != "epoch"}, ""))
    logger.log_metrics({tag: v for tag, v in entries.items() if not isinstance(v, Mapping)}, step=row["epoch"])
    add = getattr(logger.experiment, "add_histogram_raw", None)
    for tag, value in entries.items():
        if add is not None and isinstance(value, Mapping):
            counts, edges = value["counts"], value["edges"]
            middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
            add(
                tag,
                min=edges[0],
                max=edges[-1],
                num=sum(counts),
                sum=sum(n * x for n, x in zip(counts, middles, strict=True)),
                sum_squares=sum(n * x * x for n, x in zip(counts, middles, strict=True)),
                # TensorBoard's buckets are named by their right edge: an empty one in front gives the first its left edge.
                bucket_limits=list(edges),
                bucket_counts=[0, *counts],
                global_step=row["epoch"],
            )
    logger.save()


def plain(value: Any, name: str) -> Any:
    """`value` as JSON can hold it: tuples as lists, non-finite floats as None; anything else is refused by name.

    >>> plain({"loss": float("inf"), "betas": (0.9, 0.999)}, "row")
    {'loss': None, 'betas': [0.9, 0.999]}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{name} has the key {key!r}; JSON keys are strings")
        return {key: plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    raise ValueError(f"{name} is a {type(value).__name__}, which JSON cannot hold; pass float(x), int(x) or x.tolist()")


def _entries(value: Any, tag: str) -> Iterator[tuple[str, Any]]:
    """(tag, number or histogram) pairs of a nested row; text, flags and non-finite numbers have no curve."""
    if isinstance(value, Mapping) and value.keys() == {"counts", "edges"}:
        yield tag, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entries(item, f"{tag}/{key}" if tag else key)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _entries(item, f"{tag}/{i}")
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield tag, value
