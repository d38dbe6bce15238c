"""Linear calibrators: an affine map of log-probabilities, by maximum likelihood with a penalty towards temperature scaling."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from calattn import checks
from calattn.posthoc import affine
from calattn.posthoc.affine import DiagonalMaps, FullMaps, Maps, Minimum, Penalty
from calattn.posthoc.base import Calibrator, FitWarning, Learned, finite_logits, seeded
from calattn.posthoc.modules import AffineLogits, tempered
from calattn.posthoc.newton import nll_optimum
from calattn.types import Predictions, row_blocks

# A logit that lies further below its row's top than so many times the usual gap is taken to lie there: masks at float32's minimum
# and rows of 1e10 would else decide the fit alone, and no float64 has digits for the others beside them.
_FARTHEST = 50.0
_STRENGTHS = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4)
_TOO_SMALL = 1e-5  # nats out of fold that are no reason to try a weaker penalty yet
_FEWEST = 20  # samples to choose a strength by
_FOLDS = 3
_ONE_FOLD = 5_000_000  # entries from which a fifth is held out once
_ONE_THREAD = 1 << 22  # entries below which further threads make a fit slower


class _Single(NamedTuple):
    """The best temperature of logits none of which lies further below the top than the limit; `separable`: there is none."""

    gaps: Tensor
    temperature: float
    limit: float
    separable: bool

    def logs(self, share: float) -> Tensor:
        found, inputs = torch.empty_like(self.gaps), torch.tensor([self.temperature, self.limit, share]).double()
        for rows in row_blocks(*self.gaps.shape):
            found[rows] = tempered(self.gaps[rows].double(), inputs.to(found.device)).to(found)
        return found


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LinearCalibrator(Calibrator):
    """softmax(z + D z + b) of z = log((1 − m) softmax(ℓ/T) + m/C): T by NLL, then D and b by NLL + penalty; m = 1/(n + 1).

    The penalty is `strength` · (C/n Σb² + C/n ΣD_ii² + C(C−1)/n ΣD_ij²). Nothing is paid for temperature scaling itself, and
    strength 1 is structured scaling (Berta et al. 2025). None chooses among 10, 1, …, 0.0001 and ∞, temperature scaling alone,
    by the NLL out of fold: ∞ where the gain is below its standard error, or samples are fewer than 20. Strength 0 is plain
    maximum likelihood, with m = 0. A constant added to a row changes nothing, and a logit that lies more than 50 times the usual
    gap below its row's top is taken to lie there.
    """

    by_class: ClassVar[bool] = True

    strength: float | None = dataclasses.field(default=None, kw_only=False)
    max_iterations: int = 1000
    temperature_: float = dataclasses.field(init=False, repr=False)
    limit_: float = dataclasses.field(init=False, repr=False)
    share_: float = dataclasses.field(init=False, repr=False)
    """Of the uniform distribution in z, m: no class is taken for less likely than n samples can tell."""
    weight_: Tensor = dataclasses.field(init=False, repr=False)
    """I + D, or its diagonal."""
    bias_: Float[Tensor, " c"] = dataclasses.field(init=False, repr=False)
    strength_: float = dataclasses.field(init=False, repr=False)
    """Of the penalty; ∞ is temperature scaling alone."""
    objective_value_: float = dataclasses.field(init=False, repr=False)
    converged_: bool = dataclasses.field(init=False, repr=False)
    iterations_: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.positive_int(self.max_iterations, "max_iterations")
        if self.strength is not None and not self.strength >= 0.0:
            raise ValueError(f"strength must be a penalty of at least 0, or None to choose it, got {self.strength!r}")

    def _maps(self, n: int, c: int, strength: float) -> Maps:
        """The maps to choose from, with the penalty of a fit to n samples."""
        raise NotImplementedError

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        single, labels = _single(predictions), predictions.labels
        strength = math.inf if single.separable else self.strength
        share = 0.0 if strength in (0.0, math.inf) else 1.0 / (len(labels) + 1)
        logs = single.logs(share)
        with _threads_for(logs):
            if strength is None:
                strength = self._chosen(logs, labels)
            if strength == math.inf and share:
                share, logs = 0.0, single.logs(0.0)
            found = self._minimum(logs, labels, strength, self._identity(logs))
        separable = single.separable or (strength < math.inf and _all_on_top(logs, labels, found))
        converged = found.converged and not (separable and strength in (0.0, math.inf))
        if separable or not converged:
            warnings.warn(_warning(type(self).__name__, found, strength, separable=separable), stacklevel=3)
        one = torch.eye(len(found.bias)).to(found.change) if found.change.ndim == 2 else 1.0
        return {
            "temperature_": single.temperature,
            "limit_": single.limit,
            "share_": share,
            "weight_": (one + found.change).cpu(),
            "bias_": found.bias.cpu(),
            "strength_": float(strength),
            "objective_value_": found.value,
            "converged_": converged,
            "iterations_": found.iterations,
        }

    def _identity(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        c = logs.shape[1]
        maps = self._maps(len(logs), c, 1.0)
        return maps.parts(torch.zeros_like(maps.ridge, device=logs.device))

    def _minimum(
        self, logs: Tensor, labels: Tensor, strength: float, start: tuple[Tensor, Tensor], *, rough: bool = False
    ) -> Minimum:
        if strength == math.inf:
            return Minimum(*start, affine.nll(logs, labels, *start)[0], True, 0)
        maps = self._maps(len(logs), logs.shape[1], strength)
        return affine.minimum(maps, logs, labels, start, max_iterations=self.max_iterations, rough=rough)

    def _chosen(self, logs: Tensor, labels: Tensor) -> float:
        """The strength of least NLL out of fold, from strong to weak while that helps, each fit from the last."""
        if len(logs) < _FEWEST:
            return math.inf
        once = logs.numel() >= _ONE_FOLD
        # Not stratified: where every fold has the class shares of all, offsets fitted to chance look as if they helped.
        drawn = torch.randperm(len(logs), generator=seeded(None)).to(labels.device) % (5 if once else _FOLDS)
        parts = [drawn == fold for fold in range(1 if once else _FOLDS)]
        data = [(logs[~held], labels[~held], logs[held], labels[held]) for held in parts]
        at = [self._identity(logs)] * len(data)

        def out_of_fold() -> Tensor:
            return torch.cat([_losses(z, y, *where) for (_, _, z, y), where in zip(data, at, strict=True)])

        single = best = out_of_fold()
        chosen = math.inf
        for strength in _STRENGTHS:
            found = [
                self._minimum(z, y, strength, where, rough=True) for (z, y, *_), where in zip(data, at, strict=True)
            ]
            at = [(each.change, each.bias) for each in found]
            losses = out_of_fold()
            gained = float((best - losses).mean())
            if gained > 0:
                best, chosen = losses, strength
            if gained < _TOO_SMALL:
                break
        gain = single - best
        return chosen if float(gain.mean()) > float(gain.std()) / math.sqrt(len(gain)) else math.inf

    def _apply(self, predictions: Predictions) -> Predictions:
        finite_logits(predictions)
        return self._through_module(predictions)

    def _module(self) -> AffineLogits:
        inputs = torch.tensor([self.temperature_, self.limit_, self.share_], dtype=torch.float64)
        return AffineLogits(self.weight_, self.bias_, inputs)


@contextlib.contextmanager
def _threads_for(logs: Tensor) -> Iterator[None]:
    """torch's threads and those of its matrix library wait for each other: small fits are four times faster on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if logs.numel() < _ONE_THREAD else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _single(predictions: Predictions) -> _Single:
    logits, labels = finite_logits(predictions), predictions.labels
    usual = _usual_gap(logits)
    gaps = torch.empty_like(logits)
    for rows in row_blocks(*logits.shape):
        gaps[rows] = (logits[rows] - logits[rows].amax(dim=1, keepdim=True)).clamp_min(-_FARTHEST * usual)
    best = nll_optimum(Predictions(logits=gaps, labels=labels), (1e-6 * usual, 1e6 * usual))
    if not best.converged and best.temperature < usual:  # every label is its row's top: no temperature is best
        return _Single(logits, 1.0, math.inf, True)
    return _Single(gaps, best.temperature, _FARTHEST * usual, False)


