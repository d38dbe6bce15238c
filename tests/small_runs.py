"""Small runs for tests: a one-layer ViT on 8×8 digits, an epoch of which takes a fraction of a second."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.log import RunLog
from calattn.runs.folder import RunFolder
from calattn.runs.resolving import resolve
from calattn.runs.runtime import Runtime
from calattn.runs.spec import RunSpec

OPTIONS = "model.options={img_size: 8, patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}"
SMALL = (
    "model.head=calattn",
    "loss.name=ce_brier",
    OPTIONS,
    "data.limit=240",
    "train.epochs=3",
    "schedule.warmup_epochs=1",
    "evaluation.batch_size=64",
)

# A closing phase of a fraction of a second.
TAUGHT = ("model.head=taught", "teach.readings=400", "teach.shifted=100", "teach.steps=20", "teach.batch_size=64")

# Everything that keeps state or draws random numbers at once: what a restart could get wrong.
STATEFUL = (
    *SMALL,
    "augment.mixup=0.8",
    "augment.cutmix=1.0",
    "augment.erasing=0.25",
    "augment.randaugment_ops=1",
    "model.drop_path=0.2",
    "model.dropout=0.1",
    "optimizer.ema_decay=0.9",
    "optimizer.accumulate=2",
    *TAUGHT,
)

CPU = Runtime(accelerator="cpu", threads=1)


def set_flags(*changes: str) -> list[str]:
    """As a command takes them."""
    return [part for change in changes for part in ("--set", change)]


def small_spec(*changes: str) -> RunSpec:
    return resolve("digits", [*SMALL, *changes])


def final_weights(path: Path, rule: str = "last") -> dict[str, Tensor]:
    folder = RunFolder.open(path)
    return CheckpointFolder(folder.checkpoints_path, folder.spec().hash).weights(rule)


def final_tree(path: Path) -> dict[str, object]:
    folder = RunFolder.open(path)
    state = CheckpointFolder(folder.checkpoints_path, folder.spec().hash).latest()
    assert state is not None
    return {**state.tree, "best": {rule: (record.epoch, record.value) for rule, record in state.best.items()}}


def same(a: object, b: object) -> bool:
    """Bit by bit, in a tree of tensors and others."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def learned(log: RunLog) -> list[dict]:
    """Its rows without what the clock decides."""
    return [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in log.rows()]
