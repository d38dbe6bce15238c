"""Prediction sets after no temperature, one temperature and one per image: their size, and whom they cover.

    calattn train digits --epochs 10 --set model.head=taught_scale --out runs/sets      # a minute or two on one core
    calattn predict runs/sets --corrupt all-3
    python -m benchmarks.sets runs/sets --split test-all-3

Half of the validation images fit the single temperature, the other half the sets; that is done for 20 random halves, and means
are shown. `hard` is the coverage of the third of the judged images that the network itself is least sure of.

results/sets/sets.md has it for a small network on CIFAR-10.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from calattn import Predictions
from calattn.files.predictions import load_predictions
from calattn.posthoc import PredictionSets, TemperatureScaling

HALVES = 20
Ways = dict[str, Callable[[Predictions], Predictions]]


def ways(fit: Predictions) -> Ways:
    """What is done to predictions before sets are made."""

    def plain(p: Predictions) -> Predictions:
        return p.replace(scale=None)

    single = TemperatureScaling().fit(plain(fit))
    return {"as trained": plain, "one temperature": lambda p: single(plain(p)), "per image": lambda p: p}


def measure(validation: Predictions, test: Predictions, score: str, coverage: float) -> dict[str, list[float]]:
    """Coverage, mean size, coverage of hard images and of the worst class, for each way."""
    sure = test.logits.softmax(dim=1).amax(dim=1)
    hard = sure.argsort()[: len(test) // 3]
    found: dict[str, list[list[float]]] = {}
    for seed in range(HALVES):
        halves = validation.shuffle_split(0.5, torch.Generator().manual_seed(seed))
        for name, way in ways(halves[0]).items():
            sets = PredictionSets(coverage, score=score, seed=seed).fit(way(halves[1]))  # type: ignore[arg-type]
            report, of_hard = sets.judge(way(test)), sets.judge(way(test).select(hard))
            worst = report.by_class[report.worst_class].value
            row = [report.coverage.value, report.size.value, of_hard.coverage.value, worst]
            found.setdefault(name, []).append(row)
    return {name: torch.tensor(rows).mean(dim=0).tolist() for name, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--coverage", type=float, default=0.9)
    arguments = parser.parse_args()
    folder = arguments.run / "predictions"
    validation, test = (load_predictions(folder / name) for name in ("validation", arguments.split))
    print(f"{len(validation)} validation images in halves, judged on {len(test)} of {arguments.split}")
    print("| score | temperature | coverage | mean size | coverage, hard third | coverage, worst class |")
    print("|---|---|---|---|---|---|")
    for score in ("raps", "aps", "lac"):
        for name, (coverage, size, hard, worst) in measure(validation, test, score, arguments.coverage).items():
            print(f"| {score} | {name} | {coverage:.1%} | {size:.2f} | {hard:.1%} | {worst:.1%} |".replace("%", " %"))


if __name__ == "__main__":
    main()
