"""From a trained run to new pictures, and to a folder that others load: the same probabilities, and no pickles."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
import yaml
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from safetensors.torch import load_file

import calattn
from calattn import data
from calattn.posthoc import PredictionSets, TemperatureScaling
from calattn.runs.classifier import Classifier
from calattn.runs.folder import write_json
from calattn.runs.interface import read_interface
from calattn.runs.load import load
from calattn.runs.train import train_run
from tests.cli_runner import invoke
from tests.small_runs import CPU, TAUGHT, small_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_run(small_spec(*TAUGHT), tmp_path_factory.mktemp("runs") / "run", runtime=CPU)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", "test").array[:240]


@pytest.fixture
def pictures(tmp_path, digits):
    """Three digits, one of them in a folder below, a damaged file and one that is no image."""
    place = tmp_path / "pictures"
    (place / "more").mkdir(parents=True)
    for name, row in (("a.png", 0), ("b.png", 1), ("more/c.png", 2)):
        Image.fromarray(digits[row, 0].numpy()).save(place / name)
    (place / "broken.png").write_bytes(b"no image")
    (place / "notes.txt").write_text("not mine")
    return place


def test_new_files_get_the_probabilities_of_the_runs_own_images(run, pictures):
    model, stored = calattn.load(run.path), run.predictions("test")
    found = model.predict(pictures)
    assert [Path(name).name for name in found.names] == ["a.png", "b.png", "c.png"]
    torch.testing.assert_close(found.probs, stored.probs[:3])
    torch.testing.assert_close(found.temperature, stored.scale[:3])
    assert len(set(found.temperature.tolist())) == 3
    ((name, why),) = found.skipped
    assert name.endswith("broken.png")
    assert "cannot be decoded" in why
    assert found.classes == tuple(stored.class_names[k] for k in stored.probs[:3].argmax(1))


def test_pictures_in_memory_are_taken_alike(run, digits):
    model, stored = calattn.load(run.path), run.predictions("test").probs
    as_arrays, as_images = [each[0].numpy() for each in digits[:3]], [Image.fromarray(d[0].numpy()) for d in digits[:3]]
    for given in (digits[:3], as_arrays, np.stack(as_arrays), as_images, [i.convert("RGB") for i in as_images]):
        found = model.predict(given, batch_size=2)
        assert found.names == ("0", "1", "2")
        torch.testing.assert_close(found.probs, stored[:3])
    for single in (digits[0], as_images[0]):
        torch.testing.assert_close(model.predict(single).probs, stored[:1])
    with pytest.raises(ValueError, match="the image is float32"):
        model.predict([as_arrays[0] / np.float32(255)])


@pytest.mark.parametrize("stretched", [False, True])
def test_a_picture_that_is_not_square(run, tmp_path, stretched):
    """Its centre, or all of it where the run's own images were resized as a whole."""
    folder = shutil.copytree(run.path, tmp_path / "run")
    takes = read_interface(run)
    write_json({**dataclasses.asdict(takes), "stretched": stretched}, folder / "interface.json")
    wide = np.zeros((8, 24), np.uint8)
    wide[:, 8:16] = 200
    pixels = calattn.load(folder).pixels(wide)
    assert pixels.shape == (1, 8, 8)
    assert (int(pixels.min()), int(pixels.max())) == ((0, 200) if stretched else (200, 200))


def test_rows_of_an_export_for_people(run, pictures, tmp_path):
    found = calattn.load(run.path).predict(pictures)
    rows = found.rows(top=2)
    for suffix in (".csv", ".parquet", ".json"):
        found.write(tmp_path / f"p{suffix}", top=2)
    assert json.loads((tmp_path / "p.json").read_text()) == rows
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pylist()
    text = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert list(table[0]) == ["file", "temperature", "top1", "top1_probability", "top2", "top2_probability"]
    for row, there, written in zip(rows, table, text, strict=True):
        first, second = row["top"]
        assert (there["top1"], there["top2_probability"]) == (first["class"], second["probability"])
        assert (written["file"], written["top2"]) == (row["file"], second["class"])
        assert first["probability"] >= second["probability"]
    with pytest.raises(ValueError, match=r"must end in \.csv, \.parquet, \.json"):
        found.write(tmp_path / "p.xlsx")


