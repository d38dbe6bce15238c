"""Vector, matrix and Dirichlet calibration, plain, penalised and structured."""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import torch
from torch.nn import functional

from calattn import Predictions
from calattn.posthoc import DirichletCalibration, FitWarning, MatrixScaling, TemperatureScaling, VectorScaling, affine
from calattn.posthoc.affine import DiagonalMaps, FullMaps, Penalty
from calattn.posthoc.modules import tempered

KINDS = [VectorScaling, MatrixScaling, DirichletCalibration]


def drawn(weight: torch.Tensor, bias: torch.Tensor, n: int, seed: int = 0) -> Predictions:
    """Labels by softmax(W log p + b)."""
    g = torch.Generator().manual_seed(seed)
    logs = (2 * torch.randn(n, len(bias), generator=g)).log_softmax(dim=1)
    target = (logs * weight if weight.ndim == 1 else logs @ weight.T) + bias
    return Predictions(logits=logs, labels=torch.multinomial(target.softmax(dim=1), 1, generator=g).squeeze(1))


def alike(n: int, c: int, seed: int = 0) -> Predictions:
    """Classes in groups that are taken for each other, and a network that is too sure: parameters depend on each other."""
    g = torch.Generator().manual_seed(9)
    centres = torch.randn(c // 5, 16, generator=g).repeat(5, 1) + 0.5 * torch.randn(c // 5 * 5, 16, generator=g)
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(centres), (n,), generator=g)
    features = centres[labels] + 0.8 * torch.randn(n, 16, generator=g)
    return Predictions(logits=3 * (features @ centres.T - centres.square().sum(dim=1) / 3), labels=labels)


def nll(p: Predictions) -> float:
    return float(functional.cross_entropy(p.calibrated_logits.double(), p.labels))


@pytest.mark.parametrize("maps", [DiagonalMaps, FullMaps])
def test_the_objective_and_its_slope_are_those_of_autograd(maps):
    """Whatever the coordinates: x → D and b and what they cost, D and b → x."""
    g = torch.Generator().manual_seed(0)
    z, labels = torch.randn(20, 3, generator=g).double(), torch.arange(20) % 3
    it = maps(3, Penalty(0.3, 0.2, 0.7))
    change = torch.randn(3 if maps is DiagonalMaps else (3, 3), generator=g).double()
    bias = torch.randn(3, generator=g).double()
    x = it.flat(change, bias).requires_grad_()
    torch.testing.assert_close(it.parts(x), (change, bias))
    cost = 0.3 * bias.square().sum()
    if maps is DiagonalMaps:
        cost += 0.2 * change.square().sum()
    else:
        on = change.diagonal().square().sum()
        cost += 0.2 * on + 0.7 * (change.square().sum() - on)
    assert float(it.ridge @ x.detach().square()) == pytest.approx(float(cost))
    d, b = it.parts(x)
    loss = functional.cross_entropy(z + (z * d if d.ndim == 1 else z @ d.T) + b, labels)
    loss.backward()
    value, by_change, by_bias = affine.nll(z, labels, change, bias)
    assert value == pytest.approx(float(loss.detach()))
    torch.testing.assert_close(it.slope(by_change, by_bias), x.grad)


@pytest.mark.parametrize("maps", [DiagonalMaps, FullMaps])
def test_the_preconditioner_and_its_transpose(maps):
    it, p = maps(4, Penalty(0.1, 0.1, 0.3)), drawn(torch.ones(4), torch.zeros(4), 500)
    found = it.preconditioner(p.logits.double(), torch.zeros_like(it.ridge))
    g = torch.Generator().manual_seed(0)
    y, slope = (torch.randn(len(it.ridge), generator=g).double() for _ in range(2))
    torch.testing.assert_close(found.step(y) @ slope, y @ found.slope(slope))


def lower_by_scipy(fit, p: Predictions) -> float:
    """What another method finds from the optimum on, for the same objective written out."""
    c, n, strength = p.num_classes, len(p), fit.strength_
    logs = tempered(p.logits.double(), torch.tensor([fit.temperature_, fit.limit_, fit.share_]).double())
    free = 0.01 if isinstance(fit, DirichletCalibration) else 1.0

    def objective(flat):
        x = torch.from_numpy(flat).requires_grad_()
        w, b = x[:-c].view(fit.weight_.shape), x[-c:]
        d = w - (1.0 if w.ndim == 1 else torch.eye(c, dtype=torch.float64))
        on = d if d.ndim == 1 else d.diagonal()
        cost = b.square().sum() + (free if d.ndim == 2 else 1.0) * on.square().sum()
        cost = cost + (c - 1) * (d.square().sum() - on.square().sum())
        loss = (
            functional.cross_entropy((logs * w if w.ndim == 1 else logs @ w.T) + b, p.labels) + strength * c / n * cost
        )
        loss.backward()
        return float(loss.detach()), x.grad.numpy()

    start = torch.cat([fit.weight_.flatten(), fit.bias_]).numpy()
    assert objective(start)[0] == pytest.approx(fit.objective_value_, abs=1e-7)
    return scipy.optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-10}).fun


