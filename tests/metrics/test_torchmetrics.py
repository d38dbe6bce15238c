"""The torchmetrics wrappers keep torchmetrics' habits: held against its own metrics, collections and trackers."""

from __future__ import annotations

import math

import pytest
import torch
import torchmetrics.classification as tm
from torchmetrics import MetricCollection, MetricTracker

from calattn import metrics
from calattn.metrics import METRICS, MetricState, torchmetrics
from calattn.metrics.torchmetrics import CalibrationMetric, CalibrationMetrics
from tests.samples import logits_and_labels

ALL = tuple(METRICS)


def ece_of(num_classes: int = 10, **options: object) -> CalibrationMetric:
    return CalibrationMetric("ece", num_classes=num_classes, **{"from_logits": True} | options)


def test_a_collection_passes_preds_and_target_by_name():
    logits, labels = logits_and_labels("ten_classes")
    both = MetricCollection(
        [
            tm.MulticlassAccuracy(10, average="micro"),
            CalibrationMetrics(["accuracy", "ece"], num_classes=10, from_logits=True),
        ]
    )
    found = both(preds=logits, target=labels)
    assert float(found["accuracy"]) == pytest.approx(float(found["MulticlassAccuracy"]))
    peer = tm.MulticlassCalibrationError(10, n_bins=15)(logits.softmax(1), labels)
    assert float(found["ece"]) == pytest.approx(float(peer), abs=1e-6)


def test_a_collection_by_name_shares_equal_states_and_keeps_the_values_apart():
    logits, labels = logits_and_labels("ten_classes")
    names = ("ece", "mce", "adaptive_ece", "aurc")
    several = MetricCollection({n: CalibrationMetric(n, num_classes=10, from_logits=True) for n in names})
    for part in torch.arange(3000).split(500):
        several.update(logits[part], labels[part])
    assert {frozenset(group) for group in several.compute_groups.values()} == {
        frozenset({"ece", "mce"}),
        frozenset({"adaptive_ece", "aurc"}),
    }
    expected = MetricState(names).update_logits(logits, labels).compute()
    assert {n: float(v) for n, v in several.compute().items()} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["ece", "accuracy"])
def test_a_tracker_keeps_the_best_step(name):
    logits, labels = logits_and_labels("overconfident")
    tracker = MetricTracker(CalibrationMetric(name, num_classes=10, from_logits=True))
    steps = (logits / 3, logits / 1.7, -logits)
    for step in steps:
        tracker.increment()
        tracker.update(step, labels)
    values = [getattr(metrics, name)(step.softmax(1), labels) for step in steps]
    best, at = tracker.best_metric(return_step=True)
    assert float(best) == pytest.approx((max if name == "accuracy" else min)(values))
    assert at == values.index(pytest.approx(float(best)))


def test_several_metrics_have_a_direction_where_they_agree():
    assert CalibrationMetrics(["ece", "nll"], num_classes=3, from_logits=True).higher_is_better is False
    assert CalibrationMetrics(["ece", "accuracy"], num_classes=3, from_logits=True).higher_is_better is None
    for name in ALL:
        metric = CalibrationMetric(name, num_classes=3, from_logits=True)
        assert metric.higher_is_better is (METRICS[name].better == "higher"), name


@pytest.mark.parametrize("ignored", [-100, 3])
def test_ignored_targets_are_left_out_as_torchmetrics_does(ignored):
    logits, labels = logits_and_labels("ten_classes")
    labels = labels.clone()
    labels[::7] = ignored
    peer = tm.MulticlassCalibrationError(10, n_bins=15, ignore_index=ignored)(logits.softmax(1), labels)
    assert float(ece_of(ignore_index=ignored)(logits, labels)) == pytest.approx(float(peer), abs=1e-6)
    assert math.isnan(float(ece_of(ignore_index=4)(logits[:3], torch.full((3,), 4))))


def test_further_dimensions_are_further_samples():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(6, 5, 4, 3, generator=generator)
    labels = torch.randint(5, (6, 4, 3), generator=generator)
    peer = tm.MulticlassCalibrationError(5, n_bins=15)
    assert float(ece_of(5)(logits, labels)) == pytest.approx(float(peer(logits.softmax(1), labels)), abs=1e-6)
    own = CalibrationMetric("nll", num_classes=5, from_logits=True)(logits, labels)
    assert float(own) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), abs=1e-6)


