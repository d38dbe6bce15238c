"""Isotonic calibration: a monotone step-wise map for every class."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from calattn.posthoc.base import CALIBRATORS, Learned
from calattn.posthoc.modules import InterpolatedProbs
from calattn.posthoc.one_vs_rest import OneVsRestCalibrator, class_probs
from calattn.types import Predictions


@CALIBRATORS.register("isotonic")
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class IsotonicCalibration(OneVsRestCalibrator):
    """For each class the non-decreasing g_k that minimises Σ (g_k(p_k) − [y = k])², then normalised.

    Zadrozny & Elkan 2002, in the form of scikit-learn's `CalibratedClassifierCV(method="isotonic")`: linear
    between the steps, constant outside. A class that the split does not hold gets probability 0 everywhere.

    >>> p = Predictions.from_probs(
    ...     torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.8]]), torch.tensor([0, 1, 0, 1])
    ... )
    >>> new = Predictions.from_probs(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
    >>> IsotonicCalibration().fit(p)(new).probs.tolist()  # 0.8 and 0.7 are out of order and pooled to 1/2
    [[0.5, 0.5]]
    """

    knots_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    values_: Float[Tensor, " k"] = dataclasses.field(init=False, repr=False)
    starts_: Int[Tensor, " c1"] = dataclasses.field(init=False, repr=False)
    """Class k's knots and values are entries starts_[k] to starts_[k + 1]."""

    def _fit(self, predictions: Predictions) -> dict[str, Learned]:
        from sklearn.isotonic import (
            IsotonicRegression,
        )  # here, because scikit-learn doubles the time of `import calattn`

        knots, values, starts = [], [], [0]
        labels = predictions.labels.cpu().numpy()
        for columns, probs in class_probs(predictions):
            for k, row in zip(range(columns.start, columns.stop), probs.double().cpu().numpy(), strict=True):
                model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(row, labels == k)
                knots.append(model.X_thresholds_)
                values.append(model.y_thresholds_)
                starts.append(starts[-1] + len(model.X_thresholds_))
        return {
            "knots_": torch.from_numpy(np.concatenate(knots)),
            "values_": torch.from_numpy(np.concatenate(values)),
            "starts_": torch.tensor(starts),
        }

    def _mapped(self, probs: Tensor, first_class: int) -> Tensor:
        out = np.empty(probs.shape)
        knots, values, starts = self.knots_.numpy(), self.values_.numpy(), self.starts_.tolist()
        for offset, row in enumerate(probs.double().cpu().numpy()):
            part = slice(starts[first_class + offset], starts[first_class + offset + 1])
            out[offset] = np.interp(row, knots[part], values[part])
        return torch.from_numpy(out)

    def _module(self) -> InterpolatedProbs:
        return InterpolatedProbs(self.knots_, self.values_, self.starts_, floor=self.floor)
