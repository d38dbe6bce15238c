"""Temperature scaling: the grid, the NLL optimum, and what users of other libraries hit."""

import itertools
import math
import warnings

import pytest
import torch

from calattn import Predictions
from calattn.metrics.binning import bin_index
from calattn.posthoc import PROTOCOL_GRID, FitWarning, TemperatureScaling
from calattn.posthoc.newton import Moments, NllCurve, bracketed_newton, nll_optimum
from calattn.posthoc.temperature import doubling_chains, ece_curve


def drawn(temperature: float, n: int = 3000, c: int = 10, spread: float = 3.0, seed: int = 0) -> Predictions:
    """Labels drawn from softmax(ℓ / temperature)."""
    g = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, c, generator=g)
    labels = torch.multinomial((logits.double() / temperature).softmax(dim=1), 1, generator=g).squeeze(1)
    return Predictions(logits=logits, labels=labels)


def direct_ece(p: Predictions, temperature: float, num_bins: int = 15) -> float:
    confidence, top = (p.calibrated_logits / temperature).softmax(dim=1).max(dim=1)
    gap = confidence.double() - (top == p.labels).double()
    return float(torch.bincount(bin_index(confidence, num_bins), gap, num_bins).abs().sum() / len(p))


# The grid


@pytest.mark.parametrize("spread", [0.05, 3.0, 60.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_grid_agrees_with_softmax_at_every_temperature(spread, scaled):
    p = drawn(1.7, n=701, c=1000, spread=spread)
    if scaled:
        p = p.replace(scale=0.3 + torch.rand(701, generator=torch.Generator().manual_seed(1)))
    curve = ece_curve(p, PROTOCOL_GRID)
    direct = torch.tensor([direct_ece(p, t) for t in PROTOCOL_GRID])
    # A confidence within rounding of an edge may change bins, which moves 1/n: so most, not all, must agree closely.
    close = (curve - direct).abs() < 1e-6
    assert close.float().mean() >= 0.95
    assert (curve - direct).abs().max() < 4 / 701
    assert TemperatureScaling("ece").fit(p).temperature_ == PROTOCOL_GRID[int(curve.numpy().argmin())]


def test_chains_hold_each_temperature_once_and_halve():
    chains = doubling_chains(PROTOCOL_GRID)
    assert len(chains) == 50  # exponentials; the other 50 temperatures are squares
    assert sorted(index for chain in chains for index in chain) == list(range(100))
    for chain in chains:
        assert all(PROTOCOL_GRID[a] == 2 * PROTOCOL_GRID[b] for a, b in itertools.pairwise(chain))
    assert doubling_chains([0.7, 1.1, 3.0]) == [[0], [1], [2]]


def test_a_grid_of_ones_own_in_any_order():
    p = drawn(1.7)
    fit = TemperatureScaling("ece", grid=(3.0, 1.5, 0.75, 1.7)).fit(p)
    assert fit.temperature_ in (1.5, 1.7)
    assert fit.curve_[0].tolist() == [3.0, 1.5, 0.75, 1.7]
    for t, value in fit.curve_.T.tolist():
        assert value == pytest.approx(direct_ece(p, t), abs=1e-6)


@pytest.mark.parametrize("num_bins", [2, 15, 40])
def test_in_double_precision_the_grid_is_exact_with_as_many_bins_as_asked_for(num_bins):
    p = drawn(1.7, n=800)
    p = p.replace(logits=p.logits.double())
    fit = TemperatureScaling("ece", num_bins=num_bins).fit(p)
    direct = [direct_ece(p, t, num_bins) for t in PROTOCOL_GRID]
    assert fit.curve_[1].tolist() == pytest.approx(direct, abs=1e-12)
    assert fit.objective_value_ == pytest.approx(min(direct), abs=1e-12)


def test_first_minimum_wins():
    """Constant logits: every temperature has the same ECE, so the protocol's choice is its first, 0.1."""
    p = Predictions(logits=torch.zeros(30, 3), labels=torch.arange(30) % 3)
    with pytest.warns(FitWarning, match="every T of it has the same ECE"):
        fit = TemperatureScaling("ece").fit(p)
    assert fit.curve_[1].unique().numel() == 1
    assert fit.temperature_ == 0.1


@pytest.mark.parametrize(
    ("factor", "end", "temperature"),
    [(20.0, "high", 10.0), (0.01, "low", 0.1), (1e-30, "low", 0.1), (1e30, "low", 0.1)],
)
def test_the_end_of_the_grid_is_not_an_optimum(factor, end, temperature):
    p = drawn(1.0, n=500)
    with pytest.warns(FitWarning, match=rf"the {end} end of the grid \(0.1 to 10\).*pass a wider one") as caught:
        fit = TemperatureScaling("ece").fit(p.replace(logits=p.logits * factor))
    assert ("same ECE" in str(caught[0].message)) == (factor in (1e-30, 1e30))
    assert fit.temperature_ == temperature
    assert not fit.converged_


def test_inside_the_grid_is_an_optimum():
    p = drawn(1.0, n=500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TemperatureScaling("ece").fit(p).converged_
        assert TemperatureScaling("ece", grid=(1.0, 9.0, 0.1)).fit(p).temperature_ == 1.0  # first, and not an end
        assert TemperatureScaling("ece", grid=(1.0,)).fit(p).converged_  # no choice
    with pytest.warns(FitWarning, match=r"T = 3 is the low end of the grid \(3 to 9\)"):
        TemperatureScaling("ece", grid=(9.0, 3.0, 4.0)).fit(p)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "brier"}, "objective"),
        ({"grid": (1.0, -2.0)}, "grid must be positive and finite, got -2.0"),
        ({"grid": ()}, "grid must hold distinct temperatures"),
        ({"grid": (1.0, 1.0)}, "grid must hold distinct temperatures"),
        ({"num_bins": 0}, "num_bins must be a positive integer"),
        ({"bounds": (2.0, 1.0)}, "low < high"),
        ({"bounds": (2.0, 2.0)}, "low < high"),
    ],
)
def test_bad_options_raise(options, message):
    with pytest.raises(Exception, match=message):
        TemperatureScaling(**options)


