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
import dataclasses
import itertools
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
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


def classes_taken_for_each_other(n: int) -> Predictions:
    """Logits of 100 classes of which each five lie together, so that there is more to correct than one temperature."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 16, generator=g).repeat(5, 1) + 0.5 * torch.randn(100, 16, generator=g)
    labels = torch.randint(100, (n,), generator=g)
    features = centres[labels] + 0.8 * torch.randn(n, 16, generator=g)
    return Predictions(logits=3 * (features @ centres.T - centres.square().sum(dim=1) / 3), labels=labels)


def structured_rows() -> Iterator[Row]:
    """Structured scaling fitted on 2,500 samples, judged on 10,000 others; and a large fit, which takes probmetrics minutes."""
    from probmetrics.calibrators.logistic import SMSCalibrator, SVSCalibrator

    every = classes_taken_for_each_other(12_500)
    fit, judge = (
        Predictions(logits=every.logits[rows], labels=every.labels[rows]) for rows in (slice(2500), slice(2500, None))
    )
    for name, ours, peer in (
        ("structured vector scaling", posthoc.VectorScaling(1.0), SVSCalibrator()),
        ("structured matrix scaling", posthoc.MatrixScaling(1.0), SMSCalibrator()),
    ):
        seconds = best_of(lambda: ours.fit(fit), 5)  # noqa: B023
        theirs = best_of(lambda: peer.fit(fit.probs.double().numpy(), fit.labels.numpy()), 3)  # noqa: B023
        probs = peer.predict_proba(judge.probs.double().numpy())
        value = metrics.nll(ours(judge).calibrated_logits, judge.labels)
        peer_value = float(-np.log(probs[np.arange(len(judge)), judge.labels]).mean())
        extra = peak_extra(lambda: ours.fit(fit))  # noqa: B023
        yield Row(name, seconds, extra, float(value), "probmetrics", theirs, peer_value)
    logits, labels = data()
    large, vector = Predictions(logits=logits, labels=labels), posthoc.VectorScaling(1.0)
    spent, extra = best_of(lambda: vector.fit(large), 1), peak_extra(lambda: vector.fit(large))
    yield Row("structured vector scaling, 50,000 × 1,000", spent, extra, vector.objective_value_)


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


def of_a_file(rows: int, classes: int = 100) -> Row:
    """CPU time and memory of a process that evaluates so many rows, with intervals, from a streamed .npz."""
    g = np.random.default_rng(0)
    labels = g.integers(classes, size=rows)
    logits = g.standard_normal((rows, classes), dtype=np.float32)
    logits[np.arange(rows), labels] += 4 * g.random(rows, dtype=np.float32)
    return of_a_command(
        f"evaluate --all, {rows:,} × {classes}, CPU time", "evaluate", "--all", logits=logits, labels=labels
    )


def every_calibrator() -> Row:
    """The contest of all calibrators, cross-fitted, as from a terminal."""
    p = classes_taken_for_each_other(10_000)
    given = {"logits": p.logits.numpy(), "labels": p.labels.numpy()}
    return of_a_command("calibrate --method all, 10,000 × 100", "calibrate", "--method", "all", wall=True, **given)


# Started by a process that holds nothing: the peak of a process counts what its starter held.
_TELLS = """
import json, resource, subprocess, sys

