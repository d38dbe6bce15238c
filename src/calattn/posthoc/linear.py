"""Linear calibrators: an affine map of the logits or log-probabilities, fitted by maximum likelihood."""

from __future__ import annotations

import abc
import dataclasses
import warnings
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.posthoc import affine_nll
from calattn.posthoc.base import Calibrator, FitWarning, Learned, finite_logits
from calattn.posthoc.modules import AffineLogits
from calattn.posthoc.newton import Steepness, damped_newton, nll_optimum
from calattn.types import Predictions, row_blocks

# Penalties of `None`, 1/(2σ²): a normal prior of standard deviation 0.02 for each w_ij and 0.5 for each b_j. Made-up
# logits, 2,500 samples: with 10 classes the NLL is within 0.01 of the best of seven strengths, with 100 classes within
# 0.02, where a strength that does not know n and C (λ = 0.01, say) overfits to an NLL of 80 against 3.5.
_PRIOR_OFF_DIAGONAL = 1 / (2 * 0.02**2)
_PRIOR_INTERCEPT = 1 / (2 * 0.5**2)
_FLATTEST = 1e-6  # of the steepest of W or of b: no curvature is taken for less than that share of it
# Vector scaling, 50,000 × 1,000 logits: 456 passes over the data in units by parameter, 58 with correlations, taken at the
# start and once more after 20 steps; with the first ones alone it took more than 160.
_ROUGH_STEPS = 20
# Vector scaling, a row that is so many times the median one. Beyond it L-BFGS takes hundreds of passes, and from 1e4 on it
# stopped short of an optimum and called it one: by up to 2e-4 nats at 1e7, by 0.3 at 1e10.
_WILD = 300
_NEWTON_STEPS = 100  # 3 to 60 are needed up to logits of 1e10, each as dear as C / 30 passes


class _Metric(NamedTuple):
    """Coordinates y in which the objective is about equally steep all round: x = F⁻ᵀy / units, where FFᵀ is correlations.

    Without a factor, parameters are taken for uncorrelated. x is W before b.
    """

    units: Tensor
    factor: Tensor | None = None

    def parameters(self, y: Tensor) -> Tensor:
        x = y if self.factor is None else torch.linalg.solve_triangular(self.factor.T, y[:, None], upper=True)[:, 0]
        return x / self.units

    def gradient(self, by_x: Tensor) -> Tensor:
        by_y = by_x / self.units
        if self.factor is None:
            return by_y
        return torch.linalg.solve_triangular(self.factor, by_y[:, None], upper=False)[:, 0]


class _Minimum(NamedTuple):
    value: float
    weight: Tensor
    bias: Tensor
    converged: bool
    iterations: int