# The NLL optimum


def test_float32_does_not_stay_at_one():
    """netcal #61, #48: with float32 logits the optimiser stopped at T = 1."""
    p = drawn(2.0)
    single = TemperatureScaling().fit(p)
    double = TemperatureScaling().fit(p.replace(logits=p.logits.double()))
    assert single.temperature_ == pytest.approx(2.0, rel=0.05)
    assert single.temperature_ == pytest.approx(double.temperature_, rel=1e-7)


def test_large_float32_input_ends_as_exact_as_small(monkeypatch):
    p = drawn(1.6, n=6000, c=30)
    small = nll_optimum(p, (1e-6, 1e6))
    monkeypatch.setattr("calattn.posthoc.newton._DOUBLE_UP_TO", 0)
    large = nll_optimum(p, (1e-6, 1e6))
    assert large.temperature == pytest.approx(small.temperature, rel=1e-9)
    assert large.nll == pytest.approx(small.nll, rel=1e-12)
    assert large.iterations <= 2  # passes over all the data: what the speed rests on


@pytest.mark.parametrize("factor", [-1.0, -1e-8])
def test_never_negative(factor):
    """temperature_scaling #31: a gradient step took T below zero. Here logits are worse than chance: T → ∞.

    Where they are tiny as well, the slope falls below any tolerance on the way to the bound.
    """
    p = drawn(1.0, n=500)
    with pytest.warns(FitWarning, match=r"no temperature in \(1e-06, 1000000.0\) minimises"):
        fit = TemperatureScaling().fit(p.replace(logits=factor * p.logits))
    assert fit.temperature_ == pytest.approx(1e6)
    assert not fit.converged_


