"""Resampling: weights, rank cells, replicates that are exact, intervals that agree, memory that does not grow."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from calattn import Predictions, compare, evaluate
from calattn.metrics import METRICS, MetricState, parts
from calattn.metrics.ranks import RankSums
from calattn.metrics.resampling import resampler
from calattn.metrics.resampling.classwise import ClassCounts, WideSum
from calattn.metrics.resampling.resampler import CELLS, RankCells, Resampler, Resampling, samples_of
from calattn.metrics.resampling.weights import COUNTS, GROUP, Weights, multinomial, poisson
from calattn.metrics.sources import columns_in
from calattn.metrics.state import Options

CLASSES = 6


def predictions(n: int, seed: int = 0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(n, CLASSES, generator=g) * 2, torch.randint(CLASSES, (n,), generator=g)
    logits[torch.arange(n), labels] += 3 * torch.rand(n, generator=g)
    return Predictions(logits=logits, labels=labels)


def cut(p: Predictions, rows: int) -> list[Predictions]:
    return [p.select(part) for part in torch.arange(len(p)).split(rows)]


@pytest.fixture
def small_memory(monkeypatch) -> None:
    """As if 1,000 samples were all that memory holds."""
    monkeypatch.setattr(parts, "IN_MEMORY", 1000)


# --- weights ----------------------------------------------------------------------------------------------------------------


def test_the_table_is_poisson_with_exact_mean_and_variance():
    counts, weight = np.array(COUNTS), np.arange(len(COUNTS))
    assert counts.sum() == (counts * weight).sum() == 2**16
    assert (counts * weight**2).sum() == 2 * 2**16
    assert np.abs(counts / 2**16 - scipy.stats.poisson.pmf(weight, 1)).max() < 1e-4


def test_weights_follow_the_table_and_are_uncorrelated():
    weights = poisson(torch.arange(20_000), 3, 0, 60).numpy()
    seen = np.bincount(weights.astype(int).ravel(), minlength=9)
    assert scipy.stats.chisquare(seen[:6], np.array(COUNTS)[:6] / sum(COUNTS[:6]) * seen[:6].sum()).pvalue > 1e-4
    assert np.abs(np.corrcoef(weights.T) - np.eye(60)).max() < 5 / math.sqrt(len(weights))
    samples = poisson(torch.arange(0, 100_000, 1000), 3, 0, 2000).numpy()
    assert np.abs(np.corrcoef(samples) - np.eye(100)).max() < 5 / math.sqrt(2000)
    seeds = np.stack([poisson(torch.arange(2000), seed, 0, 4).numpy().ravel() for seed in (0, 1, 2, 3, 2**62 - 1)])
    assert np.abs(np.corrcoef(seeds) - np.eye(5)).max() < 5 / math.sqrt(8000)


def test_a_weight_depends_on_seed_sample_and_resample_alone():
    whole = Weights(20_000, 7, 0, 21)
    far = whole.rows(12_345, 50)
    assert torch.equal(whole.rows(12_340, 100)[5:55], far)
    assert torch.equal(Weights(30_000, 7, GROUP, 21).rows(12_345, 50), far[:, GROUP:])
    assert not torch.equal(Weights(20_000, 8, 0, 21).rows(12_345, 50), far)
    clusters = torch.arange(20_000) // 2
    together = Weights(20_000, 7, 0, 21, clusters).rows(0, 20_000)
    assert torch.equal(together[::2], together[1::2])
    assert torch.equal(together[::2], whole.rows(0, 10_000))


def test_few_samples_have_multinomial_weights_however_many_are_drawn_at_a_time():
    weights = Weights(50, 0, 0, 400).rows(0, 50)
    assert torch.equal(weights.sum(0), torch.full((400,), 50.0))
    assert float(weights.var()) == pytest.approx(1 - 1 / 50, abs=0.05)
    assert torch.equal(Weights(50, 0, 64, 128).rows(10, 5), weights[10:15, 64:128])


# --- cells ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [0, 1 << 20])
def test_cells_hold_equally_many_in_order_of_rank(capacity):
    p = predictions(30_000)
    columns = columns_in(p)
    cells = RankCells.of(RankSums(capacity).add(columns), most=64)
    place, confidence = cells.index(columns.odds).numpy(), columns.confidence.numpy()
    assert len(cells) == 64
    counts = np.bincount(place)
    assert counts.min() > 0.8 * 30_000 / 64
    assert counts.max() < 1.2 * 30_000 / 64
    order = np.argsort(-confidence, kind="stable")
    assert (np.diff(place[order]) >= 0).mean() > 0.999  # but for confidences that are one float32 apart
    means = [confidence[place == cell].mean() for cell in range(64)]
    assert cells.confidence.numpy() == pytest.approx(means, abs=1e-6)


def test_tied_samples_are_one_cell():
    p = Predictions(logits=torch.tensor([[3.0, 0.0]]).repeat(5000, 1), labels=torch.zeros(5000, dtype=torch.int64))
    cells = RankCells.of(RankSums().add(columns_in(p)))
    assert len(cells) == 1 < CELLS
    assert float(cells.confidence[0]) == pytest.approx(1 / (1 + math.exp(-3)))


# --- replicates -------------------------------------------------------------------------------------------------------------


def drawn(p: Predictions, weights: torch.Tensor, *, columns_only: bool = False, **options: object) -> dict:
    """Replicates of every metric for given weights [n, resamples]."""
    state = MetricState(tuple(METRICS), **options).update_logits(p.logits, p.labels)
    plan = Resampling(
        n=len(p),
        options=state.options,
        metrics=frozenset(METRICS),
        bandwidth=state.options.bandwidth,
        cells=RankCells.of(state.ranks),
        num_classes=None if columns_only else p.num_classes,
    )
    found = Resampler(plan, weights.shape[1])
    kept = [columns_in(p)]
    for start, columns, block in samples_of(kept if columns_only else cut(p, 1234), 4096):
        found.add(columns, block, weights[start : start + len(columns)])
    return found.values()


@pytest.mark.parametrize("n", [300, 4400])
@pytest.mark.parametrize("options", [{}, {"num_bins": 7, "bandwidth": 0.1, "threshold": 0.6}])
def test_replicates_are_the_metric_of_the_repeated_rows(n, options):
    """The weights w must give what repeating row i w_i times gives; only rank cells may be a little off."""
    p = predictions(n)
    if n == 300:
        p = p.replace(logits=(p.logits / 0.5).round() * 0.5)  # with ties
    weights = poisson(torch.arange(n), 1, 0, 3)
    fast = drawn(p, weights, **options)
    assert set(fast) == set(METRICS)
    assert set(drawn(p, weights, columns_only=True)) == set(METRICS) - {"classwise_ece"}
    for k in range(3):
        rows = torch.arange(n).repeat_interleave(weights[:, k].long())
        slow = evaluate(p.select(rows), num_bootstrap=0, **options)
        for name, draws in fast.items():
            near = (
                1e-3
                if name in ("kernel_ece", "aurc")
                else 3e-4
                if METRICS[name].parts[0] in ("ranks", "grid")
                else 1e-6
            )
            near = 3e-6 if n == 300 and name not in ("kernel_ece", "aurc") else near
            assert float(draws[k]) == pytest.approx(slow[name].value, abs=near), name


def test_class_sums_are_those_of_the_repeated_rows():
    p, weights = predictions(700), multinomial(700, 3, 3)
    tables = ClassCounts(CLASSES, 15, 3)
    for start, columns, block in samples_of(p, 500):
        tables.add(block, weights[start : start + len(columns)])
    for weight, found in zip(weights.t(), tables.bins(), strict=True):
        rows = torch.arange(700).repeat_interleave(weight.long())
        slow = MetricState("classwise_ece").update_logits(p.logits[rows], p.labels[rows]).class_bins()
        for part in ("count", "confidence", "correct"):
            assert torch.allclose(getattr(found, part), getattr(slow, part), rtol=1e-5), part


def test_a_resample_has_an_infinite_nll_exactly_where_it_holds_such_a_row():
    logits = torch.tensor([[0.0, -torch.inf], [0.0, 1.0], [2.0, 0.0]])
    weights = torch.tensor([[1.0, 0.0, 2.0], [1.0, 2.0, 1.0], [1.0, 1.0, 0.0]])
    draws = drawn(Predictions(logits=logits, labels=torch.tensor([1, 1, 0])), weights)["nll"]
    assert draws.isinf().tolist() == [True, False, True]
    losses = torch.nn.functional.cross_entropy(logits[1:], torch.tensor([1, 0]), reduction="none")
    assert float(draws[1]) == pytest.approx(float(2 * losses[0] + losses[1]) / 3, rel=1e-6)


def test_poisson_intervals_agree_with_multinomial_ones(monkeypatch):
    """Widths of 1,500 resamples are good to 3 % each; a wrong variance of the weights shows as √2."""
    p = predictions(2500)
    sharper = p.replace(scale=torch.full((len(p),), 0.9))
    # not AUROC and AURC, which hardly differ between the two, and by what is within the cells
    names = ("accuracy", "nll", "brier", "ece", "classwise_ece", "smooth_ece", "adaptive_ece")
    held, pair = evaluate(p, num_bootstrap=1500), compare(p, sharper, metrics=names, num_bootstrap=1000)
    monkeypatch.setattr("calattn.metrics.resampling.weights.MOST_MULTINOMIAL", 0)
    large = evaluate(cut(p, 600), num_bootstrap=1500)
    for name in set(METRICS) - {"mce"}:
        row = held[name]
        assert large[name].value == pytest.approx(row.value, rel=1e-9), name
        assert large[name].low <= large[name].value <= large[name].high, name
        assert large[name].high - large[name].low == pytest.approx(row.high - row.low, rel=0.12), name
        assert large[name].low == pytest.approx(row.low, abs=0.12 * (row.high - row.low)), name
    accuracy = large["accuracy"].value
    normal = 2 * scipy.stats.norm.ppf(0.975) * math.sqrt(accuracy * (1 - accuracy) / 2500)
    assert large["accuracy"].high - large["accuracy"].low == pytest.approx(normal, rel=0.08)
    found = compare(cut(p, 600), cut(sharper, 999), metrics=names, num_bootstrap=1000)
    for name, a in pair.items():
        width = found[name].high - found[name].low
        assert found[name].difference == pytest.approx(a.difference, abs=1e-9), name
        assert width == pytest.approx(a.high - a.low, rel=0.15), name
        assert width <= 0.6 * (held[name].high - held[name].low), name


@pytest.mark.usefixtures("small_memory")
def test_one_set_and_its_blocks_have_the_same_intervals():
    p = predictions(9000)
    whole, blocks = evaluate(p, num_bootstrap=30), evaluate(cut(p, 777), num_bootstrap=30)
    for name, row in whole.as_dict().items():
        assert blocks.as_dict()[name] == pytest.approx(row, abs=1e-6), name
    other = evaluate(p, num_bootstrap=30, generator=torch.Generator().manual_seed(5))
    assert other["ece"].low != whole["ece"].low


@pytest.mark.usefixtures("small_memory")
def test_what_can_be_read_once_has_all_intervals_but_one():
    p = predictions(9000)
    again, once = evaluate(cut(p, 777), num_bootstrap=30), evaluate(iter(cut(p, 777)), num_bootstrap=30)
    assert once["classwise_ece"].low is None
    for name in set(METRICS) - {"classwise_ece"}:
        assert once.as_dict()[name] == pytest.approx(again.as_dict()[name], abs=1e-6), name


@pytest.mark.usefixtures("small_memory")
def test_columns_are_kept_only_where_they_must_be():
    p = cut(predictions(3000), 500)

    def kept(source) -> int:
        return sum(len(part) for part in parts.Part.of(source, ("ece",), Options()).columns)

    assert kept(p) == 0
    assert kept(iter(p)) == 3000


def test_float32_sums_are_carried_over_before_they_round():
    sums, exact = WideSum(1, 2, every=4), np.zeros(2)
    for step in (2.0**24, 1.0, 1.0, 1.0, 0.5):
        sums.table += step
        sums.seen(4 if step > 1 else 1)
        exact += step
        assert sums.total()[0].tolist() == exact.tolist()


def test_many_resamples_take_several_passes_to_the_same_values(monkeypatch):
    p, passes = predictions(5000), []

    class Source:
        def __iter__(self):
            passes.append(1)
            return iter([p])

    def found() -> dict:
        return parts.measured([Source()], tuple(METRICS), Options(), parts.Bootstrap(count=20, seed=0)).replicates

    one = found()
    monkeypatch.setattr(resampler, "_CLASS_SUMS", 1)
    monkeypatch.setattr(resampler, "_READ", 3)
    several = found()
    assert len(passes) == 2 + 6
    for name, draws in one.items():
        torch.testing.assert_close(several[name], draws, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("small_memory")
def test_infinite_nll_stays_infinite():
    logits = torch.tensor([[0.0, -math.inf]]).repeat(2000, 1)
    p = Predictions(logits=logits, labels=(torch.arange(2000) < 1000).long())
    row = evaluate(p, num_bootstrap=10)["nll"]
    assert row.value == row.low == row.high == math.inf


@pytest.mark.usefixtures("small_memory")
def test_a_source_that_changes_between_passes_is_refused():
    class Shrinking:
        def __init__(self) -> None:
            self.rows = 3000

        def __iter__(self):
            self.rows -= 500
            return iter(cut(predictions(self.rows), 500))

    with pytest.raises(ValueError, match="gave 2500 samples on the first pass and 2000 on a later one"):
        evaluate(Shrinking(), num_bootstrap=10)


# --- pairs ------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_memory")
def test_streams_stay_paired_however_they_are_cut():
    p = predictions(6000)
    for name, difference in compare(cut(p, 700), cut(p, 1111), num_bootstrap=20).items():
        assert difference.difference == pytest.approx(0, abs=1e-9), name
        if METRICS[name].interval:
            assert (difference.low, difference.high) == pytest.approx((0, 0), abs=1e-6), name


# --- memory -----------------------------------------------------------------------------------------------------------------

_PROGRAM = """
import json, resource, sys
from calattn.cli import subjects
from calattn.cli.app import run

