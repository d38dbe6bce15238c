"""How often the 95 % intervals hold what they promise: the metric's expectation at that sample size.

    python -m benchmarks.coverage --json results/coverage.json      # about ten minutes on one core

Predictions are drawn from a known posterior made over-confident by a temperature; the target is the mean of the metric over all
simulated data sets. 500 simulations give a coverage a standard error of one per cent.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch
from rich.progress import track

import calattn
from calattn.metrics import METRICS


def draw(n: int, classes: int, temperature: float, generator: torch.Generator) -> calattn.Predictions:
    """Labels from softmax(ℓ); the model says softmax(ℓ / temperature), so it is calibrated at temperature 1."""
    logits = torch.randn(n, classes, generator=generator) * 2.5
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return calattn.Predictions(logits=logits / temperature, labels=labels)


def draw_clusters(
    clusters: int, size: int, temperature: float, generator: torch.Generator
) -> tuple[calattn.Predictions, torch.Tensor]:
    """Clusters of rows that share a part of their logits, and how far labels follow them: some images are harder than others."""
    of = torch.arange(clusters).repeat_interleave(size)
    shared, own = (torch.randn(rows, 5, generator=generator) for rows in (clusters, clusters * size))
    logits = 2 * (shared[of] + own)
    follow = (0.5 * torch.randn(clusters, generator=generator)).exp()[of].unsqueeze(1)
    labels = torch.multinomial((follow * logits).softmax(1), 1, generator=generator).squeeze(1)
    return calattn.Predictions(logits=logits / temperature, labels=labels), of


def coverage(n: int, classes: int, temperature: float, simulations: int, seed: int, resamples: int = 400) -> dict:
    """Share of intervals that contain the target, and that target, for each metric."""
    g = torch.Generator().manual_seed(seed)
    sets = ((draw(n, classes, temperature, g), None) for _ in range(simulations))
    return _coverage(sets, simulations, resamples)


def clustered_coverage(
    clusters: int,
    size: int,
    temperature: float,
    simulations: int,
    *,
    seed: int,
    aware: bool = True,
    resamples: int = 400,
    metrics: Collection[str] = METRICS,
) -> dict:
    """The same of clustered rows; unless `aware`, intervals take them for independent."""
    g = torch.Generator().manual_seed(seed)
    sets = (draw_clusters(clusters, size, temperature, g) for _ in range(simulations))
    given = ((predictions, of if aware else None) for predictions, of in sets)
    return _coverage(given, simulations, resamples, metrics)


def _coverage(sets: Iterable, simulations: int, resamples: int, metrics: Collection[str] = METRICS) -> dict:
    rows: list[dict] = []
    for predictions, clusters in track(sets, total=simulations, transient=True):
        measure = {"num_bootstrap": resamples, "generator": torch.Generator().manual_seed(len(rows))}
        rows.append(calattn.evaluate(predictions, clusters=clusters, metrics=list(metrics), **measure).as_dict())
    found = {}
    for name in metrics:
        read = [row[name]["value"] for row in rows]
        values = torch.tensor([math.nan if value is None else value for value in read], dtype=torch.float64)
        # Some sets have no interval, and claim nothing: how many have one is told beside the coverage.
        given = torch.tensor([row[name]["low"] is not None for row in rows]) & ~values.isnan()
        low, high = (
            torch.tensor([row[name][end] or 0.0 for row in rows], dtype=torch.float64) for end in ("low", "high")
        )
        target = values[~values.isnan()].mean()
        inside = ((low <= target) & (target <= high))[given].double()
        found[name] = {
            "coverage": round(float(inside.mean()), 3) if len(inside) else None,
            "intervals": len(inside),
            "target": round(float(target), 5),
        }
    return found


SETTINGS: dict[str, Callable[..., dict]] = {
    f"{clusters} clusters of {size}, temperature 0.8, {how}": functools.partial(
        clustered_coverage, clusters, size, 0.8, seed=clusters, aware=how == "resampled whole"
    )
    for clusters, size, how in (
        (50, 10, "resampled whole"),
        (100, 10, "resampled whole"),
        (200, 15, "resampled whole"),
        (100, 10, "ignored"),
    )
} | {
    f"N={n}, 10 classes, temperature {temperature}": functools.partial(coverage, n, 10, temperature, seed=n)
    for n, temperature in ((500, 0.6), (500, 1.0), (4000, 0.6), (4000, 1.0))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.coverage --simulations {arguments.simulations}"
    result: dict[str, dict] = {}
    for name, simulate in SETTINGS.items():
        result[name] = simulate(simulations=arguments.simulations)
        print(name, {metric: entry["coverage"] for metric, entry in result[name].items()}, flush=True)
        if arguments.json:
            document = {"command": command, "level": 0.95, "resamples": 400, "calattn": calattn.__version__}
            arguments.json.write_text(json.dumps(document | {"settings": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
