"""The page of one class: what it holds of P(class), against sums written out, and what it says of it."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

import calattn
from calattn.report.page import Exhibit, build_document
from tests.cli_runner import invoke, write_npz
from tests.report.test_page_offset import binary
from tests.samples import logits_and_labels


def exhibit(p: calattn.Predictions, target: int | str | None, **fields) -> Exhibit:
    return Exhibit(title="it", predictions=p, evaluation=calattn.evaluate(p, target=target, num_bootstrap=0), **fields)


def subject(p: calattn.Predictions, target: int | str, **fields) -> dict:
    return build_document([exhibit(p, target, **fields)])["subjects"][0]


def ten(**fields) -> calattn.Predictions:
    logits, labels = logits_and_labels("ten_classes", 0)
    return calattn.Predictions(logits=2 * logits.float(), labels=labels, **fields)


def unpacked(text: str, kind: str, rows: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind).reshape(rows, -1)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_bins_of_every_temperature_against_numpy(scaled):
    p = ten(scale=torch.linspace(0.5, 2.0, len(logits_and_labels("ten_classes", 0)[1])) if scaled else None)
    found = subject(p, 3)["temperature"]
    grid, fine = found["grid"], found["fine"]
    count, correct = (unpacked(fine[name], "<u4", len(grid)) for name in ("count", "correct"))
    said = unpacked(fine["confidence"], "<f4", len(grid))
    happened = (p.labels == 3).numpy()
    logits = p.calibrated_logits.double().numpy()
    for place in range(0, len(grid), 17):
        z = np.exp((logits - logits.max(axis=1, keepdims=True)) / grid[place])
        prob = z[:, 3] / z.sum(axis=1)
        assert said[place].sum() == pytest.approx(prob.sum(), rel=1e-4)
        assert correct[place].sum() == happened.sum()
        # 30 bins, coarse enough that no sample beside an edge changes the sums by much
        edges = np.ceil(prob * 30).clip(1, 30).astype(int) - 1
        gap = np.abs(np.bincount(edges, prob - happened, minlength=30)).sum() / len(p)
        mine = (said[place].astype(float) - correct[place]).reshape(30, -1).sum(axis=1)
        assert np.abs(mine).sum() / len(p) == pytest.approx(gap, abs=2e-3)
        assert count[place].sum() == len(p)


def test_what_is_about_the_predicted_class_is_left_out():
    p = ten(scale=torch.linspace(0.5, 2.0, len(ten())))
    with_target, without = subject(p, 3), subject(p, None)
    about_top = {"risk_coverage", "per_class", "errors", "errors_above", "scale"}
    assert about_top <= without.keys()
    assert not about_top & with_target.keys()
    assert (with_target["target"], without["target"]) == ("3", None)
    assert with_target["temperature"]["best"]["fitted_on"] == "these predictions"
    assert with_target["cards"] == ["ece", "nll", "brier"]


def test_a_class_by_its_name_and_a_name_too_long_for_an_axis():
    names = ("cat", "a dog of uncommonly long name")
    p = binary(lambda true: true, class_names=names)
    assert subject(p, "cat")["target"] == "cat"
    assert subject(p, 1)["target"] == "a dog of uncomm…"
    assert subject(p, 1)["verdict"]["headline"].startswith("P(a dog of uncomm…) is calibrated")


@pytest.mark.parametrize(
    ("change", "kind", "headline", "detail"),
    [
        (lambda z: z + 1.2, "offset", "P(1) is too high: averages ", "A temperature cannot fix an offset"),
        (lambda z: z - 1.2, "offset", "P(1) is too low: averages ", "A temperature cannot fix an offset"),
        (lambda z: 0.5 * z, "offset", "P(1) is much too high: averages ", "--method all compares all methods"),
        (lambda z: z, "calibrated", "P(1) is calibrated, as far as", "no larger than chance makes them"),
    ],
)
def test_the_verdict(change, kind, headline, detail):
    p = binary(change)
    found = subject(p, 1)["verdict"]
    assert found["kind"] == kind
    assert found["headline"].startswith(headline)
    said, share = 100 * float(p.probs[:, 1].mean()), 100 * float(p.labels.double().mean())
    assert found["headline"].endswith(f"averages {said:.1f} %, class 1 is {share:.1f} % of the samples")
    assert detail in found["detail"]


def test_right_on_average_and_nowhere_else():
    """A class that happens half the time, at probabilities far too bold: the mean is right."""
    p = binary(lambda true: 3 * true, mean=0.0)
    found = subject(p, 1)["verdict"]
    assert found["kind"] == "mixed"
    assert "P(1) is too" in found["detail"]


def test_of_more_classes_no_temperature_is_ruled_out():
    shifted = ten().replace(logits=ten().logits + torch.nn.functional.one_hot(torch.tensor(3), 10) * 3.0)
    found = subject(shifted, 3)["verdict"]
    assert found["headline"].startswith("P(3) is much too high")
    assert "cannot fix" not in found["detail"]


def test_hard_predictions_that_are_often_wrong_are_not_called_calibrated():
    """0 or 1, as a tree gives, and a quarter of them wrong: their mean is right, and chance allows no gap at all."""
    generator = np.random.default_rng(0)
    happened = generator.integers(0, 2, 2000)
    said = np.where(generator.uniform(size=2000) < 0.25, 1 - happened, happened)
    p = calattn.Predictions.from_probs(torch.tensor(np.stack([1 - said, said], 1)).float(), torch.tensor(happened))
    found = subject(p, 1)["verdict"]
    assert found["kind"] == "mixed"
    assert "less than once in a million" in found["detail"]


def test_the_same_class_at_another_place():
    names = tuple("abcdefghij")
    other = (*names[1:], names[0])
    pages = [exhibit(ten(class_names=each), "b") for each in (names, other)]
    assert [each["target"] for each in build_document(pages)["subjects"]] == ["b", "b"]
    with pytest.raises(ValueError, match="exhibits differ in target"):
        build_document([exhibit(ten(class_names=each), 1) for each in (names, other)])
    with pytest.raises(ValueError, match="exhibits differ in target"):
        build_document([exhibit(ten(), 3), exhibit(ten(), None)])


@pytest.mark.parametrize("names", [None, tuple("abcdefghij")])
def test_a_target_is_a_whole_number_of_whatever_type(names):
    p = ten(class_names=names)
    assert subject(p, np.int64(3)) == subject(p, 3)
    for wrong in (3.0, True, b"3"):
        with pytest.raises(ValueError, match="target must be a class"):
            calattn.evaluate(p, target=wrong, num_bootstrap=0)


def test_definitions_are_of_what_is_shown():
    methods = dict(build_document([exhibit(ten(), 3)])["methods"])
    assert next(iter(methods)) == "P(3)"
    assert "ECE of P(3)" in methods
    assert not {"accuracy", "ClassECE", "AURC", "confidence"} & methods.keys()


def test_the_command_compares_what_it_shows(capsys, tmp_path):
    from tests.cli.test_pages import document_in

    a, b = (
        write_npz(tmp_path / f"{k}.npz", binary(change, n=2000))
        for k, change in enumerate((lambda z: z + 1, lambda z: z))
    )
    page = tmp_path / "p.html"
    assert invoke(capsys, "evaluate", a, b, "--target", 1, "--html", page, "--bootstrap", 50).code == 0
    document = document_in(page)
    assert [each["target"] for each in document["subjects"]] == ["1", "1"]
    (comparison,) = document["comparisons"]
    want = calattn.compare(*(calattn.read_predictions(path) for path in (a, b)), target=1, num_bootstrap=50)
    assert {row["name"]: row["difference"] for row in comparison["rows"]} == {n: d.difference for n, d in want.items()}
