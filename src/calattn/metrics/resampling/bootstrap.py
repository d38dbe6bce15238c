"""Bootstrap replicates of every metric from the per-sample columns, many resamples at a time.

A resample is a vector of integer weights w that sum to N. Every metric is a function of weighted sums, so a block of resamples
is one matrix product; the rank metrics are cumulative sums along samples sorted once. Nothing is re-sorted and no softmax is
taken again, except for classwise ECE, which needs the probabilities themselves (`classwise`). All of this holds up to
`IN_MEMORY` samples at once; `streamed` takes more of them, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import Columns
from calattn.metrics.resampling.classwise import Blocks, class_replicates, class_tables, class_width
from calattn.metrics.resampling.replicates import (
    KERNEL_CELLS,
    RANKED,
    Ranked,
    Resamples,
    Resampling,
    bin_values,
    fill_features,
    kernel_values,
    own_values,
    rank_values,
)
from calattn.metrics.resampling.weights import weight_blocks
from calattn.metrics.scoresums import read_scores
from calattn.metrics.smooth import cosine_features, integral_of_absolute, wave_numbers
from calattn.types import row_blocks

IN_MEMORY = 200_000  # samples: beyond, weights and features of all of them are too much to hold (see `streamed`)


class ColumnResampler:
    """Turns resampling weights into replicates of every metric that the columns determine."""

    def __init__(self, columns: Columns, plan: Resampling) -> None:
        self.plan, self.options = plan, plan.options
        self.n = len(columns)
        confidence, correct = columns.confidence.double(), columns.correct.double()
        residual = confidence - correct
        self.infinite_nll = torch.isinf(columns.nll).float()
        # The dear ones, smooth and kernel ECE and the ranks, are left out unless asked for.
        waves = wave_numbers(plan.bandwidth) if "smooth_ece" in plan.metrics else 0
        self.sizes = [7, *[plan.options.num_bins] * 3, waves]
        self.features = torch.zeros(self.n, sum(self.sizes))  # half a kilobyte a sample, so float32 and filled in place
        cosines = self.features[:, sum(self.sizes[:4]) :]
        fill_features(self.features[:, : sum(self.sizes[:4])], columns, plan.options)
        for rows in row_blocks(self.n, waves) if waves else ():
            cosines[rows] = (cosine_features(confidence[rows], plan.bandwidth) * residual[rows].unsqueeze(1)).float()
        self._prepare_ranks(columns.odds, residual, correct)
        self.sorted_confidence = confidence[self.order]
        self.cell = (confidence * KERNEL_CELLS).long().clamp_(0, KERNEL_CELLS - 1)
        self.correct = correct.float()

    def _prepare_ranks(self, odds: Tensor, residual: Tensor, correct: Tensor) -> None:
        values, self.order = odds.sort()
        _, inverse = values.unique_consecutive(return_inverse=True)
        self.groups = int(inverse[-1]) + 1
        self.group_of: Tensor | None = inverse if self.groups < self.n else None
        self.sorted_residual = residual[self.order].float()
        self.sorted_correct = correct[self.order].float()

    def __call__(
        self, weights: Float[Tensor, "b n"], classes: Sequence[ClassBins] | None = None
    ) -> dict[str, Float[Tensor, " b"]]:
        """The replicates; metrics that others added may read class sums from `classes`."""
        scores, count, gap, correct, waves = (weights @ self.features).double().split(self.sizes, dim=1)
        values = read_scores(scores)
        if bool(self.infinite_nll.any()):
            values["nll"] = torch.where(weights @ self.infinite_nll > 0, torch.inf, values["nll"])
        n = torch.full((len(weights),), self.n)
        values |= bin_values(count, gap, correct, n)
        if "smooth_ece" in self.plan.metrics:
            values["smooth_ece"] = integral_of_absolute(waves / self.n, self.plan.bandwidth, fineness=64)
        if "kernel_ece" in self.plan.metrics:
            values["kernel_ece"] = self._kernel_error(weights)
        if self.plan.metrics & RANKED:
            values |= self._rank_values(weights)
        if self.plan.own:
            scores[:, 2] = values["nll"] * self.n
            ranked = self._ranked(weights) if self.plan.own_parts & {"ranks", "grid"} else None
            values |= own_values(self.plan, Resamples(scores, count, gap, correct, ranked, classes))
        return values

    def _kernel_error(self, weights: Tensor) -> Tensor:
        def grid(values: Tensor) -> Tensor:
            return values.new_zeros(KERNEL_CELLS, len(weights)).index_add_(0, self.cell, values.t().contiguous())

        mass, hits = grid(weights), grid(weights * self.correct)
        return kernel_values(mass, hits, torch.full((len(weights),), self.n), self.options.bandwidth or 0.05)

    def _rank_values(self, weights: Tensor) -> dict[str, Tensor]:
        ordered = weights[:, self.order]
        right, residual = ordered * self.sorted_correct, ordered * self.sorted_residual
        if self.group_of is not None:
            ordered, right, residual = (self._grouped(part) for part in (ordered, right, residual))
        n = torch.full((len(weights),), self.n)
        return rank_values(ordered, right, residual, n, self.options.num_bins)

    def _ranked(self, weights: Tensor) -> Ranked:
        ordered = weights[:, self.order]
        right, confidence = ordered * self.sorted_correct, self.sorted_confidence
        if self.group_of is not None:  # tied odds are one confidence, up to rounding
            first = self.group_of.diff(prepend=self.group_of.new_full((1,), -1)) > 0
            ordered, right, confidence = self._grouped(ordered), self._grouped(right), confidence[first]
        return Ranked(ordered, right, confidence)

    def _grouped(self, values: Tensor) -> Tensor:
        assert self.group_of is not None
        table = values.new_zeros(self.groups, len(values))
        return table.index_add_(0, self.group_of, values.t().contiguous()).t().contiguous()


def memory_replicates(columns: Columns, plan: Resampling, blocks: Blocks) -> dict[str, Float[Tensor, " count"]]:
    """Replicates of every metric; `blocks`, the rows themselves, are read where there are class sums."""
    n, classes, num_bins = len(columns), plan.num_classes, plan.options.num_bins
    resample = ColumnResampler(columns, plan)
    by_class = classes if "classes" in plan.own_parts else None
    width = None if by_class is None else class_width(n, plan.count, by_class * num_bins)
    parts = []
    for weights in weight_blocks(n, plan.count, torch.Generator().manual_seed(plan.seed), width):
        tables = None if by_class is None else class_tables(blocks(), weights, by_class, num_bins)
        parts.append(resample(weights, tables))
    draws = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name in plan.metrics}
    if "classwise_ece" in plan.metrics and classes is not None:
        generator = torch.Generator().manual_seed(plan.seed)
        draws["classwise_ece"] = class_replicates(blocks, n, classes, num_bins, plan.count, generator)
    return draws


def interval(value: float, replicates: Float[Tensor, " r"], level: float, *, moved: bool = True) -> tuple[float, float]:
    """The replicates' central `level` range, if `moved` so that their mean lies on the value.

    Resampling adds noise to |gap|, so replicates of a calibration error sit above the value by about the bias that the value
    itself has; plain quantiles would miss the value altogether for classwise ECE. Moved, the interval is one for the metric's
    expectation at this sample size, bias included: what two models evaluated on equally many samples can be compared by. NaN
    replicates (an empty denominator) are left out.
    """
    finite = replicates[~torch.isnan(replicates)]
    if len(finite) == 0 or math.isnan(value):
        return math.nan, math.nan
    tail = (1 - level) / 2
    low, high = (float(q) for q in quantiles(finite, (tail, 1 - tail)))
    if math.isinf(value) or not moved:
        return low, high
    shift = value - float(finite[finite.isfinite()].mean())
    return low + shift, high + shift


def two_sided(difference: float, draws: Tensor, *, moved: bool) -> float:
    """Twice the smaller share of (moved) resamples on either side of zero; the data count once, so never exactly 0.

    A resample without any difference counts on both sides. Infinite differences (a label of probability zero on one
    side) cannot be moved and count by their sign; an undefined difference has no p-value.
    """
    known = draws[~draws.isnan()]
    if len(known) == 0 or math.isnan(difference):
        return math.nan
    movable = moved and math.isfinite(difference) and bool(known.isfinite().all())
    placed = known + (difference - known.mean()) if movable else known
    equal = known == 0
    smaller = min(int(((placed <= 0) | equal).sum()), int(((placed >= 0) | equal).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(known) + 1))


def quantiles(values: Float[Tensor, " r"], at: tuple[float, ...]) -> Float[Tensor, " q"]:
    """Order statistics with linear interpolation; written out because torch.quantile makes NaN of infinite neighbours."""
    ordered = values.sort().values
    place = torch.tensor(at, dtype=torch.float64) * (len(ordered) - 1)
    low, high = ordered[place.floor().long()], ordered[place.ceil().long()]
    return torch.where(low == high, low, low + (high - low) * (place - place.floor()))


def afresh(measure: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `evaluate` and `compare` for one of several calls: a generator gives each of them the same resamples."""
    generator = measure.get("generator")
    if not isinstance(generator, torch.Generator):
        return measure
    return measure | {"generator": torch.Generator().set_state(generator.get_state())}
