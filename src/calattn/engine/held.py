"""Weights held in memory until they are on disk: those of the best epochs, and the state at the end of the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from calattn.engine.checkpoint import BestRecord, CheckpointFolder
from calattn.engine.step import TrainingState

# rule → (validation metric, sign): the smallest sign · value wins, the earlier epoch on a tie. A rule whose metric an epoch's
# row does not have keeps nothing: `nll_ts` is measured only where the spec asks for its rule.
BEST = {
    "best-nll": ("nll", 1.0),
    "best-ece": ("ece", 1.0),
    "best-accuracy": ("accuracy", -1.0),
    "best-nll-ts": ("nll_ts", 1.0),
}


class BestWeights:
    """Keeps the weights of the best epochs in memory until `write` puts them on disk, one file an epoch.

    Epochs of small runs pass in a second: writing each improvement at once would cost more than the training.
    """

    def __init__(self, records: Mapping[str, BestRecord] | None = None) -> None:
        self._records = dict(records or {})
        self._unwritten: dict[int, Any] = {}  # epoch → weights

    def offer(self, epoch: int, row: Mapping[str, float], snapshot: Callable[[], Any]) -> list[str]:
        """Takes the weights if this epoch is the best so far by some rule; says by which."""
        won = []
        for rule, (metric, sign) in BEST.items():
            best = self._records.get(rule)
            if metric in row and (best is None or sign * row[metric] < sign * best.value):
                self._records[rule] = BestRecord("", epoch, float(row[metric]))
                won.append(rule)
        if won:
            self._unwritten[epoch] = snapshot()
            named = {record.epoch for record in self._records.values()}
            self._unwritten = {epoch: weights for epoch, weights in self._unwritten.items() if epoch in named}
        return won

    def write(self, folder: CheckpointFolder, *, updates_per_epoch: int) -> dict[str, BestRecord]:
        """Puts on disk what is not yet there. A file says when its weights were made, not when they were written."""
        for epoch, weights in self._unwritten.items():
            file = folder.save_weights(weights, step=epoch * updates_per_epoch, epoch=epoch)
            for rule, record in self._records.items():
                if record.epoch == epoch:
                    self._records[rule] = dataclasses.replace(record, file=file)
        self._unwritten.clear()
        return dict(self._records)


class HeldState:
    """A copy where the weights are, of them and the optimiser's state: with Adam three times their size.

    Writing every epoch instead would cost small runs more than the training. Where a GPU has no room to spare for the copy, and
    for sharded weights, nothing is held: what is left then is the last checkpoint.
    """

    def __init__(self) -> None:
        self._held: dict[str, Any] | None = None
        self._room: bool | None = None

    def take(self, state: TrainingState, sums: Tensor) -> None:
        """At the end of an epoch that is not written to disk. Only the process that writes calls this."""
        if state.sharded or self._room is False:
            return
        self._held = None
        tree = state.tree(sums)
        if self._room is None:
            self._room = _has_room(tree, state.fabric.device)
        if self._room:
            copy = apply_to_collection(tree, Tensor, lambda tensor: tensor.detach().clone())
            self._held = {"tree": copy, "step": state.update, "epoch": state.epoch}

    def drop(self) -> None:
        """Something newer is on disk."""
        self._held = None

    def write(self, folder: CheckpointFolder, best: BestWeights, *, updates_per_epoch: int) -> Path | None:
        """Puts it on disk; None where nothing is held."""
        held, self._held = self._held, None
        if held is None:
            return None
        records = best.write(folder, updates_per_epoch=updates_per_epoch)
        return folder.save_state(**held, best=records)


def _has_room(tree: Any, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    sizes: list[int] = []
    apply_to_collection(tree, Tensor, lambda tensor: sizes.append(tensor.nbytes))
    return torch.cuda.mem_get_info(device)[0] > 2 * sum(sizes)
