"""Reports: tables and figures of evaluations. The only part that speaks in per cent.

Figures are Matplotlib's, which is imported when the first one is drawn.
"""

from calattn.report.confidence import accuracy_above_confidence, confidence_histogram, risk_coverage_curve, selection
from calattn.report.contest import contest_tables, contest_verdict
from calattn.report.evaluations import (
    difference_rows,
    difference_table,
    evaluation_table,
    group_table,
    leaderboard,
    sentence,
)
from calattn.report.reliability import SmoothCurve, reliability_diagram, reliability_diagrams, save_figure, smooth_curve
from calattn.report.scale import scale_against_correctness, scale_histogram
from calattn.report.style import STYLE, figure_style
from calattn.report.table import Cell, Table
from calattn.report.temperature import temperature_curve
from calattn.report.training import training_dynamics
from calattn.report.verdict import verdict_of

__all__ = [
    "STYLE",
    "Cell",
    "SmoothCurve",
    "Table",
    "accuracy_above_confidence",
    "confidence_histogram",
    "contest_tables",
    "contest_verdict",
    "difference_rows",
    "difference_table",
    "evaluation_table",
    "figure_style",
    "group_table",
    "leaderboard",
    "reliability_diagram",
    "reliability_diagrams",
    "risk_coverage_curve",
    "save_figure",
    "scale_against_correctness",
    "scale_histogram",
    "selection",
    "sentence",
    "smooth_curve",
    "temperature_curve",
    "training_dynamics",
    "verdict_of",
]