def test_prediction_sets_are_listed_class_by_class(run, pictures, tmp_path, capsys):
    """Those that `calibrate --sets` left beside its calibrator; they are shipped too."""
    line = (
        "calibrate",
        run.path,
        "--method",
        "vector",
        "--sets",
        "0.8",
        "--bootstrap",
        "0",
        "--out",
        tmp_path / "better",
    )
    assert invoke(capsys, *line).code == 0
    model = calattn.load(run.path, calibrator=tmp_path / "better")
    model.save_pretrained(tmp_path / "saved")
    found = model.predict(pictures)
    unlabelled = calattn.Predictions.from_probs(found.probs, torch.zeros(3, dtype=torch.int64))
    inside = PredictionSets.load(tmp_path / "better" / "sets.safetensors")(unlabelled)
    expected = [[found.class_names[k] for k in row.nonzero().squeeze(1)] for row in inside]
    assert inside.any()
    assert not inside.all()
    assert [row["set"] for row in found.rows()] == expected
    assert [row["set"] for row in calattn.load(tmp_path / "saved").predict(pictures).rows()] == expected
    for suffix in (".csv", ".parquet"):
        found.write(tmp_path / f"p{suffix}")
    assert pyarrow.parquet.read_table(tmp_path / "p.parquet")["set"].to_pylist() == expected
    assert [json.loads(row["set"]) for row in csv.DictReader((tmp_path / "p.csv").open())] == expected


@pytest.mark.usefixtures("pictures")
def test_the_command_names_what_it_skips_and_says_so_by_its_exit_code(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(capsys, "predict", run.path, "pictures", "--top", "1", "--accelerator", "cpu")
    assert result.code == 1
    assert [line.split()[0] for line in result.out.splitlines()] == [
        "pictures/a.png", "pictures/b.png", "pictures/more/c.png",
    ]  # fmt: skip
    assert "pictures/broken.png cannot be decoded" in result.err
    assert "1 of 4 files could not be read" in result.err
    result = invoke(capsys, "predict", run.path, "pictures/?.png", "--write", "p.csv", "--json", "--accelerator", "cpu")
    assert (result.code, result.json["skipped"], len(result.json["images"])) == (0, [], 2)
    # What has no labels is refused by what needs them.
    refused = invoke(capsys, "evaluate", "p.csv")
    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("none*.png",), "matches no file"),
        (("a.png", "--data", "digits"), "--data is about data sets"),
        (("a.png", "--features"), "--features is about data sets"),
        (("--write", "p.csv"), "are for new images; name some"),
        (("a.png", "--write", "p.xlsx"), "must end in .csv"),
    ],
)
def test_what_the_command_refuses(run, pictures, capsys, monkeypatch, flags, words):
    monkeypatch.chdir(pictures)
    result = invoke(capsys, "predict", run.path, *flags)
    assert (result.code, words in result.err) == (2, True), result.err


# --- the folder that is shipped


@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
def test_a_saved_classifier_says_the_same_with_its_calibrator(run, pictures, tmp_path):
    behind = TemperatureScaling().fit(run.predictions("validation"))
    model = calattn.load(run.path, calibrator=behind)
    expected = behind.apply_to_block(run.predictions("test")).probs[:3]
    torch.testing.assert_close(model.predict(pictures).probs, expected)
    model.save_pretrained(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == {"config.json", "model.safetensors", "calibrator.safetensors", "README.md", "reliability.png"}
    for again in (calattn.from_pretrained(tmp_path / "saved"), calattn.load(tmp_path / "saved")):
        assert torch.equal(again.predict(pictures).probs, model.predict(pictures).probs)
    assert load_file(tmp_path / "saved" / "model.safetensors").keys() == model.model.state_dict().keys()
    again.save_pretrained(tmp_path / "twice")  # without the run
    assert {path.name for path in (tmp_path / "twice").iterdir()} == names
    assert (tmp_path / "twice" / "README.md").read_text() == (tmp_path / "saved" / "README.md").read_text()
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["calibrator"], config["model"]["head"], len(config["anchor"])) == ("TemperatureScaling", "taught", 5)
    assert config["takes"]["class_names"] == [str(k) for k in range(10)]


