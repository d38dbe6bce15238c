"""SATS and FrozenCalAttn: the paper's proposition, fallbacks, errors."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from calattn import Predictions
from calattn.heads.base import moments
from calattn.metrics import ece
from calattn.posthoc import SATS, FitWarning, FrozenCalAttn, TemperatureScaling
from calattn.posthoc.scale_head import _standardised


def nll(p: Predictions) -> float:
    return float(functional.cross_entropy(p.calibrated_logits.double(), p.labels))


def known_scale(n: int, seed: int) -> tuple[Predictions, torch.Tensor]:
    """Labels drawn from softmax(ℓ / s*(z)): the posterior is inside the temperature family, and s* is smooth in z."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 2, generator=g)
    scale = 0.5 + 2.0 * torch.sigmoid(1.5 * z[:, 0] - z[:, 1])
    logits = 5 * torch.randn(n, 10, generator=g)
    labels = torch.multinomial((logits / scale.unsqueeze(1)).softmax(dim=1), 1, generator=g).squeeze(1)
    return Predictions(logits=logits, labels=labels, features=3 * z + 1), scale


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_proposition_the_fitted_scale_is_the_true_one(weight):
    """Conditional optimality with frozen logits: CE and CE + λ·Brier both lead to s*(x)."""
    held_out, _ = known_scale(30_000, seed=0)
    new, truth = known_scale(4000, seed=1)
    fit = FrozenCalAttn(weight=weight, epochs=15).fit(held_out)
    scale = fit(new).scale
    assert torch.corrcoef(torch.stack([scale, truth]))[0, 1] > 0.98
    assert float((scale / truth - 1).square().mean().sqrt()) < 0.10
    # And its NLL is nearer to the true posterior's than to the best single temperature's, by far.
    best, single = nll(new.replace(scale=truth)), nll(TemperatureScaling().fit(held_out)(new))
    assert nll(fit(new)) - best < 0.1 * (single - best)


def test_sats_learns_a_temperature_that_depends_on_the_logits():
    g = torch.Generator().manual_seed(0)

    def draw(n):
        hard = torch.rand(n, generator=g) < 0.5
        logits = 3 * torch.randn(n, 5, generator=g) + 6 * hard.unsqueeze(1) * torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
        scale = torch.where(hard, 3.0, 0.8)
        labels = torch.multinomial((logits / scale.unsqueeze(1)).softmax(dim=1), 1, generator=g).squeeze(1)
        return Predictions(logits=logits, labels=labels), hard

    held_out, _ = draw(12_000)
    new, hard = draw(3000)
    fit = SATS().fit(held_out)
    temperature = fit(new).scale
    assert temperature[hard].mean() > 1.5 * temperature[~hard].mean()
    assert nll(fit(new)) < nll(TemperatureScaling().fit(held_out)(new)) - 0.02


def test_sats_does_not_see_a_shift_of_the_logits():
    p, _ = known_scale(400, seed=0)
    new, _ = known_scale(50, seed=1)
    fit = SATS(epochs=2, hidden=8).fit(p)
    torch.testing.assert_close(fit(new.replace(logits=new.logits + 3.0)).scale, fit(new).scale, atol=1e-5, rtol=1e-5)


def test_sats_reads_masked_logits():
    """A fifth of the entries at float32's minimum, whose sum overflows."""
    p, new = (known_scale(2000, seed)[0] for seed in (0, 1))
    for each in (p, new):
        out = torch.rand(each.logits.shape, generator=torch.Generator().manual_seed(len(each))) < 0.2
        out.scatter_(1, each.labels[:, None], False)
        each.logits[out] = torch.finfo(torch.float32).min
    fit = SATS(epochs=2, hidden=8).fit(p)
    assert torch.isfinite(fit.temperatures(new)).all()
    assert nll(fit(new)) < nll(TemperatureScaling().fit(p)(new)) + 0.01
    torch.testing.assert_close(fit.module()(new.logits).softmax(dim=1), fit(new).probs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [SATS, FrozenCalAttn])
def test_a_split_that_no_temperature_suits_is_named(kind):
    p, _ = known_scale(200, seed=0)
    with pytest.warns(FitWarning, match="T = 0.02 is the bound. Are all labels the top class"):
        kind(epochs=1, hidden=4).fit(p.replace(labels=p.logits.argmax(dim=1)))


@pytest.mark.parametrize("kind", [SATS, FrozenCalAttn])
def test_falls_back_to_one_temperature_or_none_when_there_is_nothing_to_learn(kind):
    """Training that hurts the hold-out is thrown away: here the rate is absurd, so every epoch does."""
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3000, 4, generator=g)
    labels = torch.multinomial((logits / 2.5).softmax(dim=1), 1, generator=g).squeeze(1)
    p = Predictions(logits=logits, labels=labels, features=torch.randn(3000, 3, generator=g))
    fit = kind(learning_rate=300.0, epochs=2).fit(p)
    assert fit.epoch_ == 0
    new = p.replace(logits=p.logits + 0.1)
    assert fit(new).scale.unique().numel() == 1
    assert float(fit(new).scale[0]) == pytest.approx(2.5, rel=0.1)
    assert int(fit.history_.argmin()) == 1
    assert len(fit.history_) == 4  # T = 1, the start, two epochs


@pytest.mark.parametrize("kind", [SATS, FrozenCalAttn])
def test_training_that_blows_up_loses_and_does_not_fail(kind):
    p, _ = known_scale(600, seed=0)
    fit = kind(learning_rate=1e30, epochs=2, hidden=4).fit(p)
    assert torch.isinf(fit.history_[2:]).all()
    assert fit.epoch_ == 0  # the single temperature before training
    assert torch.isfinite(fit(known_scale(50, seed=1)[0]).scale).all()


