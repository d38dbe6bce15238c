"""Our metrics and temperature fits against the fastest peer for each, in one run on this machine.

    make bench                        # everything, about six minutes on two cores
    python -m benchmarks.metrics --skip-slow    # leaves out peers slower than the fastest known

Single metrics start from probabilities, as the peers' do, and NLL from logits. The full report is ours from logits, softmax
included, against the sum of the fastest peers, who get the softmax for free.
focal_calibration is not on a package index; its way (a loop over bins, or over classes and bins, with boolean masks) is written
out here in our own words.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import calattn
from benchmarks.timing import best_of, peak_extra
from calattn import Predictions, metrics, posthoc

N, C, BINS = 50_000, 1_000, 15
GRID = [k / 10 for k in range(1, 101)]


def data() -> tuple[Tensor, Tensor]:
    """Logits of an over-confident classifier: 75 % accuracy, mean confidence 93 %."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(N, C, generator=g)
    labels = torch.randint(C, (N,), generator=g)
    wanted = torch.where(torch.rand(N, generator=g) < 0.75, labels, torch.randint(C, (N,), generator=g))
    logits[torch.arange(N), wanted] += 7 + 14 * torch.rand(N, generator=g)
    return logits, labels


def masked_ece(confidence: Tensor, correct: Tensor) -> float:
    """ECE by a loop over bins with boolean masks, as focal_calibration and most scripts do it."""
    edges = torch.linspace(0, 1, BINS + 1)
    total = torch.zeros(1)
    for low, high in itertools.pairwise(edges):
        inside = confidence.gt(low) & confidence.le(high)
        share = inside.float().mean()
        if share > 0:
            total += (confidence[inside].mean() - correct[inside].float().mean()).abs() * share
    return float(total)


def masked_classwise_ece(probs: Tensor, labels: Tensor) -> float:
    return sum(masked_ece(probs[:, c], labels == c) for c in range(probs.shape[1])) / probs.shape[1]


def grid_by_softmax(logits: Tensor, labels: Tensor) -> float:
    """T of least ECE over the grid with a full softmax for every temperature."""
    best = (float("inf"), 0.0)
    for temperature in GRID:
        confidence, predicted = torch.softmax(logits / temperature, dim=1).max(dim=1)
        best = min(best, (masked_ece(confidence, predicted == labels), temperature))
    return best[1]


Peers = dict[str, dict[str, Callable[[], float]]]


def peers(logits: Tensor, labels: Tensor, skip_slow: bool) -> Peers:
    import calibration as uc
    import relplot
    import sklearn.metrics
    import torch_uncertainty.metrics.classification as tu
    import torchmetrics.functional.classification as tm
    from netcal.metrics import ECE as NetcalECE
    from netcal.metrics import MCE as NetcalMCE

    probs = logits.softmax(1)
    p, y = probs.numpy(), labels.numpy()
    classes = list(range(C))

    def tu_run(metric: object) -> Callable[[], float]:
        def call() -> float:
            metric.reset()  # type: ignore[attr-defined]
            metric.update(probs, labels)  # type: ignore[attr-defined]
            return float(metric.compute())  # type: ignore[attr-defined]

        return call

    table: Peers = {
        "accuracy": {
            "torchmetrics": lambda: float(tm.multiclass_accuracy(probs, labels, C, average="micro")),
            "scikit-learn": lambda: sklearn.metrics.accuracy_score(y, p.argmax(1)),
        },
        "nll": {
            "torch cross_entropy": lambda: float(torch.nn.functional.cross_entropy(logits, labels)),
            "torch-uncertainty": tu_run(tu.CategoricalNLL()),
            "scikit-learn": lambda: sklearn.metrics.log_loss(y, p, labels=classes),
        },
        "brier": {
            "torch-uncertainty": tu_run(tu.BrierScore(num_classes=C)),
            "scikit-learn": lambda: sklearn.metrics.brier_score_loss(y, p, labels=classes),
        },
        "ece": {
            "relplot": lambda: relplot.metrics.binnedECE(
                *relplot.multiclass_logits_to_confidences(p, y, probs=True), nbins=BINS
            ),
            "torchmetrics": lambda: float(tm.multiclass_calibration_error(probs, labels, C, n_bins=BINS)),
            "netcal": lambda: NetcalECE(BINS).measure(p.max(1), (p.argmax(1) == y).astype(int)),
        },
        "mce": {
            "torchmetrics": lambda: float(tm.multiclass_calibration_error(probs, labels, C, BINS, norm="max")),
            "netcal": lambda: NetcalMCE(BINS).measure(p.max(1), (p.argmax(1) == y).astype(int)),
        },
        "adaptive_ece": {
            "torch-uncertainty": tu_run(tu.AdaptiveCalibrationError(task="multiclass", num_classes=C, num_bins=BINS)),
            "uncertainty-calibration": lambda: uc.get_ece_em(p, y, num_bins=BINS),
        },
        "classwise_ece": {"focal_calibration's way": lambda: masked_classwise_ece(probs, labels)},
        "smooth_ece": {
            "relplot": lambda: relplot.smECE_sigma(
                *relplot.multiclass_logits_to_confidences(p, y, probs=True), sigma=0.05
            ),
        },
        "ECE temperature grid": {"focal_calibration's way": lambda: grid_by_softmax(logits, labels)},
        "NLL temperature": temperature_peers(logits, labels, skip_slow),
    }
    if not skip_slow:
        table["classwise_ece"]["uncertainty-calibration"] = lambda: uc.get_ece(p, y, num_bins=BINS, mode="marginal")
    return table


