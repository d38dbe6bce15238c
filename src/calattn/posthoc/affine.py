"""Ridge-penalised affine maps of log-probabilities, z + D z + b with a diagonal or a full D: their NLL, and its minimum."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calattn.posthoc.base import seeded
from calattn.posthoc.newton import PER_NAT
from calattn.types import row_blocks

_SAMPLE = 10  # rows per class that curvatures are taken from: a preconditioner need not be exact
_SMALL = 2e7  # samples × parameters up to which a fit in float64 takes a second
_FLATTEST = 1e-9  # of the steepest: no curvature is taken for less than that share of it


class Penalty(NamedTuple):
    """Strengths of the squares of b and of D's entries on and off the diagonal: NLL + bias · Σb² + …"""

    bias: float
    diagonal: float
    off_diagonal: float


class Minimum(NamedTuple):
    """D (its diagonal, or all of it), b, the objective, and whether no step would gain more than the tolerance."""

    change: Tensor
    bias: Tensor
    value: float
    converged: bool
    iterations: int


class Preconditioner(NamedTuple):
    """Coordinates y in which the objective is about equally steep all round: y → a step of x, and slope by x → by y."""

    step: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def mapped(z: Tensor, change: Tensor, bias: Tensor) -> Tensor:
    """z + D z + b, row by row."""
    return torch.addcmul(bias, z, 1 + change) if change.ndim == 1 else torch.addmm(z + bias, z, change.T)


