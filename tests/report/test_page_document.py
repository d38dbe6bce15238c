"""The page's numbers against numpy, scipy and scikit-learn, and its text against an HTML parser."""

from __future__ import annotations

import base64
import html.parser
import json
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
import torch

import calattn
from calattn.metrics import METRICS
from calattn.metrics.columns import Columns, LabelledValues, columns_of
from calattn.metrics.state import Options
from calattn.report.page import Exhibit, build_document, page_html, panels, write_html
from calattn.report.page import document as documents
from calattn.report.page.document import definitions
from calattn.report.page.temperatures import FINE, slider_grid
from calattn.report.verdict import Gaps, verdict_of
from calattn.report.verdict import verdict as verdict_on


def made(n: int = 1500, c: int = 7, *, seed: int = 0, boost: float = 2.5, **fields: object) -> calattn.Predictions:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(c, (n,), generator=generator)
    logits = 2 * torch.randn(n, c, generator=generator)
    logits[torch.arange(n), labels] += boost
    return calattn.Predictions(logits=logits, labels=labels, **fields)


def document_of(*predictions: calattn.Predictions, **more: object) -> dict:
    exhibits = [
        Exhibit(title=f"p{i}", predictions=p, evaluation=calattn.evaluate(p, num_bootstrap=20), **more)
        for i, p in enumerate(predictions)
    ]
    return build_document(exhibits)


def unpacked(text: str, kind: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}").reshape(shape).astype(np.float64)


def equal_count(slider: dict, m: int) -> tuple[list[int], np.ndarray]:
    """Of m bins of equal count: how many are in each, and at each temperature their confidence and accuracy."""
    (bins,) = (each for each in slider["equal_count"] if len(each["counts"]) == m)
    return bins["counts"], unpacked(bins["values"], "f4", len(slider["grid"]), m, 2)


def softmax(predictions: calattn.Predictions, temperature: float) -> np.ndarray:
    return scipy.special.softmax(predictions.calibrated_logits.double().numpy() / temperature, axis=1)


@pytest.fixture(scope="module")
def shown() -> tuple[calattn.Predictions, dict]:
    p = made(scale=torch.rand(1500, generator=torch.Generator().manual_seed(1)) + 0.5)
    return p, document_of(p)["subjects"][0]


@pytest.mark.parametrize("place", [0, 30, 60, 61, 100, -1])
def test_bins_and_nll_of_a_temperature_are_numpys(shown, place):
    p, subject = shown
    slider = subject["temperature"]
    grid, size = slider["grid"], (len(slider["grid"]), FINE)
    probs = softmax(p, grid[place])
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == p.labels.numpy()
    counts = unpacked(slider["fine"]["count"], "u4", *size)[place]
    sums = unpacked(slider["fine"]["confidence"], "f4", *size)[place]
    hits = unpacked(slider["fine"]["correct"], "u4", *size)[place]
    assert counts.sum() == len(p)
    assert hits.sum() == right.sum()
    expected = np.histogram(confidence, np.linspace(0, 1, 16))[0]
    # A confidence within a rounding of an edge may fall on either side of it.
    assert np.abs(counts.reshape(15, -1).sum(axis=1) - expected).sum() <= 2
    ece = np.abs((sums - hits).reshape(15, -1).sum(axis=1)).sum() / len(p)
    bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    gaps = np.bincount(bins, confidence - right, minlength=15)
    assert ece == pytest.approx(np.abs(gaps).sum() / len(p), abs=2e-3 if place == -1 else 1e-5)
    assert slider["nll"][place] == pytest.approx(-np.log(probs[np.arange(len(p)), p.labels]).mean(), rel=1e-5)
    brier = ((probs - np.eye(7)[p.labels.numpy()]) ** 2).sum(axis=1).mean()
    assert slider["brier"][place] == pytest.approx(brier, rel=1e-5)


def test_at_one_the_page_says_what_the_metrics_say(shown):
    p, subject = shown
    slider, evaluation = subject["temperature"], calattn.evaluate(p, num_bootstrap=0)
    start, size = slider["start"], (len(slider["grid"]), FINE)
    assert slider["grid"][start] == 1.0
    gap = unpacked(slider["fine"]["confidence"], "f4", *size) - unpacked(slider["fine"]["correct"], "u4", *size)
    ece = np.abs(gap[start].reshape(15, -1).sum(axis=1)).sum() / len(p)
    assert ece == pytest.approx(evaluation["ece"].value, abs=1e-6)
    assert slider["nll"][start] == pytest.approx(evaluation["nll"].value, rel=1e-9)
    counts, means = equal_count(slider, 15)
    adaptive = (counts * np.abs(means[start, :, 0] - means[start, :, 1])).sum() / len(p)
    assert adaptive == pytest.approx(evaluation["adaptive_ece"].value, abs=1e-6)


