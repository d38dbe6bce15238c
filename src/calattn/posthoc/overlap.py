"""Overlap: how many of the judged samples are among those fitted on, whatever form and order the two files have.

Rows are compared as (label, log-probabilities). A row tells something only if it stands alone: saturated rows, and those of tasks
with few classes, lie close to others by chance. So a judged row counts where no other row of its own file, and at most one row of
the other, is near; it is shared where that one is a hundred times nearer still, as by chance one in a hundred is.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from calattn.types import Predictions, row_blocks

# How far apart two forms of a row may be, from half-precision logits and rounded probabilities to float32.
_TOLERANCES = (1e-1, 2e-2, 5e-3, 1e-3, 1e-5)
_ALONE = 100.0  # of these
_LEAST = 1e-4  # probabilities below it are one and the same: files round them to zero
_NUMBERS = 8  # that stand for a row of more classes
_LOOKED_AT = 5_000  # judged rows; of more, evenly spaced ones
_EQUAL, _KINDS = 1e-4, 10
_FEWEST, _SOME, _NEARLY_ALL = 5, 0.05, 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlap:
    """About `shared` of the `judged` samples were fitted on too."""

    shared: int
    judged: int

    @property
    def nearly_all(self) -> bool:
        return self.shared >= _NEARLY_ALL * self.judged


def overlap(fit: Predictions, judge: Predictions) -> Overlap:
    """How many samples of `judge` are in `fit`; none where too few rows tell."""
    everything = Overlap(shared=len(judge), judged=len(judge))
    if fit.fingerprint() == judge.fingerprint():
        return everything
    fitted, judged = _rows(fit), _rows(judge)
    if _same_rows(fitted, judged):
        return everything
    return Overlap(shared=round(_share(fitted, judged) * len(judge)), judged=len(judge))


def _same_rows(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the two hold the same rows in some order: even coarse ones do not by chance, if they are of many kinds."""
    if len(a) != len(b):
        return False
    weights = np.random.default_rng(0).standard_normal(a.shape[1])
    one, other = np.sort(a @ weights), np.sort(b @ weights)
    return bool(np.abs(one - other).max() < _EQUAL) and len(np.unique(one.round(3))) >= _KINDS


def _share(fitted: np.ndarray, judged: np.ndarray) -> float:
    """The share of telling rows that are in both, at the tolerance where it is largest; 0 where chance would explain it."""
    from scipy.spatial import cKDTree

    rows = judged[np.unique(np.linspace(0, len(judged) - 1, _LOOKED_AT).round().astype(int))]
    _, own, third = cKDTree(judged).query(rows, k=3)[0].T  # infinitely far where there are fewer
    first, second = cKDTree(fitted).query(rows, k=2)[0].T
    fewest = min(_FEWEST, max(2, len(judged)))

    def share(tolerance: float) -> float:
        tells = np.minimum(own, second) > _ALONE * tolerance
        found, of = int((tells & (first <= tolerance)).sum()), int(tells.sum())
        # Of rows that occur twice, in two files of the same kind, half lie in one file: as many pairs as there are say how many
        # rows of forests or other coarse probabilities meet by chance.
        by_chance = ((own <= tolerance) & (third > tolerance)).sum() * len(fitted) / len(judged)
        return found / of if found >= max(fewest, _SOME * of, 2 * by_chance) else 0.0

    return max(map(share, _TOLERANCES))


def _rows(predictions: Predictions) -> np.ndarray:
    """A few numbers a row: its log-probabilities, or random projections of them, and its label, far from every other."""
    classes = predictions.num_classes
    drawn = torch.randn(classes, _NUMBERS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    projection = drawn / math.sqrt(_NUMBERS) if classes > _NUMBERS else torch.eye(classes, dtype=torch.float64)
    logits = predictions.calibrated_logits
    parts = [
        logits[rows].double().log_softmax(dim=1).clamp_min(math.log(_LEAST)).cpu() @ projection
        for rows in row_blocks(len(predictions), classes)
    ]
    labels = 1e3 * predictions.labels.cpu().double().unsqueeze(1)
    return torch.cat([torch.cat(parts), labels], dim=1).numpy()
