"""How often the 95 % intervals hold what they promise: the metric's expectation at that sample size.

    python -m benchmarks.coverage --json results/coverage.json      # about five minutes on one core

Predictions are drawn from a known posterior made over-confident by a temperature; the target is the mean of the metric over all
simulated data sets. 500 simulations give a coverage a standard error of one per cent, 200 of one and a half.
"""

from __future__ import annotations

import argparse
import json
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


def coverage(n: int, classes: int, temperature: float, simulations: int, seed: int, resamples: int = 400) -> dict:
    """Share of intervals that contain the target, and that target, for each metric."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in track(range(simulations), description=f"N={n}, T={temperature}", transient=True):
        rows.append(
            calattn.evaluate(
                draw(n, classes, temperature, g),
                num_bootstrap=resamples,
                generator=torch.Generator().manual_seed(len(rows)),
            ).as_dict()
        )
    found = {}
    for name in METRICS:
        values = torch.tensor([row[name]["value"] for row in rows], dtype=torch.float64)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {}
    for n, temperature in ((500, 1.0), (500, 0.6), (4000, 1.0), (4000, 0.6)):
        key = f"N={n}, 10 classes, temperature {temperature}"
        result[key] = coverage(n, 10, temperature, arguments.simulations, seed=n)
        print(key, {name: entry["coverage"] for name, entry in result[key].items()}, flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {
                    "command": f"python -m benchmarks.coverage --simulations {arguments.simulations}",
                    "level": 0.95,
                    "resamples": 400,
                    "calattn": calattn.__version__,
                    "settings": result,
                },
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
