"""`calattn calibrate` knows samples again, in another form, order or number, and takes no others for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from calattn import Predictions
from calattn.posthoc.overlap import overlap
from tests.cli_runner import invoke, predictions, write_npz

FORMS = {
    "float64": lambda p: p.replace(logits=p.logits.double()),
    "half precision": lambda p: p.replace(logits=p.logits.half()),
    "other order": lambda p: p.select(torch.randperm(len(p), generator=torch.Generator().manual_seed(0))),
    "probabilities": lambda p: Predictions.from_probs(p.logits.softmax(dim=1), p.labels),
    "shifted logits": lambda p: p.replace(logits=p.logits + 3),
    "superset": lambda p: Predictions(
        logits=torch.cat([predictions(7).logits, p.logits]), labels=torch.cat([predictions(7).labels, p.labels])
    ),
}


def made(classes: int, n: int, seed: int, sharpness: float = 2.0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    logits = torch.randn(n, classes, generator=g) + 2 * torch.nn.functional.one_hot(labels, classes)
    return Predictions(logits=sharpness * logits, labels=labels)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sharpness", [1.0, 6.0])
def test_the_same_samples_in_another_form(form, sharpness):
    judge = predictions(sharpness=sharpness)
    found = overlap(FORMS[form](judge), judge)
    assert found.nearly_all
    assert found.judged == 600


@pytest.mark.parametrize(("classes", "n"), [(2, 5000), (3, 400), (10, 30), (10, 8000), (300, 500)])
def test_exactly_stated_samples_are_known_again_and_others_are_not(classes, n):
    judge, other = made(classes, n, 0), made(classes, n, 1)
    assert overlap(judge.replace(logits=judge.logits.double()).select(torch.arange(n).flip(0)), judge).nearly_all
    assert overlap(other, judge).shared == 0


def test_other_samples_are_never_taken_for_the_same():
    for seed in range(60):
        for classes in (2, 3, 5):
            assert overlap(made(classes, 200, 1000 + seed), made(classes, 20 + 7 * seed, seed)).shared == 0


def test_a_part_is_counted():
    judge, other = predictions(), predictions(7)
    keep = torch.arange(600) < 150
    fit = judge.replace(
        logits=torch.where(keep[:, None], judge.logits, other.logits).double(),
        labels=torch.where(keep, judge.labels, other.labels),
    )
    assert 130 <= overlap(fit, judge).shared <= 170


@pytest.mark.parametrize(("trees", "classes"), [(10, 2), (10, 3), (100, 2), (100, 3)])
def test_rows_of_forests_meet_by_chance(trees, classes):
    x, y = make_classification(3000, n_classes=classes, n_informative=6, random_state=0)
    forest = RandomForestClassifier(trees, random_state=0).fit(x[:1000], y[:1000])
    probs, labels = torch.tensor(forest.predict_proba(x)), torch.tensor(y)
    fit, judge = (Predictions.from_probs(probs[rows], labels[rows]) for rows in (slice(1000, 2000), slice(2000, 3000)))
    assert overlap(fit, judge).shared == 0
    assert overlap(judge.select(torch.arange(1000).flip(0)), judge).nearly_all


def test_constant_and_saturated_rows_say_nothing():
    labels = torch.arange(900) % 3
    constant = Predictions(logits=torch.zeros(900, 3), labels=labels)
    assert overlap(constant, constant.replace(logits=constant.logits + 1)).shared == 0
    one, other = made(3, 900, 0, sharpness=100), made(3, 900, 1, sharpness=100)
    assert overlap(one, other).shared == 0


@pytest.fixture
def files(tmp_path):
    judge = predictions(sharpness=2.0)
    part = Predictions(
        logits=torch.cat([judge.logits[:200], 2 * predictions(7).logits]),
        labels=torch.cat([judge.labels[:200], predictions(7).labels]),
    )
    shuffled = tmp_path / "shuffled.npz"
    np.savez(shuffled, probs=judge.probs.flip(0).double().numpy(), labels=judge.labels.flip(0).numpy())
    return write_npz(tmp_path / "test.npz", judge), shuffled, write_npz(tmp_path / "part.npz", part)


def test_calibrate_names_no_leader_where_the_samples_come_in_another_form(capsys, files):
    test, shuffled, _ = files
    common = ("--method", "all", "--metrics", "accuracy", "--bootstrap", 50)
    result = invoke(capsys, "calibrate", test, "--validation", shuffled, *common)
    assert result.code == 0
    assert "no method is called best: each was judged on the samples it was fitted on" in result.out
    assert "judged on the same ones" in result.out
    assert "600 others" not in result.out
    found = invoke(capsys, "calibrate", test, "--validation", shuffled, *common, "--json").json
    assert (found["leader"], found["shared"]) == (None, 600)


def test_calibrate_says_how_many_samples_were_fitted_on_too(capsys, files):
    test, _, part = files
    command = ("calibrate", test, "--validation", part, "--metrics", "accuracy", "--bootstrap", 50)
    shown = invoke(capsys, *command).out
    assert "of the 600 judged samples are not others but were fitted on too" in shown
    assert "judged on 600 samples" in shown
    found = invoke(capsys, *command, "--json").json
    assert 180 <= found["shared"] <= 220
    assert f"about {found['shared']} of the 600" in found["verdict"][-1]