@pytest.mark.parametrize(("place", "m"), [(20, 5), (60, 10), (90, 30)])
def test_equal_count_bins_are_numpys(shown, place, m):
    p, subject = shown
    slider = subject["temperature"]
    probs = softmax(p, slider["grid"][place])
    order = probs.max(axis=1).argsort()
    right = (probs.argmax(axis=1) == p.labels.numpy())[order]
    counts, means = equal_count(slider, m)
    for count, found, part in zip(counts, means[place], np.array_split(np.arange(len(p)), m), strict=True):
        assert count == len(part)  # 1,500 is a multiple of all
        assert found[0] == pytest.approx(probs.max(axis=1)[order][part].mean(), abs=1e-5)
        assert found[1] == pytest.approx(right[part].mean(), abs=1e-5)


def test_tied_confidences_are_shared_by_both_sides_of_a_boundary():
    probs = torch.tensor([[0.9, 0.1]] * 10)
    labels = torch.tensor([0] * 8 + [1] * 2)
    slider = document_of(calattn.Predictions.from_probs(probs, labels))["subjects"][0]["temperature"]
    assert equal_count(slider, 5)[1][slider["start"], :, 1] == pytest.approx([0.8] * 5)


def test_best_temperatures_are_on_the_grid_and_on_validation_where_there_is_one():
    p, other = made(), made(seed=3, boost=1.0)
    on_itself = document_of(p)["subjects"][0]["temperature"]
    on_other = document_of(p, validation=other)["subjects"][0]["temperature"]
    wanted = calattn.posthoc.TemperatureScaling().fit(other).temperature_
    assert on_other["best"] == {"value": pytest.approx(wanted, rel=1e-9), "fitted_on": "validation"}
    assert on_other["best"]["value"] in on_other["grid"]
    assert on_itself["best"]["fitted_on"] == "these predictions"
    assert np.argmin(on_itself["nll"]) == on_itself["grid"].index(on_itself["best"]["value"])


def test_no_best_temperature_where_there_is_none():
    logits = torch.tensor([[2.0, 0.0]] * 50)
    slider = document_of(calattn.Predictions(logits=logits, labels=torch.zeros(50, dtype=torch.long)))
    assert slider["subjects"][0]["temperature"]["best"] is None


def test_the_grid_doubles():
    grid = slider_grid([1.234])
    assert 1.234 in grid
    assert grid == sorted(set(grid))
    assert all(2 * value in grid for value in grid if value < 5 and value != 1.234)
    assert grid[0] <= 0.1 < grid[1]
    assert grid[-2] < 10 <= grid[-1]


def test_per_class_is_scikit_learns(shown):
    p, subject = shown
    top = softmax(p, 1.0).argmax(axis=1)
    precision, recall, _, support = sklearn.metrics.precision_recall_fscore_support(
        p.labels.numpy(), top, labels=range(7), zero_division=0
    )
    rows = subject["per_class"]
    assert [row["precision"] for row in rows] == pytest.approx(precision)
    assert [row["recall"] for row in rows] == pytest.approx(recall)
    assert [row["count"] for row in rows] == list(support)
    said = [softmax(p, 1.0).max(axis=1)[top == k].mean() for k in range(7)]
    assert [row["said"] for row in rows] == pytest.approx(said, rel=1e-5)
    assert np.mean([row["ece"] for row in rows]) == pytest.approx(
        calattn.evaluate(p, metrics="classwise_ece", num_bootstrap=0)["classwise_ece"].value
    )


