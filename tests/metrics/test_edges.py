"""Corners: tiny N, empty bins, confidence 0 and 1, missing classes, precisions, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import calattn
from calattn import Predictions, metrics
from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import LabelledValues, columns_of
from calattn.metrics.ranks import RankSums

FUNCTIONS = {
    name: getattr(metrics, name)
    for name in (
        "ece",
        "mce",
        "adaptive_ece",
        "classwise_ece",
        "smooth_ece",
        "kernel_ece",
        "debiased_ece",
        "ece_sweep",
        "brier",
        "accuracy",
        "aurc",
    )
}


@pytest.fixture(params=sorted(FUNCTIONS))
def metric(request):
    return FUNCTIONS[request.param]


def softmax(n: int, c: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, c, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(1)


def test_one_sample_by_hand():
    probs, wrong = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64), torch.tensor([1])
    assert metrics.ece(probs, wrong) == pytest.approx(0.7)
    assert metrics.mce(probs, wrong) == pytest.approx(0.7)
    assert metrics.adaptive_ece(probs, wrong) == pytest.approx(0.7)
    assert metrics.smooth_ece(probs, wrong) == pytest.approx(0.7)
    assert metrics.kernel_ece(probs, wrong) == pytest.approx(0.7)
    assert metrics.classwise_ece(probs, wrong) == pytest.approx((0.7 + 0.8 + 0.1) / 3)
    assert metrics.brier(probs, wrong) == pytest.approx(0.49 + 0.64 + 0.01)
    assert metrics.accuracy(probs, wrong) == 0
    assert metrics.aurc(probs, wrong) == 1


@pytest.mark.parametrize("n", [1, 2, 7, 14])
def test_fewer_samples_than_bins(metric, n):
    assert math.isfinite(metric(softmax(n, 4), torch.arange(n) % 4))


def test_confidence_exactly_zero_and_one():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    for name in ("ece", "mce", "adaptive_ece", "classwise_ece", "smooth_ece", "kernel_ece"):
        assert FUNCTIONS[name](probs, labels) == pytest.approx(1 / 3), name
    assert metrics.ece(probs, labels, target=1) == pytest.approx(1 / 3)
    assert metrics.accuracy(probs, labels) == pytest.approx(2 / 3)


def test_all_right_with_certainty_is_zero_everywhere():
    probs = torch.eye(3)
    for name in ("ece", "mce", "adaptive_ece", "classwise_ece", "smooth_ece", "kernel_ece", "brier", "aurc"):
        assert FUNCTIONS[name](probs, torch.arange(3)) == pytest.approx(0, abs=1e-12), name


def test_class_that_never_occurs_counts_in_classwise():
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2]], dtype=torch.float64)
    labels = torch.tensor([0, 1])  # class 2 never occurs, and its probability 0.2 is its error
    per_class = metrics.class_bins(probs, labels).per_class()
    assert per_class[2] == pytest.approx(0.2)
    assert metrics.classwise_ece(probs, labels) == pytest.approx(float(per_class.mean()))
    assert len(per_class) == 3


def test_classwise_of_21843_classes_against_a_plain_loop():
    probs = softmax(60, 21_843).double()
    probs[:30] = 0.3 * probs[:30]
    probs[:30, 7] += 0.7  # several entries above 1/15
    labels = torch.tensor([7, 21_842] * 30)
    total = 0.0
    one_hot = torch.zeros_like(probs)
    one_hot[torch.arange(60), labels] = 1
    index = torch.ceil(probs * 15).clamp(1, 15)
    for b in range(1, 16):
        inside = (index == b).double()
        total += float(((probs - one_hot) * inside).sum(0).abs().sum())
    assert metrics.classwise_ece(probs, labels) == pytest.approx(total / 60 / 21_843, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_it_stands(metric, dtype):
    """The value is that of the rounded probabilities themselves: not renormalised, not NaN, nothing lost on the way."""
    probs = softmax(2000, 4).to(dtype)
    labels = torch.randint(4, (2000,), generator=torch.Generator().manual_seed(1))
    wide = probs.float()
    fits = ((wide.sum(1) - 1).abs() < 9e-5).nonzero().squeeze(1)  # rows that pass as float32 too
    assert len(fits) > 50
    assert metric(probs[fits], labels[fits]) == pytest.approx(metric(wide[fits], labels[fits]), abs=1e-12)
    assert math.isfinite(metric(probs, labels))


def test_float64_is_not_narrowed():
    probs = torch.tensor([[0.5 + 1e-12, 0.5 - 1e-12]], dtype=torch.float64)
    assert metrics.ece(probs, torch.tensor([0])) == pytest.approx(0.5 - 1e-12, abs=1e-15)


def test_numpy_arrays_lists_of_numbers_and_other_integer_types():
    probs, labels = softmax(50, 3), torch.arange(50) % 3
    expected = metrics.ece(probs, labels)
    assert metrics.ece(probs.numpy(), labels.numpy()) == expected
    assert metrics.ece(probs, labels.to(torch.uint8)) == expected
    assert metrics.ece(probs.numpy()[::-1], labels.numpy()[::-1].astype(np.int32)) == pytest.approx(expected)
    frozen = probs.numpy().copy()
    frozen.setflags(write=False)
    assert metrics.ece(frozen, labels) == expected


def test_non_contiguous_input():
    probs = softmax(60, 6)
    strided = probs.t().contiguous().t()
    assert not strided.is_contiguous()
    labels = torch.arange(60) % 6
    assert metrics.classwise_ece(strided, labels) == pytest.approx(metrics.classwise_ece(probs, labels), abs=1e-12)


def test_input_is_left_alone(metric):
    probs = softmax(300, 12)
    before = probs.clone()
    metric(probs, torch.arange(300) % 12)
    assert torch.equal(probs, before)


def test_logits_are_left_alone():
    logits = torch.randn(300, 12)
    before = logits.clone()
    calattn.evaluate(Predictions(logits=logits, labels=torch.arange(300) % 12), num_bootstrap=5)
    assert torch.equal(logits, before)


def test_ties_take_the_first_class():
    probs = torch.tensor([[0.4, 0.4, 0.2]] * 2)
    assert metrics.accuracy(probs, torch.tensor([0, 1])) == 0.5


# --- bad input: the message names the argument and the first offending index ---------------------------------------------


def spoil(**changes: float) -> torch.Tensor:
    probs = softmax(30, 4).clone()
    for place, value in changes.items():
        row, column = (int(part) for part in place[1:].split("_"))
        probs[row, column] = value
    return probs


BAD = {
    "nan": (lambda: spoil(r7_2=math.nan), None, r"probs\[7, 2\] is nan"),
    "inf": (lambda: spoil(r9_0=math.inf), None, r"probs\[9, 0\] is inf"),
    "negative": (lambda: spoil(r3_1=-0.25), None, r"probs\[3, 1\] is -0.25, negative"),
    "unnormalised": (lambda: spoil(r5_0=0.0) * 0.5 + 0.5 * spoil(), None, r"probs\[5\] sums to"),
    "logits": (lambda: torch.randn(30, 4).abs() * 5, None, r"probs\[0\] sums to .* softmax first"),
    "label_high": (softmax, [0] * 12 + [4] + [0] * 17, r"labels\[12\] is 4, outside \[0, 3\]"),
    "label_negative": (softmax, [0] * 4 + [-1] + [0] * 25, r"labels\[4\] is -1"),
    "label_float": (softmax, [0.0] * 30, r"labels must be integers, got torch.float32"),
    "label_shape": (softmax, [[0]] * 30, r"labels must have shape \[n\]"),
    "length": (softmax, [0] * 29, r"labels has 29 entries but the predictions have 30 rows"),
    "vector": (lambda: torch.full((30,), 0.5), None, r"probs must have shape \[n, c\], got \[30\]; for a binary"),
    "one_class": (lambda: torch.ones(30, 1), None, r"probs must have at least 2 classes"),
    "empty": (lambda: torch.zeros(0, 4), [], r"probs is empty"),
    "integers": (lambda: torch.ones(30, 4, dtype=torch.int64), None, r"probs must be floating point"),
}


@pytest.mark.parametrize("case", sorted(BAD))
@pytest.mark.usefixtures("untyped")
def test_bad_input_names_the_place(metric, case):
    make, labels, message = BAD[case]
    probs = make(30, 4) if make is softmax else make()
    labels = torch.zeros(len(probs), dtype=torch.int64) if labels is None else torch.tensor(labels)
    if case == "empty":
        labels = labels.long()
    with pytest.raises(ValueError, match=message):
        metric(probs, labels)


def test_offending_index_is_global_across_blocks():
    probs = softmax(30_000, 40)
    probs[29_000, 3] = math.nan
    with pytest.raises(ValueError, match=r"probs\[29000, 3\] is nan"):
        metrics.ece(probs, torch.zeros(30_000, dtype=torch.int64))
    probs[29_000, 3] = -0.5
    with pytest.raises(ValueError, match=r"probs\[29000, 3\] is -0.5, negative"):
        metrics.ece(probs, torch.zeros(30_000, dtype=torch.int64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, y: metrics.ece(p, y, num_bins=0), "num_bins must be a positive integer, got 0"),
        (lambda p, y: metrics.smooth_ece(p, y, bandwidth=0.0), "bandwidth must be positive"),
        (lambda p, y: metrics.smooth_ece(p, y, bandwidth=math.nan), "bandwidth must be positive"),
        (lambda p, y: metrics.ece(p, y, target=9), r"target is 9, outside \[0, 3\]"),
        (lambda p, y: metrics.high_confidence_errors(p, y, threshold=1.5), r"threshold must be in \[0, 1\], got 1.5"),
        (lambda p, y: metrics.nll(p * math.nan, y), r"logits\[0, 0\] is nan"),
        (lambda _, y: metrics.nll(torch.full((30, 4), -math.inf), y), r"logits\[0\] is -inf for every class"),
        (lambda *_: metrics.MetricState("eec"), "unknown metric 'eec'; did you mean 'ece'"),
        (lambda *_: metrics.MetricState([]), "metrics is empty"),
        (lambda *_: metrics.MetricState("ece").compute(), "no predictions were added"),
    ],
)
def test_bad_options(call, message):
    with pytest.raises(ValueError, match=message):
        call(softmax(30, 4), torch.zeros(30, dtype=torch.int64))


# --- particular values ----------------------------------------------------------------------------------------------------


def test_saturated_auroc_ranks_on_odds():
    """Confidences that all round to 1 in float32 still rank by their odds (torchmetrics PR #3420)."""
    logits = torch.tensor([[40.0, 0.0], [30.0, 0.0], [20.0, 0.0], [19.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert float(logits.softmax(1).max(1).values.min()) == 1.0
    assert metrics.misclassification_auroc(logits.softmax(1), labels) == 1.0
    evaluated = calattn.evaluate(Predictions(logits=logits, labels=labels), num_bootstrap=0)
    assert evaluated["misclassification_auroc"].value == 1.0


def test_rounded_rows_are_not_ranked_below_less_confident_ones():
    """Near 1 the other entries have the digits; where they sum to a little too much, p itself still goes first."""
    probs = torch.tensor([[0.9990, 0.00105], [0.99899, 0.00101]], dtype=torch.float64)
    surer, other = columns_of(LabelledValues(probs, torch.tensor([0, 0]), "probs")).odds.tolist()
    assert surer < other


def test_aurc_of_ties_is_the_mean_over_orders():
    probs = torch.tensor([[0.8, 0.2]] * 4, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    orders = [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    expected = np.mean([np.mean(np.cumsum(order) / np.arange(1, 5)) for order in orders])
    assert metrics.aurc(probs, labels) == pytest.approx(expected)


def test_high_confidence_errors_by_hand():
    probs = torch.tensor([[0.9, 0.1], [0.92, 0.08], [0.98, 0.02], [0.6, 0.4]])
    errors = metrics.high_confidence_errors(probs, torch.tensor([0, 1, 1, 1]))
    assert errors.error_rate == pytest.approx(2 / 3)  # 0.9 itself is at the threshold
    assert errors.error_share == pytest.approx(2 / 3)
    assert errors.error_confidence == pytest.approx(0.95)


def test_brier_decomposition_adds_up():
    probs, labels = softmax(500, 5), torch.randint(5, (500,), generator=torch.Generator().manual_seed(2))
    parts = metrics.brier_decomposition(probs, labels, num_bins=50)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bin
    assert total == pytest.approx(metrics.brier(probs, labels), abs=1e-12)
    base = torch.bincount(labels, minlength=5) / 500
    assert parts.uncertainty == pytest.approx(float((base * (1 - base)).sum()), abs=1e-6)
    assert abs(parts.within_bin) < 0.01


def test_brier_decomposition_of_constant_frequencies_is_pure_uncertainty():
    labels = torch.tensor([0, 0, 1, 2])
    probs = torch.tensor([[0.5, 0.25, 0.25]] * 4)
    parts = metrics.brier_decomposition(probs, labels)
    assert parts.reliability == pytest.approx(0, abs=1e-9)
    assert parts.resolution == pytest.approx(0, abs=1e-9)
    assert parts.uncertainty == pytest.approx(metrics.brier(probs, labels))


def test_brier_near_certainty_keeps_its_digits():
    logits = torch.tensor([[0.0, -20.0]])
    row = calattn.evaluate(Predictions(logits=logits, labels=torch.tensor([0])), num_bootstrap=0)["brier"]
    p = 1 / (1 + math.exp(20))
    assert row.value == pytest.approx(2 * p * p, rel=1e-5)


def test_ece_sweep_against_a_plain_loop():
    probs, labels = (
        softmax(300, 3, seed=4).double(),
        torch.randint(3, (300,), generator=torch.Generator().manual_seed(4)),
    )
    confidence, predicted = probs.max(1)
    order = confidence.argsort()
    confidence, correct = confidence[order], (predicted == labels)[order].double()
    best = 1
    for m in range(2, 301):
        parts = torch.tensor_split(correct, [k * 300 // m for k in range(1, m)])
        accuracies = torch.stack([part.mean() for part in parts])
        if (accuracies.diff() < -1e-12).any():
            break
        best = m
    assert best > 1
    assert metrics.ece_sweep(probs, labels) == pytest.approx(metrics.adaptive_ece(probs, labels, num_bins=best))


def test_ece_sweep_goes_on_while_accuracies_stay_equal():
    """Half right at 0.4 and at 0.9: one bin would average the two gaps of unlike sign, −0.1 and 0.4, away."""
    probs = torch.tensor([[0.4, 0.3, 0.3]] * 2 + [[0.9, 0.05, 0.05]] * 2, dtype=torch.float64)
    assert metrics.ece_sweep(probs, torch.tensor([0, 1, 0, 1])) == pytest.approx((0.1 + 0.4) / 2)


def test_debiased_l2_by_hand():
    """A bin of one says nothing; six right of ten at 0.6 leave less than the noise, which is reported as none."""
    one = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    assert metrics.debiased_ece(one, torch.tensor([1]), norm="l2") == 0.0
    ten, labels = torch.tensor([[0.6, 0.4]] * 10, dtype=torch.float64), torch.tensor([0] * 6 + [1] * 4)
    assert metrics.debiased_ece(ten, labels, norm="l2") == 0.0
    both = torch.cat([one, ten]), torch.cat([torch.tensor([1]), 1 - labels])  # now four of ten are right
    expected = math.sqrt(10 / 11 * (0.2**2 - 0.4 * 0.6 / 9))
    assert metrics.debiased_ece(*both, norm="l2") == pytest.approx(expected)


def test_a_hair_above_an_edge_is_in_the_bin_above():
    """In the second of four bins, however near to 1/4; there it stands alone, and its gap does not cancel."""
    above = 0.25 * (1 + 5e-7)
    probs = torch.tensor([[1 - above, above], [0.8, 0.2]], dtype=torch.float64)
    found = metrics.classwise_ece(probs, torch.tensor([1, 0]), num_bins=4)
    first = abs(1 - above - 0) + abs(0.8 - 1)  # in (1/2, 3/4] and in (3/4, 1]
    second = abs(above - 1) + abs(0.2 - 0)
    assert found == pytest.approx((first + second) / 2 / 2, rel=1e-6)


def test_class_sums_may_be_finished_in_between():
    probs, labels = softmax(40, 5).double(), torch.arange(40) % 5
    whole, parts = (ClassBins.empty(5, 15) for _ in range(2))
    for sums, cuts in ((whole, (0, 40)), (parts, (0, 13, 40))):
        collector = sums.collector()
        for start, stop in itertools.pairwise(cuts):
            columns_of(LabelledValues(probs[start:stop], labels[start:stop], "probs"), visit=collector)
            collector.finish()
    torch.testing.assert_close(parts.confidence, whole.confidence)
    assert parts.error() == pytest.approx(whole.error())


def test_ranks_are_exact_up_to_their_capacity_and_a_sketch_beyond():
    columns = columns_of(LabelledValues(softmax(8, 3), torch.zeros(8, dtype=torch.int64), "probs"))
    assert RankSums(capacity=8).add(columns).histogram is None
    assert RankSums(capacity=7).add(columns).histogram is not None
