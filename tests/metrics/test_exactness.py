"""Numbers at their edges: float64 sums, stated probabilities, ties, infinities; each with the input that once showed a defect."""

from __future__ import annotations

import math

import pytest
import torch

from calattn import Predictions, compare, evaluate, metrics
from calattn.metrics import MetricState
from calattn.posthoc import IsotonicCalibration

pytestmark = pytest.mark.usefixtures("untyped")


def test_classwise_of_two_classes_and_many_rows_is_summed_in_float64():
    """Half a million equal float32 probabilities: a float32 column sum was 0.4 % off, classwise ECE 36 %."""
    n = 524_288
    probs = torch.full((n, 2), 0.05)
    probs[:, 0] = 0.95
    labels = (torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.05).long()
    exact = abs(float(probs[0, 0].double()) - float((labels == 0).double().mean()))
    assert metrics.classwise_ece(probs, labels) == pytest.approx(exact, abs=1e-7)


def test_stated_probabilities_stay_as_stated():
    """0.9 went through log and softmax, came back as 0.8999…, and fell below the threshold and over bin edges."""
    probs = torch.tensor([[0.9, 0.1]] * 4, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    stated = Predictions.from_probs(probs, labels)
    assert evaluate(stated, num_bootstrap=0)["high_confidence_error_rate"].value == 0.5
    edges = torch.arange(1, 15, dtype=torch.float64) / 15
    probs = torch.stack([edges, 1 - edges], dim=1)
    labels = torch.arange(14) % 2
    result = evaluate(Predictions.from_probs(probs, labels), num_bootstrap=20)
    assert result["ece"].value == metrics.ece(probs, labels)
    assert result["classwise_ece"].value == pytest.approx(metrics.classwise_ece(probs, labels), abs=1e-12)


def test_equal_confidences_are_tied_whatever_the_other_classes():
    probs = torch.tensor([[0.7, 0.14, 0.04, 0.12], [0.7, 0.21, 0.03, 0.06]])
    labels = torch.tensor([0, 1])
    assert metrics.misclassification_auroc(probs, labels) == 0.5
    assert metrics.adaptive_ece(probs, labels, num_bins=2) == pytest.approx(0.2)
    assert metrics.ood_auroc(probs[:1], probs[1:]) == 0.5


def test_class_order_does_not_break_ties_of_logits():
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        logits = torch.randint(-4, 5, (400, 6), generator=g).to(dtype)
        labels = torch.randint(6, (400,), generator=g)
        unique = (logits == logits.amax(1, keepdim=True)).sum(1) == 1
        logits, labels = logits[unique], labels[unique]
        names = ["misclassification_auroc", "aurc", "adaptive_ece"]
        ahead = MetricState(names).update_logits(logits, labels).compute()
        back = MetricState(names).update_logits(logits.flip(1), 5 - labels).compute()
        assert ahead == pytest.approx(back, abs=1e-12)


def test_an_infinite_nll_on_one_side_is_a_difference():
    logits = torch.tensor([[0.0, -math.inf]] + [[1.0, 0.0]] * 20)
    labels = torch.tensor([1] + [0] * 15 + [1] * 5)
    infinite = Predictions(logits=logits, labels=labels)
    assert math.isnan(compare(infinite, infinite.replace(split="b"), metrics=["nll"])["nll"].p_value)
    finite = infinite.replace(logits=logits.clamp_min(-3.0))
    mixed = compare(finite, infinite, metrics=["nll"])["nll"]
    assert mixed.difference == math.inf
    assert mixed.significant, "a probability of 0 for a label is a fact, whatever the resamples without that sample say"


@pytest.mark.parametrize(
    "wrong", [torch.randn(4, 3), "file.npz", {"logits": 1}, 3, (torch.randn(4, 3), torch.zeros(4))]
)
def test_evaluate_says_what_it_takes(wrong):
    with pytest.raises(ValueError, match=r"Predictions\(logits=…, labels=…\)"):
        evaluate(wrong)


def test_bad_level_and_generator_are_named_at_once():
    p = Predictions(logits=torch.randn(6, 3), labels=torch.zeros(6).long())
    for call in (evaluate, lambda p, **options: compare(p, p, **options)):
        with pytest.raises(ValueError, match=r"level must be in \[0, 1\], got 95"):
            call(p, level=95)
        with pytest.raises(ValueError, match=r"generator must be a torch\.Generator"):
            call(p, generator=0)


def test_state_update_needs_to_know_its_input():
    logits, labels = torch.randn(6, 3), torch.zeros(6).long()
    with pytest.raises(ValueError, match="from_logits"):
        MetricState("ece").update(logits, labels)
    told = MetricState("ece", from_logits=True).update(logits, labels).compute()
    assert told == MetricState("ece").update_logits(logits, labels).compute()
    from_probs = MetricState("ece", from_logits=False).update(logits.softmax(1), labels).compute()
    assert told == pytest.approx(from_probs, abs=1e-6)


def test_one_cheap_metric_does_not_pay_for_the_dear_ones(monkeypatch):
    from calattn.metrics.resampling import resampler

    def dear(*_: object) -> None:
        raise AssertionError("computed although nobody asked")

    for name in ("integral_of_absolute", "kernel_values", "rank_values"):
        monkeypatch.setattr(resampler, name, dear)
    p = Predictions(logits=torch.randn(60, 3), labels=torch.zeros(60).long())
    assert evaluate(p, metrics=["ece", "accuracy"], num_bootstrap=20)["ece"].low is not None


def test_isotonic_output_is_stated():
    g = torch.Generator().manual_seed(0)
    p = Predictions(logits=torch.randn(300, 3, generator=g), labels=torch.randint(3, (300,), generator=g))
    validation, test = p.shuffle_split(0.5, g)
    calibrated = IsotonicCalibration().fit(validation)(test)
    assert calibrated.stated_probs is not None
    assert torch.allclose(calibrated.logits.softmax(1), calibrated.probs, atol=1e-6)
