"""Laws of the calibrators, on inputs that hypothesis makes up."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from calattn import Predictions
from calattn.posthoc import (
    SATS,
    DirichletCalibration,
    FitWarning,
    FrozenCalAttn,
    MatrixScaling,
    SameDataWarning,
    TemperatureScaling,
    VectorScaling,
)

few = settings(max_examples=25, deadline=None)
very_few = settings(max_examples=8, deadline=None)


@st.composite
def predictions(draw, min_rows: int = 2, max_rows: int = 60) -> Predictions:
    n, c = draw(st.integers(min_rows, max_rows)), draw(st.integers(2, 6))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    logits = draw(st.sampled_from([0.1, 1.0, 5.0, 40.0])) * torch.randn(n, c, generator=g)
    skill = draw(st.sampled_from([0.0, 0.5, 0.9]))  # how often the label is the top class, beyond chance
    guess = torch.randint(c, (n,), generator=g)
    labels = torch.where(torch.rand(n, generator=g) < skill, logits.argmax(dim=1), guess)
    return Predictions(logits=logits, labels=labels, features=torch.randn(n, 3, generator=g))


def fitted(calibrator, p):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return calibrator.fit(p)


def applied(calibrator, p):
    with pytest.warns(SameDataWarning):
        return calibrator(p)


def nll(p: Predictions) -> float:
    return float(functional.cross_entropy(p.calibrated_logits.double(), p.labels))


@few
@given(predictions(), st.sampled_from(["ece", "nll"]))
def test_a_single_temperature_keeps_every_prediction(p, objective):
    fit = fitted(TemperatureScaling(objective=objective, bounds=(1e-3, 1e3)), p)
    assert torch.equal(applied(fit, p).calibrated_logits.argmax(dim=1), p.logits.argmax(dim=1))


@very_few
@given(predictions(min_rows=10), st.sampled_from([SATS, FrozenCalAttn]))
def test_a_temperature_per_sample_keeps_every_prediction(p, kind):
    fit = fitted(kind(epochs=1, hidden=8), p)
    assert torch.equal(applied(fit, p).calibrated_logits.argmax(dim=1), p.logits.argmax(dim=1))


@very_few
@given(st.floats(0.2, 5.0), st.integers(0, 1000))
def test_a_known_temperature_is_recovered(temperature, seed):
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(20_000, 6, generator=g)
    labels = torch.multinomial((logits.double() / temperature).softmax(dim=1), 1, generator=g).squeeze(1)
    p = Predictions(logits=logits, labels=labels)
    assert TemperatureScaling().fit(p).temperature_ == pytest.approx(temperature, rel=0.06)
    curve = TemperatureScaling("ece").fit(p)
    assert curve.temperature_ == pytest.approx(temperature, rel=0.1, abs=0.1)


@few
@given(predictions(), st.sampled_from([VectorScaling, MatrixScaling, DirichletCalibration, TemperatureScaling]))
def test_a_fit_never_worsens_the_nll_of_its_own_split(p, kind):
    fit = fitted(kind() if kind is TemperatureScaling else kind(0.0, max_iterations=50), p)
    # float32 logits of up to 1e6 (separable rows sharpened to the bound) round at 1e-7 of their size
    assert nll(applied(fit, p)) <= nll(p) * (1 + 1e-5) + 1e-5


@few
@given(predictions(), st.integers(0, 100))
def test_the_order_of_rows_does_not_matter(p, seed):
    q = p.select(torch.randperm(len(p), generator=torch.Generator().manual_seed(seed)))
    a, b = fitted(TemperatureScaling(), p), fitted(TemperatureScaling(), q)
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-6)
    torch.testing.assert_close(TemperatureScaling("ece").fit(p).curve_, TemperatureScaling("ece").fit(q).curve_)


@few
@given(predictions(), st.sampled_from([0.25, 0.5, 3.0, 64.0]))
def test_logits_times_k_is_temperature_times_k(p, k):
    bounds = (1e-3, 1e3)
    a = fitted(TemperatureScaling(bounds=bounds), p)
    b = fitted(TemperatureScaling(bounds=(k * bounds[0], k * bounds[1])), p.replace(logits=p.logits * k))
    assert b.temperature_ == pytest.approx(k * a.temperature_, rel=1e-5)
    assert b.objective_value_ == pytest.approx(a.objective_value_, rel=1e-6, abs=1e-9)


@few
@given(predictions())
def test_shifting_a_row_changes_nothing(p):
    shifted = p.replace(logits=p.logits.double() + torch.arange(len(p)).unsqueeze(1))
    a = fitted(TemperatureScaling(), p)
    assert fitted(TemperatureScaling(), shifted).temperature_ == pytest.approx(a.temperature_, rel=1e-5)


@few
@given(predictions())
def test_no_temperature_of_a_dense_grid_has_a_lower_nll(p):
    fit = fitted(TemperatureScaling(bounds=(1e-3, 1e3)), p)
    for log_t in torch.linspace(-3, 3, 25).tolist():
        assert fit.objective_value_ <= nll(p.replace(logits=p.logits.double() / 10**log_t)) + 1e-9