def temperature_peers(logits: Tensor, labels: Tensor, skip_slow: bool) -> dict[str, Callable[[], float]]:
    from sklearn.calibration import _TemperatureScaling

    def sk() -> float:
        return 1 / float(_TemperatureScaling().fit(logits.numpy(), labels.numpy()).beta_)

    found: dict[str, Callable[[], float]] = {"scikit-learn": sk}
    if not skip_slow:
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        def pm() -> float:
            get_calibrator("temp-scaling").fit_torch(CategoricalLogits(logits), labels)
            return float("nan")

        found["probmetrics"] = pm
    return found


def structured_rows(console: Console) -> list[dict[str, object]]:
    """Structured scaling of 2,500 samples of 100 classes that are taken for each other, judged on 10,000 others."""
    from probmetrics.calibrators.logistic import SMSCalibrator, SVSCalibrator

    g = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 16, generator=g).repeat(5, 1) + 0.5 * torch.randn(100, 16, generator=g)
    labels = torch.randint(100, (12_500,), generator=g)
    features = centres[labels] + 0.8 * torch.randn(12_500, 16, generator=g)
    logits = 3 * (features @ centres.T - centres.square().sum(dim=1) / 3)
    fit, judge = (Predictions(logits=logits[rows], labels=labels[rows]) for rows in (slice(0, 2500), slice(2500, None)))
    rows: list[dict[str, object]] = []
    for name, ours, peer in (
        ("structured vector scaling", posthoc.VectorScaling(1.0), SVSCalibrator()),
        ("structured matrix scaling", posthoc.MatrixScaling(1.0), SMSCalibrator()),
    ):
        seconds = best_of(lambda: ours.fit(fit), 5)  # noqa: B023
        extra = peak_extra(lambda: ours.fit(fit))  # noqa: B023
        theirs = best_of(lambda: peer.fit(fit.probs.double().numpy(), fit.labels.numpy()), 3)  # noqa: B023
        probs = peer.predict_proba(judge.probs.double().numpy())
        found = {"value": metrics.nll(ours(judge).calibrated_logits, judge.labels)}
        found["peer_value"] = float(-np.log(probs[np.arange(len(judge)), judge.labels]).mean())
        found |= {"ours_s": seconds, "peer_s": theirs, "ratio": theirs / seconds, "extra_MB": extra}
        rows.append({"name": name, "peer": "probmetrics", "required": 1, **found})
        console.print(f"{name}: {seconds * 1e3:.0f} ms against {theirs * 1e3:.0f} ms (probmetrics)")
    return rows


def environment() -> dict[str, str]:
    names = ["torch", "numpy", "scikit-learn", "torchmetrics", "torch-uncertainty", "netcal", "relplot", "probmetrics"]
    found = {"calattn": calattn.__version__, "python": platform.python_version(), "cpu": cpu_name()}
    for name in [*names, "uncertainty-calibration"]:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["threads"] = str(torch.get_num_threads())
    found["commit"] = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return found


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def of_a_file(rows: int, classes: int = 100) -> float:
    """Seconds of CPU of every metric with its interval, from an .npz of so many rows that is streamed."""
    g = np.random.default_rng(0)
    labels = g.integers(classes, size=rows)
    logits = g.standard_normal((rows, classes), dtype=np.float32)
    logits[np.arange(rows), labels] += 4 * g.random(rows, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "large.npz", logits=logits, labels=labels)
        start = time.process_time()
        calattn.evaluate(calattn.stream_predictions(Path(folder) / "large.npz"))
        return time.process_time() - start


