"""Laws that hold for every prediction set, tried on many."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from calattn import Predictions, evaluate, metrics
from calattn.metrics import METRICS, MetricState

CALIBRATION = ("ece", "adaptive_ece", "classwise_ece", "smooth_ece", "kernel_ece", "mce")


@st.composite
def prediction_sets(draw, min_n: int = 1, max_n: int = 60, max_c: int = 8):
    """Logits from a coarse lattice, so that ties, exact zeros and saturation are common."""
    n, c = draw(st.integers(min_n, max_n)), draw(st.integers(2, max_c))
    seed = draw(st.integers(0, 2**32 - 1))
    step = draw(st.sampled_from([0.0, 0.25, 1.0, 8.0]))
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, c, generator=g, dtype=torch.float64) * draw(st.sampled_from([0.1, 1.0, 5.0, 50.0]))
    if step:
        logits = (logits / step).round() * step
    return logits, torch.randint(c, (n,), generator=g)


@given(prediction_sets(), st.integers(0, 1000))
def test_permutation_of_samples_changes_nothing(case, seed):
    logits, labels = case
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    before, after = (
        MetricState(tuple(METRICS)).update_logits(a, b).compute()
        for a, b in ((logits, labels), (logits[order], labels[order]))
    )
    assert before == pytest.approx(after, abs=1e-9, nan_ok=True)


@given(prediction_sets(), st.integers(0, 1000))
def test_permutation_of_classes_changes_nothing_but_ties(case, seed):
    logits, labels = case
    order = torch.randperm(logits.shape[1], generator=torch.Generator().manual_seed(seed))
    top_two = logits.topk(2, dim=1).values
    if bool((top_two[:, 0] == top_two[:, 1]).any()):
        return  # of equal logits the first class is the prediction: that is a convention, not a law
    moved = torch.argsort(order)[labels]
    before = MetricState(tuple(METRICS)).update_logits(logits, labels).compute()
    after = MetricState(tuple(METRICS)).update_logits(logits[:, order], moved).compute()
    assert before == pytest.approx(after, abs=1e-9, nan_ok=True)


@given(
    prediction_sets(min_n=2), st.lists(st.integers(0, 10_000), min_size=1, max_size=4), st.sampled_from([0, 5, 1 << 20])
)
def test_any_split_merged_in_any_order_is_the_whole(case, cuts, capacity):
    """`capacity` 0 and 5 exercise the sketch and the change-over to it, 2**20 the exact path."""
    logits, labels = case
    bounds = sorted({0, len(labels), *(cut % len(labels) for cut in cuts)})

    def state() -> MetricState:
        return MetricState(tuple(METRICS), rank_capacity=capacity)

    whole = state().update_logits(logits, labels)
    parts = [state().update_logits(logits[a:b], labels[a:b]) for a, b in itertools.pairwise(bounds)]
    forward, backward, stream = parts[0], parts[-1], state()
    for part in parts[1:]:
        forward = forward.merge(part)
    for part in reversed(parts[:-1]):
        backward = part.merge(backward) if len(parts) % 2 else backward.merge(part)
    for a, b in itertools.pairwise(bounds):
        stream.update_logits(logits[a:b], labels[a:b])
    expected = whole.compute()
    for other in (forward, backward, stream):
        assert other.compute() == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(prediction_sets(), st.floats(0.05, 20))
def test_a_scalar_temperature_leaves_accuracy_alone(case, temperature):
    logits, labels = case
    p = Predictions(logits=logits, labels=labels)
    cooled = p.replace(scale=torch.full((len(p),), temperature))
    assert evaluate(p, num_bootstrap=0)["accuracy"].value == evaluate(cooled, num_bootstrap=0)["accuracy"].value


@given(prediction_sets())
def test_functions_and_states_and_evaluate_agree(case):
    logits, labels = case
    probs = logits.softmax(1)
    from_probs = MetricState(tuple(METRICS)).update_probs(probs, labels).compute()
    evaluated = evaluate(Predictions(logits=logits, labels=labels), num_bootstrap=0)
    for name in (*CALIBRATION, "brier", "accuracy", "misclassification_auroc", "aurc", "debiased_ece"):
        function = getattr(metrics, name)
        assert function(probs, labels) == pytest.approx(from_probs[name], abs=1e-9, nan_ok=True), name
    assert metrics.nll(logits, labels) == pytest.approx(evaluated["nll"].value, abs=1e-9)


@given(prediction_sets())
def test_bounds(case):
    logits, labels = case
    values = MetricState(tuple(METRICS)).update_logits(logits, labels).compute()
    for name in CALIBRATION:
        assert -1e-12 <= values[name] <= 1 + 1e-12, name
    assert 0 <= values["brier"] <= 2
    assert values["nll"] >= 0
    assert values["ece"] <= values["mce"] + 1e-12  # a weighted mean is at most the maximum
    gap = abs(float(logits.softmax(1).max(1).values.mean()) - values["accuracy"])
    assert values["ece"] >= gap - 1e-9  # one bin is the coarsest ECE
    assert values["adaptive_ece"] >= gap - 1e-9
    assert values["smooth_ece"] >= gap - 1e-6


@given(prediction_sets(min_n=5), st.floats(0.02, 0.5), st.floats(0.02, 0.5))
def test_smooth_ece_never_grows_with_the_bandwidth(case, a, b):
    logits, labels = case
    probs = logits.softmax(1)
    narrow, wide = (metrics.smooth_ece(probs, labels, bandwidth=s) for s in sorted((a, b)))
    assert wide <= narrow + 1e-7


@given(prediction_sets(min_n=5))
def test_sketch_is_near_the_exact_ranks(case):
    logits, labels = case
    exact = MetricState(["adaptive_ece", "misclassification_auroc", "aurc"]).update_logits(logits, labels)
    sketch = MetricState(["adaptive_ece", "misclassification_auroc", "aurc"], rank_capacity=0)
    sketch.update_logits(logits, labels)
    # odds that differ by more than a cell stay apart; closer ones are tied, which can move a handful of ranks
    odds = exact.ranks.samples[0].sort().values
    apart = bool(((odds[1:] - odds[:-1]) > 2e-3 * odds[1:]).logical_or(odds[1:] == odds[:-1]).all())
    if apart and float(odds[0]) > 1e-37:  # below float32's range all odds share a cell
        assert sketch.compute() == pytest.approx(exact.compute(), abs=1e-9, nan_ok=True)
