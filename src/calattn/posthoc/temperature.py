"""Temperature scaling: one positive number that divides all logits."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from calattn import checks
from calattn.posthoc.base import CALIBRATORS, Calibrator, FitWarning, Learned, rescaled
from calattn.posthoc.grid import ece_curve
from calattn.posthoc.modules import ScaledLogits
from calattn.posthoc.newton import nll_optimum
from calattn.types import Predictions

PROTOCOL_GRID = tuple(k / 10 for k in range(1, 101))
"""The paper's temperatures 0.1, 0.2, …, 10.0, each the float nearest to its decimal."""


@CALIBRATORS.register("temperature")
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class TemperatureScaling(Calibrator):
    """softmax(ℓ / T) with one T for all samples (Guo et al. 2017).

    `objective="ece"` is the paper's protocol (after Mukhoti et al. 2020): the T of `grid` with the lowest
    ECE, the first if several tie; at the lowest or highest T of the grid `converged_` is False and `FitWarning` is
    given. `objective="nll"` is the T that minimises NLL, a convex problem in 1/T:
    Newton in log T inside a bracket, which can neither diverge nor leave `bounds`. Where no optimum exists
    (every label on top: T → 0; labels below average: T → ∞) the bound is returned, with the same warning.

    >>> p = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
    >>> round(TemperatureScaling(objective="nll").fit(p).temperature_, 4)  # 2 / ln 3
    1.8205
    >>> TemperatureScaling(objective="ece").fit(p).temperature_
    1.8
    """

    objective: Literal["ece", "nll"] = dataclasses.field(default="ece", kw_only=False)
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
            raise ValueError(f"objective must be 'ece' or 'nll', got {self.objective!r}")
        self.grid = tuple(checks.positive(value, "grid") for value in self.grid)
        if not self.grid or len(set(self.grid)) != len(self.grid):
            raise ValueError(f"grid must hold distinct temperatures, got {self.grid}")
        checks.positive_int(self.num_bins, "num_bins")
        low, high = (checks.positive(value, "bounds") for value in self.bounds)
        if low >= high:
            raise ValueError(f"bounds must be (low, high) with low < high, got {self.bounds}")
        self.bounds = (low, high)

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        return self._fit_ece(predictions) if self.objective == "ece" else self._fit_nll(predictions)

    def _fit_ece(self, predictions: Predictions) -> dict[str, Learned]:
        curve = ece_curve(predictions, self.grid, num_bins=self.num_bins)
        best = int(curve.numpy().argmin())  # the first minimum, which torch's argmin does not promise
        # One or two temperatures have no inside: whoever passes them knows.
        at_end = len(self.grid) > 2 and self.grid[best] in (min(self.grid), max(self.grid))
        if at_end:
            warnings.warn(self._end_of_grid(self.grid[best], curve), stacklevel=4)
        return {
            "temperature_": self.grid[best],
            "objective_value_": float(curve[best]),
            "converged_": not at_end,
            "iterations_": 1,
            "curve_": torch.stack([torch.tensor(self.grid, dtype=torch.float64), curve]),
        }

    def _end_of_grid(self, temperature: float, curve: Tensor) -> FitWarning:
        low, high = min(self.grid), max(self.grid)
        end = "low" if temperature == low else "high"
        why = "every T of it has the same ECE" if curve.min() == curve.max() else "a T beyond it may have a lower ECE"
        return FitWarning(
            f"T = {temperature:g} is the {end} end of the grid ({low:g} to {high:g}), and {why}",
            remedy="use temperature_nll, or pass a wider grid, TemperatureScaling(grid=…)",
        )

    def _fit_nll(self, predictions: Predictions) -> dict[str, Learned]:
        found = nll_optimum(predictions, self.bounds)
        if not found.converged:
            warnings.warn(
                f"no temperature in {self.bounds} minimises this NLL; T = {found.temperature:g} "
                "is the bound. Are all labels the top class (a training split), or unrelated to the logits?",
                FitWarning,
                stacklevel=4,
            )
        return {
            "temperature_": found.temperature,
            "objective_value_": found.nll,
            "converged_": found.converged,
            "iterations_": found.iterations,
            "curve_": torch.empty(2, 0, dtype=torch.float64),
        }

    def _apply(self, predictions: Predictions) -> Predictions:
        return rescaled(predictions, self.temperature_)

    def _module(self) -> ScaledLogits:
        return ScaledLogits(self.num_classes_, self.temperature_)


CALIBRATORS.add("temperature_nll", lambda **options: TemperatureScaling(**{"objective": "nll"} | options))
