"""The checkpoint rules: which epoch is best by which validation number, and its weights until they are on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from calattn.engine.checkpoint import BestRecord, CheckpointFolder

# rule → (validation metric, sign): the smallest sign · value wins, the earlier epoch on a tie.
RULES = {"best-nll": ("nll", 1.0), "best-ece": ("ece", 1.0), "best-accuracy": ("accuracy", -1.0)}


@dataclasses.dataclass
class _Held:
    epoch: int
    value: float
    file: str | None
    weights: Any


class BestWeights:
    """Keeps the weights of the best epochs in memory until `write` puts them on disk, one file an epoch.

    Epochs of small runs pass in a second: writing each improvement at once would cost more than the training.
    """

    def __init__(self, records: Mapping[str, BestRecord] | None = None) -> None:
        self._held = {rule: _Held(r.epoch, r.value, r.file, None) for rule, r in (records or {}).items()}

    def offer(self, epoch: int, row: Mapping[str, float], snapshot: Callable[[], Any]) -> list[str]:
        """Takes the weights if this epoch is the best so far by some rule; says by which."""
        won = []
        for rule, (metric, sign) in RULES.items():
            held = self._held.get(rule)
            if held is None or sign * row[metric] < sign * held.value:
                won.append(rule)
        weights = snapshot() if won else None
        for rule in won:
            self._held[rule] = _Held(epoch, float(row[RULES[rule][0]]), None, weights)
        return won

    def write(self, folder: CheckpointFolder, *, updates_per_epoch: int) -> dict[str, BestRecord]:
        """Puts on disk what is not yet there. A file says when its weights were made, not when they were written."""
        files: dict[int, str] = {}
        for held in self._held.values():
            if held.file is None:
                if held.epoch not in files:
                    files[held.epoch] = self._saved(held, folder, updates_per_epoch)
                held.file, held.weights = files[held.epoch], None
        return {rule: BestRecord(file=str(h.file), epoch=h.epoch, value=h.value) for rule, h in self._held.items()}

    @staticmethod
    def _saved(held: _Held, folder: CheckpointFolder, updates_per_epoch: int) -> str:
        return folder.save_weights(held.weights, step=held.epoch * updates_per_epoch, epoch=held.epoch)
