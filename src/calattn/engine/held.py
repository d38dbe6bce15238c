"""Weights held in memory until they are on disk: those of the best epochs, and the state at the end of the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
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


@dataclasses.dataclass
class _Best:
    epoch: int
    value: float
    file: str | None
    weights: Any


class BestWeights:
    """Keeps the weights of the best epochs in memory until `write` puts them on disk, one file an epoch.

    Epochs of small runs pass in a second: writing each improvement at once would cost more than the training.
    """

    def __init__(self, records: Mapping[str, BestRecord] | None = None) -> None:
        self._held = {rule: _Best(r.epoch, r.value, r.file, None) for rule, r in (records or {}).items()}

    def offer(self, epoch: int, row: Mapping[str, float], snapshot: Callable[[], Any]) -> list[str]:
        """Takes the weights if this epoch is the best so far by some rule; says by which."""
        won = []
        for rule, (metric, sign) in BEST.items():
            held = self._held.get(rule)
            if metric in row and (held is None or sign * row[metric] < sign * held.value):
                won.append(rule)
        weights = snapshot() if won else None
        for rule in won:
            self._held[rule] = _Best(epoch, float(row[BEST[rule][0]]), None, weights)
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
    def _saved(held: _Best, folder: CheckpointFolder, updates_per_epoch: int) -> str:
        return folder.save_weights(held.weights, step=held.epoch * updates_per_epoch, epoch=held.epoch)


@dataclasses.dataclass(frozen=True)
class _Epoch:
    tree: Any
    step: int
    epoch: int


class HeldState:
    """A copy where the weights are, of them and the optimiser's state: with Adam three times their size.

    Writing every epoch instead would cost small runs more than the training. Where a GPU has no room to spare for the copy, and
    for sharded weights, nothing is held: what is left then is the last checkpoint.
    """

    def __init__(self) -> None:
        self._held: _Epoch | None = None
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
            self._held = _Epoch(_copied(tree), state.update, state.epoch)

    def drop(self) -> None:
        """Something newer is on disk."""
        self._held = None

    def write(self, folder: CheckpointFolder, best: BestWeights, *, updates_per_epoch: int) -> Path | None:
        """Puts it on disk; None where nothing is held."""
        held, self._held = self._held, None
        if held is None:
            return None
        records = best.write(folder, updates_per_epoch=updates_per_epoch)
        return folder.save_state(held.tree, step=held.step, epoch=held.epoch, best=records)


def _has_room(tree: Any, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    return torch.cuda.mem_get_info(device)[0] > 2 * sum(tensor.nbytes for tensor in _tensors(tree))


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(each)


def _copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(_copied, tree))
    return tree
