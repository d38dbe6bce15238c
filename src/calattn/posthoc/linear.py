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
from calattn.posthoc.base import Calibrator, FitWarning, Learned, finite_logits, seeded
from calattn.posthoc.catalogue import CALIBRATORS
from calattn.posthoc.modules import AffineLogits
from calattn.posthoc.newton import nll_optimum
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
_ROWS_PER_CLASS = 10  # of a sample that the correlations are taken from; with fewer a pass costs less than they do
_MOST_CLASSES = 2000  # the correlations take 48 C² bytes and 80 C³ operations
_RIDGE = 1e-2  # on their diagonal: a sample of rows, and a shift of all b, leave some directions without any curvature


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
        return finite_logits(predictions, type(self).__name__)

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
        inputs, labels = self._inputs(predictions), predictions.labels
        identity = self._identity(predictions.num_classes).to(inputs.device)
        bias = identity.new_zeros(len(identity))
        found = self._optimum(predictions, inputs, identity)
        if not found.converged and found.iterations < self.max_iterations:
            # The line search gave up: rows of wild logits mislead the curvature. One unit for all is slow, and seldom fails.
            spread = float((inputs - inputs.mean(dim=1, keepdim=True)).double().std(correction=0))
            spread = spread if 0 < spread < np.inf else 1.0
            plain = torch.ones(identity.numel() + len(identity), dtype=torch.float64, device=inputs.device)
            plain[: identity.numel()] = spread
            again = self._minimise(inputs, labels, (identity, bias), _Metric(plain), self.max_iterations)
            found = min(found, again, key=lambda each: each.value)
        if not found.converged:
            warnings.warn(
                f"{type(self).__name__} stopped after {found.iterations} iterations, short of an optimum. The split may be "
                "separable; use a penalty, or a calibrator with fewer parameters",
                FitWarning,
                stacklevel=3,
            )
        return {
            "weight_": found.weight.cpu(),
            "bias_": found.bias.cpu(),
            "objective_value_": found.value,
            "converged_": found.converged,
            "iterations_": found.iterations,
        }

    def _optimum(self, predictions: Predictions, inputs: Tensor, identity: Tensor) -> _Minimum:
        bias, labels = identity.new_zeros(len(identity)), predictions.labels
        metric = _Metric(self._steepness(inputs, labels, identity, bias))
        return self._minimise(inputs, labels, (identity, bias), metric, self.max_iterations)

    def _steepness(self, inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The root of each parameter's curvature, W before b: in these units all are equally steep."""
        found = []
        for nll, penalty in zip(
            _curvature(inputs, labels, weight, bias), self._penalty_curvature(weight, len(labels)), strict=True
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
            values = metric.parameters(torch.from_numpy(flat).to(inputs.device))
            return weight + values[: weight.numel()].view_as(weight), bias + values[weight.numel() :]

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            at_weight, at_bias = split(flat)
            value, by_weight, by_bias = _nll(inputs, labels, at_weight, at_bias)
            extra, extra_weight, extra_bias = self._penalty(at_weight, at_bias, len(labels))
            gradient = torch.cat([(by_weight + extra_weight).flatten(), by_bias + extra_bias])
            return value + extra, metric.gradient(gradient).cpu().numpy()

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
            logits[rows] = _affine(inputs[rows].double(), weight, bias).to(logits.dtype)
        return predictions.replace(logits=logits, scale=None)

    def _module(self) -> AffineLogits:
        return AffineLogits(self.weight_, self.bias_, log_probs=False)


def _affine(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addcmul(bias, z, weight) if weight.ndim == 1 else torch.addmm(bias, z, weight.T)


def _nll(inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
    """Mean NLL of softmax(W z + b) and its gradients, block by block in float64."""
    total, by_weight, by_bias = 0.0, torch.zeros_like(weight), torch.zeros_like(bias)
    for rows in row_blocks(*inputs.shape):
        z, picked = inputs[rows].double(), labels[rows].unsqueeze(1)
        logits = _affine(z, weight, bias)
        own, peak = logits.gather(1, picked), logits.amax(dim=1, keepdim=True)
        residual = logits.sub_(peak).exp_()  # one exponential: log_softmax and then exp are two, half of the time
        sums = residual.sum(dim=1, keepdim=True)
        total += float((sums.log() - (own - peak)).sum())
        residual.div_(sums).scatter_add_(1, picked, residual.new_full(picked.shape, -1.0))
        by_bias += residual.sum(dim=0)
        by_weight += residual.mul_(z).sum(dim=0) if weight.ndim == 1 else residual.T @ z
    n = len(labels)
    return total / n, by_weight / n, by_bias / n


def _curvature(inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal of the NLL's second derivative in W and b.

    p (1 − p) is next to nothing where a network is sure, and wrong: the square of the slope stands in for it there.
    """
    by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    for rows in row_blocks(*inputs.shape):
        z = inputs[rows].double()
        probs = _affine(z, weight, bias).softmax(dim=1)
        slope = probs.scatter_add(1, labels[rows].unsqueeze(1), probs.new_full((len(probs), 1), -1.0))
        spread = torch.maximum(probs * (1 - probs), slope.square())
        by_bias += spread.sum(dim=0)
        by_weight += (spread * z.square()).sum(dim=0) if weight.ndim == 1 else spread.T @ z.square()
    return by_weight / len(inputs), by_bias / len(inputs)


def _correlation(inputs: Tensor, weight: Tensor, bias: Tensor, units: Tensor, *, least: float) -> Tensor | None:
    """The Cholesky factor of the second derivative by a diagonal W and b, in the units, from a sample of rows.

    With J = (z ⊙ p, p) it is the mean of the parts that stay in a class less JᵀJ. `least` is put under its diagonal.
    None where it has no factor (logits of 1e200), or would cost more than it saves.
    """
    c = len(bias)
    if len(inputs) < _ROWS_PER_CLASS * c or c > _MOST_CLASSES:
        return None
    rows = torch.randperm(len(inputs), generator=seeded(None))[: _ROWS_PER_CLASS * c].to(inputs.device)
    # The products of all pairs are most of the work, and a metric need not be exact: float32.
    pairs = torch.zeros(2 * c, 2 * c, device=inputs.device)
    within, across = torch.zeros_like(units), torch.zeros_like(bias)
    for part in rows.split(128):
        z = inputs[part].double()
        probs = _affine(z, weight, bias).softmax(dim=1)
        slopes = torch.cat([z, torch.ones_like(z)], dim=1).div_(units)
        joint = torch.cat([probs, probs], dim=1).mul_(slopes)
        within += (joint * slopes).sum(dim=0)
        across += (joint[:, :c] * slopes[:, c:]).sum(dim=0)
        single = joint.float()
        pairs.addmm_(single.T, single, alpha=-1.0)
    for offset, part in ((0, within), (c, across), (-c, across)):
        pairs.diagonal(offset).add_(part)
    pairs.div_(len(rows)).diagonal().clamp_(min=least).add_(_RIDGE)
    factor, failed = torch.linalg.cholesky_ex(pairs)
    del pairs  # three such matrices at once would be the peak of a fit's memory
    return None if failed or not torch.isfinite(factor).all() else factor.double()


@CALIBRATORS.register("vector")
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
        """From the best single temperature, in a metric that knows how classes depend on each other, taken twice."""
        labels = predictions.labels
        single = nll_optimum(predictions, (1e-6, 1e6))
        # At the lower bound all rows are right, and would be sure of it from the start: no way to go on from.
        start = single.temperature if single.converged or single.temperature > 1 else 1.0
        weight, bias = identity / start, torch.zeros_like(identity)

        def metric(weight: Tensor, bias: Tensor, least: float) -> _Metric:
            units = self._steepness(inputs, labels, weight, bias)
            return _Metric(units, _correlation(inputs, weight, bias, units, least=least))

        # At the start probabilities are off, and their curvature is too small where they are: `_curvature` is its least.
        steps = min(_ROUGH_STEPS, self.max_iterations)
        rough = self._minimise(inputs, labels, (weight, bias), metric(weight, bias, 1.0), steps)
        if rough.converged or steps == self.max_iterations:
            return rough
        near = (rough.weight, rough.bias)
        fine = self._minimise(inputs, labels, near, metric(*near, 0.0), self.max_iterations - steps)
        return fine._replace(iterations=fine.iterations + rough.iterations)


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


@CALIBRATORS.register("matrix")
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


@CALIBRATORS.register("dirichlet")
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
        return finite_logits(predictions, "DirichletCalibration").log_softmax(dim=1)

    def _module(self) -> AffineLogits:
        return AffineLogits(self.weight_, self.bias_, log_probs=True)
