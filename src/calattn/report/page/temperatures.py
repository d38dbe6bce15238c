"""What the temperature slider shows: the sums of every bin, and the NLL, at every temperature of a grid.

The page adds bins up and takes differences; it never sees a logit. That keeps it small, and makes its numbers Python's.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.binning import bin_index, equal_count_bounds
from calattn.metrics.columns import Columns
from calattn.posthoc.temperature import temperature_blocks
from calattn.types import Predictions

FINE = 300  # equal-width bins; 5, 10, 15, 20 and 30 divide it
EQUAL_COUNTS = (5, 10, 15, 20, 30)
OCTAVE = 18  # temperatures from one to its double: steps of 4 %
LOWEST, HIGHEST = 0.099, 10.1


def slider_grid(marks: Sequence[float] = (), *, octave: int = OCTAVE) -> list[float]:
    """Temperatures from about 0.1 to about 10 in equal steps of the logarithm, 1 and the marks among them.

    Each is exactly half of another, except in the last octave: `temperature_blocks` then squares instead of exponentiating.

    >>> slider_grid([1.53], octave=1)
    [0.125, 0.25, 0.5, 1.0, 1.53, 2.0, 4.0, 8.0]
    """
    roots = [2 ** (place / octave) for place in range(octave)]
    steps = {math.ldexp(root, power) for root in roots for power in range(-4, 4)}
    inside = {float(mark) for mark in marks if LOWEST <= mark <= HIGHEST}
    return sorted({step for step in steps if LOWEST <= step <= HIGHEST} | inside)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemperatureProfile:
    """Sums of 300 equal-width bins, equal-count bins, NLL and Brier score of softmax(ℓ/T), for each T of `grid`."""

    grid: tuple[float, ...]
    count: Float[Tensor, "t f"]
    confidence: Float[Tensor, "t f"]
    correct: Float[Tensor, "t f"]
    nll: Float[Tensor, " t"]
    brier: Float[Tensor, " t"]
    equal_count: dict[int, Float[Tensor, "t m 2"]]

    @property
    def start(self) -> int:
        return self.grid.index(1.0)

    @property
    def samples(self) -> int:
        return int(self.count[0].sum())

    def as_dict(self) -> dict[str, Any]:
        return {
            "grid": list(self.grid),
            "start": self.start,
            **{
                name: [float(value) if math.isfinite(value) else None for value in getattr(self, name)]
                for name in ("nll", "brier")
            },
            "fine": {
                "bins": FINE,
                "count": packed(self.count, np.uint32),
                "confidence": packed(self.confidence, np.float32),
                "correct": packed(self.correct, np.uint32),
            },
            "equal_count": [
                {"counts": equal_count_bounds(self.samples, m).diff().tolist(), "values": packed(values, np.float32)}
                for m, values in self.equal_count.items()
            ],
        }


def temperature_profile(
    predictions: Predictions, columns: Columns, grid: Sequence[float], *, target: int | None = None
) -> TemperatureProfile:
    """`columns` are those of the predictions as they stand: at T = 1 the page shows what the metrics say, to the bit.

    With a `target`, which is then the columns' too, the confidence is P(target).
    """
    grid = tuple(float(value) for value in grid)
    n, start = len(predictions), grid.index(1.0)
    confidence, correct = torch.empty(len(grid), n), columns.correct
    nll, brier = torch.zeros(2, len(grid), dtype=torch.float64)
    inverse = 1.0 / torch.tensor(grid, dtype=torch.float64).unsqueeze(1)
    # Σ p² = Σ exp(2d/T) / (Σ exp(d/T))²: of the Brier score, what another pass would give is the sum at T/2.
    wide = sorted({*grid, *(value / 2 for value in grid)})
    own, half = ([wide.index(value / by) for value in grid] for by in (1, 2))
    for block in temperature_blocks(predictions, wide):
        sums, label = block.sums[own].double(), (block.label.double() * inverse)
        confidence[:, block.rows] = sums.reciprocal().float()  # of the top class, whose d is 0
        if target is not None:
            confidence[:, block.rows] *= (block.shifted[:, target].double() * inverse).exp().float()
        nll += (sums.log() - label).sum(dim=1)
        brier += (block.sums[half].double() / sums.square() - 2 * label.exp() / sums + 1).sum(dim=1)
    nll[start], brier[start] = columns.nll.double().sum(), columns.brier.double().sum()
    rows = list(confidence)
    rows[start] = columns.confidence  # in its own precision: bin edges mean what the caller sees
    sums = _fine_sums(rows, correct)
    return TemperatureProfile(
        grid=grid,
        count=sums[0],
        confidence=sums[1],
        correct=sums[2],
        nll=nll / n,
        brier=brier / n,
        equal_count=_equal_count(rows, correct, columns, start),
    )


def _fine_sums(confidence: Sequence[Tensor], correct: Tensor) -> Float[Tensor, "3 t f"]:
    """Row by row: a table of all rows' bin numbers would be eight bytes a confidence."""
    hits = correct.double()
    rows = []
    for row in confidence:
        index = bin_index(row, FINE)
        weights = (None, row.double(), hits)
        rows.append(torch.stack([torch.bincount(index, w, minlength=FINE).double() for w in weights]))
    return torch.stack(rows, dim=1)


def _equal_count(
    confidence: Sequence[Tensor], correct: Tensor, columns: Columns, start: int
) -> dict[int, Float[Tensor, "t m 2"]]:
    """Mean confidence and accuracy of bins of equal count. Samples that tie on a boundary are shared by both sides."""
    n = len(correct)
    found: dict[int, list[Tensor]] = {m: [] for m in EQUAL_COUNTS}
    bounds = {m: equal_count_bounds(n, m) for m in EQUAL_COUNTS}
    together = torch.cat(list(bounds.values()))
    counts = {m: ends.diff().clamp_min(1) for m, ends in bounds.items()}
    for place, row in enumerate(confidence):
        # Confidences near 1 tie in float32; the odds of the predictions as they stand tell them apart.
        key = -columns.odds if place == start else row
        ordered, order = key.sort()
        sums = torch.stack([row[order].double(), correct[order].double()])
        sums = torch.cat([sums.new_zeros(2, 1), sums.cumsum(dim=1)], dim=1)
        parts = _shared(ordered, sums, together).split([len(ends) for ends in bounds.values()], dim=1)
        for m, at in zip(EQUAL_COUNTS, parts, strict=True):
            found[m].append((at.diff(dim=1) / counts[m]).T)
    return {m: torch.stack(values) for m, values in found.items()}


def _shared(ordered: Tensor, sums: Tensor, bounds: Tensor) -> Float[Tensor, "2 k"]:
    """The running sums at the bounds, a tied group's sum going to both sides by how much of it lies there."""
    n = len(ordered)
    value = ordered[bounds.clamp(max=n - 1)]
    first = torch.searchsorted(ordered, value)
    last = torch.searchsorted(ordered, value, right=True)
    share = (bounds - first).double() / (last - first).double()
    return sums[:, first] + share * (sums[:, last] - sums[:, first])


def packed(values: Tensor, kind: Any) -> str:
    """The values row by row, little-endian, in base64."""
    array = np.ascontiguousarray(values.numpy()).astype(np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(array.tobytes()).decode("ascii")
