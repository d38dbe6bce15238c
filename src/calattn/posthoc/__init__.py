"""Post-hoc calibrators: fitted on a held-out split's predictions, applied to another's."""

import functools

from calattn.posthoc.base import (
    CALIBRATORS,
    AbsentClassWarning,
    Calibrator,
    FitWarning,
    NotFittedError,
    SameDataWarning,
)
from calattn.posthoc.contests import Contest, ContestRow, Methods, Skipped, Watcher, contest
from calattn.posthoc.crossfit import cross_fit, drawn_folds
from calattn.posthoc.files import load
from calattn.posthoc.linear import DirichletCalibration, MatrixScaling, VectorScaling
from calattn.posthoc.one_vs_rest import HistogramBinning, IsotonicCalibration, VennAbers
from calattn.posthoc.scale_head import SATS, FrozenCalAttn
from calattn.posthoc.sets import SCORES, Estimate, PredictionSets, SetReport, sets_after
from calattn.posthoc.temperature import PROTOCOL_GRID, EnsembleTemperatureScaling, TemperatureScaling

# In the order in which "all" names them.
CALIBRATORS.add("frozen_calattn", FrozenCalAttn)
CALIBRATORS.add("histogram", HistogramBinning)
CALIBRATORS.add("isotonic", IsotonicCalibration)
CALIBRATORS.add("venn_abers", VennAbers)
CALIBRATORS.add("vector", VectorScaling)
CALIBRATORS.add("matrix", MatrixScaling)
CALIBRATORS.add("dirichlet", DirichletCalibration)
CALIBRATORS.add("structured_vector", functools.partial(VectorScaling, 1.0))
CALIBRATORS.add("structured_matrix", functools.partial(MatrixScaling, 1.0))
CALIBRATORS.add("sats", SATS)
CALIBRATORS.add("ensemble", EnsembleTemperatureScaling)
CALIBRATORS.add("temperature", TemperatureScaling)
CALIBRATORS.add("temperature_ece", functools.partial(TemperatureScaling, "ece"))  # the paper's

__all__ = [
    "CALIBRATORS",
    "PROTOCOL_GRID",
    "SATS",
    "SCORES",
    "AbsentClassWarning",
    "Calibrator",
    "Contest",
    "ContestRow",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "Estimate",
    "FitWarning",
    "FrozenCalAttn",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "Methods",
    "NotFittedError",
    "PredictionSets",
    "SameDataWarning",
    "SetReport",
    "Skipped",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "Watcher",
    "contest",
    "cross_fit",
    "drawn_folds",
    "load",
    "sets_after",
]
