"""P(class) against "the label is that class": evaluated, streamed, compared, drawn and printed, against other libraries."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import relplot
import torch
import torchmetrics.classification as tm
from netcal.metrics import ECE
from rich.console import Console
from sklearn.calibration import calibration_curve

import calattn
from calattn import Predictions, compare, evaluate, metrics, report
from calattn.metrics import METRICS, MetricState, parts
from calattn.metrics.columns import LabelledValues, columns_of
from calattn.report.page import write_html
from tests.cli_runner import invoke, write_npz

OF_EVENT = ("nll", "brier", "ece", "debiased_ece", "mce", "adaptive_ece", "smooth_ece", "kernel_ece")


def rare(n: int = 20_000, offset: float = 1.2) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of class 1, which is rare, too high by an offset."""
    generator = torch.Generator().manual_seed(0)
    logit = -4 + torch.randn(n, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, generator=generator, dtype=torch.float64) < logit.sigmoid()).long()
    return logit + offset, labels


def as_logits(logit: torch.Tensor, labels: torch.Tensor, **fields: object) -> Predictions:
    return Predictions(logits=torch.stack([torch.zeros_like(logit), logit], 1), labels=labels, **fields)


def as_probs(logit: torch.Tensor, labels: torch.Tensor) -> Predictions:
    p = logit.sigmoid()
    return Predictions.from_probs(torch.stack([1 - p, p], 1), labels)


