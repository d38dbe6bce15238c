"""Temperature scaling: one positive number that divides all logits; and its mixture with what the network says."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from calattn import checks
from calattn.metrics.binning import bin_index
from calattn.metrics.columns import row_argmax
from calattn.posthoc.base import Calibrator, FitWarning, Learned, rescaled
from calattn.posthoc.modules import MixedLogits, ScaledLogits
from calattn.posthoc.newton import LOWEST_EXPONENT, PER_NAT, Optimum, nll_optimum
from calattn.types import Predictions, row_blocks

PROTOCOL_GRID = tuple(k / 10 for k in range(1, 101))
"""The paper's temperatures 0.1, 0.2, …, 10.0, each the float nearest to its decimal."""

_ENOUGH = 1e-9  # nats: what no other weights can gain
_STEPS = 10_000
_LOWEST_ROOT = 1.1e-19  # its square is still a normal number


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class TemperatureScaling(Calibrator):
    """softmax(ℓ / T) with one T for all samples (Guo et al. 2017).

    T minimises NLL, a convex problem in 1/T: Newton in log T inside a bracket, which can neither diverge nor leave
    `bounds`. Where no optimum exists (every label on top: T → 0; labels below average: T → ∞) the bound is returned,
    `converged_` is False and `FitWarning` is given. `objective="ece"` is the paper's protocol (after Mukhoti et al. 2020):
    the T of `grid` with the lowest ECE, the first if several tie; an end of the grid is warned about alike.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
    >>> round(TemperatureScaling().fit(p).temperature_, 4)  # 2 / ln 3
    1.8205
    >>> TemperatureScaling(objective="ece").fit(p).temperature_
    1.8
    """

    objective: Literal["nll", "ece"] = dataclasses.field(default="nll", kw_only=False)
    grid: Sequence[float] = dataclasses.field(default=PROTOCOL_GRID, repr=False)
    num_bins: int = 15
    bounds: tuple[float, float] = (1e-6, 1e6)
    temperature_: float = dataclasses.field(init=False, repr=False)
    objective_value_: float = dataclasses.field(init=False, repr=False)
    converged_: bool = dataclasses.field(init=False, repr=False)
    iterations_: int = dataclasses.field(init=False, repr=False)
    curve_: Float[Tensor, "2 k"] = dataclasses.field(init=False, repr=False)
    """The grid's temperatures and the ECE of each; without columns for `objective="nll"`."""

    def __post_init__(self) -> None:
        if self.objective not in ("ece", "nll"):
            raise ValueError(f"objective must be 'nll' or 'ece', got {self.objective!r}")
        self.grid = tuple(checks.positive(value, "grid") for value in self.grid)
        if not self.grid or len(set(self.grid)) != len(self.grid):
            raise ValueError(f"grid must hold distinct temperatures, got {self.grid}")
        checks.positive_int(self.num_bins, "num_bins")
        low, high = (checks.positive(value, "bounds") for value in self.bounds)
        if low >= high:
            raise ValueError(f"bounds must be (low, high) with low < high, got {self.bounds}")
        self.bounds = (low, high)

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        if self.objective == "nll":
            best, curve = nll_temperature(predictions, self.bounds, stacklevel=4), torch.empty(2, 0).double()
        else:
            best, curve = self._of_grid(predictions)
        names = ("temperature_", "objective_value_", "converged_", "iterations_")
        learned: dict[str, Learned] = dict(zip(names, best, strict=True))
        return learned | {"curve_": curve}

    def _of_grid(self, predictions: Predictions) -> tuple[Optimum, Float[Tensor, "2 k"]]:
        curve = ece_curve(predictions, self.grid, num_bins=self.num_bins)
        best = int(curve.numpy().argmin())  # the first minimum, which torch's argmin does not promise
        # One or two temperatures have no inside: whoever passes them knows.
        at_end = len(self.grid) > 2 and self.grid[best] in (min(self.grid), max(self.grid))
        if at_end:
            warnings.warn(self._end_of_grid(self.grid[best], curve), stacklevel=4)
        grid = torch.tensor(self.grid, dtype=torch.float64)
        return Optimum(self.grid[best], float(curve[best]), not at_end, 1), torch.stack([grid, curve])

    def _end_of_grid(self, temperature: float, curve: Tensor) -> FitWarning:
        low, high = min(self.grid), max(self.grid)
        end = "low" if temperature == low else "high"
        why = "every T of it has the same ECE" if curve.min() == curve.max() else "a T beyond it may have a lower ECE"
        return FitWarning(
            f"T = {temperature:g} is the {end} end of the grid ({low:g} to {high:g}), and {why}",
            remedy="use temperature, which has no grid, or pass a wider one, TemperatureScaling('ece', grid=…)",
        )

    def _apply(self, predictions: Predictions) -> Predictions:
        return rescaled(predictions, self.temperature_)

    def _module(self) -> ScaledLogits:
        return ScaledLogits(self.num_classes_, self.temperature_)


