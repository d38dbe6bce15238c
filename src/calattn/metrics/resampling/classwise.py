"""Class sums of resamples: weighted sums per class and bin, for classwise ECE and for metrics of others that read them.

The first bin of all classes is one matrix product a block; the listed entries above 1/m are added row by row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.metrics.binning import bin_index
from calattn.metrics.classbins import ClassBins, class_parts
from calattn.metrics.columns import Block, at_once
from calattn.types import row_blocks

_WEIGHTS = 1 << 23  # weights of listed probabilities that are taken at a time: 32 MB


class WideSum:
    """A table of float32 additions, carried over into float64 every `every` samples, before rounding shows."""

    def __init__(self, rows: int, resamples: int, every: int) -> None:
        self.table = torch.zeros(rows, resamples, dtype=torch.float32)
        self._carried: Tensor | None = None
        self._every, self._since = every, 0

    def on(self, device: torch.device) -> Tensor:
        """The table, which is where the first samples are."""
        self.table = self.table.to(device)
        return self.table

    def add(self, place: Int[Tensor, " n"], weights: Float[Tensor, "n r"], samples: int) -> None:
        """Adds the weights of some entries, which belong to so many samples, to the rows of the table."""
        self.on(weights.device).index_add_(0, place, weights)
        self.seen(samples)

    def seen(self, samples: int) -> None:
        self._since += samples
        if self._since >= self._every:
            self._carried = self.total()
            self.table.zero_()
            self._since = 0

    def merge(self, other: WideSum) -> None:
        total = other.total().to(self.table.device)
        self._carried = total if self._carried is None else total.add_(self._carried)

    def total(self, resamples: slice = slice(None)) -> Float[Tensor, "g r"]:
        total = self.table[:, resamples].double()
        return total if self._carried is None else total.add_(self._carried[:, resamples])


class ClassTables(ABC):
    """Sums over samples of every (class, bin) of every resample, added block by block."""

    num_tables: int

    def __init__(self, num_classes: int, num_bins: int, resamples: int) -> None:
        self.num_classes, self.num_bins = num_classes, num_bins
        self.listed = [WideSum(num_classes * num_bins, resamples, 1 << 16) for _ in range(self.num_tables)]
        self.low = WideSum(num_classes, resamples, 1 << 16)  # the first bin of all classes is one product a block

    def add(self, block: Block, weights: Float[Tensor, "n r"]) -> None:
        """Adds a block of rows, which nothing may read afterwards."""
        for wide in (*self.listed, self.low):
            wide.on(weights.device)
        self._list(block, weights)
        block.rest.div_(block.total.unsqueeze(1))
        self.low.table.addmm_(block.rest.float().t(), weights)
        for wide in (*self.listed, self.low):
            wide.seen(len(block.labels))

    def merge(self, other: ClassTables) -> None:
        for wide, more in zip((*self.listed, self.low), (*other.listed, other.low), strict=True):
            wide.merge(more)

    @abstractmethod
    def _list(self, block: Block, weights: Float[Tensor, "n r"]) -> None:
        """Adds the entries above 1/m to the tables, and takes them out of the block."""

    @abstractmethod
    def values(self, n: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        """Classwise ECE."""


class ClassGaps(ClassTables):
    """Signed gaps Σ w (p − [y = class]): all that classwise ECE needs."""

    num_tables = 1

    def _list(self, block: Block, weights: Tensor) -> None:
        cells, rows, signed = _signed_entries(block, self.num_bins)
        for part in _some(len(cells), weights):
            here = weights[rows[part]].mul_(signed[part].float().unsqueeze(1))
            self.listed[0].table.index_add_(0, cells[part], here)

    def values(self, n: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        gaps = self.listed[0].total().view(self.num_classes, self.num_bins, -1)
        first = gaps[:, 0] + self.low.total()
        return (first.abs().sum(dim=0) + gaps[:, 1:].abs().sum(dim=(0, 1))) / (n * self.num_classes)


class ClassCounts(ClassTables):
    """Count, Σ probability and Σ [label is this class]: the whole of `ClassBins`."""

    num_tables = 3

    def __init__(self, num_classes: int, num_bins: int, resamples: int) -> None:
        super().__init__(num_classes, num_bins, resamples)
        self._n = torch.zeros(resamples, dtype=torch.float64)

    def merge(self, other: ClassTables) -> None:
        assert isinstance(other, ClassCounts)
        super().merge(other)
        self._n += other._n

    def _list(self, block: Block, weights: Tensor) -> None:
        self._n += weights.sum(dim=0, dtype=torch.float64).cpu()
        count, confidence, right = (wide.table for wide in self.listed)
        parts = class_parts(block, self.num_bins)
        cells = parts.cls * self.num_bins + bin_index(parts.prob, self.num_bins)
        for some in _some(len(cells), weights):
            here = weights[parts.row[some]]
            count.index_add_(0, cells[some], here)
            confidence.index_add_(0, cells[some], here * parts.prob[some].float().unsqueeze(1))
        right.index_add_(0, block.labels * self.num_bins + bin_index(parts.label_prob, self.num_bins), weights)

    def bins(self, resamples: slice = slice(None)) -> list[ClassBins]:
        """The sums of each resample."""
        count, confidence, right = (
            wide.total(resamples).cpu().t().reshape(-1, self.num_classes, self.num_bins).clone() for wide in self.listed
        )
        count[:, :, 0] += self._n[resamples].unsqueeze(1) - count.sum(dim=2)  # what is not listed is in the first bin
        confidence[:, :, 0] += self.low.total(resamples).cpu().t()
        return [ClassBins(*each) for each in zip(count, confidence, right, strict=True)]

    def values(self, n: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        errors = [(each.confidence - each.correct).abs().sum() for each in self.bins()]
        return torch.stack(errors).to(n.device) / (n * self.num_classes)


def _some(entries: int, weights: Float[Tensor, "n r"]) -> Iterator[slice]:
    """The numbers of the entries, as many at a time as may have weights."""
    return row_blocks(entries, weights.shape[1], at_once(weights.device, _WEIGHTS, 16))


def _signed_entries(block: Block, num_bins: int) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"], Float[Tensor, " e"]]:
    """(cell, row, p − [hit]) of the listed probabilities, and (cell, row, −1) of every label."""
    parts = class_parts(block, num_bins)
    labels = torch.arange(len(block.labels), device=block.labels.device)
    listed = parts.cls * num_bins + bin_index(parts.prob, num_bins)
    cells = torch.cat([listed, block.labels * num_bins + bin_index(parts.label_prob, num_bins)])
    return cells, torch.cat([parts.row, labels]), torch.cat([parts.prob, -torch.ones_like(block.total)])