def masked(p: Predictions) -> Predictions:
    """A fifth of the entries, labels aside, at float32's minimum."""
    out = torch.rand(p.logits.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    out.scatter_(1, p.labels[:, None], False)
    return p.replace(logits=p.logits.masked_fill(out, torch.finfo(torch.float32).min))


def wild(p: Predictions) -> Predictions:
    """Two rows at 1e10, one of them sure of a wrong class."""
    logits = p.logits.clone()
    logits[3] *= 1e10
    logits[7] = torch.where(torch.arange(p.num_classes) == (p.labels[7] + 1) % p.num_classes, 1e10, -1e10)
    return p.replace(logits=logits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [None, 0.0, 1.0])
@pytest.mark.parametrize("harm", [lambda p: p, masked, wild], ids=["sound", "masked", "wild"])
def test_a_fit_that_calls_itself_converged_is_an_optimum(kind, strength, harm):
    bias = torch.tensor([0.8, 0.0, -0.8, 0.4, 0.0])
    p, new = (harm(drawn(torch.full((5,), 0.6), bias, n, seed)) for n, seed in ((2000, 0), (5000, 1)))
    fit = kind(strength).fit(p)
    assert fit.converged_
    assert fit.objective_value_ <= TemperatureScaling(bounds=(1e-9, 1e12)).fit(p).objective_value_
    assert lower_by_scipy(fit, p) > fit.objective_value_ - 2e-7
    single = TemperatureScaling(bounds=(1e-9, 1e12)).fit(p)(new)
    assert nll(fit(new)) < nll(single)  # the offsets are there to be learned


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_added_to_each_row_changes_nothing(kind):
    p, new = (drawn(torch.tensor([0.5, 1.0, 1.5]), torch.tensor([0.5, 0.0, -0.5]), n, n) for n in (500, 50))
    shifted = p.replace(logits=p.logits.double() + 700 * torch.arange(500).unsqueeze(1))
    torch.testing.assert_close(kind().fit(p)(new).probs, kind().fit(shifted)(new).probs, atol=1e-5, rtol=0)
    moved = new.replace(logits=new.logits.double() - 300)
    torch.testing.assert_close(kind().fit(p)(moved).probs.float(), kind().fit(p)(new).probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_does_not_help_it_is_temperature_scaling(kind):
    """30 classes that all ask for one temperature, and 400 samples: more parameters than labels."""
    p, new = (drawn(torch.full((30,), 0.5), torch.zeros(30), n, seed) for n, seed in ((400, 0), (2000, 1)))
    fit, single = kind().fit(p), TemperatureScaling().fit(p)
    assert (fit.strength_, fit.share_, fit.converged_) == (math.inf, 0.0, True)
    assert fit.temperature_ == pytest.approx(single.temperature_)
    assert fit.objective_value_ == pytest.approx(single.objective_value_)
    torch.testing.assert_close(fit(new).probs, single(new).probs, atol=1e-6, rtol=0)
    assert nll(kind(0.01).fit(p)(new)) > nll(single(new)) + 0.03, "and a weak penalty would have done harm"


def test_the_strength_follows_the_data():
    few, many = (VectorScaling().fit(alike(n, 20)) for n in (100, 20_000))
    assert few.strength_ > many.strength_


def test_known_maps_are_recovered():
    weight = torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.7, 0.0], [0.0, 0.0, 1.2]])
    bias = torch.tensor([0.7, 0.0, -0.7])
    for truth, kind in (
        (torch.diag(weight).diag(), VectorScaling),
        (weight, MatrixScaling),
        (weight, DirichletCalibration),
    ):
        p, new = drawn(truth, bias, 40_000), drawn(truth, bias, 500, seed=1)
        target = (new.logits @ truth.T + bias).softmax(dim=1)
        torch.testing.assert_close(kind().fit(p)(new).probs, target, atol=0.05, rtol=0)


