"""A wide sum: quick float32 additions whose rounding never shows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class WideSum:
    """A table of float32 additions, carried over into float64 every `every` samples, before rounding shows."""

    def __init__(self, rows: int, resamples: int, every: int) -> None:
        self.table = torch.zeros(rows, resamples)
        self._total = torch.zeros(rows, resamples, dtype=torch.float64)
        self._every, self._since = every, 0

    def seen(self, samples: int) -> None:
        self._since += samples
        if self._since >= self._every:
            self.total()

    def total(self) -> Float[Tensor, "g r"]:
        self._total += self.table.cpu()
        self.table.zero_()
        self._since = 0
        return self._total