def nll(inputs: Tensor, labels: Tensor, change: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean NLL of softmax(z + D z + b) and its gradients, block by block in the precision of D; sums in float64."""
    total, by_change, by_bias = 0.0, torch.zeros_like(change).double(), torch.zeros_like(bias).double()
    for rows in row_blocks(*inputs.shape):
        z, picked = inputs[rows].to(bias.dtype), labels[rows].unsqueeze(1)
        logits = mapped(z, change, bias)
        own, peak = logits.gather(1, picked), logits.amax(dim=1, keepdim=True)
        residual = logits.sub_(peak).mul_(PER_NAT).exp2_()  # one exponential: log_softmax and then exp are two
        sums = residual.sum(dim=1, keepdim=True)
        total += float((sums.log() - (own - peak)).double().sum())
        residual.div_(sums).scatter_add_(1, picked, residual.new_full(picked.shape, -1.0))
        by_bias += residual.sum(dim=0)
        by_change += residual.mul_(z).sum(dim=0) if change.ndim == 1 else residual.T @ z
    n = len(labels)
    return total / n, by_change / n, by_bias / n


@dataclasses.dataclass(frozen=True)
class DiagonalMaps:
    """x = (diagonal of D, b), with one penalty an entry."""

    classes: int
    penalty: Penalty

    @property
    def ridge(self) -> Tensor:
        return torch.tensor([self.penalty.diagonal, self.penalty.bias]).double().repeat_interleave(self.classes)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2)
        return first, second

    def flat(self, change: Tensor, bias: Tensor) -> Tensor:
        return torch.cat([change, bias])

    def slope(self, by_change: Tensor, by_bias: Tensor) -> Tensor:
        return torch.cat([by_change, by_bias])

    def preconditioner(self, inputs: Tensor, x: Tensor) -> Preconditioner:
        """By the second derivative: with J = (z ⊙ p, p) it is −JᵀJ, but p for p² within a class."""
        c, ridge = self.classes, self.ridge.to(x)
        within, both, sample = x.new_zeros(2 * c), x.new_zeros(c), _sampled(inputs)
        # The products of pairs are most of the work, and need not be exact.
        pairs = x.new_zeros(2 * c, 2 * c, dtype=torch.float32)
        for part in sample.split(max(1, (1 << 19) // c)):
            z = inputs[part].to(x.dtype)
            probs = mapped(z, *(each.to(z) for each in self.parts(x))).softmax(dim=1)
            joint = torch.cat([z * probs, probs], dim=1)
            within += torch.cat([(joint[:, :c] * z).sum(dim=0), probs.sum(dim=0)])
            both += joint[:, :c].sum(dim=0)
            pairs.addmm_(joint.float().T, joint.float(), alpha=-1.0)
        second = pairs.to(x.dtype)
        for offset, values in ((0, within), (c, both), (-c, both)):
            second.diagonal(offset).add_(values)
        second.div_(len(sample)).diagonal().add_(2 * ridge)
        units = second.diagonal().clamp(min=_FLATTEST * float(second.diagonal().max())).sqrt()
        second.div_(units).div_(units[:, None]).diagonal().add_(1e-3)  # what a sample of rows leaves flat
        factor = torch.linalg.cholesky(second)

        def solve(matrix: Tensor, y: Tensor, *, upper: bool) -> Tensor:
            return torch.linalg.solve_triangular(matrix, y[:, None], upper=upper)[:, 0]

        return Preconditioner(
            lambda y: solve(factor.T, y, upper=True) / units, lambda slope: solve(factor, slope / units, upper=False)
        )


@dataclasses.dataclass(frozen=True)
class FullMaps:
    """x = (M, b, v) with D = M + diag(v): what M's diagonal has in common with the rest, and what v adds.

    The two penalties of the diagonal are such that the best split of an entry costs `penalty.diagonal` of its square; M's then is
    one number, and its curvature nearly a Kronecker product.
    """

    classes: int
    penalty: Penalty

    @property
    def _of_v(self) -> float:
        diagonal, off = self.penalty.diagonal, self.penalty.off_diagonal
        return diagonal * off / (off - diagonal) if off > diagonal else 1e9 * off

    @property
    def ridge(self) -> Tensor:
        c = self.classes
        return torch.tensor([self.penalty.off_diagonal] * c * c + [self.penalty.bias] * c + [self._of_v] * c).double()

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c = self.classes
        return x[: c * c].view(c, c) + torch.diag(x[-c:]), x[c * c : -c]

    def flat(self, change: Tensor, bias: Tensor) -> Tensor:
        off = self.penalty.off_diagonal
        alone = change.diagonal() * (off / (off + self._of_v) if off else 0.0)
        return torch.cat([(change - torch.diag(alone)).flatten(), bias, alone])

    def slope(self, by_change: Tensor, by_bias: Tensor) -> Tensor:
        return torch.cat([by_change.flatten(), by_bias, by_change.diagonal()])

    def preconditioner(self, inputs: Tensor, x: Tensor) -> Preconditioner:
        """In the eigenvectors of the two factors of the curvature, by its exact diagonal there (EKFAC, George et al. 2018)."""
        c = self.classes
        off, bias = self.penalty.off_diagonal, self.penalty.bias
        one = (off / bias) ** 0.5 if off and bias else 1.0  # in these units b's penalty is M's
        z = inputs[_sampled(inputs)].to(x.dtype)
        z1 = torch.cat([z, torch.full_like(z[:, :1], one)], dim=1)
        probs = mapped(z, *(each.to(z) for each in self.parts(x))).softmax(dim=1)
        left = torch.linalg.eigh(torch.diag(probs.mean(dim=0)) - probs.T @ probs / len(z)).eigenvectors
        right = torch.linalg.eigh(z1.T @ z1 / len(z)).eigenvectors
        spread = probs @ left.square() - (probs @ left).square()
        units = _root(spread.T @ (z1 @ right).square() / len(z) + 2 * off)
        of_v = _root((probs * (1 - probs) * z.square()).mean(dim=0) + 2 * self._of_v)

        def step(y: Tensor) -> Tensor:
            moved = left @ (y[:-c].view(c, c + 1) / units) @ right.T
            return torch.cat([moved[:, :c].flatten(), moved[:, c] * one, y[-c:] / of_v])

        def slope(by_x: Tensor) -> Tensor:
            by_matrix = torch.cat([by_x[: c * c].view(c, c), by_x[c * c : -c, None] * one], dim=1)
            return torch.cat([((left.T @ by_matrix @ right) / units).flatten(), by_x[-c:] / of_v])

        return Preconditioner(step, slope)


Maps = DiagonalMaps | FullMaps


def minimum(
    maps: Maps,
    inputs: Tensor,
    labels: Tensor,
    start: tuple[Tensor, Tensor],
    *,
    max_iterations: int,
    rough: bool = False,
) -> Minimum:
    """The least NLL + penalty, by preconditioned L-BFGS; a `rough` one is good enough to choose a penalty by."""
    exact = not rough and len(labels) * start[0].numel() <= _SMALL
    enough = 1e-4 if rough else 1e-9 if exact else 1e-6  # nats: half the squared slope is about what a step would gain
    origin, ridge = maps.flat(*start), maps.ridge.to(inputs.device)
    step, slope_by_y = maps.preconditioner(inputs, origin)
    last: dict[str, float] = {}

    def at(y: np.ndarray) -> Tensor:
        return origin + step(torch.from_numpy(y).to(origin.device))

    def objective(y: np.ndarray) -> tuple[float, np.ndarray]:
        x = at(y)
        change, bias = (part.to(torch.float64 if exact else torch.float32) for part in maps.parts(x))
        value, by_change, by_bias = nll(inputs, labels, change, bias)
        slope = slope_by_y(maps.slope(by_change, by_bias) + 2 * ridge * x)
        last["gain"] = 0.5 * float(slope @ slope)
        return value + float(ridge @ x.square()), slope.cpu().numpy()

    def enough_gained(_: np.ndarray) -> None:
        if last["gain"] <= enough:
            raise StopIteration

    import scipy.optimize  # here, to keep `import calattn` light

    zero = np.zeros(origin.numel())
    options = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "ftol": 0.0, "gtol": 0.0, "maxcor": 20}
    found = scipy.optimize.minimize(
        objective, zero, jac=True, method="L-BFGS-B", callback=enough_gained, options=options
    )
    where = found.x if np.isfinite(found.fun) else zero
    value, _ = objective(where)
    return Minimum(*maps.parts(at(where)), value, last["gain"] <= 10 * enough, int(found.nit))


def _sampled(inputs: Tensor) -> Tensor:
    """Some rows, or all where there are not many."""
    n, most = len(inputs), max(2000, _SAMPLE * inputs.shape[1])
    return torch.randperm(n, generator=seeded(None))[:most].to(inputs.device)


def _root(curvature: Tensor) -> Tensor:
    return curvature.clamp(min=max(_FLATTEST * float(curvature.max()), 1e-300)).sqrt()
