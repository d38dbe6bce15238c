"""`calattn calibrate` fits on one part, judges on another, and writes both the result and what made it."""

from __future__ import annotations

import json

import pytest
import torch

import calattn
from calattn.cli.calibrate import atomic_folder
from calattn.posthoc import CALIBRATORS, TemperatureScaling, VectorScaling
from calattn.posthoc import load as load_calibrator
from tests.cli_runner import invoke, predictions, write_npz, write_run


@pytest.fixture
def files(tmp_path):
    test, validation = predictions(sharpness=2.0), predictions(7, sharpness=2.0)
    return write_npz(tmp_path / "test.npz", test), write_npz(tmp_path / "validation.npz", validation)


def test_with_a_validation_file(capsys, files, tmp_path):
    test, validation = files
    result = invoke(
        capsys, "calibrate", test, "--validation", validation, "--method", "vector", "--out", tmp_path / "out", "--json"
    )
    assert result.code == 0
    fitted = VectorScaling().fit(predictions(7, sharpness=2.0))
    want = fitted(predictions(sharpness=2.0))
    found = calattn.load_predictions(tmp_path / "out" / "predictions")
    assert torch.equal(found.calibrated_logits, want.calibrated_logits)
    again = load_calibrator(tmp_path / "out" / "calibrator.safetensors")
    assert torch.equal(again(predictions(sharpness=2.0)).logits, want.logits)
    (method,) = result.json["methods"]
    assert method["after"]["ece"]["value"] == calattn.metrics.ece(want.probs, want.labels)
    assert result.json["before"]["ece"]["value"] == pytest.approx(
        calattn.metrics.ece(predictions(sharpness=2.0).probs, predictions().labels)
    )
    assert json.loads((tmp_path / "out" / "calibration.json").read_text()) == result.json


def test_a_run_folder_is_fitted_on_its_validation(capsys, tmp_path):
    run = write_run(tmp_path / "run", sharpness=3.0, rules=("last", "best-nll"))
    result = invoke(capsys, "calibrate", run, "--checkpoint", "best-nll", "--json", "--bootstrap", 0)
    want = TemperatureScaling().fit(calattn.load_predictions(run / "predictions" / "validation.best-nll"))
    assert result.json["methods"][0]["learned"]["temperature_"] == want.temperature_
    assert result.json["validation"].endswith("predictions/validation.best-nll")


def test_one_file_is_halved(capsys, files):
    arguments = ("calibrate", files[0], "--method", "temperature_nll", "--json", "--bootstrap", 0)
    result = invoke(capsys, *arguments, "--fraction", 0.25, "--seed", 3)
    assert (result.json["fitted_on"], result.json["samples"]) == (150, 450)
    first, _ = predictions(sharpness=2.0).shuffle_split(0.25, torch.Generator().manual_seed(3))
    want = TemperatureScaling(objective="nll").fit(first).temperature_
    assert result.json["methods"][0]["learned"]["temperature_"] == pytest.approx(want)
    other = invoke(capsys, *arguments, "--fraction", 0.25, "--seed", 4)
    assert other.json["methods"][0]["learned"] != result.json["methods"][0]["learned"]


def test_leaderboard_has_every_method_or_the_reason(capsys, files, tmp_path):
    test, validation = files
    out = tmp_path / "all"
    result = invoke(
        capsys,
        "calibrate",
        test,
        "--validation",
        validation,
        "--method",
        "all",
        "--json",
        "--bootstrap",
        20,
        "--out",
        out,
    )
    assert result.code == 0
    done = [method["method"] for method in result.json["methods"]]
    skipped = {each["method"]: each["reason"] for each in result.json["skipped"]}
    assert sorted([*done, *skipped]) == sorted(CALIBRATORS)
    assert list(skipped) == ["frozen_calattn"]
    assert "features" in skipped["frozen_calattn"]
    nll = [float(method["after"]["nll"]["value"]) for method in result.json["methods"]]
    assert nll == sorted(nll)
    assert sorted(place.name for place in out.iterdir()) == sorted([*done, "calibration.json"])
    shown = invoke(capsys, "calibrate", test, "--validation", validation, "--method", "all", "--bootstrap", 0).out
    assert "(as it is)" in shown
    assert "skipped frozen_calattn" in shown


def test_with_features_nothing_is_skipped(capsys, tmp_path):
    features = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    for name, seed in (("test", 0), ("validation", 7)):
        calattn.save_predictions(predictions(seed, features=features), tmp_path / name)
    base = (
        "calibrate",
        tmp_path / "test",
        "--validation",
        tmp_path / "validation",
        "--method",
        "frozen_calattn",
        "--bootstrap",
        0,
    )
    assert invoke(capsys, *base, "--json").json["skipped"] == []
    without = invoke(capsys, *base, "--no-features")
    assert without.code == 2
    assert "features" in without.err


def test_fits_repeat(capsys, files):
    arguments = ("calibrate", files[0], "--method", "sats", "--json", "--bootstrap", 0)
    first, second = (invoke(capsys, *arguments).json["methods"][0] for _ in range(2))
    assert first["after"] == second["after"]


def test_overwriting_has_to_be_said_and_spares_strangers(capsys, files, tmp_path):
    arguments = ("calibrate", files[0], "--bootstrap", 0, "--out", tmp_path / "out")
    assert invoke(capsys, *arguments).code == 0
    before = (tmp_path / "out" / "calibration.json").read_text()
    refused = invoke(capsys, *arguments, "--seed", 5)
    assert refused.code == 2
    assert "pass --overwrite" in refused.err
    assert (tmp_path / "out" / "calibration.json").read_text() == before
    assert invoke(capsys, *arguments, "--seed", 5, "--overwrite").code == 0
    assert json.loads((tmp_path / "out" / "calibration.json").read_text())["seed"] == 5
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    result = invoke(capsys, *arguments[:-1], tmp_path / "mine", "--overwrite")
    assert result.code == 2
    assert "holds other things" in result.err
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert [place.name for place in tmp_path.iterdir() if place.name.startswith(".part")] == []


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()

    def fail():
        with atomic_folder(target) as partial:
            (partial / "new").touch()
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [place.name for place in target.iterdir()] == ["old"]
    with atomic_folder(target) as partial:
        (partial / "new").touch()
    assert [place.name for place in target.iterdir()] == ["new"]
    assert [place.name for place in tmp_path.iterdir()] == ["out"]