def test_epochs_are_chosen_by_the_score_that_is_promised():
    """The first entry of the history is that of the predictions as they are: CE + λ·Brier, or ECE, of the hold-out."""
    p, _ = known_scale(500, seed=0)
    _, judge = p.shuffle_split(0.8, torch.Generator().manual_seed(0))
    one_hot = functional.one_hot(judge.labels, 10)
    expected = nll(judge) + 2.0 * float((judge.probs.double() - one_hot).square().sum(dim=1).mean())
    frozen = FrozenCalAttn(weight=2.0, epochs=1, hidden=4).fit(p)
    assert float(frozen.history_[0]) == pytest.approx(expected, rel=1e-5)
    by_ece = SATS(num_bins=4, epochs=1, hidden=4).fit(p)
    assert float(by_ece.history_[0]) == pytest.approx(ece(judge.probs, judge.labels, num_bins=4), rel=1e-5)


@pytest.mark.parametrize("kind", [SATS, FrozenCalAttn])
def test_where_no_temperature_changes_anything_none_is_applied(kind):
    p = Predictions(logits=torch.zeros(200, 3), labels=torch.arange(200) % 3, features=torch.arange(400.0).view(200, 2))
    fit = kind(epochs=2, hidden=4).fit(p)
    assert fit.epoch_ == -1  # T = 1
    torch.testing.assert_close(fit(p.replace(labels=p.labels.roll(1))).scale, torch.ones(200))


def test_the_best_epoch_is_kept_not_the_last():
    p, _ = known_scale(1500, seed=0)
    noise = torch.randn(1500, 60, generator=torch.Generator().manual_seed(0))  # something to learn by heart
    fit = FrozenCalAttn().fit(p.replace(features=torch.cat([p.features, noise], dim=1)))
    assert 0 < fit.epoch_ < 30
    assert int(fit.history_.argmin()) == fit.epoch_ + 1
    assert fit.history_[-1] > fit.history_.min()


def test_frozen_calattn_standardises_features():
    """Units do not matter: features in other units give the same temperatures."""
    p, _ = known_scale(600, seed=0)
    new, _ = known_scale(50, seed=1)
    a = FrozenCalAttn(epochs=3).fit(p)
    b = FrozenCalAttn(epochs=3).fit(p.replace(features=1000 * p.features.double() - 7))
    scaled = new.replace(features=1000 * new.features.double() - 7)
    torch.testing.assert_close(b(scaled).scale, a(new).scale, atol=1e-4, rtol=1e-3)


def test_columns_in_parts_have_the_moments_of_the_whole_to_the_bit():
    """A seed promises the same bits, whichever way the inputs are standardised."""
    x = 3 + 2 * torch.randn(5001, 150, generator=torch.Generator().manual_seed(0))
    x[:, 70] = 5.0
    mean, std = moments(x)
    wide = x.double()
    expected = wide.std(dim=0, correction=0)
    assert expected[70] == 0.0
    assert std[70] == 1.0
    expected[70] = 1.0
    assert torch.equal(mean, wide.mean(dim=0))
    assert torch.equal(std, expected)
    assert torch.equal(_standardised(x, mean, std), ((wide - mean) / std).float())
    np.testing.assert_allclose(std, np.where(np.arange(150) == 70, 1.0, wide.numpy().std(axis=0)), rtol=1e-12)


def test_the_kept_epoch_has_the_score_of_the_hold_out_it_was_judged_on():
    """What training standardised once is what the fitted calibrator reads."""
    p, _ = known_scale(3000, seed=0)
    _, judge = p.shuffle_split(0.8, torch.Generator().manual_seed(0))
    fit = SATS(epochs=3, hidden=8).fit(p)
    assert fit.epoch_ > 0
    after = fit(judge)
    assert float(fit.history_[fit.epoch_ + 1]) == pytest.approx(ece(after.probs, after.labels), rel=1e-5)


def test_frozen_calattn_head_is_the_papers():
    p, _ = known_scale(300, seed=0)
    fit = FrozenCalAttn(epochs=1).fit(p)
    assert sum(parameter.numel() for parameter in fit.head_.parameters()) == 128 * 2 + 128 + 128 + 1
    z = ((p.features.double() - fit.mean_) / fit.std_).float()
    torch.testing.assert_close(fit.head_(z, p.logits).scale, fit.temperatures(p))


def test_other_feature_width_raises():
    p, _ = known_scale(50, seed=0)
    fit = FrozenCalAttn(epochs=1, hidden=4).fit(p)
    with pytest.raises(ValueError, match="was fitted on 2 inputs, got 1"):
        fit(p.replace(features=p.features[:, :1], labels=p.labels.roll(1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden must be a positive integer"),
        ({"holdout": 1.0}, "holdout must be between 0 and 1"),
        ({"weight": -0.1}, r"weight \(λ\) must not be negative"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
    ],
)
def test_bad_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        FrozenCalAttn(**options)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("kind", [SATS, FrozenCalAttn])
def test_a_seed_is_not_a_generator(kind):
    message = r"generator must be a torch\.Generator, .*torch\.Generator\(\)\.manual_seed\(0\), got 0"
    with pytest.raises(ValueError, match=message):
        kind(generator=0).fit(known_scale(50, seed=0)[0])


def test_one_row_raises():
    p = Predictions(logits=torch.zeros(1, 2), labels=torch.tensor([0]), features=torch.zeros(1, 2))
    with pytest.raises(ValueError, match="one row"):
        FrozenCalAttn().fit(p)
