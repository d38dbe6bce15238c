"""Vector, matrix and Dirichlet calibration."""

import functools
import math

import pytest
import scipy.optimize
import torch

from calattn import Predictions
from calattn.posthoc import (
    DirichletCalibration,
    FitWarning,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
    affine_nll,
    linear,
)


def drawn(weight: torch.Tensor, bias: torch.Tensor, n: int, seed: int = 0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, len(bias), generator=g)
    target = (logits * weight if weight.ndim == 1 else logits @ weight.T) + bias
    return Predictions(logits=logits, labels=torch.multinomial(target.softmax(dim=1), 1, generator=g).squeeze(1))


@pytest.mark.parametrize("matrix", [False, True])
def test_gradient_matches_autograd(matrix):
    g = torch.Generator().manual_seed(0)
    z, labels = torch.randn(20, 3, generator=g, dtype=torch.float64), torch.arange(20) % 3
    shape = (3, 3) if matrix else (3,)
    weight = torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, generator=g, dtype=torch.float64, requires_grad=True)
    out = (z @ weight.T if matrix else z * weight) + bias
    loss = torch.nn.functional.cross_entropy(out, labels)
    loss.backward()
    value, by_weight, by_bias = affine_nll.nll(z, labels, weight.detach(), bias.detach())
    assert value == pytest.approx(float(loss.detach()))
    torch.testing.assert_close(by_weight, weight.grad)
    torch.testing.assert_close(by_bias, bias.grad)


def nll_of(flat: torch.Tensor, p: Predictions) -> torch.Tensor:
    """The mean NLL of softmax(w ⊙ ℓ + b), W before b, for autograd."""
    weight, bias = flat.chunk(2)
    return torch.nn.functional.cross_entropy(p.logits.double() * weight + bias, p.labels)


def alike(n: int, c: int, seed: int = 0) -> Predictions:
    """Classes in groups that are taken for each other, and a network that is too sure: parameters depend on each other."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(c // 5, 16, generator=g).repeat(5, 1) + 0.5 * torch.randn(c // 5 * 5, 16, generator=g)
    labels = torch.randint(len(centres), (n,), generator=g)
    features = centres[labels] + 0.8 * torch.randn(n, 16, generator=g)
    return Predictions(logits=3 * (features @ centres.T - centres.square().sum(dim=1) / 3), labels=labels)


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_the_correlations_are_those_of_the_second_derivative(least):
    p = drawn(torch.ones(3), torch.zeros(3), 30)  # as many rows as the sample takes
    weight, bias = torch.tensor([0.4, 1.1, 0.8]).double(), torch.tensor([0.3, -0.2, 0.0]).double()
    units = torch.tensor([0.5, 2.0, 1.0, 0.3, 0.2, 0.7]).double()
    factor = affine_nll.correlation(p.logits, weight, bias, units, least=least)
    second = torch.autograd.functional.hessian(lambda flat: nll_of(flat, p), torch.cat([weight, bias]))
    expected = second / units / units[:, None]
    expected.diagonal().clamp_(min=least).add_(affine_nll._RIDGE)
    assert (expected.diagonal() > 1.1).any()
    assert (expected.diagonal() < 1.0).any() or least
    torch.testing.assert_close(factor @ factor.T, expected, atol=1e-5, rtol=1e-5)


def test_vector_scaling_ends_where_the_slope_is_zero():
    """As many samples are expected of each class as there are, and the same sum of its logit."""
    p = alike(3000, 30)
    fit = VectorScaling().fit(p)
    probs = (p.logits.double() * fit.weight_ + fit.bias_).softmax(dim=1)
    truth = torch.nn.functional.one_hot(p.labels, 30).double()
    assert fit.converged_
    torch.testing.assert_close(probs.mean(dim=0), truth.mean(dim=0), atol=1e-7, rtol=0)
    torch.testing.assert_close((probs * p.logits).mean(dim=0), (truth * p.logits).mean(dim=0), atol=1e-6, rtol=0)


def test_correlations_save_steps_and_change_no_result(monkeypatch):
    p = alike(4000, 60)
    quick = VectorScaling().fit(p)
    monkeypatch.setattr(affine_nll, "MOST_CLASSES", 59)
    plain = VectorScaling().fit(p)
    assert quick.converged_
    assert plain.converged_
    assert linear._ROUGH_STEPS < quick.iterations_ < plain.iterations_ / 2
    assert quick.objective_value_ == pytest.approx(plain.objective_value_, rel=1e-10)
    torch.testing.assert_close(quick.weight_, plain.weight_, atol=1e-4, rtol=0)


def with_a_wild_row(kind: str, size: float, *, seed: int = 0) -> Predictions:
    """Ordinary predictions and one row that no scale fits: all of it large, or shifted, or sure of a wrong class."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2000, 10, generator=g, dtype=torch.float64)
    labels = torch.multinomial((0.7 * logits).softmax(dim=1), 1, generator=g).squeeze(1)
    if kind == "large":
        logits[3] *= size
    elif kind == "shifted":
        logits[3] += size
    else:
        logits[3, (labels[3] + 1) % 10] = size
    return Predictions(logits=logits, labels=labels)


