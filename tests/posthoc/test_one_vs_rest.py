"""Isotonic calibration and histogram binning."""

import pytest
import torch

from calattn import Predictions
from calattn.posthoc import HistogramBinning, IsotonicCalibration


def rows(*probs, labels=None):
    table = torch.tensor(probs)
    return Predictions.from_probs(table, torch.tensor(labels if labels is not None else [0] * len(probs)))


def test_histogram_by_hand():
    p = rows((0.9, 0.1), (0.95, 0.05), (0.6, 0.4), (0.55, 0.45), labels=[0, 1, 1, 1])
    fit = HistogramBinning(num_bins=5).fit(p)
    # class 0: (0.8, 1] holds two samples, one of label 0; (0.4, 0.6] two, none. Others are empty: the bin's middle.
    torch.testing.assert_close(fit.frequencies_[0], torch.tensor([0.1, 0.3, 0.0, 0.7, 0.5], dtype=torch.float64))
    out = fit(rows((0.85, 0.15), (0.58, 0.42))).probs
    torch.testing.assert_close(out, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))


def test_histogram_uses_the_metrics_edges():
    """0.2 in float32 lies in (2/15, 3/15], as everywhere in the project."""
    p = rows((0.2, 0.8), (0.21, 0.79), labels=[0, 1])
    fit = HistogramBinning(num_bins=15).fit(p)
    assert fit.frequencies_[0, 2] == 1.0
    assert fit.frequencies_[0, 3] == 0.0


def test_fewer_samples_than_bins():
    fit = HistogramBinning(num_bins=15).fit(rows((0.9, 0.1), (0.3, 0.7), labels=[0, 1]))
    out = fit(rows((0.5, 0.5), (1.0, 0.0), (0.0, 1.0))).probs
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.sum(dim=1), torch.ones(3))


@pytest.mark.parametrize("kind", [HistogramBinning, IsotonicCalibration])
def test_rows_of_zeros_become_uniform(kind):
    p = rows(*[(0.9, 0.1, 0.0), (0.1, 0.9, 0.0)] * 2, labels=[2, 2, 2, 2])
    fit = kind().fit(p)
    out = fit(rows((0.91, 0.09, 0.0)))
    if kind is IsotonicCalibration:  # class 2 is always right: probability one
        assert out.probs.tolist() == [[0.0, 0.0, 1.0]]
    lost = kind().fit(rows(*[(0.5, 0.25, 0.25), (0.25, 0.5, 0.25)], labels=[2, 2]))
    flat = lost(rows((0.48, 0.26, 0.26)))
    torch.testing.assert_close(flat.probs.sum(), torch.tensor(1.0))
    absent = type(fit)().fit(rows((0.9, 0.05, 0.05), (0.9, 0.05, 0.05), labels=[0, 0]))
    absent.__dict__["frequencies_" if kind is HistogramBinning else "values_"].zero_()
    torch.testing.assert_close(absent(rows((0.3, 0.4, 0.3))).logits.exp(), torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize("kind", [HistogramBinning, IsotonicCalibration])
def test_exact_zeros_are_minus_infinity_unless_floored(kind):
    p = rows(*[(0.9, 0.1), (0.1, 0.9)] * 5, labels=[0, 1] * 5)
    new = rows((0.92, 0.08), labels=[1])
    assert kind().fit(p)(new).logits[0, 1] == -torch.inf
    floored = kind(floor=1e-6).fit(p)(new)
    torch.testing.assert_close(floored.probs[0, 1], torch.tensor(1e-6), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="floor must be in"):
        kind(floor=1.0)


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("kind", [HistogramBinning, IsotonicCalibration])
def test_the_order_of_many_classes_does_not_matter(kind, stated):
    """More classes than are handled at a time: each keeps its own map wherever it stands."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(600, 70, generator=g).double() + torch.linspace(-2, 2, 70)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=g).squeeze(1)
    p = Predictions(logits=logits, labels=labels, scale=0.5 + torch.rand(600, generator=g).double())
    moved = p.replace(logits=logits.roll(37, dims=1), labels=(labels + 37) % 70)
    if stated:
        p, moved = (Predictions.from_probs(each.probs, each.labels) for each in (p, moved))
    fitted, judged = torch.arange(600).chunk(2)
    here, there = (kind().fit(each.select(fitted))(each.select(judged)) for each in (p, moved))
    torch.testing.assert_close(there.probs, here.probs.roll(37, dims=1))
    assert here.probs.unique(dim=0).shape[0] > 200  # the maps say something


def test_isotonic_can_change_the_prediction():
    """It is not monotone across classes: the page in docs/ says so."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 3, generator=g)
    p = Predictions(
        logits=logits, labels=torch.multinomial((logits + torch.tensor([2.0, 0, 0])).softmax(1), 1, generator=g)[:, 0]
    )
    out = IsotonicCalibration().fit(p)(p.replace(logits=p.logits + 1e-3 * torch.randn(400, 3, generator=g)))
    assert (out.logits.argmax(dim=1) != p.logits.argmax(dim=1)).any()
    assert (out.logits.argmax(dim=1) == p.labels).float().mean() > (p.logits.argmax(dim=1) == p.labels).float().mean()
