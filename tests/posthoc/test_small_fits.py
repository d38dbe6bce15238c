"""Ensemble temperature scaling and Venn–Abers prediction, against scipy, brute force and the package venn-abers."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.isotonic import IsotonicRegression

from calattn import Predictions
from calattn.posthoc import EnsembleTemperatureScaling, FitWarning, TemperatureScaling, VennAbers, load


def two_kinds(n: int, seed: int = 0) -> Predictions:
    """A network that is too sure, and a tenth of labels that nobody could know: one temperature does not fit both."""
    g = torch.Generator().manual_seed(seed)
    logits = 8 * torch.randn(n, 6, generator=g)
    labels = torch.multinomial((logits / 2).softmax(dim=1), 1, generator=g).squeeze(1)
    noise = torch.randint(6, (n,), generator=g)
    return Predictions(logits=logits, labels=torch.where(torch.rand(n, generator=g) < 0.1, noise, labels))


def nll(p: Predictions) -> float:
    return float(torch.nn.functional.cross_entropy(p.calibrated_logits.double(), p.labels))


def test_the_weights_are_those_of_scipy_and_beat_a_temperature():
    p, new = two_kinds(3000), two_kinds(20_000, seed=1)
    fit = EnsembleTemperatureScaling().fit(p)
    single = TemperatureScaling().fit(p)
    parts = [
        (p.logits.double() / t).softmax(1).gather(1, p.labels[:, None]) for t in (single.temperature_, 1.0, math.inf)
    ]
    columns = torch.cat(parts, dim=1).numpy()
    found = scipy.optimize.minimize(
        lambda w: -np.log(columns @ w).mean(),
        [1 / 3] * 3,
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14},
    )
    assert fit.converged_
    assert fit.objective_value_ <= found.fun + 1e-9
    np.testing.assert_allclose(fit.weights_.numpy(), found.x, atol=1e-3)
    assert nll(fit(new)) < nll(single(new)) - 0.01
    assert torch.equal(fit(new).logits.argmax(dim=1), new.logits.argmax(dim=1))


def test_it_says_where_there_is_no_temperature():
    p = two_kinds(50)
    with pytest.warns(FitWarning, match="Are all labels the top class"):
        assert not EnsembleTemperatureScaling().fit(p.replace(labels=p.logits.argmax(dim=1))).converged_


def binary(n: int, seed: int = 0, *, ties: bool = False) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    score = 3 * torch.randn(n, generator=g).double()
    labels = (torch.rand(n, generator=g) < torch.sigmoid(score / 2 + 0.5)).long()
    score = score.round() if ties else score
    return Predictions(logits=torch.stack([-score / 2, score / 2], dim=1), labels=labels)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 60])
@pytest.mark.filterwarnings("ignore::calattn.posthoc.AbsentClassWarning")
def test_both_answers_are_isotonic_fits_with_the_new_sample(n, ties):
    for seed in range(5):
        p, new = binary(n, seed, ties=ties), binary(12, seed + 50, ties=ties)
        new = Predictions.cat([new, p.select(torch.arange(1))])
        both = VennAbers().fit(p).intervals(new)
        scores, tried = ((q.logits[:, 1] - q.logits[:, 0]).numpy() for q in (p, new))
        for row, score in enumerate(tried):
            for label in (0, 1):
                model = IsotonicRegression().fit(np.append(scores, score), np.append(p.labels.numpy(), label))
                assert float(both[row, label]) == pytest.approx(float(model.predict([score])[0]), abs=1e-9)


def test_it_is_what_the_package_venn_abers_gives(tmp_path):
    from venn_abers import VennAbers as Theirs

    p, new = binary(2000), binary(500, seed=1)
    model = Theirs()
    model.fit(p.probs.numpy(), p.labels.numpy(), precision=None)
    probs, both = model.predict_proba(new.probs.numpy())
    fit = VennAbers().fit(p)
    np.testing.assert_allclose(fit.intervals(new).numpy(), both, atol=1e-6)
    np.testing.assert_allclose(fit(new).probs.numpy(), probs, atol=1e-6)
    assert nll(fit(new)) < nll(new)
    assert fit(new).probs.min() > 0
    fit.save(tmp_path / "va")
    assert torch.equal(load(tmp_path / "va")(new).probs, fit(new).probs)


def test_more_than_two_classes_are_refused():
    with pytest.raises(ValueError, match="for two classes, and there are 6; use isotonic for more"):
        VennAbers().fit(two_kinds(50))


def test_many_samples_take_a_moment():
    """As many steps as scores, up to sorting: the two ends and the middle of 20,000 are right."""
    p = binary(20_000)
    fit = VennAbers().fit(p)
    assert (fit.low_.diff() >= -1e-12).all()
    assert (fit.high_.diff() >= -1e-12).all()
    assert (fit.low_ < fit.high_).all()
    middle = Predictions(logits=torch.zeros(1, 2).double(), labels=torch.tensor([0]))
    assert float(fit(middle).probs[0, 1]) == pytest.approx(1 / (1 + math.exp(-0.5)), abs=0.03)
