"""Laws that hold for any batch: invariances, one-hot labels, linearity, orderings, and special options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calattn import losses

NAMES = sorted(losses.LOSSES)
SAMPLE_WISE = [name for name in NAMES if not name.startswith("mmce")]


@st.composite
def batches(draw):
    """(logits, class indices, soft labels) in float64, on a grid so that ties occur, saturation included."""
    n, c = draw(st.integers(1, 8)), draw(st.integers(2, 5))
    spread = draw(st.sampled_from([0.25, 1.0, 30.0]))
    entries = st.lists(st.integers(-6, 6), min_size=n * c, max_size=n * c)
    logits = spread * torch.tensor(draw(entries), dtype=torch.float64).reshape(n, c)
    labels = torch.tensor(draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n)))
    masses = torch.tensor(draw(entries), dtype=torch.float64).reshape(n, c).abs()
    masses[:, 0] += (masses.sum(dim=1) == 0).double()
    return logits, labels, masses / masses.sum(dim=1, keepdim=True)


def value(name, logits, labels, **options):
    return losses.create(name, **options)(logits, labels)


quick = settings(max_examples=15, deadline=None)


@pytest.mark.parametrize("name", NAMES)
@quick
@given(batch=batches(), data=st.data())
def test_order_of_samples_and_names_of_classes_do_not_matter(name, batch, data):
    logits, hard, soft = batch
    if name.startswith("mmce"):  # the predicted class of a tie depends on the order of classes
        logits = logits + torch.arange(logits.shape[1]) * 1e-3
    rows = torch.tensor(data.draw(st.permutations(range(len(logits)))))
    columns = torch.tensor(data.draw(st.permutations(range(logits.shape[1]))))
    moved = columns.argsort()[hard]  # class k sits in column argsort(columns)[k] afterwards
    for before, after in ((hard, moved), (soft, soft[:, columns])):
        permuted = value(name, logits[:, columns][rows], after[rows])
        torch.testing.assert_close(permuted, value(name, logits, before))


@pytest.mark.parametrize("name", NAMES)
@quick
@given(batch=batches(), shift=st.integers(-20, 20))
def test_adding_a_number_to_a_row_of_logits_changes_nothing(name, batch, shift):
    logits, hard, soft = batch
    for labels in (hard, soft):
        torch.testing.assert_close(value(name, logits + shift, labels), value(name, logits, labels))


@pytest.mark.parametrize("name", NAMES)
@quick
@given(batch=batches())
def test_one_hot_labels_are_class_indices(name, batch):
    logits, hard, _ = batch
    one_hot = torch.eye(logits.shape[1], dtype=torch.float64)[hard]
    torch.testing.assert_close(value(name, logits, one_hot), value(name, logits, hard))


@pytest.mark.parametrize("name", ["ce", "label_smoothing", "focal", "flsd53", "dual_focal", "mbls"])
@quick
@given(batch=batches())
def test_a_soft_label_is_an_expectation(name, batch):
    logits, _, soft = batch
    n, c = logits.shape
    each = [value(name, logits, torch.full((n,), k), reduction="none") for k in range(c)]
    expected = (soft * torch.stack(each, dim=1)).sum(dim=1)
    torch.testing.assert_close(value(name, logits, soft, reduction="none"), expected)


@quick
@given(batch=batches())
def test_brier_of_a_soft_label_is_the_expectation_less_a_constant(batch):
    logits, _, soft = batch
    n, c = logits.shape
    each = [value("brier", logits, torch.full((n,), k), reduction="none") for k in range(c)]
    expected = (soft * torch.stack(each, dim=1)).sum(dim=1) - (1 - soft.square().sum(dim=1))
    torch.testing.assert_close(value("brier", logits, soft, reduction="none"), expected)


@pytest.mark.parametrize("name", SAMPLE_WISE)
@quick
@given(batch=batches())
def test_reductions_agree(name, batch):
    logits, hard, soft = batch
    for labels in (hard, soft):
        each = value(name, logits, labels, reduction="none")
        assert each.shape == hard.shape
        assert (each >= 0).all()
        torch.testing.assert_close(value(name, logits, labels), each.mean())
        torch.testing.assert_close(value(name, logits, labels, reduction="sum"), each.sum())


NO_EXTRA = [
    ("ce_brier", {"weight": 0.0}),
    ("mmce", {"weight": 0.0}),
    ("label_smoothing", {"alpha": 0.0}),
    ("focal", {"gamma": 0.0}),
    ("dual_focal", {"gamma": 0.0}),
    ("mbls", {"weight": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), NO_EXTRA)
@quick
@given(batch=batches())
def test_without_its_extra_a_loss_is_cross_entropy(name, options, batch):
    logits, hard, soft = batch
    for labels in (hard, soft):
        torch.testing.assert_close(value(name, logits, labels, **options), value("ce", logits, labels))


@quick
@given(batch=batches())
def test_orderings(batch):
    logits, hard, soft = batch
    slack = 1e-12
    for labels in (hard, soft):
        cross_entropy = value("ce", logits, labels)
        for name in ("ce_brier", "mmce", "mbls"):
            assert value(name, logits, labels) >= cross_entropy - slack
        # p_j ≥ 0 lifts the base of the power, p_j < p_y keeps it below 1.
        single, dual = (value(name, logits, labels, gamma=5.0) for name in ("focal", "dual_focal"))
        assert single - slack <= dual <= cross_entropy + slack
        assert single - slack <= value("flsd53", logits, labels) <= value("focal", logits, labels) + slack
        assert value("brier", logits, labels) <= 2 + slack
