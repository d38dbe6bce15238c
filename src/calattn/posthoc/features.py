"""The stored features a calibrator asks for."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from calattn.errors import InputError
from calattn.types import Predictions


def features_of(predictions: Predictions) -> Float[Tensor, "n d"]:
    """`predictions.features`, or an error that says how to get them."""
    if predictions.features is None:
        raise InputError(
            "this method reads features, which these predictions do not hold",
            remedy="store the classifier's input with them as an array named features: calattn predict --features, "
            "Predictions(..., features=...) or predict_proba(..., features=...)",
        )
    return predictions.features
