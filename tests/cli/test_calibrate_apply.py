"""`calattn calibrate --apply`: what a saved calibrator says about new predictions, with labels or without."""

from __future__ import annotations

import numpy as np
import pyarrow.csv
import pytest
import torch

import calattn
from calattn.posthoc import TemperatureScaling
from tests.cli.test_calibrate_blocks import by_hand, fitted
from tests.cli_runner import invoke, predictions, ran, refused, write_npz

NEW = predictions(sharpness=2.0)


@pytest.fixture
def saved(tmp_path):
    fitted().save(tmp_path / "vector.safetensors")
    return tmp_path / "vector.safetensors"


@pytest.fixture
def unlabelled(tmp_path):
    np.savez(tmp_path / "new.npz", logits=NEW.logits.numpy(), index=np.arange(600)[::-1])
    return tmp_path / "new.npz"


def test_without_labels(capsys, saved, unlabelled, tmp_path):
    target = tmp_path / "probs.npz"
    result = ran(capsys, "calibrate", unlabelled, "--apply", saved, "--write", target)
    assert "applied VectorScaling to 600 samples of new.npz" in result.out
    with np.load(target) as found:
        assert set(found) == {"probs", "class_names", "index"}  # no labels that nobody gave
        np.testing.assert_allclose(found["probs"], by_hand(), atol=1e-6)
        np.testing.assert_array_equal(found["index"], np.arange(600)[::-1])


def test_a_table_without_labels(capsys, saved, tmp_path):
    probs = NEW.probs.numpy()
    lines = [",".join(f"prob_{k}" for k in range(10)), *(",".join(f"{p:.9g}" for p in row) for row in probs)]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    target = tmp_path / "probs.csv"
    result = ran(capsys, "calibrate", tmp_path / "new.csv", "--apply", saved, "--write", target, "--json")
    table = pyarrow.csv.read_csv(target)
    assert table.column_names == [f"p_{k}" for k in range(10)]
    log_probs = np.stack([np.log(NEW.probs.double().numpy()[:, k]) for k in range(10)], axis=1)
    want = fitted().predict_proba(log_probs).numpy()
    np.testing.assert_allclose(np.stack([table[f"p_{k}"] for k in range(10)], axis=1), want, atol=1e-6)
    assert (result.json["labelled"], result.json["samples"], result.json["classes"]) == (False, 600, 10)
    assert (result.json["calibrator"], result.json["written"]) == ("VectorScaling", [str(target)])


def test_with_labels_it_is_predictions_to_evaluate(capsys, tmp_path):
    """From --out of one command to --apply of the next."""
    validation, test = (write_npz(tmp_path / f"{k}.npz", predictions(k, sharpness=2.0)) for k in (7, 0))
    ran(capsys, "calibrate", validation, "--method", "temperature", "--out", tmp_path / "fit")
    result = ran(capsys, "calibrate", test, "--apply", tmp_path / "fit", "--out", tmp_path / "new")
    temperature = TemperatureScaling().fit(predictions(7, sharpness=2.0)).temperature_
    assert f"applied TemperatureScaling, T = {temperature:.2f} (lowest NLL), to 600 samples of 0.npz" in result.out
    found = calattn.load_predictions(tmp_path / "new" / "predictions")
    torch.testing.assert_close(found.probs, (NEW.logits / temperature).softmax(dim=1))
    assert torch.equal(found.labels, NEW.labels)
    ran(capsys, "evaluate", tmp_path / "new", "--bootstrap", 0)
    again = ("calibrate", test, "--apply", tmp_path / "fit", "--out", tmp_path / "new")
    assert invoke(capsys, *again).code == 2
    ran(capsys, *again, "--overwrite")


