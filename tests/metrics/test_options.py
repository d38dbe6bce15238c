"""Options reach what they name, signs are right, and the fast branches agree with plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from calattn import Predictions, compare, evaluate, metrics
from calattn.metrics import MetricState, columns
from calattn.metrics.parts import default_resamples
from calattn.metrics.resampling.bootstrap import two_sided
from calattn.metrics.resampling.weights import Weights
from calattn.metrics.torchmetrics import CalibrationMetrics
from tests.samples import logits_and_labels

OTHER = {"num_bins": 7, "bandwidth": 0.1, "threshold": 0.6}


def some(n: int = 600, seed: int = 0) -> Predictions:
    logits, labels = logits_and_labels("ten_classes", seed)
    return Predictions(logits=logits[:n], labels=labels[:n])


def plain_classwise(probs: torch.Tensor, labels: torch.Tensor, m: int = 15) -> float:
    total = 0.0
    for c in range(probs.shape[1]):
        p, y = probs[:, c].double(), (labels == c).double()
        for b in range(m):
            inside = (p > b / m) & (p <= (b + 1) / m) if b else p <= 1 / m
            total += float((p[inside] - y[inside]).sum().abs())
    return total / len(labels) / probs.shape[1]


def sharp() -> tuple[torch.Tensor, torch.Tensor]:
    """Mostly near-certain rows and a few with a second entry above 1/15: the branch that gathers candidate rows."""
    probs = torch.tensor([[0.999, 0.0005, 0.0005]] * 900 + [[0.88, 0.10, 0.02]] * 100, dtype=torch.float64)
    return probs, torch.tensor([0] * 930 + [1] * 40 + [2] * 30)


def test_classwise_of_sharp_rows():
    probs, labels = sharp()
    assert metrics.classwise_ece(probs, labels) == pytest.approx(plain_classwise(probs, labels), abs=1e-12)
    p = Predictions(logits=probs.log(), labels=labels)
    row = evaluate(p, metrics="classwise_ece", num_bootstrap=50)["classwise_ece"]
    assert row.value == pytest.approx(plain_classwise(probs, labels), abs=1e-9)
    assert row.low < row.value < row.high


def test_options_reach_every_metric():
    p = some()
    result = evaluate(p, num_bootstrap=0, **OTHER)
    assert result["ece"].value == pytest.approx(metrics.ece(p.probs, p.labels, num_bins=7), abs=1e-9)
    assert result["adaptive_ece"].value == pytest.approx(metrics.adaptive_ece(p.probs, p.labels, num_bins=7), abs=1e-9)
    assert result["classwise_ece"].value == pytest.approx(
        metrics.classwise_ece(p.probs, p.labels, num_bins=7), abs=1e-9
    )
    assert result["smooth_ece"].value == pytest.approx(metrics.smooth_ece(p.probs, p.labels, bandwidth=0.1), abs=1e-9)
    assert result["kernel_ece"].value == pytest.approx(metrics.kernel_ece(p.probs, p.labels, bandwidth=0.1), abs=1e-9)
    errors = metrics.high_confidence_errors(p.probs, p.labels, threshold=0.6)
    assert result["high_confidence_error_rate"].value == pytest.approx(errors.error_rate)
    pair = compare(p, p.replace(split="b"), num_bootstrap=5, **OTHER)
    for name in ("ece", "smooth_ece", "kernel_ece", "high_confidence_error_rate"):
        assert pair[name].a == pytest.approx(result[name].value, abs=1e-12), name
    wrapped = CalibrationMetrics(
        ["ece", "smooth_ece", "high_confidence_error_rate"], num_classes=10, from_logits=True, **OTHER
    )
    wrapped.update(p.logits, p.labels)
    for name, value in wrapped.compute().items():
        assert float(value) == pytest.approx(result[name].value, abs=1e-9), name


def test_difference_is_b_minus_a():
    p = some()
    sharper = p.replace(scale=torch.full((len(p),), 0.5))
    found = compare(p, sharper, metrics=["nll"], num_bootstrap=50)["nll"]
    assert found.a == pytest.approx(metrics.nll(p.logits, p.labels))
    assert found.b == pytest.approx(metrics.nll(sharper.calibrated_logits, p.labels))
    assert found.difference == pytest.approx(found.b - found.a)
    assert found.low < found.difference < found.high
    assert found.difference > 0


def test_p_value_by_hand():
    draws = torch.tensor([-1.0] * 5 + [3.0] * 94, dtype=torch.float64) - 2.0
    # moved onto a difference of 1: the five low ones end below zero
    expected = 2 * (5 + 1) / (99 + 1)
    assert two_sided(1.0, draws, moved=True) == pytest.approx(expected)
    # as they are: five at −3, the rest at 1; and draws of exactly zero count on both sides
    assert two_sided(1.0, draws, moved=False) == pytest.approx(expected)
    assert two_sided(1.0, torch.tensor([0.0] * 40 + [1.0] * 59), moved=False) == pytest.approx(2 * 41 / 100)
    # also where moving would carry them away from zero
    assert two_sided(0.9, torch.tensor([0.0] * 40 + [1.0] * 59), moved=True) == pytest.approx(2 * 41 / 100)


def test_the_difference_of_a_mean_is_not_moved():
    """Of 199 resamples the ends at 95 % are the fifth from either side: whole samples, for accuracy."""
    logits, labels = logits_and_labels("ten_classes")
    a, b = (Predictions(logits=each, labels=labels) for each in (logits, logits.roll(1, dims=1)))
    found = compare(a, b, metrics="accuracy", num_bootstrap=199)["accuracy"]
    for end in (found.low, found.high):
        assert 3000 * end == pytest.approx(round(3000 * end), abs=0.05)
    assert found.low < found.difference < found.high


def test_both_sides_of_a_comparison_see_the_same_resamples_and_an_evaluation_others(monkeypatch):
    seeds = []

    def recorded(n, seed, *more):
        seeds.append(seed)
        return Weights(n, seed, *more)

    monkeypatch.setattr("calattn.metrics.resampling.resampler.Weights", recorded)
    logits, labels = (each[:30] for each in logits_and_labels("ten_classes"))
    p = Predictions(logits=logits, labels=labels)
    options = {"metrics": "accuracy", "num_bootstrap": 10}
    compare(p, p, generator=torch.Generator().manual_seed(5), **options)
    evaluate(p, generator=torch.Generator().manual_seed(5), **options)
    of_a, of_b, alone = seeds
    assert of_a == of_b != alone


def test_level_sets_the_width():
    p = some()
    wide, narrow = (evaluate(p, metrics="nll", level=level, num_bootstrap=400)["nll"] for level in (0.95, 0.5))
    assert (narrow.high - narrow.low) / (wide.high - wide.low) == pytest.approx(0.6745 / 1.96, abs=0.08)
    pair = [
        compare(p, p.replace(scale=torch.full((len(p),), 0.8)), metrics=["nll"], level=x)["nll"] for x in (0.95, 0.5)
    ]
    assert pair[1].high - pair[1].low < 0.6 * (pair[0].high - pair[0].low)


def test_generator_state_moves_every_interval():
    p = some()
    generator = torch.Generator().manual_seed(3)
    first, second = (evaluate(p, num_bootstrap=40, generator=generator) for _ in range(2))
    for name in ("ece", "classwise_ece"):
        assert first[name].low != second[name].low, name
    other = p.replace(scale=torch.full((len(p),), 0.8))
    pair = [compare(p, other, metrics=["ece"], num_bootstrap=40, generator=generator)["ece"].low for _ in range(2)]
    assert pair[0] != pair[1]


def test_default_resamples():
    assert evaluate(some(50)).num_bootstrap == 1000
    assert default_resamples(200_001) == 200


def test_blocks_of_rows_change_nothing(monkeypatch):
    p = some()
    whole = evaluate(p, num_bootstrap=20).as_dict()
    monkeypatch.setattr(columns, "_BLOCK", 700)
    for name, row in evaluate(p, num_bootstrap=20).as_dict().items():
        assert row == pytest.approx(whole[name], abs=1e-6), name


def test_intervals_stay_in_range():
    logits = torch.tensor([[4.0, 0.0]] * 60)
    result = evaluate(Predictions(logits=logits, labels=torch.tensor([0] * 59 + [1])), num_bootstrap=200)
    for name, row in result.rows.items():
        if row.low is not None and name != "debiased_ece":
            assert 0 <= row.low <= row.high, name
            assert row.high <= {"nll": math.inf, "brier": 2.0}.get(name, 1.0), name


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("scale", [[1.0, -1.0], [1.0, 0.0], [1.0, float("nan")], [1.0]])
def test_states_refuse_a_scale_that_is_none(scale):
    state = MetricState(["ece"])
    with pytest.raises(ValueError, match="scale"):
        state.update_logits(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor(scale))


def test_risk_coverage_with_ties():
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.7, 0.3], [0.6, 0.4]], dtype=torch.float64)
    coverage, risk = metrics.risk_coverage(probs, torch.tensor([0, 1, 0, 1]))
    assert coverage.tolist() == [0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 2])


def test_ood_auroc_of_the_same_samples_is_chance_and_errors_name_the_side():
    p = some().probs
    assert metrics.ood_auroc(p, p) == pytest.approx(0.5)
    bad = p.clone()
    bad[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"out_probs\[3, 1\] is nan"):
        metrics.ood_auroc(p, bad)


def test_states_from_probs_and_with_a_scale():
    p = some()
    from_probs = MetricState("nll").update_probs(p.probs, p.labels).compute()["nll"]
    assert from_probs == pytest.approx(metrics.nll(p.logits, p.labels), abs=1e-9)
    scale = torch.rand(len(p), dtype=torch.float64) + 0.5
    scaled = MetricState(["ece", "nll"]).update_logits(p.logits, p.labels, scale).compute()
    direct = MetricState(["ece", "nll"]).update_logits(p.logits / scale.unsqueeze(1), p.labels).compute()
    assert scaled == pytest.approx(direct, abs=1e-9)


def test_very_fine_bandwidths():
    p = some(400)
    fine = metrics.smooth_ece(p.probs, p.labels, bandwidth=0.0005)
    confidence, predicted = p.probs.max(1)
    residual = confidence - (predicted == p.labels).double()
    t = torch.linspace(0, 1, 80_001, dtype=torch.float64)
    curve = torch.zeros_like(t)
    for c, r in zip(confidence, residual, strict=True):
        curve += r * torch.exp(-((t - c) ** 2) / (2 * 0.0005**2))
    expected = float(torch.trapezoid(curve.abs(), t)) / (400 * math.sqrt(2 * math.pi) * 0.0005)
    assert fine == pytest.approx(expected, abs=2e-5)


def test_automatic_smooth_ece_at_the_resolution_of_the_grid():
    """Every bin exactly calibrated: smECE falls below 0.001, and the value at 0.001 is returned."""
    probs = torch.tensor([[0.75, 0.25]] * 4000, dtype=torch.float64)
    value, bandwidth = metrics.smooth_ece_automatic(probs, torch.tensor([0, 0, 0, 1] * 1000))
    assert bandwidth == pytest.approx(0.001)
    assert value == pytest.approx(0, abs=1e-9)


def test_fingerprint_sees_labels_and_scale_and_splits_see_the_generator():
    p = some(50)
    assert p.fingerprint() != p.replace(labels=(p.labels + 1) % 10).fingerprint()
    assert p.fingerprint() != p.replace(scale=torch.full((50,), 2.0)).fingerprint()
    one, two = (p.shuffle_split(0.5, torch.Generator().manual_seed(seed))[0] for seed in (1, 2))
    assert not torch.equal(one.labels, two.labels)


def test_streams_of_other_samples_are_not_paired():
    p = some(100)
    with pytest.raises(ValueError, match="not the same samples"):
        compare([p], [p.replace(labels=(p.labels + 1) % 10)], num_bootstrap=5)
