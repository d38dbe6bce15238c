"""A grid of six runs of a second each, on the digits that come with calattn."""

from __future__ import annotations

from pathlib import Path

TINY = "{img_size: 8, patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}"
GRID = f"""
base: digits
set: {{data.limit: 60, train.epochs: 1, schedule.warmup_epochs: 0, model.options: {TINY}}}
vary:
  method:
    plain: {{model.head: none, loss.name: ce}}
    ours: {{model.head: calattn, loss.name: ce_brier}}
  seed: [0, 1, 2]
"""
NAMES = [f"{method}-seed{seed}" for method in ("plain", "ours") for seed in (0, 1, 2)]
ON_CPU = ("--accelerator", "cpu", "--threads", "1")


def write_grid(folder: Path, more: str = "") -> Path:
    path = folder / "grid.yaml"
    path.write_text(GRID + more)
    return path


def numbers(document: dict) -> list[dict]:
    """What must not depend on where and how often a run was started."""
    return [{key: run[key] for key in ("name", "settings", "epochs", "metrics", "reason")} for run in document["runs"]]
