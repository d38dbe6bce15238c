"""evaluate and compare: intervals, pairing, streams, determinism."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import scipy.stats
import torch

from calattn import Difference, Predictions, compare, evaluate, metrics, report
from calattn.metrics import METRICS
from calattn.metrics.evaluation import paired
from calattn.metrics.resampling.bootstrap import interval, quantiles
from calattn.report.evaluations import sentence
from tests.samples import logits_and_labels


def predictions(name: str = "ten_classes", n: int = 900) -> Predictions:
    logits, labels = logits_and_labels(name)
    return Predictions(logits=logits[:n].float(), labels=labels[:n])


def test_every_metric_has_an_interval_around_its_value():
    result = evaluate(predictions(), num_bootstrap=200)
    assert set(result.rows) == set(METRICS)
    for name in set(METRICS) - {"mce"}:
        assert result[name].low <= result[name].value <= result[name].high, name
        assert result[name].high - result[name].low < 0.5, name
    assert "ClassECE" in str(result)
    assert "error rate at p ≥ 0.9 " in str(result)


def test_same_seed_same_intervals_and_other_seed_others():
    p = predictions()
    a, b = (evaluate(p, num_bootstrap=50, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    c = evaluate(p, num_bootstrap=50, generator=torch.Generator().manual_seed(2))
    assert a.as_dict() == b.as_dict()
    assert a["ece"].low != c["ece"].low
    assert a["ece"].value == c["ece"].value


def test_scale_is_applied():
    p = predictions()
    scaled = p.replace(scale=torch.full((len(p),), 3.0))
    direct = Predictions(logits=p.logits / 3.0, labels=p.labels)
    a, b = evaluate(scaled, num_bootstrap=20), evaluate(direct, num_bootstrap=20)
    for name, row in a.as_dict().items():
        assert row == pytest.approx(b.as_dict()[name], abs=1e-5, nan_ok=True), name
    assert a["ece"].value != pytest.approx(evaluate(p, num_bootstrap=0)["ece"].value, abs=1e-3)


def test_automatic_bandwidth():
    p = predictions()
    row = evaluate(p, bandwidth=None, num_bootstrap=30)["smooth_ece"]
    assert row.value == pytest.approx(metrics.smooth_ece(p.probs, p.labels, bandwidth=None), abs=1e-5)
    assert row.low <= row.value <= row.high


def test_unknown_and_unevaluated_metrics_are_named():
    result = evaluate(predictions(n=50), metrics=["ece"], num_bootstrap=0)
    with pytest.raises(ValueError, match="unknown metric 'eec'"):
        result["eec"]
    with pytest.raises(ValueError, match="nll was not evaluated; evaluated: ece"):
        result["nll"]
    with pytest.raises(ValueError, match="unknown metric 'accurracy'; did you mean 'accuracy'"):
        evaluate(predictions(n=50), metrics=["accurracy"])
    with pytest.raises(ValueError, match="num_bootstrap must be 0 or more"):
        evaluate(predictions(n=50), num_bootstrap=-1)
    with pytest.raises(ValueError, match="predictions is empty"):
        evaluate([])


# --- pairs ------------------------------------------------------------------------------------------------------------------


def test_identical_predictions_differ_by_nothing():
    p = predictions()
    for name, difference in compare(p, p, num_bootstrap=50).items():
        assert difference.difference == 0
        if name == "mce":
            continue
        assert difference.low == difference.high == 0, name
        assert not difference.significant
        assert difference.p_value == 1


def test_a_real_difference_is_found_and_pairing_is_what_finds_it():
    p = predictions(n=900)
    sharper = p.replace(scale=torch.full((len(p),), 0.95))
    paired = compare(p, sharper, num_bootstrap=300)["nll"]
    assert paired.significant
    assert paired.p_value < 0.05
    assert "more than chance" in str(paired)
    alone = [evaluate(q, num_bootstrap=300)["nll"] for q in (p, sharper)]
    assert alone[0].high > alone[1].low  # unpaired intervals overlap
    width = paired.high - paired.low
    assert width < 0.5 * (alone[0].high - alone[0].low)


def test_pairs_must_be_the_same_samples():
    p = predictions(n=100)
    with pytest.raises(ValueError, match="a has 100 samples and b has 99"):
        compare(p, p.select(torch.arange(99)))
    with pytest.raises(ValueError, match=r"labels\[0\] is"):
        compare(p, p.replace(labels=(p.labels + 1) % 10))
    with pytest.raises(ValueError, match=r"indices\[0\] is 0 in a and 99 in b"):
        compare(p.replace(indices=torch.arange(100)), p.replace(indices=torch.arange(100).flip(0)))
    with pytest.raises(ValueError, match="a comparison needs resamples"):
        compare(p, p, num_bootstrap=0)


# --- the interval itself ------------------------------------------------------------------------------------------------


def test_interval_is_centred_on_the_value():
    draws = torch.linspace(10, 12, 2001, dtype=torch.float64)
    assert interval(5.0, draws, 0.95) == pytest.approx((4.04905, 5.95095))
    assert interval(5.0, draws, 0.95, moved=False) == pytest.approx((10.04905, 11.95095))
    assert interval(5.0, draws, 0.95, wider=2.0) == pytest.approx((3.0981, 6.9019))
    assert all(math.isnan(end) for end in interval(math.nan, draws, 0.95))


def test_the_interval_of_an_infinite_value_is_not_moved():
    draws = torch.tensor([1.0, 2.0, 3.0, math.inf, math.inf])
    assert interval(math.inf, draws, 0.5) == (1.5, math.inf)


def test_quantiles_like_numpy_but_safe_at_infinity():
    draws, at = torch.randn(101, dtype=torch.float64), (0.001, 0.1, 0.37, 0.9)
    assert quantiles(draws, at).numpy() == pytest.approx(np.quantile(draws.numpy(), at, method="weibull"))
    assert float(quantiles(torch.tensor([1.0, math.inf, math.inf]), (0.9,))[0]) == math.inf


def test_coverage_of_the_intervals_by_simulation():
    """95 % intervals of means, ECE and AUROC over 120 simulated sets; `benchmarks/coverage.py` does all of it at length."""
    from benchmarks.coverage import coverage

    found = coverage(n=400, classes=5, temperature=0.6, simulations=120, seed=7, resamples=200)
    for name in ("accuracy", "nll", "brier", "ece", "smooth_ece", "misclassification_auroc", "aurc"):
        assert 0.85 <= found[name]["coverage"] <= 1.0, (name, found[name])


def test_the_interval_of_few_is_students():
    """The mean of 12 samples: bootstrap quantiles hold 91 %; wider, they are about as wide as those of Student's t."""
    logit = torch.randn(12, 1, generator=torch.Generator().manual_seed(0))
    p = Predictions(logits=torch.cat([logit, -logit], dim=1), labels=torch.zeros(12, dtype=torch.long))
    row = evaluate(p, metrics="nll", num_bootstrap=4000)["nll"]
    losses = torch.nn.functional.cross_entropy(p.logits, p.labels, reduction="none").numpy()
    low, high = scipy.stats.ttest_1samp(losses, 0).confidence_interval(0.95)
    assert row.high - row.low == pytest.approx(high - low, rel=0.05)
    assert evaluate(p, metrics="nll", level=1.0)["nll"].low < row.low