def test_a_calibrator_that_reads_features(capsys, tmp_path):
    features = torch.randn(600, 5, generator=torch.Generator().manual_seed(1))
    frozen = fitted("frozen_calattn", features=features)
    frozen.save(tmp_path / "frozen.safetensors")
    np.savez(tmp_path / "with.npz", logits=NEW.logits.numpy(), features=features.numpy())
    np.savez(tmp_path / "without.npz", logits=NEW.logits.numpy())
    base = ("--apply", tmp_path / "frozen.safetensors", "--write", tmp_path / "probs.npz")
    assert "as an array named features" in refused(capsys, "calibrate", tmp_path / "without.npz", *base)
    ran(capsys, "calibrate", tmp_path / "with.npz", *base)
    want = frozen.predict_proba(NEW.logits, features=features)
    np.testing.assert_allclose(np.load(tmp_path / "probs.npz")["probs"], want.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--apply needs to know where the probabilities go: --write calibrated.npz"),
        (("--out", "OUT"), "has no labels, and the predictions that --out keeps have; --write FILE"),
        (("--out", "OUT.npz"), "ends as a file does; for probabilities in a file, --write"),
        (("--write", "OUT.npz", "--method", "vector"), "--method is about fitting, and --apply takes a calibrator"),
        (("--write", "OUT.npz", "--folds", "3"), "--folds is about fitting"),
        (("--write", "OUT.npz", "--validation", "v.npz"), "--validation is about fitting"),
        (("--write", "OUT.npz", "--labels", "truth"), "labels names 'truth'"),
    ],
)
def test_flags_that_do_not_go_together(capsys, saved, unlabelled, tmp_path, flags, message):
    given = [tmp_path / flag if flag.startswith("OUT") else flag for flag in flags]
    result = refused(capsys, "calibrate", unlabelled, "--apply", saved, *given)
    assert message in result.replace("--labels names", "labels names")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["new.npz", "vector.safetensors"]


def test_calibrators_that_are_none(capsys, saved, unlabelled, tmp_path):
    write = ("--write", tmp_path / "probs.npz")
    assert "no calibrator file at" in refused(
        capsys, "calibrate", unlabelled, "--apply", tmp_path / "none.safetensors", *write
    )
    (tmp_path / "all" / "vector").mkdir(parents=True)
    saved.rename(tmp_path / "all" / "vector" / "calibrator.safetensors")
    assert f"it holds several, name one: {tmp_path / 'all' / 'vector'}" in refused(
        capsys, "calibrate", unlabelled, "--apply", tmp_path / "all", *write
    )
    ran(capsys, "calibrate", unlabelled, "--apply", tmp_path / "all" / "vector", *write)


def test_of_several_calibrators_the_leader_is_named(capsys, unlabelled, tmp_path):
    file = write_npz(tmp_path / "a.npz", predictions(sharpness=4.0))
    methods = ("--method", "histogram,temperature", "--bootstrap", 0)
    ran(capsys, "calibrate", file, *methods, "--out", tmp_path / "all")
    result = invoke(capsys, "calibrate", unlabelled, "--apply", tmp_path / "all", "--write", tmp_path / "probs.npz")
    assert f"it holds several, name one: {tmp_path / 'all' / 'temperature'}" in result.err


@pytest.mark.filterwarnings("default::calattn.posthoc.SameDataWarning")
@pytest.mark.parametrize(("floor", "noticed"), [(1e-6, True), (1e-3, False)])
def test_what_it_was_fitted_on_is_noticed_under_the_same_floor_only(capsys, tmp_path, floor, noticed):
    """A known limit, as docs/calibrate.md has it: the floor changes the predictions, and with them what they are known by."""
    path = tmp_path / "probs.npz"
    probs = predictions(sharpness=3.0).probs.numpy()
    assert (probs < floor).any()
    np.savez(path, probs=probs, labels=NEW.labels.numpy())
    invoke(capsys, "calibrate", path, "--method", "temperature", "--floor", 1e-6, "--out", tmp_path / "c")
    applied = ran(
        *(capsys, "calibrate", path, "--apply", tmp_path / "c", "--floor", floor, "--write", tmp_path / "o.npz")
    )
    assert ("applied to the predictions it was fitted on" in applied.err) == noticed
