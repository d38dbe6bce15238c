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

# Powers of two: over 50,000 × 1,000 on one core torch's `exp2` takes 6 ms and its `exp`, which asks MKL, 29 ms.
PER_NAT = 1.0 / math.log(2.0)  # e^x = 2^(x · PER_NAT)
# Float32's smallest normal number is 2^−126. Below it arithmetic is up to 100 times slower, and adds nothing to a sum that is
# at least 1.
LOWEST_EXPONENT = -125.0
SLOPE_TOLERANCE = 1e-12  # of dNLL/dlog T, in nats
STEP_TOLERANCE = 1e-7  # of log T: float32 logits carry a relative error of 6e-8, and T inherits it
ERROR_TOLERANCE = 1e-9  # of log T, after a step with a cubic error
_DOUBLE_UP_TO = 1 << 22  # entries; float64 takes 0.1 s there
_WARM_ROWS = 2048


class Optimum(NamedTuple):
    """The best temperature, its NLL (or ECE), whether it is an optimum or a bound, and the passes over the data."""

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
    return bracketed_newton(curve, _warm_start(predictions, bounds), limits)


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

    The first look at a large input, which says where to look next, is in float32; all others, and sums over rows, in float64.
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
        in_bits, bit = beta * PER_NAT, math.log(2.0)
        nll = slope = second = 0.0
        start = 0
        for block, _ in self.predictions.blocks():
            rows = slice(start, start + block.shape[0])
            if start == 0:  # buffers that every block overwrites: fresh ones take a fifth longer
                buffers = torch.empty(2, *block.shape, dtype=self.dtype, device=block.device)
            start = rows.stop
            x, weights = buffers[:, : block.shape[0]]
            x.copy_(block).sub_(self.peak[rows].unsqueeze(1)).mul_(in_bits)
            if self.lowest * in_bits < LOWEST_EXPONENT:  # −inf too: a term that vanishes, where 0·∞ would not
                x.clamp_(min=LOWEST_EXPONENT)
            torch.exp2(x, out=weights)
            total = weights.sum(dim=1).double()
            mean = weights.mul_(x).sum(dim=1).double().mul_(bit).div_(total)
            square = weights.mul_(x).sum(dim=1).double().mul_(bit * bit).div_(total)
            gap = self.gap[rows] * beta
            nll += float((total.log_() - gap).sum())
            slope += float((mean - gap).sum())
            second += float(square.sub_(mean.square()).sum())
        self.dtype = torch.float64
        n = len(self.predictions)
        return Moments(nll / n, slope / n, (second + slope) / n)


def bracketed_newton(
    curve: Callable[[float], Moments], start: float, limits: tuple[float, float], *, max_passes: int = 100
) -> Optimum:
    """The zero of the slope between the limits; each pass halves the slope or the bracket, so it must end.

    How the curvature has changed since the last pass makes the steps' error cubic (Chebyshev's method), which saves a pass.
    """
    low, high = limits
    u = min(max(start, low), high)
    last_u, last = math.nan, Moments(math.nan, math.inf, math.nan)
    for passes in range(1, max_passes + 1):
        at = curve(u)
        # Logits of 1e-30 have no slope to speak of at any T, but only a minimum curves upwards.
        flat = abs(at.slope) <= SLOPE_TOLERANCE and at.curvature > 0
        if u == (limits[1] if at.slope < 0 else limits[0]):
            return Optimum(math.exp(-u), at.nll, flat, passes)
        step = -at.slope / at.curvature if at.curvature > 0 else math.copysign(math.inf, -at.slope)
        if flat:
            return Optimum(math.exp(-u), at.nll, True, passes)
        if abs(at.slope) < 0.1 * abs(last.slope) and abs(last_u - u) < 0.1 and abs(step) < 0.01:
            bend = (at.curvature - last.curvature) / (u - last_u)
            step -= 0.5 * bend / at.curvature * step**2
            near = step**2 * abs(u - last_u) <= ERROR_TOLERANCE
        else:
            near = False
        if near or abs(step) <= STEP_TOLERANCE:
            return Optimum(math.exp(-u - step), at.nll + 0.5 * at.slope * step, True, passes)
        low, high = (u, high) if at.slope < 0 else (low, u)
        if high - low <= STEP_TOLERANCE:
            return Optimum(math.exp(-u), at.nll, low > limits[0] and high < limits[1], passes)
        halved = abs(at.slope) <= 0.5 * abs(last.slope)
        last_u, last = u, at
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
