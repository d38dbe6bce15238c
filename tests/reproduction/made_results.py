"""Made-up results: documents with the shape of real ones, their numbers drawn from the cell's name."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from calattn.metrics import METRICS
from reproduction.cells import Cell, ScaleName, spec_of
from reproduction.results import CellResult, ResultStore

PAIRED = ("accuracy", "nll", "brier", "ece", "smooth_ece", "adaptive_ece", "classwise_ece")
NUM_TEST = 2000


def made_result(cell: Cell, scale: ScaleName, *, rows: int = 12, points: int = 300) -> CellResult:
    """A consistent document: bins add up to its ECE and accuracy, temperatures and phases fit each other."""
    rng = np.random.default_rng(zlib.crc32(f"{cell.name}/{scale}".encode()))
    spec = spec_of(cell, scale)
    return CellResult(
        cell=cell,
        scale=scale,
        cell_hash=spec.hash,
        run={
            "spec": spec.model_dump(mode="json"),
            "spec_hash": spec.hash,
            "environment": {"commit": {"hash": "0" * 40, "dirty": False}, "device": "made up"},
            "epochs": spec.train.epochs,
            "training_seconds": 60.0,
            "images_per_second": 27000.0,
            "parameters": {"backbone": 21_665_664, "head": 0 if cell.head == "none" else 49_409},
        },
        log=[_epoch(rng, i, rows, head=cell.head) for i in range(1, rows + 1)],
        rules={rule: _rule(rng, rule, spec.train.epochs, points, cell) for rule in ("last", "best-ece")},
        pair={} if cell.head == "none" else {rule: _pair(rng) for rule in ("last", "best-ece")},
    )


@functools.cache
def document_of(cell: Cell) -> CellResult:
    """What the store of all cells of the reduced scale has of one."""
    return made_result(cell, "reduced")


def made_store(folder: Path, scale: ScaleName, cells: Iterable[Cell]) -> ResultStore:
    store = ResultStore(folder, scale)
    for cell in cells:
        store.put(made_result(cell, scale))
    return store


def _rule(rng: np.random.Generator, rule: str, epochs: int, points: int, cell: Cell) -> dict[str, Any]:
    accuracy = float(rng.uniform(0.5, 0.8)) - (0.1 if rule == "best-ece" else 0.0)
    bins = {"pre": _bins(rng, accuracy, 0.15), "post": _bins(rng, accuracy, 0.02)}
    phases = {phase: _metrics(rng, bins.get(phase, bins["post"])) for phase in ("pre", "post", "post_nll", "sats")}
    found: dict[str, Any] = {
        "epoch": epochs if rule == "last" else epochs // 2,
        "temperature": {"ece": float(rng.integers(8, 40)) / 10, "nll": float(rng.uniform(0.8, 4))},
        "phases": phases,
        "bins": bins,
        "ood": {"svhn": float(rng.uniform(0.6, 0.9)), "cifar10_c": float(rng.uniform(0.5, 0.7))}
        if cell.dataset == "cifar10"
        else {},
        "scatter": _scatter(rng, points, head=cell.head),
    }
    if cell.head == "calattn":
        found["scale"] = _distribution(rng.lognormal(-0.5, 0.2, 500), full=True)
    return found


def _bins(rng: np.random.Generator, accuracy: float, gap: float) -> dict[str, Any]:
    edges = np.linspace(0, 1, 16)
    middle = (edges[:-1] + edges[1:]) / 2
    share = middle**2 * rng.uniform(0.5, 1.5, 15)
    counts = np.floor(NUM_TEST * share / share.sum()).astype(int)
    counts[0] = 0  # an empty bin, as most real diagrams have
    counts[-1] += NUM_TEST - counts.sum()
    raw = np.clip(middle - gap * middle, 0, 1)
    correct = np.clip(raw * accuracy / np.average(raw, weights=counts), 0, 1)
    filled = counts > 0
    return {
        "counts": counts.tolist(),
        "confidence": [float(c) if ok else None for c, ok in zip(middle, filled, strict=True)],
        "accuracy": [float(c) if ok else None for c, ok in zip(correct, filled, strict=True)],
    }


def ece_of(bins: dict[str, Any]) -> float:
    """ECE from the bins, the way the diagrams show it."""
    counts = np.array(bins["counts"], dtype=float)
    gaps = [abs(c - a) if c is not None else 0.0 for c, a in zip(bins["confidence"], bins["accuracy"], strict=True)]
    return float((counts * np.array(gaps)).sum() / counts.sum())


def _metrics(rng: np.random.Generator, bins: dict[str, Any]) -> dict[str, Any]:
    counts = np.array(bins["counts"])
    accuracy = float(np.average([a or 0.0 for a in bins["accuracy"]], weights=counts))
    values = {name: float(rng.uniform(0.01, 0.3)) for name in METRICS}
    values |= {"accuracy": accuracy, "ece": ece_of(bins), "nll": float(rng.uniform(0.5, 2.5))}
    return {name: {"value": v, "low": 0.9 * v, "high": 1.1 * v} for name, v in values.items()}


def _scatter(rng: np.random.Generator, points: int, *, head: str) -> dict[str, Any]:
    norm = rng.normal(20, 3, points)
    raw = 1 / (1 + np.exp(-(norm - 18) / 3 - rng.normal(0, 1, points)))
    scale = np.ones(points) if head == "none" else rng.lognormal(-0.5, 0.2, points)
    return {
        "feature_norm": norm.tolist(),
        "max_prob": raw.tolist(),
        "scaled_max_prob": np.clip(raw ** np.minimum(scale, 1), 0, 1).tolist(),
        "scale": scale.tolist(),
        "correct": (rng.uniform(size=points) < raw).astype(int).tolist(),
    }


def _epoch(rng: np.random.Generator, epoch: int, epochs: int, *, head: str) -> dict[str, Any]:
    full = epoch in (1, (epochs + 1) // 2, epochs)
    share = epoch / epochs
    validation: dict[str, Any] = {
        "accuracy": 0.4 + 0.3 * share,
        "nll": 2 - share,
        "brier": 0.5,
        "ece": 0.02 + 0.1 * share,
    }
    validation["feature_norm"] = _distribution(rng.normal(15 + 5 * share, 2, 500), full=full)
    if head == "calattn":
        scale = rng.lognormal(-0.8 * share, 0.05 + 0.3 * share, 500)
        validation["scale"] = _distribution(scale, full=full)
        validation["inverse_scale"] = _distribution(1 / scale, full=full)
    return {"epoch": epoch, "train": {"loss": 2 - 1.5 * share, "accuracy": 0.5 + 0.4 * share}, "validation": validation}


def _distribution(values: np.ndarray, *, full: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": float(values.mean()), "std": float(values.std())}
    found["cv"] = found["std"] / found["mean"]
    if full:
        counts, edges = np.histogram(values, bins=40)
        found["quantiles"] = {f"{q:g}": float(np.quantile(values, q)) for q in (0.05, 0.5, 0.95)}
        found["histogram"] = {"counts": counts.tolist(), "edges": edges.tolist()}
    return found


def _pair(rng: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for phase in ("pre", "post"):
        found[phase] = {}
        for name in PAIRED:
            difference = float(rng.normal(0, 0.02))
            low, high = difference - 0.015, difference + 0.015
            found[phase][name] = {"difference": difference, "low": low, "high": high, "p_value": float(rng.uniform())}
    return found
