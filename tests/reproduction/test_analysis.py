"""The analysis of a run against the library's own functions on its files, scikit-learn and plain bootstraps."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import calattn
from calattn import data
from calattn.data.corruptions import CORRUPTIONS
from calattn.engine.log import RunLog
from calattn.posthoc import SATS, TemperatureScaling
from calattn.runs import build
from calattn.runs.folder import RunFolder
from calattn.runs.interface import interface_of
from calattn.runs.predict import Predictor
from reproduction import ood
from reproduction.analysis import PAIRED, analyse
from reproduction.cells import SCALES, GridCell
from reproduction.ood import OodScores, Separation, ood_sets, score_run, uncertainty
from reproduction.results import CellResult, ResultStore, document_text
from reproduction.runner import Work, run_folder
from tests.reproduction.conftest import HEAD, PLAIN
from tests.small_runs import CPU

DIGITS = data.load("digits", "test")
RESAMPLES = SCALES["smoke"].resamples


@dataclasses.dataclass(frozen=True)
class Pair:
    store: ResultStore
    runs: Path

    def result(self, cell: GridCell) -> CellResult:
        found = self.store.get(cell)
        assert isinstance(found, CellResult), found
        return found

    def folder(self, cell: GridCell) -> RunFolder:
        return RunFolder.open(run_folder(cell, "smoke", self.runs))


def assert_same_row(mine: calattn.MetricRow, row: calattn.MetricRow) -> None:
    for name in ("value", "low", "high"):
        a, b = getattr(mine, name), getattr(row, name)
        assert a is b is None or a == pytest.approx(b, rel=1e-7), (row.name, name)


@pytest.fixture(scope="module")
def pair(undisturbed: Work) -> Pair:
    return Pair(undisturbed.store, undisturbed.runs)


@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
@pytest.mark.parametrize("rule", ["last", "best-ece"])
def test_metrics_are_those_of_evaluate(pair, rule):
    folder, result = pair.folder(HEAD), pair.result(HEAD)
    validation, test = (folder.predictions(split, rule) for split in ("validation", "test"))
    calibrators = {
        "pre": lambda found: found,
        "post": TemperatureScaling(objective="ece").fit(validation),
        "post_nll": TemperatureScaling(objective="nll").fit(validation),
        "sats": SATS().fit(validation),
    }
    for phase, calibrator in calibrators.items():
        expected = calattn.evaluate(calibrator(test), num_bootstrap=RESAMPLES)
        assert set(result.rules[rule]["phases"][phase]) == set(calattn.metrics.METRICS)
        for name, row in expected.rows.items():
            found = result.metric(name, rule=rule, phase=phase)
            if math.isnan(row.value):
                assert found is None
                continue
            assert_same_row(found, row)
    assert result.temperature(rule=rule) == calibrators["post"].temperature_
    assert result.temperature(rule=rule, objective="nll") == pytest.approx(calibrators["post_nll"].temperature_)


@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
@pytest.mark.parametrize(("phase", "objective"), [("post", "ece"), ("post_nll", "nll")])
def test_the_summary_saves_the_work_where_it_has_resampled_as_often(pair, monkeypatch, phase, objective):
    """At the scale of real runs the summary's numbers are taken over: they are those of evaluate too."""
    monkeypatch.setitem(SCALES, "smoke", SCALES["smoke"]._replace(resamples=1000))
    folder = pair.folder(HEAD)
    result = analyse(folder, HEAD, "smoke")
    validation, test = (folder.predictions(split, "best-ece") for split in ("validation", "test"))
    scaled = TemperatureScaling(objective=objective).fit(validation)(test)
    for used, found in ((test, "pre"), (scaled, phase)):
        expected = calattn.evaluate(used, num_bootstrap=1000)
        for name, row in expected.rows.items():
            mine = result.metric(name, rule="best-ece", phase=found)
            if not math.isnan(row.value):
                assert_same_row(mine, row)


@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
@pytest.mark.parametrize("phase", ["pre", "post"])
def test_pairs_are_those_of_compare(pair, phase):
    sides = []
    for cell in (PLAIN, HEAD):
        validation, test = (pair.folder(cell).predictions(split) for split in ("validation", "test"))
        sides.append(test if phase == "pre" else TemperatureScaling("ece").fit(validation)(test))
    expected = calattn.compare(*sides, metrics=PAIRED, num_bootstrap=RESAMPLES)
    result = pair.result(HEAD)
    compared = 0
    for name, row in expected.items():
        found = result.paired(name, phase=phase)
        if math.isfinite(row.difference):
            assert tuple(found) == pytest.approx((row.difference, row.low, row.high, row.p_value))
            compared += 1
    assert compared >= 7
    assert pair.result(PLAIN).pair == {}
    assert result.run["twin"] == PLAIN.name
    assert pair.result(PLAIN).run["twin"] is None