@pytest.mark.parametrize("made", [as_logits, as_probs])
def test_values_are_those_of_torchmetrics_netcal_and_relplot(made):
    logit, labels = rare()
    p = logit.sigmoid()
    found = evaluate(made(logit, labels), target=1, num_bootstrap=0)
    for name, norm in (("ece", "l1"), ("mce", "max")):
        peer = tm.BinaryCalibrationError(n_bins=15, norm=norm)(p, labels)
        assert found[name].value == pytest.approx(float(peer), abs=1e-6), name
    assert found["ece"].value == pytest.approx(ECE(15).measure(p.numpy(), labels.numpy()), abs=1e-6)
    peer = relplot.smECE_sigma(p.numpy(), labels.numpy().astype(float), sigma=0.05)
    assert found["smooth_ece"].value == pytest.approx(peer, abs=1e-3)
    order = p.argsort()
    gaps = [abs(float((p[b] - labels[b]).sum())) for b in order.tensor_split([k * len(p) // 15 for k in range(1, 15)])]
    assert found["adaptive_ece"].value == pytest.approx(sum(gaps) / len(p), abs=1e-9)
    assert found["nll"].value == pytest.approx(float(tm_nll(p, labels)), abs=1e-9)


def tm_nll(p: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy(p, labels.double())


@pytest.mark.parametrize("target", [0, 1, 2])
def test_each_of_three_classes_with_a_scale(target):
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(900, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (900,), generator=generator)
    scale = torch.rand(900, generator=generator, dtype=torch.float64) + 0.5
    found = evaluate(Predictions(logits=logits, labels=labels, scale=scale), target=target, num_bootstrap=0)
    probs = (logits / scale.unsqueeze(1)).softmax(1)
    peer = tm.BinaryCalibrationError(n_bins=15)(probs[:, target], (labels == target).long())
    assert found["ece"].value == pytest.approx(float(peer), abs=1e-6)
    for name in ("adaptive_ece", "smooth_ece", "kernel_ece", "debiased_ece", "mce"):
        want = getattr(metrics, name)(probs, labels, target=target)
        assert found[name].value == pytest.approx(want, abs=1e-9), name
    assert found["brier"].value == pytest.approx(metrics.brier(probs, labels), abs=1e-9), "of all classes"


def test_the_odds_of_a_class_keep_their_digits_at_both_ends():
    """float32 logits 40 apart: P(1) rounds to 1 and its odds are e^-40; P(0) is e^-40 and its odds e^40."""
    columns = [
        columns_of(LabelledValues(torch.tensor([[0.0, 40.0]]), torch.tensor([1]), "logits"), target=k) for k in (0, 1)
    ]
    assert [float(each.odds) for each in columns] == pytest.approx([np.exp(40), np.exp(-40)], rel=1e-6)
    assert [bool(each.correct) for each in columns] == [False, True]


def test_the_interval_is_that_of_a_plain_bootstrap():
    logit, labels = rare(3000)
    p, y = logit.sigmoid().numpy(), labels.numpy()
    row = evaluate(as_logits(logit, labels), metrics="ece", target=1)["ece"]
    draws, random = [], np.random.default_rng(0)
    for _ in range(400):
        rows = random.integers(3000, size=3000)
        draws.append(ECE(15).measure(p[rows], y[rows]))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert row.high - row.low == pytest.approx(high - low, rel=0.15)
    assert row.low < row.value < row.high


@pytest.mark.parametrize("again", [True, False])
def test_streams_agree_with_memory(monkeypatch, again):
    logit, labels = rare(6000)
    whole = as_logits(logit, labels)
    want = evaluate(whole, target=1, num_bootstrap=300)
    monkeypatch.setattr(parts, "IN_MEMORY", 1000)
    blocks = [whole.select(part) for part in torch.arange(6000).split(700)]
    found = evaluate(blocks if again else iter(blocks), target=1, num_bootstrap=300)
    assert tuple(found) == OF_EVENT
    for name in OF_EVENT:
        assert found[name].value == pytest.approx(want[name].value, abs=1e-9), name
        if name == "mce":  # no interval holds
            assert found[name].low is want[name].low is None
            continue
        width = want[name].high - want[name].low
        assert found[name].high - found[name].low == pytest.approx(width, rel=0.3), name


def test_a_class_by_name_and_what_is_no_class():
    logit, labels = rare(500)
    named = as_logits(logit, labels, class_names=("0", "fraud"))
    by_name, by_number = (evaluate(named, target=t, num_bootstrap=0) for t in ("fraud", 1))
    assert by_name == by_number
    assert by_name.options.target == 1
    assert "ECE of P(fraud)" in str(by_name)
    assert evaluate(as_logits(logit, labels), target="1", num_bootstrap=0)["ece"] == by_name["ece"]
    assert evaluate([named], target="fraud", num_bootstrap=0)["ece"] == by_name["ece"]
    with pytest.raises(ValueError, match=r"target 'froud' is no class \(class names: 0, fraud\); pass its number"):
        evaluate(named, target="froud")
    with pytest.raises(ValueError, match=r"target is 2, outside \[0, 1\]"):
        evaluate(named, target=2)
    with pytest.raises(ValueError, match="no class names"):
        evaluate(iter([named]), target="fraud")


def test_what_is_about_the_predicted_class_is_left_out_or_refused():
    logit, labels = rare(500)
    assert tuple(evaluate(as_logits(logit, labels), target=1, num_bootstrap=0)) == OF_EVENT
    for name in set(METRICS) - set(OF_EVENT):
        with pytest.raises(ValueError, match=f"{name} is about the predicted class and has no reading with target=1"):
            evaluate(as_logits(logit, labels), metrics=[name], target=1)
    with pytest.raises(ValueError, match="cannot merge"):
        MetricState("ece", target=1).merge(MetricState("ece"))
    merged = MetricState("ece", target=1).merge(
        MetricState("ece", target=1).update_logits(torch.eye(2), torch.arange(2))
    )
    assert merged.options.target == 1


def test_every_table_says_which_reading_it_is(tmp_path):
    logit, labels = rare(500)
    p = as_logits(logit, labels)
    found = {"a": evaluate(p, target=1, num_bootstrap=0)}
    console = Console(file=io.StringIO(), width=120)
    console.print(report.evaluation_table(found))
    for text in (str(found["a"]), report.evaluation_table(found).markdown(), console.file.getvalue()):
        assert "ECE of P(1)" in text
        assert "NLL of" not in text
        assert "against “the label is 1”" in text.replace("\n", " ")
    rows = list(csv.DictReader(io.StringIO(report.leaderboard(found).csv())))
    assert {row["target"] for row in rows} == {"1"}
    plain = str(evaluate(p, num_bootstrap=0))
    assert "P(1)" not in plain
    assert "the label is" not in plain
    assert "ECE of P(1)" in write_html(p, tmp_path / "page.html", target=1, num_bootstrap=0).read_text()


def test_a_comparison_of_the_event():
    logit, labels = rare(4000)
    a, b = as_logits(logit, labels), as_logits(logit - 1.2, labels)
    event, top = (compare(a, b, metrics=["ece"], target=t, num_bootstrap=100)["ece"] for t in (1, None))
    assert event.a == pytest.approx(metrics.ece(a.probs, labels, target=1), abs=1e-9)
    assert event.b == pytest.approx(metrics.ece(b.probs, labels, target=1), abs=1e-9)
    assert str(event).startswith("ECE of P(1) ")
    assert str(top).startswith("ECE 0")


def test_the_diagram_is_scikit_learns_calibration_curve():
    logit, labels = rare()
    ax = report.reliability_diagram(as_probs(logit, labels), num_bins=10, target=1).axes[0]
    share, _ = calibration_curve(labels.numpy(), logit.sigmoid().numpy(), n_bins=10)
    bars = [bar.get_height() for bar in ax.containers[0]]
    assert bars == pytest.approx(share.tolist(), abs=1e-9)
    assert ax.get_ylabel() == "share of class 1"
    assert ax.child_axes[0].get_xlabel() == "P(1)"
    both = report.reliability_diagrams({"a": as_logits(logit, labels, class_names=("no", "fraud"))}, target="fraud")
    assert both.axes[0].get_ylabel() == "share of class fraud"


def test_the_command_line(capsys, tmp_path):
    logit, labels = rare(2000)
    p = as_logits(logit, labels)
    file = write_npz(tmp_path / "a.npz", p)
    result = invoke(
        capsys, "evaluate", file, "--target", 1, "--json", "--bootstrap", 50, "--diagram", tmp_path / "d.svg"
    )
    assert result.code == 0
    (found,) = result.json["results"]
    want = evaluate(calattn.read_predictions(file), target=1, num_bootstrap=50)
    assert found["metrics"] == want.as_dict()
    assert found["target"] == 1
    shown = invoke(capsys, "evaluate", file, "--target", 1, "--bootstrap", 0)
    assert "ECE of P(1)" in shown.out
    shown = invoke(capsys, "evaluate", file, "--target", 1, "--bootstrap", 0, "--html", tmp_path / "p.html")
    assert shown.code == 0
    assert "ECE of P(1)" in (tmp_path / "p.html").read_text()
    assert "is no class" in invoke(capsys, "evaluate", file, "--target", "fraud").err