subjects.STREAM_BYTES = 0
peaks = []
for path in sys.argv[1:]:
    assert run(["evaluate", path, "--write", path + ".json"]) == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(peaks))
"""


def write_npz(path: Path, rows: int, classes: int) -> Path:
    """Logits and labels, a block at a time."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=rows)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("logits.npy", "w", force_zip64=True) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, classes)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, rows, 50_000):
                here = labels[start : start + 50_000]
                logits = rng.standard_normal((len(here), classes), dtype=np.float32)
                logits[np.arange(len(here)), here] += 2
                file.write(logits.tobytes())
        with archive.open("labels.npy", "w") as file:
            np.lib.format.write_array(file, labels)
    return path


def peaks(*paths: Path, limit: float) -> list[float]:
    """MiB resident at most, after each of the files, of a fresh process that runs the command line."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, paths)], capture_output=True, text=True, timeout=limit
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux alone")
def test_memory_of_the_command_does_not_grow_with_the_file(tmp_path):
    """32 MB of logits, 200 resamples: held at once, features and weights alone would be 200 MB and more."""
    small, large = write_npz(tmp_path / "small.npz", 200, 20), write_npz(tmp_path / "large.npz", 400_000, 20)
    before, after = peaks(small, large, limit=200)
    assert after - before < 100
    found = json.loads((tmp_path / "large.npz.json").read_text())
    assert found["resamples"] == 200
    row = found["results"][0]["metrics"]["classwise_ece"]
    assert row["low"] < row["value"] < row["high"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux alone")
def test_ten_million_rows_in_a_gibibyte(tmp_path):
    """4 GB on disk; everything that is resident counts, torch and its libraries included."""
    large = write_npz(tmp_path / "large.npz", 10_000_000, 100)
    assert peaks(large, limit=1700)[0] < 1024
