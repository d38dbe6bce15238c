"""The analysis of a finished run: everything a table, a figure or a verdict will ask of it, as a `CellResult`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from calattn.engine.log import RunLog, distribution
from calattn.metrics import METRICS
from calattn.metrics.evaluation import compare, evaluate
from calattn.metrics.parts import default_resamples
from calattn.posthoc import SATS, FitWarning, TemperatureScaling
from calattn.report.reliability import bin_sums
from calattn.rules import Rule
from calattn.runs.folder import RunFolder
from calattn.seeds import seed_of
from calattn.types import Predictions
from reproduction.cells import SCALES, GridCell, ScaleName, hash_of, rules_of
from reproduction.ood import CLS_NORM, OodScores
from reproduction.results import OOD_SETS, CellResult

_ERRORS = ("nll", "brier", "ece", "smooth_ece", "adaptive_ece", "classwise_ece")
_RANKS = ("misclassification_auroc", "high_confidence_error_rate", "high_confidence_error_share")
PAIRED = ("accuracy", *_ERRORS, *_RANKS)
SCATTER_POINTS = 400
LOG_ROWS = 100
_MOVING = ("scale", "inverse_scale", "feature_norm")
_SUMMARISED = {"pre": "test", "post_nll": "test_ts"}
_RUN = ("spec", "spec_hash", "environment", "epochs", "training_seconds", "images_per_second", "parameters")


def analyse(
    folder: RunFolder, cell: GridCell, scale: ScaleName, *, twin: RunFolder | None = None, ood: OodScores | None = None
) -> CellResult:
    """The document of a cell from its run's files. `twin`: the run without the head, which `pair` is against.

    Calibrators are fitted on the run's validation images and judged on its test images.
    """
    summary = folder.summary()
    phases = {rule: Phases(folder, rule) for rule in rules_of(cell)}
    rules = {
        rule: {
            "epoch": summary["results"][rule]["epoch"],
            **_judged(found, scale, summary["results"][rule]),
            **_separated(ood, rule),
            **_cls_norm(ood, rule, found.test["pre"]),
            **_pictured(found.test["pre"], cell),
        }
        for rule, found in phases.items()
    }
    titles = {} if ood is None else {name: {k: each[k] for k in ("title", "images")} for name, each in ood.sets.items()}
    run = {name: summary[name] for name in _RUN} | {
        "ood": {"sets": titles, "missing": {} if ood is None else ood.missing},
        "twin": None if twin is None else cell.twin.name,
    }
    return CellResult(
        cell=cell,
        scale=scale,
        cell_hash=hash_of(cell, scale),
        run=run,
        log=_log(folder),
        rules=_rounded(rules),
        pair={} if twin is None else _rounded(_paired(phases, twin, scale, ood)),
    )


class Phases:
    """The test predictions of a rule by phase, and what was fitted on validation to get there."""

    def __init__(self, folder: RunFolder, rule: str) -> None:
        validation, test = (folder.predictions(split, rule) for split in ("validation", "test"))
        fitted = {
            "post": TemperatureScaling(objective="ece"),
            "post_nll": TemperatureScaling(objective="nll"),
            "sats": SATS(),
        }
        # A temperature at the end of its grid is a fact about the run, kept as `converged`, not something to warn about.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            for calibrator in fitted.values():
                calibrator.fit(validation)
        self.test = {"pre": test, **{phase: calibrator(test) for phase, calibrator in fitted.items()}}
        by_ece, by_nll = fitted["post"], fitted["post_nll"]
        self.temperature = {"ece": float(by_ece.temperature_), "nll": float(by_nll.temperature_)}
        self.converged = {"ece": bool(by_ece.converged_), "nll": bool(by_nll.converged_)}


def _judged(phases: Phases, scale: ScaleName, summarised: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": phases.temperature,
        "converged": phases.converged,
        "phases": {phase: _metrics(phases, phase, scale, summarised) for phase in phases.test},
        "bins": {phase: _bins(phases.test[phase]) for phase in ("pre", "post")},
    }


def _metrics(phases: Phases, phase: str, scale: ScaleName, summarised: dict[str, Any]) -> dict[str, Any]:
    """All metrics with intervals; those of the run's summary where it has resampled as often (3 s of a core each)."""
    resamples, predictions = SCALES[scale].resamples, phases.test[phase]
    if phase in _SUMMARISED and resamples == default_resamples(len(predictions)):
        return {name: summarised[_SUMMARISED[phase]][name] for name in METRICS}
    return evaluate(predictions, num_bootstrap=resamples).as_dict()


