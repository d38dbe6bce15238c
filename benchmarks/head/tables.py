"""`table`: means over the networks of each data set, backbone and recipe, as Markdown."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from calattn.files.atomic import atomic_write

TITLES = {
    "none": "as trained",
    "ts": "temperature scaling (TS) by NLL",
    "ts_shifted": "TS on clean and shifted validation images",
    "vector": "vector scaling",
    "structured": "structured vector scaling",
    "sats": "SATS",
    "frozen_calattn": "CalAttn head on validation features",
    "dac": "density-aware calibration",
    "joint": "CalAttn trained jointly (another network)",
    "joint_ts": "CalAttn trained jointly, then TS",
    "taught_scale": "**taught, scale only**",
    "taught_classwise": "**taught, classwise**",
    "taught": "**taught**",
}


def table(arguments: argparse.Namespace) -> None:
    """Means over the networks of each data set, backbone and recipe."""
    found: dict[str, list[Any]] = {}
    for path in sorted(arguments.results):
        document = json.loads(path.read_text(encoding="utf-8"))
        spec = document["about"]["spec"]
        mixed = "" if spec["augment"]["mixup"] else ", without mixup"
        found.setdefault(f"{spec['data']['name']}, {spec['model']['backbone']}{mixed}", []).append(document)
    text = "\n\n".join(section(title, documents) for title, documents in found.items())
    with atomic_write(arguments.out) as partial:
        partial.write_text(f"<!-- made by python -m benchmarks.head table -->\n\n{text}\n", encoding="utf-8")


def section(title: str, documents: list[Any]) -> str:
    one = next(iter(documents[0]["values"].values()))
    groups = [name for name in one if name.startswith(("clean", "severity"))]
    seeds = ", ".join(map(str, sorted({document["about"]["spec"]["seed"] for document in documents})))
    lines = [f"## {title} (seeds {seeds})", "", "NLL / Brier / ECE % / accuracy %", ""]
    lines += [
        "| | " + " | ".join(groups) + " | mixed: AURC, accuracy at 80 % | AUROC, SVHN |",
        "|---" * (len(groups) + 3) + "|",
    ]
    for method, name in TITLES.items():
        rows = [document["values"][method] for document in documents if method in document["values"]]
        if not rows:
            continue
        cells = []
        for group in groups:
            nll, brier, ece, accuracy = (
                np.mean([row[group][metric]["value"] for row in rows]) for metric in ("nll", "brier", "ece", "accuracy")
            )
            cells.append(f"{nll:.4f} / {brier:.4f} / {100 * ece:.2f} / {100 * accuracy:.2f}")
        aurc, at = (np.mean([row["mixed stream"][key] for row in rows]) for key in ("aurc", "accuracy_at_80"))
        cells.append(f"{100 * aurc:.2f}, {100 * at:.2f}")
        cells.append(
            f"{100 * np.mean([row['svhn']['auroc'] for row in rows]):.2f}"
            if all("svhn" in row for row in rows)
            else "–"
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *differences(documents, groups), *humans(documents)])


def differences(documents: list[Any], groups: list[str]) -> list[str]:
    """Relative to TS: the mean over seeds, and the hull of the seeds' 95 % intervals, which is wider than the mean's own."""
    metrics = [(group, metric) for group in groups for metric in ("nll", "brier", "ece")]
    lines = [
        "Difference from TS in %, mean over seeds [lowest and highest end of the seeds' paired 95 % intervals]",
        "",
        "| | "
        + " | ".join(f"{group}: {metric.upper() if metric != 'brier' else 'Brier'}" for group, metric in metrics)
        + " |",
        "|---" * (len(metrics) + 1) + "|",
    ]
    for method, name in TITLES.items():
        rows = [document["values"][method] for document in documents if method in document["values"]]
        if method == "ts" or not rows or "relative" not in rows[0]["clean"]["nll"]:
            continue
        cells = []
        for group, metric in metrics:
            value, low, high = (100 * np.array([row[group][metric]["relative"] for row in rows])).T
            cells.append(f"{value.mean():+.1f} [{low.min():.1f}, {high.max():.1f}]")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def humans(documents: list[Any]) -> list[str]:
    """Rank correlation with the entropy of human labels."""
    lines = [
        "",
        "Rank correlation with the entropy of human labels (CIFAR-10H), mean over seeds",
        "",
        "| | entropy | s |",
        "|---|---|---|",
    ]
    count = len(lines)
    for method, name in TITLES.items():
        rows = [document["values"][method].get("human", {}) for document in documents if method in document["values"]]
        cells = [
            f"{np.mean([row[key] for row in rows]):.3f}" if rows and all(key in row for row in rows) else "–"
            for key in ("entropy", "log_scale")
        ]
        if cells[0] != "–":
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines if len(lines) > count else []