@pytest.mark.parametrize("sharpness", [1e-6, 15.0])
def test_the_scale_of_the_logits_does_not_matter(sharpness):
    p = alike(400, 10)
    for kind in KINDS:
        found, same = (kind().fit(p.replace(logits=k * p.logits)) for k in (sharpness, 1.0))
        assert found.converged_
        assert found.objective_value_ == pytest.approx(same.objective_value_, rel=1e-4)


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, which other work on the machine does not lengthen."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


@pytest.mark.parametrize("c", [5, 100])
def test_structured_scaling_is_that_of_probmetrics_and_faster(c):
    from probmetrics.calibrators.logistic import SMSCalibrator, SVSCalibrator

    p, new = alike(2500, c), alike(10_000, c, seed=1)
    for kind, peer in ((VectorScaling, SVSCalibrator()), (MatrixScaling, SMSCalibrator())):
        fit, probs = kind(1.0), p.logits.double().softmax(dim=1).numpy()
        ours = min(seconds(lambda: fit.fit(p)) for _ in range(2))  # noqa: B023
        assert ours < 2 * min(seconds(lambda: peer.fit(probs, p.labels.numpy())) for _ in range(2))  # noqa: B023
        theirs = peer.predict_proba(new.logits.double().softmax(dim=1).numpy())
        assert nll(fit(new)) <= -np.log(theirs[np.arange(len(new)), new.labels]).mean() + 1e-3


def test_separable_data_are_named():
    p = alike(300, 10)
    on_top = p.replace(labels=p.logits.argmax(dim=1))
    for kind in KINDS:
        with pytest.warns(FitWarning, match="separable: every label is the top class, so .* changes nothing"):
            fit = kind().fit(on_top)
        assert not fit.converged_
        torch.testing.assert_close(fit(p).probs, p.probs)
    shifted = on_top.replace(logits=p.logits - 4 * functional.one_hot(torch.tensor(3), 10))  # an offset undoes it
    with pytest.warns(FitWarning, match="separable: VectorScaling can put every label on top, and without a penalty"):
        assert not VectorScaling(0.0, max_iterations=300).fit(shifted).converged_
    with pytest.warns(FitWarning, match="and only its penalty keeps it finite"):
        kept = VectorScaling(1e-6).fit(shifted)
    assert kept.converged_


def test_an_overconfident_naive_bayes_does_not_explode():
    """Its probabilities are 0 and 1 to hundreds of digits."""
    from sklearn.datasets import make_classification
    from sklearn.naive_bayes import GaussianNB

    x, y = make_classification(1200, n_features=300, n_informative=6, n_redundant=290, random_state=0)
    logs = torch.from_numpy(GaussianNB().fit(x[:100], y[:100]).predict_joint_log_proba(x))
    val, test = (
        Predictions(logits=logs[k], labels=torch.from_numpy(y)[k]) for k in (slice(100, 200), slice(200, 1200))
    )
    assert nll(test) > 5
    single = nll(TemperatureScaling().fit(val)(test))
    for kind in KINDS:
        fit = kind().fit(val)
        assert fit.weight_.abs().max() < 20
        assert nll(fit(test)) < single + 0.05


def test_out_of_iterations_is_not_converged():
    with pytest.warns(FitWarning, match="stopped after 1 iterations, short of an optimum"):
        assert not VectorScaling(0.0, max_iterations=1).fit(alike(4000, 60)).converged_


@pytest.mark.parametrize("strength", [-1.0, float("nan")])
def test_bad_strengths_raise(strength):
    with pytest.raises(ValueError, match="strength must be a penalty of at least 0"):
        DirichletCalibration(strength)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
def test_extreme_logits_do_not_end_in_nan(kind):
    noise = torch.empty(1000, 50, dtype=torch.float64).cauchy_(generator=torch.Generator().manual_seed(0))
    for logits in (torch.tensor([[0.0, 2000.0]]), torch.tensor([[1e200, 0.0]], dtype=torch.float64), noise):
        p = Predictions(
            logits=logits, labels=torch.zeros(len(logits), dtype=torch.int64) + torch.arange(len(logits)) % 50
        )
        found = kind().fit(p)
        assert found.objective_value_ <= max(nll(p), math.log(p.num_classes)) + 1e-2
        assert torch.isfinite(found.weight_).all()


def test_small_fits_take_one_thread_and_give_the_others_back(monkeypatch):
    seen, before, real = [], torch.get_num_threads(), affine.minimum

    def noticed(*given, **options):
        seen.append(torch.get_num_threads())
        return real(*given, **options)

    monkeypatch.setattr(affine, "minimum", noticed)
    torch.set_num_threads(2)
    try:
        logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        VectorScaling(1.0).fit(Predictions(logits=logits, labels=torch.arange(200) % 3))
        assert (set(seen), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
