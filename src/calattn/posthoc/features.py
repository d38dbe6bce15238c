"""The stored features a calibrator asks for."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from calattn.errors import Args, InputError
from calattn.types import Predictions


def features_of(predictions: Predictions) -> Float[Tensor, "n d"]:
    """`predictions.features`, or an error that says how to get them."""
    if predictions.features is None:
        where = Args("Predictions(..., features=...), predict_proba(..., features=...)", features=...)
        raise InputError(
            "the method reads predictions.features, which these predictions do not hold",
            remedy=("store the classifier's input with them: ", where),
        )
    return predictions.features
