"""summary.json: what a run was, what it cost and what came out, in one file that can be committed."""

from __future__ import annotations

import statistics
import warnings
from typing import Any

from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.log import RunLog
from calattn.files.predictions import MANIFEST
from calattn.metrics.evaluation import evaluate
from calattn.models.attach import CalibratedModel, overhead
from calattn.posthoc import FitWarning, TemperatureScaling
from calattn.runs.folder import RunFolder, read_json, write_json
from calattn.runs.spec import RunSpec
from calattn.types import Predictions

FORMAT = 1


def write_summary(folder: RunFolder, spec: RunSpec, model: CalibratedModel) -> dict[str, Any]:
    """Summarises the predictions of the spec's checkpoints, before and after temperature scaling on validation."""
    rows = RunLog(folder.log_path).epochs()
    state = CheckpointFolder(folder.checkpoints_path, spec.hash).latest()
    assert state is not None
    cost = overhead(model)
    epochs = {"last": state.epoch} | {rule: record.epoch for rule, record in state.best.items()}
    document: dict[str, Any] = {
        "format": FORMAT,
        "name": spec.name,
        "spec_hash": spec.hash,
        "seed": spec.seed,
        "spec": spec.model_dump(mode="json"),
        "environment": read_json(folder.environment_path),
        "epochs": state.epoch,
        "updates": state.step,
        "training_seconds": round(sum(row["seconds"] for row in rows), 1),
        "images_per_second": statistics.median(row["images_per_second"] for row in rows) if rows else None,
        "parameters": {"backbone": cost.backbone_params, "head": cost.added_params},
        "last_epoch": {"train": rows[-1]["train"], "validation": _scalars(rows[-1]["validation"])} if rows else None,
        "results": {rule: {"epoch": epochs[rule], **_results(folder, rule)} for rule in spec.evaluation.checkpoints},
    }
    write_json(document, folder.summary_path)
    return document


def _results(folder: RunFolder, rule: str) -> dict[str, Any]:
    validation = folder.predictions("validation", rule)
    found: dict[str, Any] = {"validation": _metrics(validation, intervals=False)}
    if not (folder.predictions_path("test", rule) / MANIFEST).is_file():  # data without test images
        return found
    test = folder.predictions("test", rule)
    found["test"] = _metrics(test, intervals=True)
    # A temperature at the end of its range is a fact about the run, once for each checkpoint: kept, not warned about.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        scaling = TemperatureScaling().fit(validation)
    learned = {"temperature": scaling.temperature_, "converged": scaling.converged_}
    found["test_ts"] = {**learned, **_metrics(scaling(test), intervals=True)}
    if test.scale is not None:
        found["scale"] = {"mean": float(test.scale.mean()), "std": float(test.scale.std(correction=0))}
    return found


def _metrics(predictions: Predictions, *, intervals: bool) -> dict[str, Any]:
    result = evaluate(predictions, num_bootstrap=None if intervals else 0)
    return {name: row if intervals else row["value"] for name, row in result.as_dict().items()}


def _scalars(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a log row, without histograms."""
    return {
        key: _scalars(value) if isinstance(value, dict) else value for key, value in row.items() if key != "histogram"
    }