class _Largest(NamedTuple):
    """The row of the largest logit, its size, and what is usual: the median row's."""

    row: int
    size: float
    usual: float

    @property
    def wild(self) -> bool:
        return self.size > _WILD * self.usual


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LinearCalibrator(Calibrator):
    """softmax(W z + b) minimising NLL + ODIR, from the identity, by L-BFGS in float64 with exact gradients.

    The problem is convex and the penalty is zero at the identity, so the fit never has a higher NLL than its
    input had on the fitting split. (Vector scaling starts from the best single temperature, which has not either.)
    On separable data without a penalty no optimum exists: `converged_` is False and `FitWarning` is given when
    `max_iterations` run out.
    """

    by_class: ClassVar[bool] = True

    max_iterations: int = 1000
    weight_: Tensor = dataclasses.field(init=False, repr=False)
    bias_: Float[Tensor, " c"] = dataclasses.field(init=False, repr=False)
    objective_value_: float = dataclasses.field(init=False, repr=False)
    converged_: bool = dataclasses.field(init=False, repr=False)
    iterations_: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.positive_int(self.max_iterations, "max_iterations")

    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n c"]:
        return finite_logits(predictions)

    @abc.abstractmethod
    def _identity(self, num_classes: int) -> Tensor:
        """W at the start: a vector for a diagonal, a matrix else."""

    def _penalty(self, weight: Tensor, bias: Tensor, n: int) -> tuple[float, Tensor, Tensor]:  # noqa: ARG002
        """The penalty of a fit to n samples, with its gradients in W and b."""
        return 0.0, torch.zeros_like(weight), torch.zeros_like(bias)

    def _penalty_curvature(self, identity: Tensor, n: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The penalty's second derivatives, by parameter."""
        return torch.zeros_like(identity), identity.new_zeros(len(identity))

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        inputs = self._inputs(predictions)
        identity = self._identity(predictions.num_classes).to(inputs.device)
        found = self._optimum(predictions, inputs, identity)
        if not found.converged:
            warnings.warn(
                FitWarning(
                    f"{type(self).__name__} stopped after {found.iterations} iterations, short of an optimum",
                    remedy=self._why_short(inputs),
                ),
                stacklevel=3,
            )
        return {
            "weight_": found.weight.cpu(),
            "bias_": found.bias.cpu(),
            "objective_value_": found.value,
            "converged_": found.converged,
            "iterations_": found.iterations,
        }

    def _why_short(self, inputs: Tensor) -> str:  # noqa: ARG002
        """Why there may be no optimum, and what to do."""
        return "the split may be separable; use a penalty, or a calibrator with fewer parameters"

    def _optimum(self, predictions: Predictions, inputs: Tensor, identity: Tensor) -> _Minimum:
        bias, labels = identity.new_zeros(len(identity)), predictions.labels
        metric = _Metric(self._steepness(inputs, labels, identity, bias))
        found = self._minimise(inputs, labels, (identity, bias), metric, self.max_iterations)
        return self._or_in_one_unit(found, inputs, labels, identity)

    def _or_in_one_unit(self, found: _Minimum, inputs: Tensor, labels: Tensor, identity: Tensor) -> _Minimum:
        """What was found, or where the line search gave up, misled by rows of wild logits, what one unit for all finds."""
        if found.converged or found.iterations >= self.max_iterations:
            return found
        spread = float((inputs - inputs.mean(dim=1, keepdim=True)).double().std(correction=0))
        spread = spread if 0 < spread < np.inf else 1.0
        plain = torch.ones(identity.numel() + len(identity), dtype=torch.float64, device=inputs.device)
        plain[: identity.numel()] = spread
        origin = (identity, identity.new_zeros(len(identity)))
        again = self._minimise(inputs, labels, origin, _Metric(plain), self.max_iterations)
        return min(found, again, key=lambda each: each.value)

    def _steepness(
        self, inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, *, limit: float = np.inf
    ) -> Tensor:
        """The root of each parameter's curvature, W before b: in these units all are equally steep."""
        found = []
        for nll, penalty in zip(
            affine_nll.curvature(inputs, labels, weight, bias, limit),
            self._penalty_curvature(weight, len(labels)),
            strict=True,
        ):
            each = torch.nan_to_num((nll + penalty).flatten(), nan=0.0)  # squares of logits beyond 1e154 are infinite
            least = max(_FLATTEST * float(each.max()), torch.finfo(each.dtype).tiny)
            found.append(each.clamp(min=least).sqrt())
        return torch.cat(found)

    def _minimise(
        self, inputs: Tensor, labels: Tensor, origin: tuple[Tensor, Tensor], metric: _Metric, max_iterations: int
    ) -> _Minimum:
        """By L-BFGS from the origin, W and b; it takes all directions for equally steep, so the metric makes them."""
        weight, bias = origin

        def split(flat: np.ndarray) -> tuple[Tensor, Tensor]:
            values = metric.parameters(torch.from_numpy(flat).to(inputs.device))  # noqa: F821 - deleted at the end
            return weight + values[: weight.numel()].view_as(weight), bias + values[weight.numel() :]

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            at_weight, at_bias = split(flat)
            value, by_weight, by_bias = affine_nll.nll(inputs, labels, at_weight, at_bias)
            extra, extra_weight, extra_bias = self._penalty(at_weight, at_bias, len(labels))
            gradient = torch.cat([(by_weight + extra_weight).flatten(), by_bias + extra_bias])
            return value + extra, metric.gradient(gradient).cpu().numpy()  # noqa: F821

        start = np.zeros(metric.units.numel())
        import scipy.optimize  # here, to keep `import calattn` light

        found = scipy.optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": max_iterations,
                "maxfun": 2 * max_iterations,
                "ftol": 1e-14,
                "gtol": 1e-8,
            },
        )
        where, value = (found.x, float(found.fun)) if np.isfinite(found.fun) else (start, float(objective(start)[0]))
        success = bool(found.success) and where is found.x
        minimum = _Minimum(value, *split(where), converged=success, iterations=int(found.nit))
        del metric  # scipy keeps the objective in a cycle, and with it a factor of 4 C² numbers
        return minimum

    def _apply(self, predictions: Predictions) -> Predictions:
        inputs = self._inputs(predictions)
        weight, bias = self.weight_.to(inputs.device), self.bias_.to(inputs.device)
        logits = torch.empty_like(inputs)
        for rows in row_blocks(*inputs.shape):
            logits[rows] = affine_nll.affine(inputs[rows].double(), weight, bias).to(logits.dtype)
        return predictions.replace(logits=logits, scale=None)

    def _module(self) -> AffineLogits:
        return AffineLogits(self.weight_, self.bias_, log_probs=False)