def test_no_interval_of_mce_holds_and_so_there_is_none():
    """95 % intervals held 55 to 92 %, as the bin that decides may have one sample. Its groups are compared by permutation."""
    a = predictions()
    b = a.replace(logits=3 * a.logits)
    assert evaluate(a, num_bootstrap=50)["mce"].low is None
    found = compare(a, b, metrics="mce", num_bootstrap=50)["mce"]
    assert found.difference == pytest.approx(metrics.mce(b.probs, b.labels) - metrics.mce(a.probs, a.labels), abs=1e-6)
    assert math.isnan(found.low)
    assert math.isnan(found.p_value)
    assert not found.significant
    assert re.fullmatch(r"MCE 0\.\d+ → 0\.\d+: \+0\.\d+, cannot tell \(no interval holds\)", str(found))
    assert re.fullmatch(r"MCE rises by \d+\.\d+ points: cannot tell \(no interval holds\)", sentence(found))
    assert "nan" not in report.difference_table({"b": {"mce": found}}, baseline="a", level=0.95).markdown()
    again = [evaluate(each, num_bootstrap=50) for each in (a, b)]
    assert paired(*again, "mce").difference == found.difference
    groups = evaluate(a, metrics="mce", num_bootstrap=50, groups=["x", "y"] * (len(a) // 2)).groups
    assert 0 < groups["x"].differences["mce"].p_value <= 1


def flipped(n: int, flips: int) -> tuple[Predictions, Predictions]:
    """Two models that differ in the class of the first `flips` samples, where the second is right."""
    probs = torch.tensor([[0.8, 0.2]] * n)
    labels = torch.zeros(n, dtype=torch.long)
    labels[: n // 5] = 1
    other = probs.clone()
    other[:flips] = probs[:flips].flip(1)
    return Predictions.from_probs(probs, labels), Predictions.from_probs(other, labels)


@pytest.mark.parametrize(("flips", "real"), [(1, False), (3, False), (12, True)])
def test_a_sample_or_three_do_not_make_a_difference(flips, real):
    """McNemar's exact test has p = 2 · 2^−flips here: 1, 0.25 and 0.0005."""
    a, b = flipped(1000, flips)
    for seed in range(5):
        found = compare(a, b, metrics="accuracy", generator=torch.Generator().manual_seed(seed))["accuracy"]
        exact = scipy.stats.binomtest(flips, flips, 0.5).pvalue
        assert found.significant is real, seed
        assert (found.p_value < 0.05) == (exact < 0.05), seed
    alone, clustered = (compare(a, b, metrics="accuracy", clusters=each) for each in (None, torch.arange(1000)))
    assert alone == clustered, "clusters of one row are rows"


def test_equal_models_are_seldom_told_apart():
    """Size of the test at 5 %, with about four samples on which the two disagree."""
    generator = torch.Generator().manual_seed(0)
    called = 0
    for _ in range(60):
        labels = torch.randint(2, (300,), generator=generator)
        probs = torch.where(labels.unsqueeze(1) == torch.arange(2), 0.8, 0.2)
        wrong = [torch.rand(300, generator=generator) < 0.007 for _ in range(2)]
        a, b = (Predictions.from_probs(torch.where(w.unsqueeze(1), probs.flip(1), probs), labels) for w in wrong)
        called += compare(a, b, metrics="accuracy", num_bootstrap=200)["accuracy"].significant
    assert called <= 6


def test_rounding_is_no_difference():
    assert not Difference(
        name="nll", a=0.5, b=0.5 + 4e-15, difference=4e-15, low=3e-15, high=5e-15, p_value=0.01
    ).significant


def test_resamples_that_do_not_differ_give_no_interval():
    """Five of five right: a range from 100 % to 100 % would claim to know what it cannot (Clopper–Pearson: from 48 %)."""
    p = Predictions(logits=torch.tensor([[3.0, 0.0]] * 5), labels=torch.zeros(5, dtype=torch.long))
    row = evaluate(p, num_bootstrap=50)["accuracy"]
    assert (row.value, row.low, row.high) == (1.0, None, None)
    assert evaluate(predictions(n=1), num_bootstrap=30)["ece"].low is None, (
        "all resamples of one sample are that sample"
    )


def test_a_few_confident_errors_get_no_interval():
    probs, labels = torch.tensor([[0.95, 0.05]] * 200), torch.zeros(200, dtype=torch.long)
    labels[:9] = 1
    few = Predictions.from_probs(probs, labels)
    name = "high_confidence_error_confidence"
    row = evaluate(few, num_bootstrap=50)[name]
    assert (row.value, row.low) == (pytest.approx(0.95), None)
    assert name not in compare(few, few, num_bootstrap=50)
    labels[:30] = 1
    noisy = probs.clone()
    noisy[:30, 0] += torch.linspace(-0.03, 0.03, 30)
    noisy[:, 1] = 1 - noisy[:, 0]
    assert evaluate(Predictions.from_probs(noisy, labels), num_bootstrap=50)[name].low is not None


def test_interval_and_p_never_disagree():
    """One of fifty resamples on the other side: the interval may leave out zero, p is 0.078."""
    found = Difference(name="ece", a=0.1, b=0.2, difference=0.1, low=0.01, high=0.2, p_value=2 * 2 / 51)
    assert not found.significant
    assert Difference(name="ece", a=0.1, b=0.2, difference=0.1, low=0.01, high=0.2, p_value=0.04).significant
    strict = Difference(name="ece", a=0.1, b=0.2, difference=0.1, low=0.01, high=0.2, p_value=0.04, level=0.99)
    assert not strict.significant


@pytest.mark.parametrize(("level", "enough"), [(0.95, 39), (0.9, 19), (0.99, 199), (0.5, 3)])
def test_with_few_resamples_there_is_no_verdict(level, enough):
    """p is never below 2/(B + 1)."""
    a = predictions()
    b = a.replace(logits=3 * a.logits)
    few = compare(a, b, metrics="nll", num_bootstrap=enough - 1, level=level)["nll"]
    assert few.low > 0 or few.high < 0
    assert not few.significant
    assert few.too_few == f"too few resamples to tell (at least {enough} at {100 * level:g} %)"
    assert str(few).endswith(few.too_few)
    assert "chance" not in str(few)
    found = compare(a, b, metrics="nll", num_bootstrap=enough, level=level)["nll"]
    assert found.significant
    assert found.too_few is None
    assert compare(a, a.replace(split="b"), metrics="nll", num_bootstrap=2)["nll"].too_few is None  # equal is equal


def test_what_is_not_defined_is_none_for_json_and_a_dash_for_people():
    logits, labels = 4 * torch.eye(3).repeat(10, 1), torch.arange(3).repeat(10)
    right = Predictions(logits=logits, labels=labels)
    report = evaluate(right, num_bootstrap=50)
    nothing = {"value": None, "low": None, "high": None}
    assert report.as_dict()["misclassification_auroc"] == nothing
    assert json.loads(json.dumps(report.as_dict(), allow_nan=False)) == report.as_dict()
    assert "nan" not in str(report)
    assert re.search(r"AUROC of errors +–$", str(report), re.MULTILINE)
    difference = compare(right, right.replace(logits=2 * logits), num_bootstrap=50)["misclassification_auroc"]
    assert str(difference) == "AUROC of errors is not defined for both"


def test_an_infinite_value_stays_a_number():
    p = Predictions.from_probs(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 0]))
    assert evaluate(p, metrics="nll", num_bootstrap=0).as_dict()["nll"]["value"] == float("inf")
