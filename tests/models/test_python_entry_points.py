"""What other libraries' habits meet here: logits and labels side by side, an evaluation used as a mapping."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from calattn import Predictions, evaluate, metrics, report
from calattn.metrics import METRICS
from tests.samples import logits_and_labels

LOGITS, LABELS = logits_and_labels("binary")
REMEDY = r"predictions must be calattn\.Predictions.*Predictions\(logits=…, labels=…\).*; got Tensor, Tensor$"


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    "call",
    [
        evaluate,
        report.reliability_diagram,
        report.reliability_diagrams,
        report.confidence_histogram,
        report.risk_coverage_curve,
        report.accuracy_above_confidence,
    ],
)
def test_logits_and_labels_side_by_side_are_told_what_to_do(call):
    with pytest.raises(ValueError, match=REMEDY):
        call(LOGITS, LABELS)


@pytest.mark.usefixtures("untyped")
def test_arrays_alone_are_told_as_well():
    for call in (evaluate, report.reliability_diagram):
        with pytest.raises(ValueError, match=r"got ndarray$"):
            call(LOGITS.numpy())


@pytest.mark.usefixtures("untyped")
def test_predictions_without_names():
    with pytest.raises(
        ValueError, match=r"by name: Predictions\(logits=…, labels=…\).*from_probs.*got Tensor, Tensor$"
    ):
        Predictions(LOGITS, LABELS)
    made = Predictions(logits=LOGITS, labels=LABELS)
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(again.logits, made.logits)


def test_an_evaluation_is_a_mapping_of_its_rows():
    found = evaluate(Predictions(logits=LOGITS, labels=LABELS), metrics=["ece", "nll"], num_bootstrap=0)
    assert isinstance(found, Mapping)
    assert list(found) == ["ece", "nll"]
    assert len(found) == 2
    assert "ece" in found
    assert "accuracy" not in found, "known, but not evaluated"
    assert "no_metric" not in found
    assert dict(found) == found.rows
    assert found.get("accuracy") is None
    assert {name: row.value for name, row in found.items()} == {name: found[name].value for name in ("ece", "nll")}
    with pytest.raises(ValueError, match="accuracy was not evaluated; evaluated: ece, nll"):
        found["accuracy"]
    with pytest.raises(KeyError):
        found["accuracy"]
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("name", ["ece_sweep", "brier_decomposition", "risk_coverage", "ood_auroc"])
def test_functions_are_told_apart_from_misspelt_metrics(name):
    assert callable(getattr(metrics, name))
    with pytest.raises(
        ValueError, match=f"{name} is a function, not a metric of evaluate: call calattn.metrics.{name}"
    ):
        evaluate(Predictions(logits=LOGITS, labels=LABELS), metrics=[name])


def test_the_documented_table_says_which_are_functions_only():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    rows = re.findall(r"^\| (`.+?)\| .*?\|.*\|$", page.read_text(encoding="utf-8").split("## When")[0], re.MULTILINE)
    for row in rows:
        for name in re.findall(r"`(\w+)`", row):
            known = name in METRICS or name == "high_confidence_errors"  # three metrics, named beside it
            assert known != ("†" in row.split(f"`{name}`")[1].split(",")[0]), name