@pytest.mark.parametrize("from_logits", [True, False])
def test_class_one_of_two_may_come_alone(from_logits):
    generator = torch.Generator().manual_seed(0)
    logit = 2 * torch.randn(900, generator=generator) - 1.0
    labels = (torch.rand(900, generator=generator) < (logit / 2).sigmoid()).long()
    given = logit if from_logits else logit.sigmoid()
    both = torch.stack([1 - logit.sigmoid(), logit.sigmoid()], 1)
    alone = ece_of(2, from_logits=from_logits)(given, labels)
    assert float(alone) == pytest.approx(float(tm.MulticlassCalibrationError(2, n_bins=15)(both, labels)), abs=1e-6)
    event = ece_of(2, from_logits=from_logits, target=1)(given.view(30, 30), labels.view(30, 30))
    assert float(event) == pytest.approx(float(tm.BinaryCalibrationError(n_bins=15)(logit.sigmoid(), labels)), abs=1e-6)


@pytest.mark.usefixtures("untyped")
def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"preds must be \[n, 10, …\] and target \[n, …\]; got \[4, 10\] and \[5\]"):
        ece_of().update(torch.randn(4, 10), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"got \[4\] and \[4\]"):
        ece_of().update(torch.randn(4), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("name", ALL)
def test_empty_batches_change_nothing(name):
    logits, labels = logits_and_labels("ten_classes")
    metric = CalibrationMetric(name, num_classes=10, from_logits=True)
    empty = logits[:0], labels[:0]
    metric.update(*empty)
    assert math.isnan(float(metric.compute()))
    metric.update(logits, labels)
    metric.update(*empty)
    alone = CalibrationMetric(name, num_classes=10, from_logits=True)
    alone.update(logits, labels)
    assert torch.equal(metric.compute(), alone.compute())


def test_compute_before_update_warns_and_is_nan():
    metric = CalibrationMetrics(["ece", "aurc"], num_classes=3, from_logits=True)
    with pytest.warns(UserWarning, match="was called before the ``update`` method"):
        found = metric.compute()
    assert all(math.isnan(float(value)) for value in found.values())


def test_plot_and_repr():
    import matplotlib

    matplotlib.use("Agg")
    logits, labels = logits_and_labels("ten_classes")
    metric = CalibrationMetric("ece", num_classes=10, from_logits=True, ignore_index=-1)
    assert repr(metric) == "CalibrationMetric('ece', num_classes=10, from_logits=True, ignore_index=-1)"
    steps = [metric(logits[part], labels[part]) for part in torch.arange(3000).split(1000)]
    _, ax = metric.plot(steps)
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([float(step) for step in steps])
    _, ax = CalibrationMetrics(["ece", "nll"], num_classes=10, from_logits=True).plot(
        {"ece": steps[0], "nll": steps[1]}
    )
    assert len(ax.lines) == 2


def test_states_are_written_in_place_but_never_the_defaults_nor_a_clones():
    logits, labels = logits_and_labels("ten_classes")
    metric = CalibrationMetrics(ALL, num_classes=10, from_logits=True)
    metric.update(logits[:1000], labels[:1000])
    held = metric.ranks.data_ptr()
    copy, before = metric.clone(), metric.compute()
    metric.update(logits[1000:], labels[1000:])
    assert metric.ranks.data_ptr() == held, "a fresh histogram a batch is what made an update take milliseconds"
    after = MetricState(ALL).update_logits(logits, labels).compute()
    assert {name: float(value) for name, value in metric.compute().items()} == pytest.approx(after, abs=1e-9)
    assert copy.compute() == before
    metric.reset()
    assert not any(getattr(metric, name).any() for name in metric._defaults if name != "asked")
    metric(logits[:500], labels[:500])  # forward: the batch's own value, and both batches in the state
    metric(logits[500:], labels[500:])
    assert {name: float(value) for name, value in metric.compute().items()} == pytest.approx(after, abs=1e-9)


def test_a_state_reset_under_inference_mode_takes_batches_outside_it():
    logits, labels = logits_and_labels("ten_classes")
    metric = CalibrationMetrics(ALL, num_classes=10, from_logits=True)
    with torch.inference_mode():
        metric.reset()
        metric.update(logits[:1000], labels[:1000])
    metric.update(logits[1000:], labels[1000:])
    expected = MetricState(ALL).update_logits(logits, labels).compute()
    assert {name: float(value) for name, value in metric.compute().items()} == pytest.approx(expected, abs=1e-9)


def test_merging_collapsed_rank_states_leaves_both_as_they_were():
    logits, labels = logits_and_labels("ten_classes")
    a, b = (MetricState("aurc", rank_capacity=c) for c in (0, 0))
    a.update_logits(logits[:100], labels[:100])
    before = a.ranks.histogram.clone()
    b.ranks.samples = torch.tensor([[0.5], [0.6], [1.0]], dtype=torch.float64)
    a.ranks.merge(b.ranks)
    assert torch.equal(a.ranks.histogram, before)


RANKED = ("adaptive_ece", "misclassification_auroc", "aurc")


@pytest.mark.parametrize("name", RANKED)
def test_small_sets_are_exact(name):
    logits, labels = (each[:1501] for each in logits_and_labels("ten_classes"))
    logits = logits / 3  # calibrated: there the cells' ties moved AdaECE by 0.1 points
    metric = CalibrationMetric(name, num_classes=10, from_logits=True)
    metric(logits[:60], labels[:60])
    metric.update(logits[60:], labels[60:])
    exact, sketch = (
        MetricState(name, rank_capacity=c).update_logits(logits, labels).compute()[name] for c in (1501, 0)
    )
    assert float(metric.compute()) == pytest.approx(exact, abs=1e-12)
    assert abs(exact - sketch) > 1e-5, "otherwise this says nothing"


@pytest.mark.parametrize("way", ["update", "forward", "merge_state"])
def test_beyond_the_slots_all_samples_go_over_to_the_sketch(monkeypatch, way):
    """As a MetricState of that capacity does, whichever way the batches come together."""
    monkeypatch.setattr(torchmetrics, "SLOTS", 1000)
    logits, labels = logits_and_labels("ten_classes")
    for size in (990, 1000, 1001, 2600):
        metric = CalibrationMetrics(RANKED, num_classes=10, from_logits=True)
        for part in torch.arange(size).split(300):
            if way == "merge_state":
                other = CalibrationMetrics(RANKED, num_classes=10, from_logits=True)
                other.update(logits[part], labels[part])
                metric.merge_state(other)
            else:
                getattr(metric, way)(logits[part], labels[part])
        expected = MetricState(RANKED, rank_capacity=1000).update_logits(logits[:size], labels[:size]).compute()
        assert {n: float(v) for n, v in metric.compute().items()} == pytest.approx(expected, abs=1e-9), size


def test_packed_ranks_merge_in_any_order(monkeypatch):
    """Full, half full, empty and beyond: as many samples and as many right ones, exact wherever they fit."""
    monkeypatch.setattr(torchmetrics, "SLOTS", 100)
    generator = torch.Generator().manual_seed(0)

    def state(size: int) -> torch.Tensor:
        odds = 3 * torch.rand(size, generator=generator, dtype=torch.float64)
        right = (torch.rand(size, generator=generator) < 0.5).double()
        ranks = torchmetrics.RankSums(100, torch.stack([odds, 1 / (1 + odds), right]))
        ranks._collapse_if_full()
        return torchmetrics.pack(ranks, torchmetrics.empty_packed())

    parts = [state(size) for size in (100, 0, 60, 130)]
    for order in ((0, 1), (1, 2), (2, 0), (3, 2), (0, 1, 2, 3)):
        found, back = (
            torchmetrics.unpacked(torchmetrics.merged(torch.stack([parts[i] for i in o]))) for o in (order, order[::-1])
        )
        size = sum((100, 0, 60, 130)[i] for i in order)
        assert (found.num_samples, found.histogram is None) == (size, size <= 100)
        for one, other in zip(vars(found.groups()).values(), vars(back.groups()).values(), strict=True):
            assert torch.allclose(one, other)
    assert not torchmetrics.merged(torch.stack([parts[1], parts[1]])).any()