@pytest.mark.parametrize("kind", ["large", "shifted", "wrong"])
@pytest.mark.parametrize("size", [1e7, 1e10])
def test_a_wild_row_does_not_keep_the_optimum_from_being_found(kind, size):
    """SciPy's trust region, with second derivatives by autograd, finds nothing lower."""
    p = with_a_wild_row(kind, size, seed=1)
    fit = VectorScaling().fit(p)

    def derivative(of, flat):
        return of(lambda each: nll_of(each, p), torch.from_numpy(flat)).numpy()

    lower = scipy.optimize.minimize(
        lambda flat: float(nll_of(torch.from_numpy(flat), p)),
        torch.cat([fit.weight_, fit.bias_]).numpy(),
        jac=functools.partial(derivative, torch.autograd.functional.jacobian),
        hess=functools.partial(derivative, torch.autograd.functional.hessian),
        method="trust-exact",
        options={"initial_trust_radius": 1e-6, "gtol": 1e-9, "maxiter": 300},
    )
    assert fit.converged_
    assert fit.objective_value_ == pytest.approx(lower.fun, abs=1e-10)


def test_a_wild_row_that_is_right_changes_nothing():
    p = with_a_wild_row("none", 0.0)
    sure = p.logits.clone()
    sure[3, p.labels[3]] = 1e8
    rest = p.select(torch.arange(2000) != 3)
    found, without = VectorScaling().fit(p.replace(logits=sure)), VectorScaling().fit(rest)
    assert found.converged_
    assert 2000 * found.objective_value_ == pytest.approx(1999 * without.objective_value_, rel=1e-9)


def test_an_optimum_that_float64_cannot_see_is_not_called_one():
    with pytest.warns(
        FitWarning, match=r"short of an optimum. logits\[3\] goes up to 1e\+15, where most rows end near 3.7"
    ):
        fit = VectorScaling().fit(with_a_wild_row("shifted", 1e15))
    assert not fit.converged_


def test_with_many_classes_nothing_tells_whether_a_wild_row_hides_the_optimum(monkeypatch):
    monkeypatch.setattr(affine_nll, "MOST_CLASSES", 9)
    with pytest.warns(FitWarning, match="leave such rows out"):
        fit = VectorScaling().fit(with_a_wild_row("wrong", 1e7))
    assert not fit.converged_


def test_the_second_derivative_matches_autograd():
    p = drawn(torch.ones(3), torch.zeros(3), 30)
    weight, bias = torch.tensor([0.4, 1.1, 0.8]).double(), torch.tensor([0.3, -0.2, 0.0]).double()
    expected = torch.autograd.functional.hessian(lambda flat: nll_of(flat, p), torch.cat([weight, bias]))
    torch.testing.assert_close(affine_nll.second_derivative(p.logits, weight, bias), expected)


