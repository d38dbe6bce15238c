"""Cross-fitting gives each sample a prediction by a fit without it, as scikit-learn's cross_val_predict does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, StratifiedKFold, cross_val_predict

from calattn import Predictions
from calattn.metrics import nll
from calattn.posthoc import (
    CALIBRATORS,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    cross_fit,
    drawn_folds,
)
from tests.cli_runner import predictions


def temperature():
    return TemperatureScaling()


def stated(found: Predictions) -> Predictions:
    return Predictions.from_probs(found.probs, found.labels, indices=torch.arange(len(found)) + 7)


@pytest.mark.filterwarnings("ignore:The least populated class in y")
@pytest.mark.parametrize("folds", [2, 3, 5, 10])
def test_folds_of_rare_classes_have_the_class_counts_of_scikit_learn(generator, folds):
    # scikit-learn numbers classes by first appearance, so these appear in order; of sixty pairs chance would not part all.
    labels = torch.cat([torch.arange(66), torch.arange(6, 66), torch.randint(6, (307,), generator=generator)])
    ours = drawn_folds(labels, folds=folds, seed=3)
    split = StratifiedKFold(folds, shuffle=True, random_state=0).split(np.zeros((len(labels), 1)), labels.numpy())
    theirs = [np.bincount(labels.numpy()[test], minlength=66) for _, test in split]
    for number, counts in enumerate(theirs):
        np.testing.assert_array_equal(labels[ours == number].bincount(minlength=66).numpy(), counts)
    assert not torch.equal(ours, drawn_folds(labels, folds=folds, seed=4))
    assert torch.equal(ours, drawn_folds(labels, folds=folds, seed=3))


def test_binary_scaling_is_logistic_regression_under_cross_val_predict(generator):
    # With two classes an unpenalised matrix is a logistic regression on the two log-probabilities; at T = 1 for every fold.
    logits = torch.randn(400, 2, generator=generator, dtype=torch.float64) * 3
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator).squeeze(1)
    folds = drawn_folds(labels, folds=4, seed=1)
    found = cross_fit(lambda: MatrixScaling(0.0), Predictions(logits=logits, labels=labels), folds=folds).probs
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000)
    for number in range(4):
        mine = folds == number
        temperature = TemperatureScaling().fit(Predictions(logits=logits[~mine], labels=labels[~mine])).temperature_
        x = (logits / temperature).log_softmax(dim=1).numpy()
        want = model.fit(x[~mine], labels[~mine].numpy()).predict_proba(x[mine])
        np.testing.assert_allclose(found[mine].numpy(), want, atol=1e-4)


class Scores(ClassifierMixin, BaseEstimator):
    """A finished classifier whose inputs are its own scores."""

    def fit(self, X, y):  # noqa: ARG002  (scikit-learn's signature)
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X

    def predict(self, X):
        return self.classes_[X.argmax(axis=1)]


@pytest.mark.parametrize(("method", "factory"), [("temperature", temperature), ("isotonic", IsotonicCalibration)])
def test_scikit_learns_calibrators_under_cross_val_predict(method, factory):
    p = predictions(sharpness=2.0)
    inputs = p.logits.double() if method == "temperature" else p.logits.double().softmax(dim=1)
    x, y = inputs.numpy(), p.labels.numpy()
    folds = drawn_folds(p.labels, folds=5, seed=0)
    model = CalibratedClassifierCV(FrozenEstimator(Scores().fit(x, y)), method=method)
    want = cross_val_predict(model, x, y, cv=PredefinedSplit(folds.numpy()), method="predict_proba")
    mine = (
        Predictions(logits=inputs, labels=p.labels)
        if method == "temperature"
        else Predictions.from_probs(inputs, p.labels)
    )
    found = cross_fit(factory, mine, folds=5, seed=0)
    np.testing.assert_allclose(found.probs.numpy(), want, atol=2e-5)
    other = cross_fit(factory, mine, folds=5, seed=1)
    assert float((other.probs - found.probs).abs().max()) > 2e-5, "the folds matter by more than the tolerance"


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if name not in ("frozen_calattn", "venn_abers")])
def test_no_sample_sees_its_own_label(name):
    p = predictions(n=200, sharpness=2.0)
    folds = drawn_folds(p.labels, folds=4, seed=0)
    changed = p.labels.clone()
    changed[17] = (changed[17] + 1) % 10
    before = cross_fit(CALIBRATORS[name], p, folds=folds)
    after = cross_fit(CALIBRATORS[name], p.replace(labels=changed), folds=folds)
    own = folds == folds[17]
    assert torch.equal(before.probs[own], after.probs[own])
    assert name == "temperature" or not torch.equal(before.probs[~own], after.probs[~own]), "others learn from it"


@pytest.mark.parametrize("factory", [temperature, VectorScaling, IsotonicCalibration, HistogramBinning])
@pytest.mark.parametrize("make", [lambda found: found, stated], ids=["logits", "stated probabilities"])
def test_each_fold_is_what_a_fit_on_the_others_gives(factory, make):
    p = make(predictions(n=300, sharpness=2.0))
    folds = drawn_folds(p.labels, folds=3, seed=2)
    found = cross_fit(factory, p, folds=3, seed=2)
    for number in range(3):
        mine = folds == number
        want = factory().fit(p.select(~mine))(p.select(mine))
        for name in ("logits", "labels", "scale", "stated_probs", "indices"):
            left, right = getattr(found.select(mine), name), getattr(want, name)
            assert (left is None and right is None) or torch.equal(left, right), name


def test_everything_else_is_kept():
    features, names = torch.randn(300, 4), tuple("abcdefghij")
    p = predictions(n=300, features=features, indices=torch.arange(300).flip(0), class_names=names, split="test")
    found = cross_fit(temperature, p)
    assert torch.equal(found.features, features)
    assert torch.equal(found.indices, p.indices)
    assert torch.equal(found.labels, p.labels)
    assert (found.class_names, found.split) == (names, "test")


def test_calattn_scale_is_read_and_multiplied():
    scale = torch.linspace(0.5, 2.0, 300)
    p = predictions(n=300, sharpness=3.0, scale=scale)
    found = cross_fit(temperature, p, folds=2)
    ratio = found.scale / scale
    assert torch.equal(found.logits, p.logits)
    assert len(set(ratio.numpy().round(4).tolist())) == 2, "one temperature a fold"


def test_groups_stay_together():
    p, groups = predictions(n=300, sharpness=2.0), torch.arange(300) // 50 * 10
    found = cross_fit(temperature, p, folds=groups)
    want = temperature().fit(p.select(groups != 20)).temperature_
    assert found.scale[groups == 20].tolist() == pytest.approx([want] * 50)


def test_folds_are_random_unless_a_class_would_be_in_one_alone(recwarn):
    labels = torch.arange(300) % 3
    found = drawn_folds(labels, folds=5, seed=0)
    assert found.bincount().tolist() == [60] * 5
    assert torch.equal(found, drawn_folds(labels, folds=5, seed=0))
    assert (labels * 5 + found).bincount().unique().numel() > 3, "class counts differ by chance"
    pairs = torch.arange(300) // 2
    stratified = drawn_folds(pairs, folds=5, seed=0)
    assert (stratified[::2] != stratified[1::2]).all(), "of 150 pairs chance puts 30 into one fold"
    assert not recwarn.list


def test_folds_do_not_hide_what_offsets_fitted_to_chance_cost():
    """Calibrated logits: structured vector scaling of 200 samples costs 0.018 nats of new data; stratified folds saw −0.0001."""
    g, costs = torch.Generator().manual_seed(1), []
    for seed in range(12):
        logits = 2 * torch.randn(200, 10, generator=g)
        p = Predictions(logits=logits, labels=logits.softmax(1).multinomial(1, generator=g)[:, 0])
        found = cross_fit(lambda: VectorScaling(1.0), p, seed=seed)
        costs.append(nll(found.logits, p.labels) - nll(p.logits, p.labels))
    assert 0.010 < np.mean(costs) < 0.035


def test_rare_classes(recwarn):
    labels = torch.tensor([0] * 20 + [1] * 20 + [2, 2])
    drawn_folds(labels, folds=5)
    assert not recwarn.list, "two samples of a class fall into two folds, and each fit sees the other"
    with pytest.warns(UserWarning, match=r"1 of the classes \(2\) have one sample: its own fold"):
        folds = drawn_folds(labels[:-1], folds=5)
    assert sorted(folds.bincount().tolist()) == [8, 8, 8, 8, 9]


def test_a_class_without_samples_is_nobodys_concern(recwarn):
    folds = drawn_folds(torch.tensor([0, 0, 2, 2, 5, 5]), folds=2)
    assert folds.bincount().tolist() == [3, 3]
    assert not recwarn.list


def test_one_class_is_folded_like_any_other():
    p = Predictions(logits=predictions(n=20).logits, labels=torch.zeros(20, dtype=torch.int64))
    assert len(cross_fit(HistogramBinning, p, folds=4)) == 20


def test_as_many_folds_as_samples_leaves_one_out():
    p = predictions(n=30, sharpness=2.0)
    found = cross_fit(HistogramBinning, p, folds=30)
    rest = torch.arange(30) != 4
    assert torch.equal(found.probs[4], HistogramBinning().fit(p.select(rest))(p.select(~rest)).probs[0])


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (1, "folds must be between 2 and the number of samples, 30, got 1"),
        (31, "folds must be between 2 and the number of samples, 30, got 31"),
        (torch.zeros(30, dtype=torch.int64), "all 30 samples into one fold"),
        (torch.zeros(29, dtype=torch.int64), "a number, or 30 integers"),
        (torch.zeros(30), "a number, or 30 integers, got torch.float32"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_impossible_folds(folds, message):
    with pytest.raises(ValueError, match=message):
        cross_fit(temperature, predictions(n=30), folds=folds)


@pytest.mark.usefixtures("untyped")
def test_one_calibrator_is_not_a_factory():
    with pytest.raises(ValueError, match="factory is TemperatureScaling, one calibrator"):
        cross_fit(temperature(), predictions(n=30))


def test_a_fit_that_fails_names_its_fold():
    zeros = Predictions.from_probs(torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0] * 4))
    with pytest.raises(
        ValueError, match=r"fold 1 of 2, fitted on 2 samples: logits\[0\] .*the method cannot transform"
    ):
        cross_fit(VectorScaling, zeros, folds=2)