def _max_probs(folder: RunFolder, images: np.ndarray) -> np.ndarray:
    """Through the network by hand: normalised in numpy, softmax in float64."""
    spec = folder.spec()
    found = build.load_data(spec)
    fabric, interface = CPU.fabric("32-true"), interface_of(spec, found)
    model = Predictor(folder=folder, spec=spec, interface=interface, fabric=fabric, runtime=CPU).network("last")
    mean, std = found.dataset.mean[0], found.dataset.std[0]
    with torch.no_grad():
        out = model(torch.from_numpy(((images / 255 - mean) / std).astype(np.float32)))
    logits = (out.logits / out.scale[:, None]).double().numpy()
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (exp / exp.sum(axis=1, keepdims=True)).max(axis=1)


def test_ood_auroc_is_scikit_learns(pair):
    folder, result = pair.folder(HEAD), pair.result(HEAD)
    test = build.load_data(folder.spec()).test
    inside = _max_probs(folder, test.array.numpy())
    outside = _max_probs(folder, 255 - test.array.numpy())
    truth = np.repeat([0, 1], [len(inside), len(outside)])
    expected = roc_auc_score(truth, 1 - np.concatenate([inside, outside]))
    assert result.ood("svhn").value == pytest.approx(expected, abs=2e-4)
    corrupted = [name for name in result.rules["last"]["ood"] if name in CORRUPTIONS]
    assert len(corrupted) == 3
    assert result.ood("cifar10_c").value == pytest.approx(np.mean([result.ood(name).value for name in corrupted]))
    assert result.ood("svhn", rule="best-ece") is not None
    assert result.run["ood"]["missing"] == {}
    assert "inverted" in result.run["ood"]["sets"]["svhn"]["title"]


def test_bins_make_the_ece(pair):
    for phase in ("pre", "post"):
        bins = pair.result(HEAD).rules["last"]["bins"][phase]
        total = sum(bins["counts"])
        gaps = zip(bins["counts"], bins["confidence"], bins["accuracy"], strict=True)
        ece = sum(count * abs(mean - share) for count, mean, share in gaps if count) / total
        assert len(bins["counts"]) == 15
        assert ece == pytest.approx(pair.result(HEAD).metric("ece", phase=phase).value, abs=1e-6)


def test_scatter_shows_the_same_images_of_both_networks(pair):
    test = pair.folder(HEAD).predictions("test")
    head, plain = (pair.result(cell).rules["last"]["scatter"] for cell in (HEAD, PLAIN))
    assert {len(values) for values in head.values()} == {min(400, len(test))}
    assert plain["max_prob"] == plain["scaled_max_prob"]
    assert set(plain["scale"]) == {1.0}
    before = test.logits.softmax(dim=1).amax(dim=1)
    assert head["max_prob"] == pytest.approx(before.tolist(), rel=1e-3)  # 300 images: all of them, in order
    assert head["feature_norm"] == pytest.approx(test.features.norm(dim=1).tolist(), rel=1e-3)
    correct = (test.calibrated_logits.argmax(dim=1) == test.labels).int().tolist()
    assert head["correct"] == correct
    assert pair.result(HEAD).rules["last"]["scale"]["mean"] == pytest.approx(float(test.scale.mean()), rel=1e-6)