def test_the_card_holds_what_was_measured(run, tmp_path):
    load(run.path).save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    expected = calattn.evaluate(run.predictions("test"))
    found = {result.metric_type: result for result in card.data.eval_results}
    assert {"accuracy", "nll", "brier", "ece"} <= found.keys()
    for name, result in found.items():
        row = expected[name]
        assert result.metric_value == row.value
        assert result.metric_args == {"interval_95": [row.low, row.high]}
        assert (result.dataset_name, result.dataset_split) == ("digits", "test")
    assert f"| accuracy | {expected['accuracy'].value:.4f} |" in card.text
    assert "a head that was taught after training" in card.text
    assert "| checkpoint | last |" in card.text
    assert Image.open(tmp_path / "reliability.png").size[0] > 300
    assert yaml.safe_load(card.content.split("---")[1])["model-index"][0]["results"]


def test_pushing_sends_the_folder(run, monkeypatch):
    sent = {}

    def upload(self, *, folder_path, repo_id, **_):  # noqa: ARG001
        sent[repo_id] = sorted(path.name for path in Path(folder_path).iterdir())

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: type("Url", (), {"repo_id": repo_id}))  # noqa: ARG005
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    load(run.path).push_to_hub("me/digits")
    assert sent == {"me/digits": ["README.md", "config.json", "model.safetensors", "reliability.png"]}


def test_a_name_on_the_hub_is_fetched_without_pickles(run, tmp_path, monkeypatch):
    load(run.path).save_pretrained(tmp_path / "saved")
    asked = {}

    def fetch(name, *, allow_patterns, **_):
        asked[name] = allow_patterns
        return str(tmp_path / "saved")

    monkeypatch.setattr("calattn.runs.classifier.snapshot_download", fetch)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", lambda **_: tmp_path / "saved" / "config.json")
    monkeypatch.chdir(tmp_path)
    assert isinstance(calattn.load("somebody/digits"), Classifier)
    assert all(not name.endswith((".bin", ".pt", ".pkl")) for name in asked["somebody/digits"])
    with pytest.raises(ValueError, match="no run folder at saved/typo"):
        calattn.load("saved/typo")  # the folder is there: it is no name on the hub


class Payload:
    def __init__(self, made):
        self.made = str(made)

    def __reduce__(self):
        return os.mkdir, (self.made,)


@pytest.mark.parametrize(
    "change",
    [
        {"pretrained": True},
        {"weights": "bad.pt"},
        {"backbone": "local-dir:bad"},
        {"backbone": "hf-hub:somebody/bad"},
        {"options": {"pretrained_cfg_overlay": {"file": "bad.pt"}}},
        {"options": {"checkpoint_path": "bad.pt"}},
        {"code": "bad.py"},
    ],
)
def test_a_config_never_names_weights_or_code(run, tmp_path, monkeypatch, change):
    monkeypatch.chdir(tmp_path)
    torch.save(Payload(tmp_path / "ran"), tmp_path / "bad.pt")
    load(run.path).save_pretrained("saved")
    config = json.loads(Path("saved/config.json").read_text())
    config["model"] |= change
    Path("saved/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json is no classifier that this calattn reads \(model"):
        calattn.load("saved")
    assert not (tmp_path / "ran").exists()


def test_damage_is_named(run, tmp_path):
    load(run.path).save_pretrained(tmp_path / "saved")
    weights = tmp_path / "saved" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors does not hold the network"):
        calattn.load(tmp_path / "saved")
    weights.write_bytes(whole)
    (tmp_path / "saved" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no classifier"):
        calattn.load(tmp_path / "saved")
    with pytest.raises(ValueError, match="no run folder"):
        calattn.load(tmp_path / "nothing")