def _largest(inputs: Tensor) -> _Largest:
    sizes = torch.maximum(inputs.amax(dim=1), -inputs.amin(dim=1)).double()
    row = int(sizes.argmax())
    return _Largest(row, float(sizes[row]), float(sizes.median()))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class VectorScaling(LinearCalibrator):
    """softmax(w ⊙ ℓ + b): a temperature and an offset for every class (Guo et al. 2017).

    >>> p = Predictions(logits=torch.zeros(4, 2), labels=torch.tensor([0, 0, 0, 1]))
    >>> new = Predictions(logits=torch.zeros(1, 2), labels=torch.tensor([0]))
    >>> VectorScaling().fit(p)(new).probs.numpy().round(4).tolist()  # the offset learns the class shares
    [[0.75, 0.25]]
    """

    def _identity(self, num_classes: int) -> Tensor:
        return torch.ones(num_classes, dtype=torch.float64)

    def _optimum(self, predictions: Predictions, inputs: Tensor, identity: Tensor) -> _Minimum:
        """From the best single temperature: by L-BFGS or, where some rows are wild, by Newton's method."""
        labels, largest = predictions.labels, _largest(inputs)
        single = nll_optimum(predictions, (1e-6, 1e6 * max(1.0, largest.size) if largest.wild else 1e6))
        # At the lower bound all rows are right, and would be sure of it from the start: no way to go on from.
        start = single.temperature if single.converged or single.temperature > 1 else 1.0
        near = (identity / start, torch.zeros_like(identity))
        found = []
        if largest.wild and len(identity) <= affine_nll.MOST_CLASSES:
            found = [self._by_newton(inputs, labels, near, largest.usual)]
        if not any(each.converged for each in found):
            other = self._or_in_one_unit(self._by_lbfgs(inputs, labels, near), inputs, labels, identity)
            found.append(other._replace(converged=False) if largest.wild else other)  # it could not tell
        return min(found, key=lambda each: each.value)

    def _why_short(self, inputs: Tensor) -> str:
        largest = _largest(inputs)
        if not largest.wild:
            return super()._why_short(inputs)
        return (
            f"logits[{largest.row}] goes up to {largest.size:.2g}, where most rows end near {largest.usual:.2g}; "
            "leave such rows out"
        )

    def _by_lbfgs(self, inputs: Tensor, labels: Tensor, origin: tuple[Tensor, Tensor]) -> _Minimum:
        """In a metric that knows how classes depend on each other, taken twice."""

        def metric(weight: Tensor, bias: Tensor, least: float) -> _Metric:
            units = self._steepness(inputs, labels, weight, bias)
            return _Metric(units, affine_nll.correlation(inputs, weight, bias, units, least=least))

        # At the start probabilities are off, and their curvature is too small where they are: `curvature` is its least.
        steps = min(_ROUGH_STEPS, self.max_iterations)
        rough = self._minimise(inputs, labels, origin, metric(*origin, 1.0), steps)
        if rough.converged or steps == self.max_iterations:
            return rough
        near = (rough.weight, rough.bias)
        fine = self._minimise(inputs, labels, near, metric(*near, 0.0), self.max_iterations - steps)
        return fine._replace(iterations=fine.iterations + rough.iterations)

    def _by_newton(self, inputs: Tensor, labels: Tensor, origin: tuple[Tensor, Tensor], usual: float) -> _Minimum:
        """Beside a wild row, units and samples know nothing of the others; the whole second derivative does."""

        def objective(flat: Tensor) -> tuple[float, Tensor]:
            value, by_weight, by_bias = affine_nll.nll(inputs, labels, *flat.chunk(2))
            return value, torch.cat([by_weight, by_bias])

        def steepness(flat: Tensor) -> Steepness:
            typical = self._steepness(inputs, labels, *flat.chunk(2), limit=usual).square()
            return Steepness(affine_nll.second_derivative(inputs, *flat.chunk(2)), typical)

        most = min(self.max_iterations, _NEWTON_STEPS)
        found = damped_newton(objective, steepness, torch.cat(origin), max_steps=most)
        weight, bias = found.where.chunk(2)
        return _Minimum(found.value, weight, bias, converged=found.converged, iterations=found.steps)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class _FullMatrix(LinearCalibrator):
    off_diagonal: float | None = 0.0
    intercept: float | None = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("off_diagonal", "intercept"):
            value = getattr(self, name)
            if value is not None and not (value >= 0.0 and np.isfinite(value)):
                raise ValueError(f"{name} must be a penalty of at least 0, got {value!r}")

    def _identity(self, num_classes: int) -> Tensor:
        return torch.eye(num_classes, dtype=torch.float64)

    def _strengths(self, n: int, c: int) -> tuple[float, float]:
        by_off = _PRIOR_OFF_DIAGONAL / n if self.off_diagonal is None else self.off_diagonal / (c * (c - 1))
        return by_off, _PRIOR_INTERCEPT / n if self.intercept is None else self.intercept / c

    def _penalty_curvature(self, identity: Tensor, n: int) -> tuple[Tensor, Tensor]:
        by_off, by_intercept = self._strengths(n, len(identity))
        return 2 * by_off * (1 - identity), identity.new_full((len(identity),), 2 * by_intercept)

    def _penalty(self, weight: Tensor, bias: Tensor, n: int) -> tuple[float, Tensor, Tensor]:
        by_off, by_intercept = self._strengths(n, bias.numel())
        off = weight - torch.diag(weight.diagonal())
        value = by_off * float(off.square().sum()) + by_intercept * float(bias.square().sum())
        return value, 2 * by_off * off, 2 * by_intercept * bias


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class MatrixScaling(_FullMatrix):
    """softmax(W ℓ + b) with a full matrix (Guo et al. 2017), and ODIR as an option.

    C² + C parameters overfit easily: with 100 classes they are more than a 5 % validation split has samples.
    The penalty is `off_diagonal`·mean of w_ij² (i ≠ j) + `intercept`·mean of b_j² (Kull et al. 2019);
    Guo et al. have none.

    >>> p = Predictions(logits=torch.zeros(4, 2), labels=torch.tensor([0, 0, 0, 1]))
    >>> MatrixScaling().fit(p).weight_.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class DirichletCalibration(_FullMatrix):
    """softmax(W log p + b), the linear form of Dirichlet calibration, with ODIR (Kull et al. 2019).

    The penalty is `off_diagonal`·mean of w_ij² (i ≠ j) + `intercept`·mean of b_j²; the diagonal is free. Kull
    et al. choose both strengths by cross-validation on each data set. None stands for a normal prior instead:
    Σ w_ij² / (2σ²n) with σ = 0.02, and σ = 0.5 for b, so that the strength follows n and C.

    >>> p = Predictions(logits=torch.zeros(4, 2), labels=torch.tensor([0, 0, 0, 1]))
    >>> new = Predictions(logits=torch.zeros(1, 2), labels=torch.tensor([0]))
    >>> DirichletCalibration(off_diagonal=0.0, intercept=0.0).fit(p)(new).probs.numpy().round(4).tolist()
    [[0.75, 0.25]]
    """

    off_diagonal: float | None = None
    intercept: float | None = None

    def _inputs(self, predictions: Predictions) -> Float[Tensor, "n c"]:
        return finite_logits(predictions).log_softmax(dim=1)

    def _module(self) -> AffineLogits:
        return AffineLogits(self.weight_, self.bias_, log_probs=True)