@pytest.mark.parametrize("max_iterations", [1, 25])
def test_steps_of_both_metrics_count_and_none_makes_it_worse(max_iterations):
    p = alike(4000, 60)
    with pytest.warns(FitWarning, match=f"stopped after {max_iterations} iterations"):
        fit = VectorScaling(max_iterations=max_iterations).fit(p)
    assert fit.iterations_ == max_iterations
    assert fit.objective_value_ < TemperatureScaling().fit(p).objective_value_


def test_penalty_gradient_matches_autograd_and_spares_the_diagonal():
    it = MatrixScaling(off_diagonal=0.3, intercept=0.7)
    weight = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    bias = torch.arange(4, dtype=torch.float64, requires_grad=True)
    off = weight * (1 - torch.eye(4, dtype=torch.float64))
    (0.3 * off.square().sum() / 12 + 0.7 * bias.square().mean()).backward()
    _, by_weight, by_bias = it._penalty(weight.detach(), bias.detach(), 50)
    torch.testing.assert_close(by_weight, weight.grad)
    torch.testing.assert_close(by_bias, bias.grad)
    assert it._penalty(3 * torch.eye(4, dtype=torch.float64), 0 * bias.detach(), 50)[0] == 0.0


def test_vector_scaling_recovers_weights_and_offsets():
    weight, bias = torch.tensor([0.5, 1.0, 1.5]), torch.tensor([0.7, 0.0, -0.7])
    fit = VectorScaling().fit(drawn(weight, bias, 40_000))
    assert fit.converged_
    torch.testing.assert_close(fit.weight_.float(), weight, atol=0.04, rtol=0)
    torch.testing.assert_close((fit.bias_ - fit.bias_.mean()).float(), bias, atol=0.04, rtol=0)


@pytest.mark.parametrize(
    ("calibrator", "inputs"),
    [
        (MatrixScaling(), lambda logits: logits),
        (DirichletCalibration(off_diagonal=0.0, intercept=0.0), lambda logits: logits.log_softmax(dim=1)),
    ],
)
def test_full_matrices_recover_the_map(calibrator, inputs):
    weight, bias = torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.7, 0.0], [0.0, 0.0, 1.2]]), torch.tensor([0.3, 0.0, -0.3])
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40_000, 3, generator=g)
    target = (inputs(logits) @ weight.T + bias).softmax(dim=1)
    p = Predictions(logits=logits, labels=torch.multinomial(target, 1, generator=g).squeeze(1))
    fit = calibrator.fit(p)
    assert fit.converged_
    torch.testing.assert_close(fit(p.select(torch.arange(500))).probs, target[:500], atol=0.04, rtol=0)


def test_odir_shrinks_off_diagonals_and_offsets_only():
    p = drawn(torch.tensor([[2.0, 0.5, 0.0], [0.0, 2.0, 0.5], [0.5, 0.0, 2.0]]), torch.tensor([0.5, 0.0, -0.5]), 2000)
    free, tight = (DirichletCalibration(off_diagonal=x, intercept=x).fit(p) for x in (0.0, 1e6))
    off = ~torch.eye(3, dtype=torch.bool)
    assert free.weight_[off].abs().max() > 0.1
    assert tight.weight_[off].abs().max() < 1e-4
    assert tight.bias_.abs().max() < 1e-4
    assert tight.weight_.diagonal().min() > 1.1  # free to sharpen


def test_dirichlet_does_not_see_a_shift_of_the_logits():
    p = drawn(torch.ones(3), torch.tensor([0.5, 0.0, -0.5]), 500)
    new = drawn(torch.ones(3), torch.zeros(3), 50, seed=1)
    shifted = p.replace(logits=p.logits + 7 * torch.arange(500).unsqueeze(1) / 500)
    torch.testing.assert_close(
        DirichletCalibration().fit(p)(new).probs, DirichletCalibration().fit(shifted)(new).probs, atol=1e-4, rtol=0
    )


