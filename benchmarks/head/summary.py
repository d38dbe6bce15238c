"""`summarise`: the numbers of a network, with paired differences from temperature scaling."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from calattn.data.corruptions import CORRUPTIONS
from calattn.files.atomic import atomic_write

UNLIKE = tuple(kind for kind in CORRUPTIONS if kind not in ("brightness", "contrast"))  # RandAugment has these two
RESAMPLES = 1000
BINS = 15


class Records:
    """The file of `measure`: [n, 6] by method and set."""

    def __init__(self, path: Path) -> None:
        self.of = {name: tensor.double() for name, tensor in load_file(path).items()}
        with safe_open(path, framework="pt") as file:
            self.about = json.loads(file.metadata()["about"])
        self.methods = list(dict.fromkeys(name.split("/")[0] for name in self.of))
        self.severities = sorted({int(name.rsplit("-", 1)[1]) for name in self.of if "-" in name})

    def groups(self) -> dict[str, list[str]]:
        """Sets whose means are reported."""
        found = {"clean": ["test"]}
        for severity in self.severities:
            found[f"severity {severity}"] = [f"{kind}-{severity}" for kind in CORRUPTIONS]
            found[f"severity {severity}, unlike"] = [f"{kind}-{severity}" for kind in UNLIKE]
        return found


def replicates(rows: Tensor, weights: Tensor) -> Tensor:
    """[4, r + 1]: NLL, Brier, ECE and accuracy of the rows under each resample's weights, the first being all ones."""
    count = weights.sum(dim=1)
    means = (weights @ rows[:, [0, 1, 3]]).T / count
    place = (rows[:, 2] * BINS).ceil().clamp(1, BINS).long() - 1
    gaps = torch.zeros(len(rows), BINS, dtype=torch.float64).scatter_(
        1, place.unsqueeze(1), (rows[:, 3] - rows[:, 2]).unsqueeze(1)
    )
    ece = (weights @ gaps).abs().sum(dim=1) / count
    return torch.stack([means[0], means[1], ece, means[2]])


def interval(values: Tensor) -> list[float]:
    """The value and its 95 % interval, from [value, replicates…]: percentiles, moved so that the replicates' mean is the value.

    Resampling raises a small ECE: plain percentiles may not even hold the value.
    """
    moved = values[1:] - values[1:].mean() + values[0]
    low, high = moved.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return [round(v, 6) for v in (float(values[0]), low, high)]


def selective(rows: Tensor, coverage: float = 0.8) -> dict[str, float]:
    """AURC, and accuracy on the most confident share."""
    right = rows[rows[:, 2].argsort(descending=True, stable=True), 3]
    risk = (1 - right).cumsum(0) / torch.arange(1, len(right) + 1)
    return {"aurc": float(risk.mean()), "accuracy_at_80": float(right[: round(coverage * len(right))].mean())}


def rank(values: Tensor) -> np.ndarray:
    from scipy.stats import rankdata

    return rankdata(values.numpy())


def correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's."""
    return float(np.corrcoef(rank(a), rank(b))[0, 1])


def auroc(low: Tensor, high: Tensor) -> float:
    """P(a value of `high` is larger than one of `low`), ties counting half."""
    ranks = rank(torch.cat([low, high]))[len(low) :]
    return float((ranks.sum() - len(high) * (len(high) + 1) / 2) / (len(low) * len(high)))


def summarise(arguments: argparse.Namespace) -> None:
    records = Records(arguments.records)
    if arguments.human is not None and records.about["spec"]["data"]["name"] != "cifar10":
        raise SystemExit("--human is for networks of cifar10: CIFAR-10H has labels for its test images alone")
    generator = torch.Generator().manual_seed(0)
    n = len(records.of[f"{records.methods[0]}/test"])
    drawn = torch.randint(n, (RESAMPLES, n), generator=generator)
    weights = torch.cat([torch.ones(1, n), torch.zeros(RESAMPLES, n).scatter_add_(1, drawn, torch.ones(RESAMPLES, n))])
    weights = weights.double()
    groups = records.groups()
    wanted = sorted({name for names in groups.values() for name in names})
    made: dict[str, dict[str, Tensor]] = {}
    for method in records.methods:
        made[method] = {name: replicates(records.of[f"{method}/{name}"], weights) for name in wanted}
    metrics = ("nll", "brier", "ece", "accuracy")
    values: dict[str, Any] = {}
    for method in records.methods:
        values[method] = {}
        for group, names in groups.items():
            mine = torch.stack([made[method][name] for name in names]).mean(dim=0)
            found = {metric: {"value": interval(mine[row])[0]} for row, metric in enumerate(metrics)}
            if "ts" in made:
                theirs = torch.stack([made["ts"][name] for name in names]).mean(dim=0)
                for row, metric in enumerate(metrics):
                    found[metric]["against_ts"] = interval(mine[row] - theirs[row])
                    found[metric]["relative"] = interval(mine[row] / theirs[row] - 1)
            values[method][group] = found
    corruptions = torch.randint(len(CORRUPTIONS), (n,), generator=generator)
    is_clean = torch.rand(n, generator=generator) < 0.5
    for method in records.methods:
        clean = records.of[f"{method}/test"]
        worst = torch.stack([records.of[f"{method}/{kind}-{records.severities[-1]}"] for kind in CORRUPTIONS])
        mixed = torch.where(is_clean.unsqueeze(1), clean, worst[corruptions, torch.arange(n)])
        values[method]["mixed stream"] = selective(mixed) | {"ece": float(replicates(mixed, weights[:1])[2, 0])}
        if f"{method}/svhn" in records.of:
            values[method]["svhn"] = {"auroc": auroc(clean[:, 4], records.of[f"{method}/svhn"][:, 4])}
        if arguments.human is not None:
            counts = torch.from_numpy(np.load(arguments.human)["counts"]).double()
            shares = counts / counts.sum(dim=1, keepdim=True)
            entropy = -torch.xlogy(shares, shares).sum(dim=1)
            values[method]["human"] = {
                name: correlation(clean[:, column], entropy)
                for name, column in (("entropy", 4), ("log_scale", 5))
                if clean[:, column].std() > 0  # one temperature for all has no rank
            }
    for method in records.methods:
        values[method]["by corruption"] = {
            name: {metric: round(float(made[method][name][row, 0]), 6) for row, metric in enumerate(metrics)}
            for name in wanted
        }
    document = {"about": records.about, "resamples": RESAMPLES, "values": values}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(arguments.out) as partial:
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