def _bins(predictions: Predictions) -> dict[str, Any]:
    sums = bin_sums(predictions)
    means = {"confidence": sums.confidence / sums.count, "accuracy": sums.correct / sums.count}
    filled = {name: [float(v) if n else None for v, n in zip(m, sums.count, strict=True)] for name, m in means.items()}
    return {"counts": [int(count) for count in sums.count], **filled}


def _separated(ood: OodScores | None, rule: str) -> dict[str, Any]:
    found = {} if ood is None else ood.separations(rule)
    return {
        "ood": {name: each.auroc for name, each in found.items()},
        "ood_intervals": {name: dict(zip(("low", "high"), each.interval, strict=True)) for name, each in found.items()},
    }


def _cls_norm(ood: OodScores | None, rule: str, test: Predictions) -> dict[str, Any]:
    """Spearman's correlation of the norm before the last LayerNorm with the largest probability."""
    from scipy.stats import spearmanr

    norms = None if ood is None else ood.scores[rule].get(CLS_NORM)
    if norms is None:
        return {}
    return {"cls_norm_correlation": float(spearmanr(norms.numpy(), test.probs.amax(dim=1).numpy()).statistic)}


def _pictured(test: Predictions, cell: GridCell) -> dict[str, Any]:
    """The distribution of the scale, and a sample of images for the figure of feature norms."""
    found: dict[str, Any] = {} if test.scale is None else {"scale": distribution(test.scale)}
    if test.features is None:
        return found
    # The same images for every cell of a data set: figures compare networks, not draws.
    generator = torch.Generator().manual_seed(seed_of("scatter", cell.dataset))
    rows = test.select(torch.randperm(len(test), generator=generator)[:SCATTER_POINTS].sort().values)
    assert rows.features is not None
    scaled = rows.probs
    columns = {
        "feature_norm": rows.features.float().norm(dim=1),
        "max_prob": rows.logits.softmax(dim=1).amax(dim=1),
        "scaled_max_prob": scaled.amax(dim=1),
        "scale": torch.ones(len(rows)) if rows.scale is None else rows.scale,
    }
    found["scatter"] = {name: [_digits(float(value), 6) for value in values] for name, values in columns.items()}
    found["scatter"]["correct"] = (scaled.argmax(dim=1) == rows.labels).int().tolist()
    return found


def _log(folder: RunFolder) -> list[dict[str, Any]]:
    """The epochs, evenly thinned to `LOG_ROWS`; distributions in full only at the first, middle and last."""
    rows = [row for row in RunLog(folder.log_path).rows() if row.get("event") == "epoch"]
    full = {0, (len(rows) - 1) // 2, len(rows) - 1}
    last = min(LOG_ROWS, len(rows)) - 1
    kept = full | {round(place * (len(rows) - 1) / max(1, last)) for place in range(last + 1)}
    return [_log_row(rows[place], full=place in full) for place in sorted(kept)]


def _log_row(row: dict[str, Any], *, full: bool) -> dict[str, Any]:
    validation = dict(row["validation"])
    for name in _MOVING:
        if name in validation and not full:
            validation[name] = {key: validation[name][key] for key in ("mean", "std", "cv")}
    return _rounded({"epoch": row["epoch"], "train": row["train"], "validation": validation}, digits=5)


def _paired(
    phases: Mapping[Rule, Phases], twin: RunFolder, scale: ScaleName, ood: OodScores | None
) -> dict[str, dict[str, Any]]:
    other = OodScores.load(twin)
    found: dict[str, dict[str, Any]] = {}
    for rule, mine in phases.items():
        theirs = Phases(twin, rule)
        found[rule] = {}
        for phase in ("pre", "post"):
            resamples = SCALES[scale].resamples
            differences = compare(theirs.test[phase], mine.test[phase], metrics=PAIRED, num_bootstrap=resamples)
            keys = ("difference", "low", "high", "p_value")
            found[rule][phase] = {name: {k: getattr(each, k) for k in keys} for name, each in differences.items()}
        if ood is not None and other is not None and rule in other.scores:
            ours, others = ood.separations(rule), other.separations(rule)
            both = [name for name in OOD_SETS if name in ours and name in others]
            found[rule]["pre"] |= {f"ood_{name}": ours[name].minus(others[name]) for name in both}
        for phase, differences in found[rule].items():
            # Without those that have no value on one side (an AUROC of a network that makes no errors).
            defined = {name: each for name, each in differences.items() if all(map(math.isfinite, each.values()))}
            found[rule][phase] = defined
    return found


def _rounded(value: Any, digits: int = 8) -> Any:
    """Numbers to so many significant digits: documents are committed, and nobody reads the seventeenth."""
    if isinstance(value, dict):
        return {key: _rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return _digits(value, digits) if isinstance(value, float) else value


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
