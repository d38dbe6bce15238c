"""Sums per class and bin over all N·C probabilities: the mergeable state of classwise ECE and of the Brier decomposition.

A row that sums to one has at most m − 1 entries above 1/m. So the first bin of every class is a column sum, one
matrix–vector product a block, and the few entries above 1/m are scattered one by one.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn import checks
from calattn.metrics.binning import CellSums, bin_index, summed
from calattn.metrics.columns import Block

Variant = Literal["one_vs_rest", "predicted_class"]


class ClassBins(CellSums):
    """Count, Σ probability and Σ [label is this class] for each (class, bin): `ClassBins.empty(num_classes, num_bins)` begins."""

    def collector(self) -> ClassCollector:
        """Something to pass as `visit` to `columns_of`; call its `finish` afterwards."""
        return ClassCollector(self)

    def per_class(self) -> Float[Tensor, " c"]:
        """The ECE of each class's one-vs-rest probability."""
        return (self.confidence - self.correct).abs().sum(dim=1) / self.num_samples

    def error(self) -> float:
        return float(self.per_class().mean())


class ClassCollector:
    """Gathers the listed entries of many blocks and bins them together, which costs less than a table of C·m cells a block."""

    def __init__(self, sums: ClassBins) -> None:
        self.sums = sums
        self.num_bins = sums.count.shape[1]
        self.low: Tensor | float = 0.0
        self.rows = 0
        self.pending: list[tuple[Tensor, ...]] = []

    def __call__(self, block: Block) -> None:
        """Adds a block of rows. Zeroes the block's entries above 1/m on the way: nothing may read it afterwards."""
        parts = class_parts(block, self.num_bins)
        self.pending.append((parts.cls, parts.prob, block.labels, parts.label_prob))
        self.low = self.low + low_mass(block)
        self.rows += len(block.labels)
        if len(self.pending) >= 1024:  # at most 15 entries a row are listed: tens of megabytes
            self.finish()

    def finish(self) -> None:
        if not self.pending:
            return
        sums = self.sums
        classes, probs, labels, label_probs = (torch.cat(parts) for parts in zip(*self.pending, strict=True))
        cells = classes * self.num_bins + bin_index(probs, self.num_bins)
        hits = labels * self.num_bins + bin_index(label_probs, self.num_bins)

        def table(index: Tensor, weights: Tensor | None) -> Tensor:
            return summed(index, weights, sums.count.numel()).view(sums.count.shape).to(sums.count.device)

        count = table(cells, None)
        count[:, 0] += self.rows - count.sum(dim=1)  # entries not listed one by one are in the first bin
        sums.count += count
        sums.confidence += table(cells, probs.double())
        sums.confidence[:, 0] += torch.as_tensor(self.low).to(sums.count.device)
        sums.correct += table(hits, None)
        self.low, self.rows, self.pending = 0.0, 0, []


@dataclasses.dataclass(frozen=True)
class ClassParts:
    """Entries of a block that are binned one by one: every top entry, and every other entry above 1/m."""

    row: Int[Tensor, " e"]
    cls: Int[Tensor, " e"]
    prob: Float[Tensor, " e"]
    label_prob: Float[Tensor, " b"]  # of each row's own label


def class_parts(block: Block, num_bins: int) -> ClassParts:
    """Lists the entries above 1/m and the top entries, and zeroes them in `block.rest`."""
    rows, columns, values = _above(block, 1 / num_bins)
    rows = torch.cat([torch.arange(len(block.top), device=rows.device), rows])
    columns = torch.cat([block.top, columns])
    probs = torch.cat([block.top_value, values]) / block.total[rows]
    return ClassParts(row=rows, cls=columns, prob=probs, label_prob=block.at_label / block.total)


@checks.full_precision()
def low_mass(block: Block) -> Float[Tensor, " c"]:
    """Column sums of what is left of the probabilities.

    Few classes mean many rows, and are summed in float64: over the half a million rows that a block of two classes has, a
    float32 sum was off by 0.4 %. Many classes are float32 products over 256 rows at a time, added up in float64.
    """
    inverse = block.total.reciprocal()
    if block.rest.device.type != "cpu":
        return (block.rest * inverse.unsqueeze(1)).sum(dim=0, dtype=torch.float64)
    if block.rest.shape[1] < 64:
        return block.rest.double().t() @ inverse.double()
    parts = zip(block.rest.split(256), inverse.split(256), strict=True)
    return torch.stack([torch.mv(rest.t(), part) for rest, part in parts]).sum(dim=0, dtype=torch.float64)


def _above(block: Block, edge: float) -> tuple[Tensor, Tensor, Tensor]:
    """(row, column, value) of the entries of `rest` above `edge` of the total, which are set to zero.

    The threshold is a hair low, so that rounding cannot lose an entry; `bin_index` has the last word. Only rows whose
    rest exceeds the edge can have such an entry. numpy's compare and nonzero are 5× torch's on the CPU.
    """
    threshold = block.total * (edge * (1 - 1e-6))
    if block.rest.device.type != "cpu":
        rows, columns = (block.rest > threshold.unsqueeze(1)).nonzero().unbind(dim=1)
        values = block.rest[rows, columns]
        block.rest[rows, columns] = 0.0
        return rows, columns, values
    candidates = (block.others > threshold).nonzero().squeeze(1)
    if 2 * len(candidates) > len(block.top):  # gathering most rows costs more than comparing all of them
        candidates = torch.arange(len(block.top), device=block.top.device)
        rest, limit = block.rest, threshold.unsqueeze(1)
    else:
        rest, limit = block.rest[candidates], threshold[candidates].unsqueeze(1)
    flat = torch.from_numpy(np.flatnonzero(rest.numpy() > limit.numpy()))
    rows, columns = candidates[flat // rest.shape[1]], flat % rest.shape[1]
    values = block.rest[rows, columns]
    block.rest[rows, columns] = 0.0
    return rows, columns, values
