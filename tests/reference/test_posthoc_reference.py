"""Our calibrators against scikit-learn, scipy and netcal, every known difference pinned."""

import functools
import math
import warnings

import netcal.binning
import netcal.scaling
import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from calattn import Predictions
from calattn.posthoc import (
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)


def drawn(temperature: float, n: int = 3000, c: int = 5, seed: int = 0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, c, generator=g)
    labels = torch.multinomial((logits / temperature).softmax(dim=1), 1, generator=g).squeeze(1)
    return Predictions(logits=logits, labels=labels)


def nll(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return float(functional.cross_entropy(logits.double(), labels))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0, 8.0])
def test_nll_optimum_against_scipy(temperature):
    p = drawn(temperature)
    logits = p.logits.double()
    found = scipy.optimize.minimize_scalar(
        lambda u: nll(logits / math.exp(u), p.labels), bounds=(-5, 5), method="bounded", options={"xatol": 1e-10}
    )
    fit = TemperatureScaling().fit(p)
    assert fit.temperature_ == pytest.approx(math.exp(found.x), rel=1e-5)
    assert fit.objective_value_ == pytest.approx(found.fun, rel=1e-12)
    assert fit.objective_value_ <= found.fun + 1e-14


def test_netcal_temperature_is_the_inverse():
    """netcal's parameter multiplies the logits: it is 1/T. Its optimiser starts from probabilities and is less exact."""
    p = drawn(2.0)
    model = netcal.scaling.TemperatureScaling()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(p.probs.double().numpy(), p.labels.numpy())
    theirs = float(np.squeeze(model.temperature))
    ours = TemperatureScaling().fit(p).temperature_
    assert ours == pytest.approx(2.0, rel=0.1)
    assert theirs == pytest.approx(1 / ours, rel=0.02)
    assert abs(theirs - ours) > 1


def test_isotonic_against_scikit_learn():
    """Of one class; its `CalibratedClassifierCV` is the reference of the tests of cross-fitting."""
    p = drawn(2.0, n=600)
    one = IsotonicRegression(out_of_bounds="clip").fit(p.probs[:, 0].double().numpy(), p.labels.numpy() == 0)
    fit = IsotonicCalibration().fit(p)
    np.testing.assert_allclose(fit.values_[: fit.starts_[1]], one.y_thresholds_, atol=1e-9)


def test_histogram_against_netcal():
    """Two classes, where netcal calibrates P(y = 1) alone. Its bins are [lo, hi): no value may lie on an edge."""
    p, new = drawn(2.0, n=2000, c=2), drawn(2.0, n=300, c=2, seed=1)
    model = netcal.binning.HistogramBinning(bins=10)
    model.fit(p.probs[:, 1].double().numpy(), p.labels.numpy())
    theirs = model.transform(new.probs[:, 1].double().numpy())
    fit = HistogramBinning(num_bins=10).fit(p)
    ours = fit(new).probs[:, 1].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("kind", [MatrixScaling, DirichletCalibration])
def test_unpenalised_full_matrices_reach_logistic_regression(kind):
    p = drawn(2.0)
    fit = kind(0.0).fit(p)
    x = (p.logits.double() / fit.temperature_).log_softmax(dim=1).numpy()
    reference = LogisticRegression(C=np.inf, tol=1e-8, max_iter=4000).fit(x, p.labels.numpy())
    best = nll(torch.from_numpy(reference.predict_log_proba(x)), p.labels)
    assert fit.converged_
    assert fit.objective_value_ == pytest.approx(best, rel=1e-6)


def test_unpenalised_vector_scaling_against_newton_with_exact_second_derivatives():
    """Logits that depend on each other, of a network that is too sure: scipy's trust region, slopes from autograd."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(12, 6, generator=g)
    labels = torch.randint(12, (1500,), generator=g)
    logits = 4 * (centres[labels] + torch.randn(1500, 6, generator=g)) @ centres.T
    fit = VectorScaling(0.0).fit(Predictions(logits=logits, labels=labels))
    logs = (logits.double() / fit.temperature_).log_softmax(dim=1)

    def objective(flat):
        return functional.cross_entropy(logs * flat[:12] + flat[12:], labels)

    def derivative(of, flat):
        return of(objective, torch.from_numpy(flat)).numpy()

    found = scipy.optimize.minimize(
        lambda flat: float(objective(torch.from_numpy(flat))),
        np.array([1.0] * 12 + [0.0] * 12),
        jac=functools.partial(derivative, torch.autograd.functional.jacobian),
        hess=functools.partial(derivative, torch.autograd.functional.hessian),
        method="trust-exact",
        options={"gtol": 1e-10},
    )
    assert fit.converged_
    assert fit.objective_value_ == pytest.approx(found.fun, abs=1e-8)
    np.testing.assert_allclose(fit.weight_.numpy(), found.x[:12], atol=1e-3)
