"""Newton's method for one temperature: in log T, kept in a bracket."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from calattn import checks
from calattn.errors import Args, InputError
from calattn.types import Predictions

# exp(-87) is the last power of e above float32's smallest normal number. Below it arithmetic is up to 100
# times slower (one exp pass over 50,000 × 1,000: 20 ms, with denormal results 760 ms), and adds nothing to a
# sum that is at least 1.
LOWEST_EXPONENT = -87.0
SLOPE_TOLERANCE = 1e-12  # of dNLL/dlog T, in nats
STEP_TOLERANCE = 1e-7  # of log T: float32 logits carry a relative error of 6e-8, and T inherits it
_DOUBLE_UP_TO = 1 << 22  # entries; float64 takes 0.1 s there
_WARM_ROWS = 2048


class Optimum(NamedTuple):
    """The best temperature, its NLL, whether it is an optimum or a bound, and the passes over the data."""

    temperature: float
    nll: float
    converged: bool
    iterations: int


class Moments(NamedTuple):
    """NLL and its first two derivatives in u = log β, where β = 1/T."""

    nll: float
    slope: float
    curvature: float


def nll_optimum(predictions: Predictions, bounds: tuple[float, float]) -> Optimum:
    """argmin of the mean NLL of softmax(ℓ/T) over T in bounds.

    With d = ℓ − max ℓ, NLL(β) = mean(log Σ_j exp(β d_j) − β d_y) is convex in β = 1/T, so the sign of its
    slope always tells on which side the optimum lies. If every label is its row's maximum the infimum is at T
    → 0, and if the labels' logits are below average it is at T → ∞: both end at a bound, not converged. If
    all logits of each row are equal, every T gives the same probabilities, and T = 1.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
    >>> round(nll_optimum(p, (1e-6, 1e6)).temperature, 6), round(2 / math.log(3), 6)  # softmax must say 3/4
    (1.820478, 1.820478)
    """
    check_labels_possible(predictions)
    curve = NllCurve(predictions)
    if curve.lowest == 0.0:
        return Optimum(1.0, math.log(predictions.num_classes), True, 0)
    limits = (-math.log(bounds[1]), -math.log(bounds[0]))
    if curve.all_top or curve.label_lead <= 0.0:
        limit = limits[1] if curve.all_top else limits[0]
        return Optimum(math.exp(-limit), curve(limit).nll, False, 1)
    start = _warm_start(predictions, bounds)
    rough_passes = 0
    if curve.dtype != torch.float64:  # one float64 pass at the end, at twice the price, makes the optimum exact
        rough = bracketed_newton(curve, start, limits, step_tolerance=1e-4)
        start, rough_passes = -math.log(rough.temperature), rough.iterations
        curve.dtype = torch.float64
    found = bracketed_newton(curve, start, limits)
    return found._replace(iterations=found.iterations + rough_passes)


def _warm_start(predictions: Predictions, bounds: tuple[float, float]) -> float:
    """log β of every k-th row: about a per cent off, for a fraction of the price of one pass."""
    stride = len(predictions) // _WARM_ROWS
    if stride < 2:
        return 0.0
    rows = torch.arange(0, len(predictions), stride, device=predictions.labels.device)
    rough = nll_optimum(predictions.select(rows), bounds)
    return -math.log(rough.temperature) if rough.converged else 0.0


def check_labels_possible(predictions: Predictions) -> None:
    """A label whose logit is −inf makes the NLL infinite at every temperature."""
    picked = predictions.logits.gather(1, predictions.labels.unsqueeze(1)).squeeze(1)
    if (picked == -torch.inf).any():
        raise InputError(
            "has probability 0, so the NLL is infinite at every temperature",
            argument="labels",
            row=checks.first(picked == -torch.inf),
            remedy=("pass ", Args("Predictions.from_probs(..., floor=1e-6)", floor="1e-6")),
        )


class NllCurve:
    """NLL and its derivatives as a function of log β, one pass over the logits a call.

    Blocks are float64 for small inputs and float32 for large ones; sums over rows are always float64.
    """

    def __init__(self, predictions: Predictions) -> None:
        self.predictions = predictions
        small = predictions.logits.numel() <= _DOUBLE_UP_TO
        self.dtype = torch.float64 if small else predictions.logits.dtype
        peaks, gaps = [], []
        self.lowest, lead = 0.0, 0.0
        for block, labels in predictions.blocks():
            peak = block.amax(dim=1)
            peaks.append(peak)
            gaps.append(block.gather(1, labels.unsqueeze(1)).squeeze(1).double() - peak.double())
            self.lowest = min(self.lowest, float((block.amin(dim=1) - peak).min()))
            lead += float((gaps[-1] - (block.mean(dim=1).double() - peak.double())).sum())
        self.peak: Tensor = torch.cat(peaks)
        self.gap: Tensor = torch.cat(gaps)  # d_y: 0 where the label is the maximum
        self.label_lead = lead / len(predictions)  # minus the slope at β = 0
        self.all_top = bool((self.gap == 0).all())

    def __call__(self, log_beta: float) -> Moments:
        beta = math.exp(log_beta)
        nll = slope = second = 0.0
        start = 0
        for block, _ in self.predictions.blocks():
            rows = slice(start, start + block.shape[0])
            start = rows.stop
            x = block.to(self.dtype) - self.peak[rows].to(self.dtype).unsqueeze(1)
            x.mul_(beta)
            if self.lowest * beta < LOWEST_EXPONENT:  # also turns −inf into a term that vanishes, where 0·∞ would not
                x.clamp_(min=LOWEST_EXPONENT)
            weights = x.exp()
            total = weights.sum(dim=1).double()
            mean = weights.mul_(x).sum(dim=1).double().div_(total)
            square = weights.mul_(x).sum(dim=1).double().div_(total)
            gap = self.gap[rows] * beta
            nll += float((total.log_() - gap).sum())
            slope += float((mean - gap).sum())
            second += float(square.sub_(mean.square()).sum())
        n = len(self.predictions)
        return Moments(nll / n, slope / n, (second + slope) / n)


def bracketed_newton(
    curve: Callable[[float], Moments],
    start: float,
    limits: tuple[float, float],
    *,
    step_tolerance: float = STEP_TOLERANCE,
    max_passes: int = 100,
) -> Optimum:
    """The zero of the slope between the limits; each pass halves the slope or the bracket, so it must end."""
    low, high = limits
    u = min(max(start, low), high)
    last_slope = math.inf
    for passes in range(1, max_passes + 1):
        at = curve(u)
        # Logits of 1e-30 have no slope to speak of at any T, but only a minimum curves upwards.
        flat = abs(at.slope) <= SLOPE_TOLERANCE and at.curvature > 0
        if u == (limits[1] if at.slope < 0 else limits[0]):
            return Optimum(math.exp(-u), at.nll, flat, passes)
        step = -at.slope / at.curvature if at.curvature > 0 else math.copysign(math.inf, -at.slope)
        if flat:
            return Optimum(math.exp(-u), at.nll, True, passes)
        if abs(step) <= step_tolerance:
            return Optimum(math.exp(-u - step), at.nll, True, passes)
        low, high = (u, high) if at.slope < 0 else (low, u)
        if high - low <= step_tolerance:
            return Optimum(math.exp(-u), at.nll, low > limits[0] and high < limits[1], passes)
        halved = abs(at.slope) <= 0.5 * last_slope
        last_slope = abs(at.slope)
        # Outside the bracket the candidate is pulled back to it: onto a limit, to see whether that is the
        # end, or halfway towards an end that was visited before.
        candidate = u + math.copysign(min(abs(step), 3.0), step)
        if halved and low < candidate < high:
            u = candidate
        elif candidate >= high == limits[1] or candidate <= low == limits[0]:
            u = min(max(candidate, low), high)
        else:
            u = 0.5 * (low + high)
    return Optimum(math.exp(-u), at.nll, False, max_passes)
