"""Numbers that once misled: each test failed before its repair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from torchmetrics import MetricCollection

from calattn import Predictions, compare, evaluate, metrics
from calattn.metrics import MetricState
from calattn.metrics.torchmetrics import CalibrationMetric
from tests.samples import logits_and_labels


def many(n: int = 600, c: int = 100, seed: int = 0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    logits, labels = 2 * torch.randn(n, c, generator=g), torch.randint(c, (n,), generator=g)
    logits[torch.arange(n), labels] += 4 * torch.rand(n, generator=g)
    return Predictions(logits=logits, labels=labels)


def test_autocast_changes_no_number():
    """In bf16, Brier's p = 0.002 was 0.51, and 0.7070 had the interval [0.7077, 0.7128]."""
    p = many()
    other = p.replace(scale=torch.full((len(p),), 0.9))
    plain = evaluate(p, num_bootstrap=50).as_dict(), compare(p, other, num_bootstrap=50)
    with torch.autocast("cpu", torch.bfloat16):
        cast = evaluate(p, num_bootstrap=50).as_dict(), compare(p, other, num_bootstrap=50)
        classwise = metrics.classwise_ece(p.probs, p.labels)
        state = MetricState("classwise_ece").update_logits(p.logits, p.labels).compute()
    assert cast == plain
    assert classwise == pytest.approx(plain[0]["classwise_ece"]["value"], abs=1e-7)
    assert state["classwise_ece"] == plain[0]["classwise_ece"]["value"]


def test_the_default_dtype_changes_no_number():
    p = many()
    plain = evaluate(p, num_bootstrap=50).as_dict()
    torch.set_default_dtype(torch.float64)
    try:
        assert evaluate(p, num_bootstrap=50).as_dict() == plain
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_collection_keeps_apart_what_the_first_batch_does_not_tell_apart():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0])

    def made(name: str = "ece", **options: object) -> CalibrationMetric:
        return CalibrationMetric(name, num_classes=2, from_logits=False, **options)

    rate = "high_confidence_error_rate"
    several = {
        "top": made(),
        "one": made(target=1),
        "without": made(ignore_index=1),
        "rate": made(rate),
        "lower": made(rate, threshold=0.55),
    }
    joined = MetricCollection({name: metric.clone() for name, metric in several.items()})
    first = torch.tensor([[0.05, 0.95]] * 3, dtype=torch.float64), torch.ones(3, dtype=torch.int64)
    for batch in (first, (probs, labels)):
        joined.update(*batch)
        for metric in several.values():
            metric.update(*batch)
    assert joined.compute() == {name: metric.compute() for name, metric in several.items()}
    assert joined.compute()["rate"] != joined.compute()["lower"]


def test_few_errors_among_many_samples_get_no_interval():
    """Three errors in 250,000 had the interval [0.953, 1.000]."""
    n = 250_000
    probs = torch.tensor([[0.97, 0.03]]).repeat(n, 1)
    labels = torch.zeros(n, dtype=torch.int64)
    labels[:3] = 1
    row = evaluate(Predictions.from_probs(probs, labels), metrics="high_confidence_error_confidence", num_bootstrap=16)[
        "high_confidence_error_confidence"
    ]
    assert row.value == pytest.approx(0.97, abs=1e-6)
    assert row.low is None


def test_equal_resamples_beside_undefined_ones_give_no_interval():
    """One error, and all confidences equal: AUROC had the interval [0.5, 0.5]."""
    labels = torch.tensor([1] + [0] * 19)
    result = evaluate(Predictions(logits=torch.tensor([[4.0, 0.0]] * 20), labels=labels), num_bootstrap=200)
    for name in ("misclassification_auroc", "high_confidence_error_share"):
        assert math.isfinite(result[name].value)
        assert result[name].low is None, name


def test_stated_probabilities_are_ranked_by_themselves():
    """Five decimals: the others' sum differs from 1 − p by their rounding, and is no better than p."""
    g = torch.Generator().manual_seed(0)
    p = 1 - 0.001 * torch.rand(800, generator=g, dtype=torch.float64)
    probs = torch.stack([p, *(3 * [(1 - p) / 3])], dim=1).mul(1e5).round() / 1e5
    labels = (torch.rand(800, generator=g) < 0.3).long()
    wrong = (labels > 0).numpy()
    for dtype in (torch.float32, torch.float64):
        given = probs.to(dtype)
        peer = sklearn.metrics.roc_auc_score(~wrong, given[:, 0].numpy())
        assert metrics.misclassification_auroc(given, labels) == pytest.approx(peer, abs=1e-9)
    truth = np.r_[np.zeros(400), np.ones(400)]
    peer = sklearn.metrics.roc_auc_score(truth, 1 - probs[:, 0].numpy())
    assert metrics.ood_auroc(probs[:400], probs[400:]) == pytest.approx(peer, abs=1e-9)


def test_kernel_ece_where_the_gap_changes_sign_within_a_cell():
    """61 confidences within one cell of 1/4096, which holds their accuracy, 46/61, too: counted as |Σ| it was 1e-5 off."""
    p = torch.linspace(3088 / 4096, 3089 / 4096, 63, dtype=torch.float64)[1:-1]
    labels = torch.tensor([0] * 46 + [1] * 15)
    probs = torch.stack([p, 1 - p], dim=1)
    x, y = p.numpy(), (labels == 0).double().numpy()
    kernel = np.exp(-((x[:, None] - x) ** 2) / (2 * 0.05**2))
    gaps = kernel @ y / kernel.sum(1) - x
    assert gaps.min() < 0 < gaps.max()
    assert metrics.kernel_ece(probs, labels) == pytest.approx(np.abs(gaps).mean(), abs=2e-6)


def test_debiased_ece_of_a_calibrated_model_keeps_more_than_half_of_the_bias():
    """0.0226 of 0.0382 at n = 1,000: the words say 40 %."""
    g, plain, debiased = torch.Generator().manual_seed(0), [], []
    for _ in range(200):
        probs = (2 * torch.randn(1000, 5, generator=g)).softmax(1)
        labels = torch.multinomial(probs, 1, generator=g).squeeze(1)
        plain.append(metrics.ece(probs, labels))
        debiased.append(metrics.debiased_ece(probs, labels))
    assert 1 - np.mean(debiased) / np.mean(plain) == pytest.approx(0.4, abs=0.05)
    assert "about 40 %" in metrics.METRICS.text("debiased_ece")


def test_a_tiny_difference_of_nll_has_the_interval_of_the_per_sample_differences():
    """Below 2e-5, float32 replicates made it 3 to 12 times too wide."""
    logits, labels = logits_and_labels("ten_classes")
    a = Predictions(logits=logits, labels=labels)
    b = Predictions(logits=logits * (1 + 2e-7), labels=labels)
    losses = [torch.nn.functional.cross_entropy(each.logits, labels, reduction="none") for each in (a, b)]
    gap = losses[1] - losses[0]
    found = compare(a, b, metrics="nll")["nll"]
    assert found.difference == pytest.approx(float(gap.mean()), rel=1e-4)
    width = 2 * 1.96 * float(gap.std()) / math.sqrt(len(gap))
    assert found.high - found.low == pytest.approx(width, rel=0.1)
