"""One-vs-rest calibration: each class's probability is mapped on its own, then rows are normalised."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from calattn.errors import InputError
from calattn.posthoc.base import Calibrator
from calattn.types import Predictions, row_blocks

_COLUMNS = 64  # classes handled at a time: 50,000 rows of float64 take 26 MB


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class OneVsRestCalibrator(Calibrator):
    """p_k → g_k(p_k) / Σ_j g_j(p_j); a row whose values are all zero becomes uniform (scikit-learn's rule).

    The order of classes, and so accuracy, can change. Mapped values may be exactly 0: then the logit is −inf
    and the NLL is ∞ if that was the label. `floor` replaces smaller values before normalising.
    """

    by_class: ClassVar[bool] = True

    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor < 1.0:
            raise InputError(f"must be in [0, 1), got {self.floor!r}", argument="floor")

    @abc.abstractmethod
    def _mapped(self, probs: Tensor, first_class: int) -> Tensor:
        """g_k of columns first_class, first_class + 1, …; probs and result are [columns, n]."""

    def _apply(self, predictions: Predictions) -> Predictions:
        logits = predictions.logits.new_empty(predictions.logits.shape)
        for columns, probs in class_probs(predictions):
            logits[:, columns] = self._mapped(probs, columns.start).T.to(logits)
        for rows in row_blocks(*logits.shape):
            block = logits[rows].clamp_(min=self.floor)
            total = block.sum(dim=1, keepdim=True)
            logits[rows] = torch.where(total > 0, block / total, 1.0 / predictions.num_classes)
        return predictions.replace(logits=logits.log(), scale=None, stated_probs=logits)


def class_probs(predictions: Predictions) -> Iterator[tuple[slice, Tensor]]:
    """Probabilities of a few classes at a time, [columns, n], in the logits' precision like the metrics' own."""
    logits, scale, stated = predictions.logits, predictions.scale, predictions.stated_probs
    if stated is not None:
        for columns in (slice(start, start + _COLUMNS) for start in range(0, predictions.num_classes, _COLUMNS)):
            yield slice(columns.start, min(columns.stop, predictions.num_classes)), stated[:, columns].T.contiguous()
        return
    log_norm = torch.cat([block.double().logsumexp(dim=1) for block, _ in predictions.blocks()])
    for start in range(0, predictions.num_classes, _COLUMNS):
        columns = slice(start, min(start + _COLUMNS, predictions.num_classes))
        values = logits[:, columns] if scale is None else logits[:, columns] / scale.unsqueeze(1)
        probs = (values.double() - log_norm.unsqueeze(1)).exp_().clamp_(max=1.0)
        yield columns, probs.to(logits.dtype).T.contiguous()
