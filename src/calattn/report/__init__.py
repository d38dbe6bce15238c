"""Reports: tables and figures of evaluations. The only part that speaks in per cent.

Figures are Matplotlib's, which is imported when the first one is drawn.
"""

from calattn.report.confidence import confidence_histogram
from calattn.report.latex import difference_latex, evaluation_latex
from calattn.report.reliability import reliability_diagram, reliability_diagrams, save_figure
from calattn.report.scale import scale_against_correctness, scale_histogram
from calattn.report.selective import accuracy_above_confidence, risk_coverage_curve, selection
from calattn.report.smoothing import SmoothCurve, smooth_curve
from calattn.report.style import STYLE, figure_style
from calattn.report.tables import (
    difference_markdown,
    difference_rows,
    difference_table,
    evaluation_markdown,
    evaluation_rows,
    evaluation_table,
    leaderboard,
    rows_to_csv,
    sentence,
)
from calattn.report.temperature import temperature_curve
from calattn.report.training import training_dynamics

__all__ = [
    "STYLE",
    "SmoothCurve",
    "accuracy_above_confidence",
    "confidence_histogram",
    "difference_latex",
    "difference_markdown",
    "difference_rows",
    "difference_table",
    "evaluation_latex",
    "evaluation_markdown",
    "evaluation_rows",
    "evaluation_table",
    "figure_style",
    "leaderboard",
    "reliability_diagram",
    "reliability_diagrams",
    "risk_coverage_curve",
    "rows_to_csv",
    "save_figure",
    "scale_against_correctness",
    "scale_histogram",
    "selection",
    "sentence",
    "smooth_curve",
    "temperature_curve",
    "training_dynamics",
]
