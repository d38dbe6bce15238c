"""The state at the end of the last epoch, held in memory until it is on disk: what is left when a later update fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calattn.engine.best import BestWeights
from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.state import TrainingState


@dataclasses.dataclass(frozen=True)
class _Held:
    tree: Any
    step: int
    epoch: int


class HeldState:
    """A copy where the weights are, of them and the optimiser's state: with Adam three times their size.

    Writing every epoch instead would cost small runs more than the training. Where a GPU has no room to spare for the copy, and
    for sharded weights, nothing is held: what is left then is the last checkpoint.
    """

    def __init__(self) -> None:
        self._held: _Held | None = None
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
            self._held = _Held(_copied(tree), state.update, state.epoch)

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