def test_a_class_that_is_absent_or_never_predicted_has_no_rates():
    p = calattn.Predictions(logits=torch.tensor([[3.0, 0.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
    rows = document_of(p)["subjects"][0]["per_class"]
    assert rows[1]["precision"] is None
    assert rows[1]["recall"] == 0.0
    assert rows[2]["recall"] is None


def test_risk_and_coverage_by_brute_force(shown):
    p, subject = shown
    probs = softmax(p, 1.0)
    wrong = (probs.argmax(axis=1) != p.labels.numpy())[np.argsort(-probs.max(axis=1), kind="stable")]
    found = subject["risk_coverage"]
    for coverage, risk, optimal in zip(found["coverage"], found["risk"], found["optimal"], strict=True):
        k = round(coverage * len(p))
        assert risk == pytest.approx(wrong[:k].mean(), abs=1e-9)
        assert optimal == pytest.approx(np.sort(wrong)[:k].mean(), abs=1e-9)
    assert found["coverage"][-1] == 1.0
    assert len(found["coverage"]) == 200


def test_the_most_confident_mistakes_come_first_with_their_pictures():
    p = made(n=300, class_names=tuple("abcdefg"), indices=torch.arange(300) + 1000)
    asked = []

    def images(rows):
        asked.extend(rows)
        return {rows[0]: b"png"}

    subject = document_of(p, images=images)["subjects"][0]
    probs = softmax(p, 1.0)
    wrong = np.flatnonzero(probs.argmax(axis=1) != p.labels.numpy())
    expected = wrong[np.argsort(-probs.max(axis=1)[wrong], kind="stable")][:24]
    assert asked == list(expected)
    first = subject["errors"][0]
    assert first["row"] == expected[0]
    assert first["index"] == expected[0] + 1000
    assert first["confidence"] == pytest.approx(probs[expected[0]].max(), rel=1e-5)
    assert first["label_probability"] == pytest.approx(probs[expected[0], p.labels[expected[0]]], rel=1e-4)
    assert base64.b64decode(first["image"].removeprefix("data:image/png;base64,")) == b"png"
    assert subject["errors"][1]["image"] is None
    assert subject["errors_above"] == {
        "threshold": 0.9,
        "errors": int((probs.max(axis=1)[wrong] >= 0.9).sum()),
        "samples": int((probs.max(axis=1) >= 0.9).sum()),
    }


def test_scales_are_counted_once_each(shown):
    p, subject = shown
    scale = subject["scale"]
    right = softmax(p, 1.0).argmax(axis=1) == p.labels.numpy()
    expected, _ = np.histogram(p.scale.double().numpy()[right], np.array(scale["edges"]))
    assert scale["correct"] == list(expected)
    assert sum(scale["wrong"]) == (~right).sum()
    assert scale["cv"] == pytest.approx(scipy.stats.variation(p.scale.double().numpy()))
    assert sum(part["count"] for part in scale["by_decile"]) == len(p)
    assert document_of(made())["subjects"][0]["scale"] is None


@pytest.mark.parametrize("different", [1, 5])
def test_temperatures_of_all_or_of_folds_are_not_shown_as_those_of_samples(different):
    scale = 2.0 + 0.01 * (torch.arange(50) % different)
    assert document_of(made(n=50, scale=scale))["subjects"][0]["scale"] is None


def columns(confidence: np.ndarray, correct: np.ndarray) -> Columns:
    probs = torch.from_numpy(np.stack([confidence, 1 - confidence], axis=1))
    return columns_of(LabelledValues(probs, torch.from_numpy(np.where(correct, 0, 1)), "probs"))


def verdict(found: Columns) -> dict[str, str]:
    return verdict_on(Gaps.of(found))


def drawn(n: int, move: float) -> Columns:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.55, 0.95, n)
    return columns(confidence, generator.uniform(size=n) < confidence + move)


def test_verdicts():
    assert verdict(drawn(5000, 0.0))["kind"] == "calibrated"
    assert verdict(drawn(5000, -0.1))["headline"].startswith("strongly over-confident: confidence 74.9 %, accuracy 6")
    for move, words in (
        (-0.012, "slightly over"),
        (-0.05, "over"),
        (-0.2, "strongly over"),
        (0.03, "under"),
        (0.012, "slightly under"),
    ):
        found = verdict(drawn(200_000, move))
        assert found["headline"].startswith(f"{words}-confident: ")
        assert found["kind"] == words.split()[-1]
    few = verdict(drawn(30, -0.03))
    assert few["kind"] == "unclear"
    assert few["headline"].startswith("too few samples to tell: confidence ")
    assert verdict(drawn(1, 0.0))["kind"] == "none"
    sure = verdict(columns(np.full(20, 1.0), np.ones(20, dtype=bool)))
    assert sure["kind"] == "unclear", "3/20 may be wrong of others"
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.55, 0.95, 20000)
    bent = confidence + np.where(confidence > 0.75, -0.08, 0.08)
    mixed = verdict(columns(confidence, generator.uniform(size=20000) < bent))
    assert mixed["kind"] == "mixed"
    assert "cancel" in mixed["detail"]


def test_a_verdict_of_blocks_is_that_of_the_whole():
    for boost in (0.5, 2.5):
        p = made(boost=boost)
        blocks = [p.select(part) for part in torch.arange(len(p)).split(400)]
        for target in (None, 3):
            assert verdict_of(blocks, target=target) == verdict_of(p, target=target)


def test_the_verdict_along_the_slider_is_that_of_each_temperature():
    p = made(4000, boost=1.5)
    slider = document_of(p)["subjects"][0]["temperature"]
    kinds = set()
    for place in range(0, len(slider["grid"]), 7):
        scaled = verdict_of(p.replace(logits=p.logits / slider["grid"][place]))
        assert slider["verdicts"][place] == {key: scaled[key] for key in ("kind", "words", "headline")}
        kinds.add(scaled["kind"])
    assert {"over", "under"} <= kinds


def test_chance_of_the_bins_is_uniform_for_calibrated_predictions():
    """The p-value of a true hypothesis is uniform: a Kolmogorov–Smirnov test over 200 data sets."""
    generator = np.random.default_rng(2)
    found = []
    for _ in range(200):
        confidence = generator.uniform(0.5, 1.0, 1000)
        found.append(Gaps.of(columns(confidence, generator.uniform(size=1000) < confidence)).chance())
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.01


def test_an_infinite_nll_is_said_and_not_printed_as_a_number():
    p = calattn.Predictions.from_probs(torch.tensor([[1.0, 0.0]] * 20), torch.ones(20, dtype=torch.long))
    found = document_of(p)
    row = {row["name"]: row for row in found["subjects"][0]["metrics"]}["nll"]
    assert row["value"] is None
    assert row["infinite"] is True
    json.dumps(found, allow_nan=False)


def test_comparisons_say_what_is_real():
    a, b = made(boost=2.0), made(boost=2.0)
    b = b.replace(logits=b.logits / 1.6)
    exhibits = [
        Exhibit(title=name, predictions=p, evaluation=calattn.evaluate(p, num_bootstrap=0))
        for name, p in (("a", a), ("b", b))
    ]
    found = build_document(exhibits, comparisons={1: calattn.compare(a, b, num_bootstrap=200)})["comparisons"][0]
    rows = {row["name"]: row for row in found["rows"]}
    assert (found["a"], found["b"]) == ("s0", "s1")
    assert rows["nll"]["improved"] is True
    assert rows["accuracy"]["improved"] is None
    assert rows["nll"]["difference"] == pytest.approx(rows["nll"]["b"] - rows["nll"]["a"])
    assert found["main"] == ["accuracy", "ece", "nll", "brier"]
    assert found["summary"].startswith("b against a: better in ECE, NLL")
    assert "no clear difference in accuracy" in found["summary"]


def test_of_many_samples_some_are_drawn_at_random_and_it_is_said(monkeypatch):
    monkeypatch.setattr(documents, "MOST_SAMPLES", 200)
    labels = torch.arange(400) % 2  # every second one would be all of one kind
    p = calattn.Predictions.from_probs(torch.tensor([[0.88, 0.12]] * 400), labels, indices=torch.arange(400) + 7)
    asked: list[int] = []
    exhibit = Exhibit(
        title="t",
        predictions=p,
        evaluation=calattn.evaluate(p, num_bootstrap=0),
        images=lambda rows: asked.extend(rows) or {},
    )
    found = build_document([exhibit])["subjects"][0]
    assert found["shown"] == "drawn from 200 of 400 samples, chosen at random"
    assert found["samples"] == 400
    assert 60 < found["per_class"][0]["count"] < 140
    for error, place in zip(found["errors"], asked, strict=True):
        assert error["row"] == place
        assert error["index"] == place + 7
        assert labels[place] == 1


def test_rows_of_a_sample_are_those_of_the_file():
    p = made(n=50)
    exhibit = Exhibit(
        title="t", predictions=p, evaluation=calattn.evaluate(p, num_bootstrap=0), rows=torch.arange(50) * 3
    )
    assert all(error["row"] % 3 == 0 for error in build_document([exhibit])["subjects"][0]["errors"])


def test_every_metric_is_defined():
    options = Options(num_bins=20, threshold=0.8, bandwidth=None)
    texts = dict(definitions(options, level=0.9, resamples=77))
    assert len(texts) > len(METRICS)
    assert "20 bins" in texts["ECE"]
    assert "0.8" in texts["error rate at p ≥ 0.8"]
    assert "chosen from the data" in texts["smECE"]
    assert "90 % bootstrap intervals from 77" in texts["intervals"]


def test_dynamics_keep_what_the_log_has():
    log = [
        {"epoch": e, "train": {"loss": 1 / e}, "validation": {"nll": 2 / e, "scale": {"mean": 1.0, "cv": 0.1}}}
        for e in (1, 2)
    ]
    found = panels.dynamics(log, {"best-ece": 2})
    assert found["epoch"] == [1, 2]
    assert {each["name"]: each["values"] for each in found["series"]} == {
        "training loss": [1.0, 0.5],
        "validation NLL": [2.0, 1.0],
        "coefficient of variation of s": [0.1, 0.1],
    }
    assert found["marks"] == [{"label": "best-ece", "epoch": 2}]
    assert panels.dynamics([], {}) is None


class Parser(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text: dict[str, str] = {}
        self.inside = ""

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.elements.append((tag, dict(attributes)))
        self.inside = dict(attributes).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.text[self.inside] = self.text.get(self.inside, "") + data


def test_the_page_asks_for_nothing():
    document = document_of(made())
    parser = Parser()
    parser.feed(page_html(document))
    for tag, attributes in parser.elements:
        for name in ("src", "href", "action", "srcset"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:")), (tag, name, value)
    policies = [a["content"] for t, a in parser.elements if t == "meta" and a.get("http-equiv")]
    assert any("default-src 'none'" in policy for policy in policies)


def test_a_page_of_many_samples_is_small():
    assert len(page_html(document_of(made(n=20_000))).encode()) < 0.9e6


def test_a_page_of_a_thousand_classes_is_small():
    p = made(n=3000, c=1000, boost=8.0, class_names=tuple(f"class number {k}" for k in range(1000)))
    assert len(page_html(document_of(p)).encode()) < 2e6


def test_many_exhibits_stay_below_six_megabytes():
    p = made(n=400)
    assert len(page_html(document_of(*[p] * 8)).encode()) < 6e6


def test_stated_probabilities_keep_their_bins():
    """Stated 0.2s lie in the bin (2/15, 3/15], wherever a softmax of their logarithms would round to."""
    probs = torch.tensor([[0.2, 0.2, 0.2, 0.2, 0.2]] * 30, dtype=torch.float64)
    p = calattn.Predictions.from_probs(probs, torch.arange(30) % 5)
    slider = document_of(p)["subjects"][0]["temperature"]
    counts = unpacked(slider["fine"]["count"], "u4", len(slider["grid"]), FINE)[slider["start"]]
    assert counts[59] == 30
    assert math.isclose(slider["nll"][slider["start"]], math.log(5), rel_tol=1e-6)


def read_back(path) -> dict:
    parser = Parser()
    parser.feed(path.read_text(encoding="utf-8"))
    return json.loads(parser.text["document"])


def test_one_call_writes_a_page(tmp_path):
    a, b = made(), made(boost=1.0)
    other = made(n=100, seed=9)
    path = write_html({"A": a, "B": b, "C": other}, tmp_path / "p.html", validation={"A": other}, num_bootstrap=20)
    found = read_back(path)
    assert [each["title"] for each in found["subjects"]] == ["A", "B", "C"]
    assert [each["b"] for each in found["comparisons"]] == ["s1"], "C has other samples"
    fitted_on = [each["temperature"]["best"]["fitted_on"] for each in found["subjects"]]
    assert fitted_on == ["validation", "these predictions", "these predictions"]
    single = read_back(write_html(a, tmp_path / "q.html", title="mine", num_bootstrap=0))
    assert single["title"] == single["subjects"][0]["title"] == "mine"


def test_one_call_with_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="exhibits is empty"):
        build_document([])
    with pytest.raises(ValueError, match="predictions is empty"):
        write_html({}, tmp_path / "p.html")
    with pytest.raises(ValueError, match="one set for several predictions"):
        write_html({"A": made(n=50), "B": made(n=50)}, tmp_path / "p.html", validation=made(n=50, seed=3))
    with pytest.raises(ValueError, match="validation has 'B', which predictions has not"):
        write_html({"A": made(n=50)}, tmp_path / "p.html", validation={"B": made(n=50)})
    assert list(tmp_path.iterdir()) == []


def test_all_right_is_no_proof_of_under_confidence():
    """A calibrated model of confidence 0.99 is right 100 times in a row with probability 0.37."""
    assert verdict(columns(np.full(100, 0.99), np.ones(100, dtype=bool)))["kind"] == "calibrated"
    assert verdict(columns(np.full(5000, 0.9), np.ones(5000, dtype=bool)))["kind"] == "under"


@pytest.mark.parametrize(("n", "confidence"), [(2, 0.99), (20, 0.99), (100, 0.99), (500, 0.9), (30, None)])
def test_calibrated_predictions_are_seldom_called_otherwise(n, confidence):
    generator = np.random.default_rng(n)
    called = 0
    for _ in range(300):
        said = np.full(n, confidence) if confidence else generator.uniform(0.5, 1.0, n)
        called += verdict(columns(said, generator.uniform(size=n) < said))["kind"] in ("over", "under", "mixed")
    assert called / 300 < 0.1


def test_one_mistake_among_sure_predictions_is_no_million_to_one():
    """P(one or more wrong of twenty at 0.999) is 2 %, and with one bin nothing cancels."""
    found = verdict(columns(np.full(20, 0.999), np.array([False] + [True] * 19)))
    assert found["kind"] == "unclear"
    chance = Gaps.of(columns(np.full(20, 0.999), np.array([False] + [True] * 19))).chance()
    assert chance == pytest.approx(1 - 0.999**20, rel=0.01)


def test_surprises_of_sure_predictions_are_no_rarer_than_they_are():
    """Of calibrated predictions that are nearly sure, the chance is at most 5 % in at most 5 % of the cases."""
    generator, found = np.random.default_rng(0), []
    for _ in range(500):
        said = np.where(generator.uniform(size=300) < 0.5, 1e-3, 1 - 1e-3) + generator.uniform(-9e-4, 9e-4, 300)
        found.append(Gaps.of(columns(said, generator.uniform(size=300) < said)).chance())
    assert np.mean(np.array(found) <= 0.05) <= 0.07


def test_small_gaps_of_many_samples_are_called_small():
    generator = np.random.default_rng(3)
    said = generator.uniform(0.5, 1.0, 400_000)
    bent = said + np.where(said > 0.75, -0.008, 0.008)
    found = verdict(columns(said, generator.uniform(size=len(said)) < bent))
    assert found["kind"] == "calibrated"
    assert "more than chance makes, but small" in found["detail"]


def test_a_double_just_above_an_edge_stays_above_it():
    probs = torch.tensor([[0.1 * 3 * 2, 1 - 0.1 * 3 * 2]] * 10, dtype=torch.float64)
    assert float(probs[0, 0]) > 0.6
    p = calattn.Predictions.from_probs(probs, torch.zeros(10, dtype=torch.long))
    slider = document_of(p)["subjects"][0]["temperature"]
    counts = unpacked(slider["fine"]["count"], "u4", len(slider["grid"]), FINE)[slider["start"]]
    assert counts[180] == 10  # (0.6, 0.6033…]


def test_a_best_temperature_beyond_the_slider_is_named():
    p = made(boost=2.0)
    slider = document_of(p.replace(logits=30 * p.logits))["subjects"][0]["temperature"]
    assert slider["best"]["value"] > slider["grid"][-1]
    by_hand = 30 * calattn.posthoc.TemperatureScaling().fit(p).temperature_
    assert slider["best"]["value"] == pytest.approx(by_hand, rel=1e-4)


def test_at_one_correctness_is_that_of_the_metrics():
    """Logits one rounding apart tie after the division by the scale."""
    logits = torch.full((64, 3), 1.0)
    logits[:, 1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    p = calattn.Predictions(logits=logits, labels=torch.ones(64, dtype=torch.long), scale=torch.full((64,), 3.0))
    slider = document_of(p)["subjects"][0]["temperature"]
    hits = unpacked(slider["fine"]["correct"], "u4", len(slider["grid"]), FINE)[slider["start"]].sum()
    assert hits / 64 == calattn.evaluate(p, metrics="accuracy", num_bootstrap=0)["accuracy"].value