def nll_temperature(predictions: Predictions, bounds: tuple[float, float], *, stacklevel: int) -> Optimum:
    """The T of least NLL within the bounds, with a `FitWarning` where it is one of them."""
    found = nll_optimum(predictions, bounds)
    if not found.converged:
        warnings.warn(
            f"no temperature in {bounds} minimises this NLL; T = {found.temperature:g} "
            "is the bound. Are all labels the top class (a training split), or unrelated to the logits?",
            FitWarning,
            stacklevel=stacklevel,
        )
    return found


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class EnsembleTemperatureScaling(Calibrator):
    """w₁ softmax(ℓ/T) + w₂ softmax(ℓ) + w₃/C (Zhang et al. 2020): T has the least NLL, then the weights have; they sum to one.

    The predicted class never changes. Zhang et al. fit by squared error; methods are ranked by NLL here. That is convex in w, and
    max_k mean(p_k/p) − 1, of the labels' probabilities, bounds what is left to gain: `converged_` says that it is below 1e-9.

    >>> p = Predictions(logits=torch.tensor([[9.0, 0.0]] * 9 + [[1.0, 0.0]] * 4), labels=torch.tensor([0] * 8 + [1, 0, 0, 0, 1]))
    >>> EnsembleTemperatureScaling().fit(p).weights_.numpy().round(2).tolist()
    [0.0, 0.79, 0.21]
    """

    bounds: tuple[float, float] = (1e-6, 1e6)
    temperature_: float = dataclasses.field(init=False, repr=False)
    weights_: Float[Tensor, " 3"] = dataclasses.field(init=False, repr=False)
    objective_value_: float = dataclasses.field(init=False, repr=False)
    converged_: bool = dataclasses.field(init=False, repr=False)

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        single = nll_temperature(predictions, self.bounds, stacklevel=4)
        logits, labels = predictions.calibrated_logits, predictions.labels.unsqueeze(1)
        parts = []
        for rows in row_blocks(*logits.shape):
            both = (logits[rows].double() / t for t in (single.temperature, 1.0))
            own = [each.softmax(dim=1).gather(1, labels[rows]) for each in both]
            parts.append(torch.cat([*own, torch.full_like(own[0], 1.0 / predictions.num_classes)], dim=1))
        weights, gap = _best_weights(torch.cat(parts))
        value = float(-(torch.cat(parts) @ weights).log().mean())
        converged = single.converged and gap <= _ENOUGH
        found: dict[str, Learned] = {"temperature_": single.temperature, "weights_": weights.cpu()}
        return found | {"objective_value_": value, "converged_": converged}

    def _apply(self, predictions: Predictions) -> Predictions:
        return self._through_module(predictions)

    def _module(self) -> MixedLogits:
        return MixedLogits(self.num_classes_, self.temperature_, self.weights_)


def _best_weights(label_probs: Float[Tensor, "n 3"]) -> tuple[Tensor, float]:
    """The weights of least NLL by expectation–maximisation, which never makes it worse, and what is left to gain at most."""
    weights = label_probs.new_full((3,), 1 / 3)
    for _ in range(_STEPS):
        ratios = (label_probs / (label_probs @ weights).unsqueeze(1)).mean(dim=0)
        gap = float(ratios.max()) - 1.0
        if gap <= _ENOUGH:
            break
        weights = weights * ratios
    return weights / weights.sum(), gap


