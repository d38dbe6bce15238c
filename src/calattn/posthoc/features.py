"""The stored features a calibrator asks for."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from calattn.types import Predictions


def features_of(predictions: Predictions, who: str) -> Float[Tensor, "n d"]:
    """`predictions.features`, or an error that says how to get them."""
    if predictions.features is None:
        raise ValueError(
            f"{who} reads predictions.features, which these predictions do not hold; "
            "store the classifier's input with them: Predictions(..., features=...), predict_proba(..., features=...)"
        )
    return predictions.features
