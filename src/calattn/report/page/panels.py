"""The panels beside the reliability diagram: risk and coverage, classes, confident mistakes, the scale, training."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from calattn.metrics.classbins import ClassBins
from calattn.metrics.columns import Columns, row_argmax
from calattn.metrics.ranks import RankSums, aurc_of, risk_coverage_of
from calattn.report.scale import Scales, scale_groups
from calattn.report.training import series
from calattn.types import Predictions, row_blocks

Images = Callable[[Sequence[int]], Mapping[int, bytes]]
_POINTS = 201
_PICTURED, _LISTED = 24, 40
_SCALE_CELLS = 40
_FEWEST_SCALES = 20  # different ones: those of folds, each with its own temperature, are no distribution
# Where a log's row has a number → what it is called, and which chart it is in.
_SERIES = {
    "train.loss": ("training loss", "loss"),
    "validation.nll": ("validation NLL", "loss"),
    "train.accuracy": ("training accuracy", "accuracy"),
    "validation.accuracy": ("validation accuracy", "accuracy"),
    "validation.ece": ("validation ECE", "calibration"),
    "validation.inverse_scale.mean": ("mean of 1/s", "scale"),
    "validation.scale.cv": ("coefficient of variation of s", "scale_cv"),
}


def risk_coverage(columns: Columns) -> dict[str, Any]:
    """Error rate among the most confident share, at some two hundred shares; `optimal` ranks all errors last."""
    groups = RankSums().add(columns).groups()
    coverage, risk = risk_coverage_of(groups)
    wanted = torch.linspace(1 / (_POINTS - 1), 1, _POINTS - 1, dtype=torch.float64)
    place = torch.searchsorted(coverage.contiguous(), wanted - 1e-12).clamp_(max=len(coverage) - 1).unique()
    coverage, risk = coverage[place], risk[place]
    accuracy = float(columns.correct.double().mean())
    optimal = (1 - accuracy / coverage).clamp_min(0)
    return {
        "coverage": coverage.tolist(),
        "risk": risk.tolist(),
        "optimal": optimal.tolist(),
        "aurc": float(aurc_of(groups)),
    }


def per_class(predictions: Predictions, columns: Columns, classes: ClassBins) -> list[dict[str, Any]]:
    """For each class: how many, how many found (recall); where it is predicted, confidence and precision; its ECE."""
    top, c = predicted(predictions), predictions.num_classes
    correct, confidence = columns.correct.double(), columns.confidence.double()
    count, hits = torch.bincount(predictions.labels, minlength=c), torch.bincount(top, correct, minlength=c)
    named, said = torch.bincount(top, minlength=c), torch.bincount(top, confidence, minlength=c)
    errors = classes.per_class().tolist()
    rows = []
    for k in range(c):
        there, made = int(count[k]), int(named[k])
        precision, mean = (float(hits[k]) / made, float(said[k]) / made) if made else (None, None)
        rows.append(
            {
                "name": name_of(predictions, k),
                "count": there,
                "recall": float(hits[k]) / there if there else None,
                "predicted": made,
                "precision": precision,
                "said": mean,
                "gap": None if mean is None or precision is None else mean - precision,
                "ece": errors[k],
            }
        )
    return rows


def predicted(predictions: Predictions) -> Tensor:
    """The class of the largest probability, the first where several tie."""
    values = predictions.logits if predictions.stated_probs is None else predictions.stated_probs
    return torch.cat([row_argmax(values[rows]) for rows in row_blocks(len(predictions), predictions.num_classes)])


def name_of(predictions: Predictions, k: int) -> str:
    return str(k) if predictions.class_names is None else predictions.class_names[k]


def errors(
    predictions: Predictions,
    columns: Columns,
    *,
    threshold: float,
    places: Int[Tensor, " n"],
    rows: Int[Tensor, " m"] | None,
    images: Images | None,
) -> dict[str, Any]:
    """The most confident mistakes, with pictures where there are any, and how many lie above the threshold.

    `places` are the samples' places in what `images` knows, `rows` the rows of those in the file (None: the same).
    """
    above = columns.confidence >= threshold
    wrong = (~columns.correct).nonzero().squeeze(1)
    wrong = wrong[columns.odds[wrong].argsort(stable=True)][: _LISTED if images is None else _PICTURED]
    pictures = {} if images is None else images(places[wrong].tolist())
    top = predicted(predictions)
    found = []
    for sample in wrong.tolist():
        place = int(places[sample])
        row = place if rows is None else int(rows[place])
        found.append({"row": row} | _error(predictions, columns, sample, int(top[sample]), pictures.get(place)))
    return {
        "errors": found,
        "errors_above": {
            "threshold": threshold,
            "errors": int((above & ~columns.correct).sum()),
            "samples": int(above.sum()),
        },
    }


def _error(predictions: Predictions, columns: Columns, row: int, top: int, picture: bytes | None) -> dict[str, Any]:
    return {
        "index": None if predictions.indices is None else int(predictions.indices[row]),
        "label": name_of(predictions, int(predictions.labels[row])),
        "predicted": name_of(predictions, top),
        "confidence": float(columns.confidence[row]),
        "label_probability": math.exp(-float(columns.nll[row])),
        "image": None if picture is None else f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}",
    }


def scales(predictions: Predictions, columns: Columns) -> dict[str, Any] | None:
    """How CalAttn's temperatures lie among correct and wrong predictions; None where there are none, or few different ones."""
    if predictions.scale is None or len(predictions.scale.unique()) < _FEWEST_SCALES:
        return None
    scale = predictions.scale.double()
    low, span = float(scale.min()), float(scale.max() - scale.min())
    edges = torch.linspace(low, low + span, _SCALE_CELLS + 1, dtype=torch.float64)
    cell = ((scale - low) / span * _SCALE_CELLS).long().clamp_(0, _SCALE_CELLS - 1)

    def counts(mask: Tensor) -> list[int]:
        return torch.bincount(cell[mask], minlength=_SCALE_CELLS).tolist()

    found = Scales(scale, columns.correct, columns.confidence)
    return {
        "edges": edges.tolist(),
        "correct": counts(columns.correct),
        "wrong": counts(~columns.correct),
        "mean": float(scale.mean()),
        "cv": float(scale.std(correction=0) / scale.mean()),
        "by_decile": [
            {
                "low": float(group.scale.min()),
                "high": float(group.scale.max()),
                "count": len(group.scale),
                "accuracy": float(group.correct.double().mean()),
                "confidence": float(group.confidence.double().mean()),
            }
            for group in scale_groups(found)
        ],
    }


def dynamics(log: Sequence[Mapping[str, Any]], marks: Mapping[str, int]) -> dict[str, Any] | None:
    """Losses, accuracy, ECE and the scale over the epochs of a run's log; None where there is no log."""
    if not log:
        return None
    found = []
    for path, (name, panel) in _SERIES.items():
        values = [value if math.isfinite(value) else None for value in series(log, path).tolist()]
        found.append({"name": name, "panel": panel, "values": values})
    kept = [each for each in found if any(value is not None for value in each["values"])]
    shown = [{"label": name, "epoch": int(epoch)} for name, epoch in marks.items()]
    return {"epoch": [int(row["epoch"]) for row in log], "series": kept, "marks": shown}