def _usual_gap(logits: Tensor) -> float:
    """The median row's distance from its top to its middle class, which neither masks nor a few wild rows change."""
    some = logits[:: max(1, len(logits) // 4096)].double()
    gaps = some.amax(dim=1) - some.median(dim=1).values
    positive = gaps[(gaps > 0) & torch.isfinite(gaps)]
    return float(positive.median()) if len(positive) else 1.0


def _losses(logs: Tensor, labels: Tensor, change: Tensor, bias: Tensor) -> Tensor:
    """The NLL of each row."""
    each = (affine.mapped(logs[rows].double(), change, bias) for rows in row_blocks(*logs.shape))
    picked = labels.split([rows.stop - rows.start for rows in row_blocks(*logs.shape)])
    return torch.cat([functional.cross_entropy(z, y, reduction="none") for z, y in zip(each, picked, strict=True)])


def _all_on_top(logs: Tensor, labels: Tensor, found: Minimum) -> bool:
    """Whether the map puts every label above all other classes: then a steeper one is better still, without end."""
    for rows in row_blocks(*logs.shape):
        out = affine.mapped(logs[rows].double(), found.change, found.bias)
        own = out.gather(1, labels[rows].unsqueeze(1))
        others = out.scatter(1, labels[rows].unsqueeze(1), -torch.inf).amax(dim=1, keepdim=True)
        if not bool((own > others).all()):
            return False
    return True


def _warning(who: str, found: Minimum, strength: float, *, separable: bool) -> FitWarning:
    if not separable:
        problem = f"{who} stopped after {found.iterations} iterations, short of an optimum"
        remedy = "raise max_iterations, or use a stronger penalty"
    elif strength == math.inf:
        problem = f"the split is separable: every label is the top class, so {who} has no optimum and changes nothing"
        remedy = "fit on a validation split on which the network makes errors"
    else:
        kept = "only its penalty keeps it finite" if strength else "without a penalty it has no optimum"
        problem = f"the split is separable: {who} can put every label on top, and {kept}"
        remedy = "fit on more samples, or use temperature scaling"
    return FitWarning(problem, remedy=remedy)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class VectorScaling(LinearCalibrator):
    """A temperature and an offset for every class (Guo et al. 2017): D is diagonal. Strength 1 is structured vector scaling.

    >>> p = Predictions(logits=torch.zeros(4, 2), labels=torch.tensor([0, 0, 0, 1]))
    >>> new = Predictions(logits=torch.zeros(1, 2), labels=torch.tensor([0]))
    >>> VectorScaling(strength=0.0).fit(p)(new).probs.numpy().round(4).tolist()  # the offset learns the class shares
    [[0.75, 0.25]]
    """

    def _maps(self, n: int, c: int, strength: float) -> DiagonalMaps:
        return DiagonalMaps(c, Penalty(strength * c / n, strength * c / n, 0.0))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class MatrixScaling(LinearCalibrator):
    """A full matrix (Guo et al. 2017). Strength 1 is structured matrix scaling.

    >>> p = Predictions(logits=torch.zeros(4, 2), labels=torch.tensor([0, 0, 0, 1]))
    >>> MatrixScaling().fit(p).weight_.tolist()  # too few samples for more than a temperature
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def _maps(self, n: int, c: int, strength: float) -> FullMaps:
        each = strength * c / n
        return FullMaps(c, Penalty(each, each, each * (c - 1)))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class DirichletCalibration(LinearCalibrator):
    """The linear form of Dirichlet calibration with ODIR (Kull et al. 2019): a full matrix whose diagonal is (nearly) free."""

    def _maps(self, n: int, c: int, strength: float) -> FullMaps:
        each = strength * c / n
        return FullMaps(c, Penalty(each, 0.01 * each, each * (c - 1)))