@pytest.mark.parametrize(("epochs", "rows"), [(60, 60), (350, 100)])
def test_a_long_log_is_thinned_and_the_document_stays_small(pair, tmp_path, epochs, rows):
    import shutil

    source = pair.folder(HEAD)
    shutil.copytree(source.path, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    row = RunLog(folder.log_path).rows()[-1]
    folder.log_path.unlink()
    lines = [json.dumps(row | {"epoch": epoch}) for epoch in range(1, epochs + 1)]
    folder.log_path.write_text("\n".join(lines) + "\n")
    result = analyse(folder, HEAD, "smoke", twin=pair.folder(PLAIN), ood=OodScores.load(source))
    kept = [each["epoch"] for each in result.log]
    assert rows <= len(kept) <= rows + 1
    assert (kept[0], kept[-1]) == (1, epochs)
    full = [each["epoch"] for each in result.log if "histogram" in each["validation"]["scale"]]
    assert full == [1, (epochs + 1) // 2, epochs]
    # The whole of CIFAR-10 adds sets, and 400 points where the digits have 300.
    assert len(document_text(dataclasses.asdict(result))) < 100_000


def test_scores_are_kept_for_the_twin_and_not_made_again(pair, monkeypatch):
    folder = pair.folder(HEAD)
    kept = OodScores.load(folder)
    monkeypatch.setattr(ood, "Predictor", None)  # would fail
    again = score_run(folder, HEAD, "smoke", rules=("last", "best-ece"), runtime=CPU)
    assert torch.equal(again.scores["last"]["svhn"], kept.scores["last"]["svhn"])
    assert torch.allclose(kept.scores["last"]["test"], uncertainty(folder.predictions("test")).float())


def test_missing_sets_are_told_not_raised(tmp_path):
    ood._svhn.cache_clear()
    ood._cifar10_c.cache_clear()
    sets, missing = ood_sets(PLAIN, "reduced", DIGITS, root=tmp_path)
    assert sets == []
    assert "calattn data get svhn" in missing["svhn"]
    assert "calattn data get cifar10" in missing["cifar10_c"]
    assert ood_sets(dataclasses.replace(PLAIN, dataset="mnist"), "reduced", DIGITS, root=tmp_path) == ([], {})


def test_corrupted_images_are_shared_through_files(tmp_path):
    """Official files of four images a severity: the fifth fifth is read, and comes out of the cache as it went in."""
    ood._cifar10_c.cache_clear()
    place, cache = tmp_path / "cifar10_c" / "CIFAR-10-C", tmp_path / "cache"
    place.mkdir(parents=True)
    cache.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    for name in CORRUPTIONS:
        np.save(place / f"{name}.npy", pixels)
    np.save(place / "labels.npy", np.zeros(20, dtype=np.int64))
    direct, missing = ood_sets(PLAIN, "reduced", DIGITS, root=tmp_path)
    assert list(missing) == ["svhn"]
    assert [each.name for each in direct] == list(CORRUPTIONS)
    assert all(each.of_test for each in direct)
    assert np.array_equal(direct[3].images.array.numpy(), pixels[16:].transpose(0, 3, 1, 2))
    ood.prepare([PLAIN], "reduced", root=tmp_path, cache=cache)
    for name in CORRUPTIONS:
        (place / f"{name}.npy").unlink()
    ood._cifar10_c.cache_clear()
    shared, _ = ood_sets(dataclasses.replace(PLAIN, dataset="cifar100"), "reduced", DIGITS, root=tmp_path, cache=cache)
    assert not any(each.of_test for each in shared)
    for one, other in zip(direct, shared, strict=True):
        assert (one.name, one.title) == (other.name, other.title)
        assert torch.equal(one.images.array, other.images.array)


# --- separation

small_scores = st.lists(st.integers(0, 6).map(float), min_size=2, max_size=30)


@given(known=small_scores, foreign=small_scores)
def test_separation_is_scikit_learns_auroc_with_ties(known, foreign):
    found = Separation.between(torch.tensor(known), [torch.tensor(foreign)])
    truth = [0] * len(known) + [1] * len(foreign)
    assert found.auroc == pytest.approx(roc_auc_score(truth, known + foreign))
    assert float(found.foreign.mean()) == pytest.approx(found.auroc)


@pytest.mark.parametrize("same_images", [False, True])
def test_errors_are_those_of_a_bootstrap(same_images):
    """Two networks that share much of their uncertainty; where images are shared they are drawn together."""
    rng = np.random.default_rng(1)
    n = 400
    base = rng.normal(size=n)
    other = base if same_images else rng.normal(size=n)
    known = [base + 0.5 * rng.normal(size=n) for _ in range(2)]
    foreign = [other + shift + 0.5 * rng.normal(size=n) for shift in (0.8, 1.0)]

    def separation(place: int, rows: np.ndarray, columns: np.ndarray) -> Separation:
        k, f = torch.from_numpy(known[place][rows]), torch.from_numpy(foreign[place][columns])
        return Separation.between(k, [f], same_images=same_images)

    everything = np.arange(n)
    a, b = (separation(place, everything, everything) for place in (0, 1))
    single, paired = [], []
    for _ in range(2000):
        rows = rng.integers(0, n, n)
        columns = rows if same_images else rng.integers(0, n, n)
        one, two = (separation(place, rows, columns).auroc for place in (0, 1))
        single.append(one)
        paired.append(two - one)
    low, high = a.interval
    assert high - low == pytest.approx(2 * 1.96 * np.std(single), rel=0.08)
    found = b.minus(a)
    assert found["difference"] == pytest.approx(b.auroc - a.auroc)
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * np.std(paired), rel=0.08)
    assert (found["p_value"] < 0.05) == (found["low"] > 0 or found["high"] < 0)