def ece_curve(predictions: Predictions, temperatures: Sequence[float], *, num_bins: int = 15) -> Float[Tensor, " t"]:
    """ECE of softmax(ℓ/T) for each temperature: Σ_b |Σ_{i∈b} (confidence_i − correct_i)| / n.

    A row's confidence is 1 / Σ_j exp(d_j/T) with d = ℓ − max ℓ, and correctness does not depend on T. Row
    blocks stay in cache while all temperatures pass over them. Where the grid holds T and 2T, exp(d/T) =
    exp(d/2T)² saves an exponential: half of the protocol's grid. Sums over rows are float64.

    >>> p = Predictions(logits=torch.tensor([[1.0, 0.0], [1.0, 0.0]]), labels=torch.tensor([0, 1]))
    >>> ece_curve(p, [1.0, 1e6]).numpy().round(4).tolist()
    [0.2311, 0.0]
    """
    total = torch.zeros(len(temperatures) * num_bins, dtype=torch.float64, device=predictions.logits.device)
    offset = torch.arange(len(temperatures), device=total.device).unsqueeze(1) * num_bins
    for block in temperature_blocks(predictions, temperatures):
        confidence = block.sums.reciprocal()
        gap = confidence.double() - block.correct.double()
        index = bin_index(confidence, num_bins).add_(offset)
        total += torch.bincount(index.flatten(), gap.flatten(), minlength=total.numel())
    return total.view(len(temperatures), num_bins).abs().sum(dim=1).cpu() / len(predictions)


@dataclasses.dataclass(frozen=True)
class TemperatureBlock:
    """Rows under every temperature: d = ℓ − max ℓ, Σ_j exp(d_j/T), whether the top is right, and the label's own d.

    `shifted` (d) and `sums` are buffers that the next block overwrites.
    """

    rows: slice
    shifted: Float[Tensor, "b c"]
    sums: Float[Tensor, "t b"]
    correct: Bool[Tensor, " b"]
    label: Float[Tensor, " b"]


def temperature_blocks(predictions: Predictions, temperatures: Sequence[float]) -> Iterator[TemperatureBlock]:
    """The rows of the predictions in blocks that stay in cache while all temperatures pass over them."""
    chains = doubling_chains(temperatures)
    start = 0
    for logits, labels in predictions.blocks(1 << 19):  # 2 MB: measured 1.46 s, against 1.60 s with 1 MB or with 4 MB
        if start == 0:  # three buffers of one block each are all the memory this takes
            shifted, powers = torch.empty_like(logits), torch.empty_like(logits)
            sums = logits.new_empty(len(temperatures), logits.shape[0])
        rows = logits.shape[0]
        block, correct = _shifted(logits, labels, shifted[:rows])
        _power_sums(block, chains, temperatures, powers[:rows], sums[:, :rows])
        own = block.gather(1, labels.unsqueeze(1)).squeeze(1)
        yield TemperatureBlock(slice(start, start + rows), block, sums[:, :rows], correct, own)
        start += rows


def doubling_chains(temperatures: Sequence[float]) -> list[list[int]]:
    """Indices grouped so that within a group each temperature is half of the one before.

    >>> doubling_chains([0.1, 0.2, 0.3, 0.4])
    [[2], [3, 1, 0]]
    """
    place = {float(value): index for index, value in enumerate(temperatures)}

    def downward(value: float) -> Iterator[int]:
        while value in place:
            yield place[value]
            value /= 2

    return [list(downward(value)) for value in place if 2 * value not in place]


def _shifted(logits: Tensor, labels: Tensor, out: Tensor) -> tuple[Tensor, Bool[Tensor, " n"]]:
    """d = ℓ − max ℓ, and whether the first maximum is the label."""
    top = row_argmax(logits)
    peak = logits.gather(1, top.unsqueeze(1))
    return torch.sub(logits, peak, out=out), top == labels


def _power_sums(
    d: Tensor, chains: list[list[int]], temperatures: Sequence[float], powers: Tensor, sums: Tensor
) -> None:
    """sums[t] = Σ_j exp(d_j / T_t) for every temperature."""
    lowest = float(d.amin())
    for chain in chains:
        root = temperatures[chain[0]] / PER_NAT
        torch.mul(d, 1.0 / root, out=powers)
        if lowest / root < LOWEST_EXPONENT:
            powers.clamp_(min=LOWEST_EXPONENT)
        powers.exp2_()
        torch.sum(powers, dim=1, out=sums[chain[0]])
        for index in chain[1:]:
            if lowest / temperatures[index] * PER_NAT < LOWEST_EXPONENT:
                powers.clamp_(min=_LOWEST_ROOT)
            powers.mul_(powers)  # in place: vecdot(powers, powers) allocates, and took 16 ms a pass against 6
            torch.sum(powers, dim=1, out=sums[index])