def test_default_penalty_follows_the_number_of_samples_and_classes():
    """Where C² parameters outnumber the samples, the default must still be near plain temperature scaling."""
    p, new = (drawn(torch.full((30,), 0.5), torch.zeros(30), n, seed) for n, seed in ((400, 0), (2000, 1)))

    def nll(q):
        return float(torch.nn.functional.cross_entropy(q.calibrated_logits, q.labels))

    single = nll(TemperatureScaling().fit(p)(new))
    assert nll(DirichletCalibration().fit(p)(new)) < single + 0.1
    with pytest.warns(FitWarning):
        blind = DirichletCalibration(off_diagonal=0.01, intercept=0.01, max_iterations=100).fit(p)
    assert nll(blind(new)) > single + 1.0


def test_separable_data_without_a_penalty_is_not_converged():
    p = Predictions(logits=torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 3), labels=torch.tensor([0, 1] * 3))
    with pytest.warns(FitWarning, match="separable"):
        fit = MatrixScaling(max_iterations=3).fit(p)
    assert not fit.converged_


@pytest.mark.parametrize("options", [{"off_diagonal": -1.0}, {"intercept": float("nan")}])
def test_bad_penalties_raise(options):
    with pytest.raises(ValueError, match="must be a penalty of at least 0"):
        DirichletCalibration(**options)


def sure_and_sometimes_wrong(n: int, c: int, sharpness: float) -> Predictions:
    """A tenth of the labels is not what a network that is certain of everything says."""
    rng = torch.Generator().manual_seed(0)
    labels, logits = torch.randint(c, (n,), generator=rng), torch.randn(n, c, generator=rng)
    said = torch.where(torch.rand(n, generator=rng) < 0.1, torch.randint(c, (n,), generator=rng), labels)
    logits[torch.arange(n), said] += 4
    return Predictions(logits=sharpness * logits, labels=labels)


@pytest.mark.parametrize("sharpness", [1e-6, 1.0, 10.0, 15.0])
def test_the_scale_of_the_logits_does_not_keep_the_optimum_from_being_found(sharpness):
    """Vector scaling can undo any scale: the same optimum, however sure the network was."""
    found = VectorScaling().fit(sure_and_sometimes_wrong(400, 10, sharpness))
    same = VectorScaling().fit(sure_and_sometimes_wrong(400, 10, 2.0))
    assert found.converged_
    assert found.objective_value_ == pytest.approx(same.objective_value_, rel=1e-6)


def test_logits_that_say_nothing_are_no_worse_than_saying_nothing():
    """Heavy tails and labels of their own: the best temperature lies at its bound, and is where to start from."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.empty(1000, 50, dtype=torch.float64).cauchy_(generator=generator)
    p = Predictions(logits=logits, labels=torch.randint(50, (1000,), generator=generator))
    found = VectorScaling().fit(p)
    assert found.converged_
    assert found.objective_value_ < math.log(50)


def test_a_shift_of_all_logits_costs_no_digits():
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(1000, 2, dtype=torch.float64, generator=generator)
    labels = (logits[:, 1] + torch.randn(1000, dtype=torch.float64, generator=generator) > logits[:, 0]).long()
    weight, bias = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    there, far = (affine_nll.nll(z, labels, weight, bias)[0] for z in (logits, logits + 1e6))
    assert far == pytest.approx(there, rel=1e-9)


def test_a_network_that_is_certain_is_calibrated_too():
    certain = sure_and_sometimes_wrong(400, 10, 15.0)
    found = DirichletCalibration().fit(certain)
    before = float(torch.nn.functional.cross_entropy(certain.logits.double(), certain.labels))
    assert before > 2
    assert found.converged_
    assert found.objective_value_ < 0.7


@pytest.mark.parametrize("calibrator", [VectorScaling, MatrixScaling, DirichletCalibration])
@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
def test_extreme_logits_do_not_end_in_nan(calibrator):
    for logits in (torch.tensor([[0.0, 2000.0]]), torch.tensor([[1e200, 0.0]], dtype=torch.float64)):
        p = Predictions(logits=logits, labels=torch.tensor([0]))
        found = calibrator().fit(p)
        start = float(torch.nn.functional.cross_entropy(p.logits.double(), p.labels))
        assert found.objective_value_ <= start + 1e-9
        assert torch.isfinite(found.weight_).all()