REPORT = ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece", "smooth_ece")
REQUIRED = {"full report": 40, "classwise_ece": 40, "ECE temperature grid": 12, "NLL temperature": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-slow", action="store_true", help="leave out peers that are known not to be the fastest")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    console = Console(width=130)
    logits, labels = data()
    predictions = Predictions(logits=logits, labels=labels)

    probs = logits.softmax(1)

    def one(metric: str) -> Callable[[], float]:
        return lambda: getattr(metrics, metric)(logits if metric == "nll" else probs, labels)

    ours: dict[str, Callable[[], float]] = {name: one(name) for name in REPORT}
    ours["full report"] = lambda: calattn.evaluate(predictions, metrics=REPORT, num_bootstrap=0)["ece"].value
    ours["ECE temperature grid"] = lambda: posthoc.TemperatureScaling(objective="ece").fit(predictions).temperature_
    ours["NLL temperature"] = lambda: posthoc.TemperatureScaling().fit(predictions).temperature_

    rows: list[dict[str, object]] = []
    fastest_sum = 0.0
    table = peers(logits, labels, arguments.skip_slow)
    for name in (*REPORT, "full report", "ECE temperature grid", "NLL temperature"):
        with console.status(f"{name} …"):
            value, seconds = float(ours[name]()), best_of(ours[name], 7)
            extra = peak_extra(ours[name])
            if name == "full report":
                peer, peer_seconds, peer_value = "sum of the fastest", fastest_sum, float("nan")
            else:
                timed = {who: (call(), best_of(call, 5)) for who, call in table[name].items()}
                peer = min(timed, key=lambda who: timed[who][1])
                peer_value, peer_seconds = float(timed[peer][0]), timed[peer][1]
                if name in REPORT:
                    fastest_sum += peer_seconds
        rows.append(
            {
                "name": name,
                "ours_s": seconds,
                "peer": peer,
                "peer_s": peer_seconds,
                "ratio": peer_seconds / seconds,
                "extra_MB": extra,
                "value": value,
                "peer_value": peer_value,
                "required": REQUIRED.get(name),
            }
        )
        console.print(f"{name}: {seconds * 1e3:.0f} ms against {peer_seconds * 1e3:.0f} ms ({peer})")
    rows += [] if arguments.skip_slow else structured_rows(console)
    show(console, rows)
    intervals = best_of(lambda: calattn.evaluate(predictions), 1)
    console.print(f"every metric with 1,000 bootstrap resamples: {intervals:.1f} s")
    streamed = 10 * of_a_file(1_000_000)
    console.print(f"10 million rows × 100 classes from .npz, ten times what a million take: {streamed:.0f} s of CPU")
    found = environment()
    console.print(", ".join(f"{key} {value}" for key, value in found.items()))
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {
                    "command": "python -m benchmarks.metrics --json FILE",
                    "shape": [N, C],
                    "environment": found,
                    "rows": rows,
                    "evaluate_with_intervals_s": intervals,
                    "ten_million_rows_of_a_file_cpu_s": streamed,
                },
                indent=1,
                default=lambda value: None if value != value else float(np.float64(value)),
            ).replace("NaN", "null")
            + "\n"
        )


def show(console: Console, rows: list[dict[str, object]]) -> None:
    table = Table(title=f"{N:,} × {C:,} float32, {torch.get_num_threads()} threads")
    for column in ("", "calattn ms", "peer ms", "fastest peer", "ratio", "asked", "extra MB", "value", "peer's value"):
        table.add_column(column, justify="left" if column in ("", "fastest peer") else "right")
    for row in rows:
        asked = f"{row['required']}×" if row["required"] else ""
        met = not row["required"] or float(row["ratio"]) >= float(row["required"])  # type: ignore[arg-type]
        table.add_row(
            str(row["name"]),
            f"{float(row['ours_s']) * 1e3:.0f}",  # type: ignore[arg-type]
            f"{float(row['peer_s']) * 1e3:.0f}",  # type: ignore[arg-type]
            str(row["peer"]),
            f"{float(row['ratio']):.1f}×",  # type: ignore[arg-type]
            asked if met else f"{asked} missed",
            f"{float(row['extra_MB']):.0f}",  # type: ignore[arg-type]
            f"{float(row['value']):.5f}",  # type: ignore[arg-type]
            f"{float(row['peer_value']):.5f}",  # type: ignore[arg-type]
        )
    console.print(table)


if __name__ == "__main__":
    main()
