"""Newton's method with the whole second derivative, kept downhill, for convex problems of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_NEAR = 1e-11  # in units of the objective: what half the slope times the step says that the optimum lies below
_STEADY = (
    2.0  # times as much or as little: as far as a curvature may change by a step that is to say what there is to gain
)
_HALVINGS = 60  # of a step; logits of 1e12 need 40
_LOST = 1e-15  # of a curvature: what float64 does not see beside it
_LEAST_RIDGE, _HONEST_RIDGE, _MOST_RIDGE = 1e-12, 1e-6, 1e6

Objective = Callable[[Tensor], tuple[float, Tensor]]


class Steepness(NamedTuple):
    """The second derivative at a point, and a curvature by parameter that a ridge is a small share of."""

    second: Tensor
    typical: Tensor


class Descent(NamedTuple):
    """The lowest point found, and whether it is an optimum."""

    value: float
    where: Tensor
    converged: bool
    steps: int


def damped_newton(
    objective: Objective, steepness: Callable[[Tensor], Steepness], start: Tensor, *, max_steps: int
) -> Descent:
    """From the start to where a step would gain less than 1e-11; the objective gives its value and its slope.

    What it would gain is known only where it leaves the curvature as it is: on a steep exponential every step gains next to
    nothing, and the way is long.

    >>> bowl = lambda x: (float(x @ x), 2 * x)
    >>> found = damped_newton(bowl, lambda x: Steepness(2 * torch.eye(2), torch.ones(2)), torch.ones(2), max_steps=9)
    >>> round(found.value, 6), found.converged, found.steps
    (0.0, True, 1)
    """
    where, (value, slope) = start, objective(start)
    for steps in range(max_steps):
        here = steepness(where)
        step, honest = _step(slope, here)
        gain = -0.5 * float(slope @ step)
        if honest and gain <= _NEAR and _steady(here, steepness(where + step)):
            return Descent(value, where, True, steps)
        for _ in range(_HALVINGS):
            ahead, slope_ahead = objective(where + step)
            if ahead <= value - 1e-4 * gain:
                break
            step, gain = step / 2, gain / 2
        else:
            return Descent(value, where, False, steps)
        where, value, slope = where + step, ahead, slope_ahead
    return Descent(value, where, False, max_steps)


def _steady(one: Steepness, other: Steepness) -> bool:
    ratio = (other.second.diagonal() + other.typical) / (one.second.diagonal() + one.typical)
    return bool((ratio < _STEADY).all() and (ratio > 1 / _STEADY).all())


def _step(slope: Tensor, at: Steepness) -> tuple[Tensor, bool]:
    """Newton's step, and whether it can be believed: with no more than a touch of a ridge, and digits for what is typical."""
    units = (at.second.diagonal() + _LEAST_RIDGE * at.typical).sqrt()
    matrix = at.second / units / units[:, None]
    diagonal, typical = matrix.diagonal().clone(), at.typical / units.square()
    ridge = _LEAST_RIDGE
    while ridge <= _MOST_RIDGE:
        matrix.diagonal().copy_(diagonal + ridge * typical)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed and torch.isfinite(factor).all():
            step = -torch.cholesky_solve((slope / units)[:, None], factor)[:, 0] / units
            return step, ridge <= _HONEST_RIDGE and float(typical.min()) > _LOST
        ridge *= 10
    return torch.full_like(slope, torch.nan), False