@pytest.mark.parametrize("factor", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_does_not_diverge_or_stop_early_at_any_scale(factor):
    """temperature_scaling #28, #34, #20, #23: LBFGS diverged or stopped early, depending on the logits' scale."""
    p = drawn(1.5)
    fit = TemperatureScaling().fit(p.replace(logits=p.logits * factor))
    assert fit.converged_
    at = NllCurve(p)(-math.log(fit.temperature_ / factor))
    assert abs(at.slope) < 1e-6
    one = TemperatureScaling().fit(p)
    assert fit.temperature_ / factor == pytest.approx(one.temperature_, rel=1e-5)
    assert abs(NllCurve(p)(-math.log(one.temperature_)).slope) < 1e-10


@pytest.mark.parametrize("start", [-13.0, -5.0, 0.0, 5.0, 13.0])
def test_every_start_reaches_the_same_optimum(start):
    curve = NllCurve(drawn(1.5))
    limits = (-math.log(1e6), math.log(1e6))
    found = bracketed_newton(curve, start, limits)
    assert found.converged
    assert found.temperature == pytest.approx(bracketed_newton(curve, 0.0, limits).temperature, rel=1e-7)
    assert found.iterations <= 40


@pytest.mark.parametrize("curvature", [1e-3, 1e3])
def test_newton_with_hostile_derivatives_ends(curvature):
    """A curvature that is always wrong turns Newton into bisection, not into a loop."""
    passes = []

    def curve(u: float) -> Moments:
        passes.append(u)
        return Moments((u - 0.3) ** 2, math.copysign(1.0, u - 0.3), curvature)

    found = bracketed_newton(curve, 0.0, (-13.0, 13.0))
    assert found.converged
    assert -math.log(found.temperature) == pytest.approx(0.3, abs=1e-6)
    assert len(passes) < 40


@pytest.mark.parametrize("factor", [1e-12, 1e-20, 1e-30])
def test_tiny_logits_end_at_the_bound(factor):
    """The slope is below any tolerance at every T of the bounds; the optimum is far below them."""
    p = drawn(1.0, n=500)
    with pytest.warns(FitWarning, match="T = 1e-06 is the bound"):
        fit = TemperatureScaling().fit(p.replace(logits=p.logits * factor))
    assert fit.temperature_ == pytest.approx(1e-6)
    assert not fit.converged_
    wide = TemperatureScaling(bounds=(1e-35, 1e6)).fit(p.replace(logits=p.logits * factor))
    assert wide.converged_
    assert wide.temperature_ == pytest.approx(factor, rel=0.2)


def test_all_correct_has_no_optimum():
    p = drawn(1.0, n=50)
    p = p.replace(labels=p.logits.argmax(dim=1))
    with pytest.warns(FitWarning, match="Are all labels the top class"):
        fit = TemperatureScaling().fit(p)
    assert fit.temperature_ == pytest.approx(1e-6)
    assert not fit.converged_
    with pytest.warns(FitWarning):
        assert TemperatureScaling(bounds=(0.5, 2.0)).fit(p).temperature_ == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("temperature", "bounds", "end"),
    [(1.0, (2.0, 3.0), 2.0), (1.0, (0.1, 0.5), 0.5), (5.0, (0.1, 3.0), 3.0), (0.2, (0.5, 10.0), 0.5)],
)
def test_optimum_outside_the_bounds_is_not_converged(temperature, bounds, end):
    """Whether the search begins at the bound (at T = 1, cut to the bounds) or has to get there."""
    with pytest.warns(FitWarning):
        fit = TemperatureScaling(bounds=bounds).fit(drawn(temperature))
    assert fit.temperature_ == pytest.approx(end, rel=1e-12)  # the bound itself, not a point beside it
    assert not fit.converged_


def test_a_zero_that_cannot_be_told_from_the_limit_is_none():
    """The slope rises from right beside the lower limit: whether it was negative at the limit, nobody has seen."""
    found = bracketed_newton(lambda _u: Moments(0.0, 1.0, 1.0), -1.0 + 5e-8, (-1.0, 1.0))
    assert found.temperature == pytest.approx(math.e, rel=1e-7)
    assert not found.converged


@pytest.mark.parametrize("right", [7, 8, 9])
def test_the_optimum_is_exact_beyond_the_tolerance_of_the_steps(right):
    """Ten samples of ℓ = (3, 0), so many of them right: softmax says the share at T = 3 / logit(share)."""
    p = Predictions(logits=torch.tensor([[3.0, 0.0]] * 10), labels=(torch.arange(10) >= right).long())
    fit = TemperatureScaling().fit(p)
    assert fit.temperature_ == pytest.approx(3 / math.log(right / (10 - right)), rel=1e-11)
    share = right / 10
    assert fit.objective_value_ == pytest.approx(
        -share * math.log(share) - (1 - share) * math.log(1 - share), rel=1e-12
    )


def test_constant_logits_keep_t_at_one():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = TemperatureScaling().fit(Predictions(logits=torch.full((4, 3), 0.1), labels=torch.arange(4) % 3))
    assert (fit.temperature_, fit.converged_) == (1.0, True)
    assert fit.objective_value_ == pytest.approx(math.log(3))


@pytest.mark.parametrize(("label", "end"), [(0, 1e-6), (2, 1e6)])
def test_one_sample(label, end):
    p = Predictions(logits=torch.tensor([[3.0, 1.0, 0.0]]), labels=torch.tensor([label]))
    with pytest.warns(FitWarning):
        assert TemperatureScaling().fit(p).temperature_ == pytest.approx(end)


def test_composes_with_a_scale():
    """CalAttn + TS: the temperature comes on top of the per-sample scale."""
    p = drawn(1.0, n=5000)
    scale = 0.5 + torch.rand(5000, generator=torch.Generator().manual_seed(0))
    half = p.replace(logits=p.logits * scale.unsqueeze(1) * 2, scale=scale)
    fit = TemperatureScaling().fit(half)
    assert fit.temperature_ == pytest.approx(2.0, rel=0.05)
    new = half.replace(scale=scale * 1.5)
    torch.testing.assert_close(fit(new).scale, scale * 1.5 * fit.temperature_)