done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def of_a_command(name: str, *words: str, wall: bool = False, **arrays: np.ndarray) -> Row:
    """What a command over a file of these arrays takes, its start included."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "given.npz", **arrays)
        command = [sys.executable, "-P", "-m", "calattn", *words, str(Path(folder) / "given.npz")]
        start = time.perf_counter()
        told = subprocess.run([sys.executable, "-P", "-c", _TELLS, *command], stdout=subprocess.PIPE, check=True).stdout
        seconds, (code, of_cpu, megabytes) = time.perf_counter() - start, json.loads(told)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}")
    return Row(name, seconds if wall else of_cpu, megabytes)


REPORT = ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece", "smooth_ece")
RATIO = {"full report": 40, "classwise_ece": 40, "ECE temperature grid": 12, "NLL temperature": 8}  # all others: 1
SECONDS = {
    "NLL temperature": 0.150,
    "ECE temperature grid": 0.700,
    "every metric, 1,000 resamples": 2.0,
    "evaluate --all, 10,000,000 × 100, CPU time": 40.0,
    "calibrate --method all, 10,000 × 100": 60.0,
    "structured vector scaling, 50,000 × 1,000": 60.0,
}


@dataclasses.dataclass
class Row:
    """One line of the table: what we take, and the fastest peer, where one does the same work."""

    name: str
    ours_s: float
    extra_MB: float  # of a command: all that it held
    value: float = math.nan
    peer: str = ""
    peer_s: float = math.nan
    peer_value: float = math.nan

    @property
    def ratio(self) -> float:
        return self.peer_s / self.ours_s

    @property
    def goals(self) -> list[tuple[str, bool]]:
        """Each goal in words, and whether it is met."""
        wanted, seconds = RATIO.get(self.name, 1), SECONDS.get(self.name)
        found = [(f"≥ {wanted}×", self.ratio >= wanted)] if self.peer else []
        return found + ([(f"≤ {seconds:g} s", self.ours_s <= seconds)] if seconds else [])

    def to_dict(self) -> dict[str, object]:
        found = dataclasses.asdict(self) | {
            "ratio": self.ratio,
            "goals": [{"goal": g, "met": m} for g, m in self.goals],
        }
        return {key: None if value != value else value for key, value in found.items()}


def of_metrics(skip_slow: bool) -> Iterator[Row]:
    logits, labels = data()
    predictions = Predictions(logits=logits, labels=labels)
    probs = logits.softmax(1)

    def one(metric: str) -> Callable[[], float]:
        return lambda: getattr(metrics, metric)(logits if metric == "nll" else probs, labels)

    ours: dict[str, Callable[[], float]] = {name: one(name) for name in REPORT}
    ours["full report"] = lambda: calattn.evaluate(predictions, metrics=REPORT, num_bootstrap=0)["ece"].value
    ours["ECE temperature grid"] = lambda: posthoc.TemperatureScaling(objective="ece").fit(predictions).temperature_
    ours["NLL temperature"] = lambda: posthoc.TemperatureScaling().fit(predictions).temperature_
    table, fastest_sum = peers(logits, labels, skip_slow), 0.0
    for name, call in ours.items():
        row = Row(name, best_of(call, 7), peak_extra(call), float(call()))
        if name == "full report":
            row.peer, row.peer_s = "sum of the fastest", fastest_sum
        else:
            timed = {who: best_of(theirs, 5) for who, theirs in table[name].items()}
            row.peer = min(timed, key=lambda who: timed[who])
            row.peer_s, row.peer_value = timed[row.peer], float(table[name][row.peer]())
            fastest_sum += row.peer_s if name in REPORT else 0
        yield row
    every = lambda: calattn.evaluate(predictions)["ece"].value  # noqa: E731
    yield Row("every metric, 1,000 resamples", best_of(every, 3), peak_extra(every), every())


def measured(skip_slow: bool) -> Iterator[Row]:
    yield from of_metrics(skip_slow)
    if not skip_slow:
        yield from structured_rows()
        yield every_calibrator()
        yield of_a_file(10_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-slow", action="store_true", help="leave out slow peers and what takes minutes")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    console = Console(width=150)
    rows = []
    for row in measured(arguments.skip_slow):
        rows.append(row)
        console.print(
            f"{row.name}: {row.ours_s * 1e3:,.0f} ms" + (f", {row.peer} {row.peer_s * 1e3:,.0f}" if row.peer else "")
        )
    show(console, rows)
    found = environment()
    console.print(", ".join(f"{key} {value}" for key, value in found.items()))
    if arguments.json:
        command = "python -m benchmarks.metrics --json FILE"
        document = {"command": command, "shape": [N, C], "environment": found, "rows": [row.to_dict() for row in rows]}
        arguments.json.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def show(console: Console, rows: list[Row]) -> None:
    table = Table(title=f"{N:,} × {C:,} float32 where no shape is named, {torch.get_num_threads()} threads")
    for column in ("", "calattn ms", "peer ms", "fastest peer", "ratio", "goal", "MB", "value", "peer's value"):
        table.add_column(column, justify="left" if column in ("", "fastest peer") else "right")

    def number(value: float, form: str) -> str:
        return "" if math.isnan(value) else format(value, form)

    for row in rows:
        table.add_row(
            row.name,
            f"{row.ours_s * 1e3:,.0f}",
            number(row.peer_s * 1e3, ",.0f"),
            row.peer,
            number(row.ratio, ".1f") + "×" * bool(row.peer),
            ", ".join(goal if met else f"{goal} missed" for goal, met in row.goals),
            f"{row.extra_MB:.0f}",
            number(row.value, ".5f"),
            number(row.peer_value, ".5f"),
        )
    console.print(table)


if __name__ == "__main__":
    main()
