"""Runs on a folder of one's own images: used elsewhere than where they were trained, and on other folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from calattn import data
from calattn.runs import build
from calattn.runs.folder import RunFolder, RunFolderError
from calattn.runs.load import load
from calattn.runs.predict import PredictOptions, predict_folder
from calattn.runs.train import train_run
from calattn.types import Predictions
from tests.pictures import class_folders
from tests.small_runs import CPU, small_spec

COLOURS = {"cat": (230, 20, 20), "dog": (20, 230, 20), "owl": (20, 20, 230)}


def pictures(path: Path, splits: tuple[str, ...] = ("train", "test"), **colours: tuple[int, int, int]) -> Path:
    """A folder of plain images for each class, in its colour."""

    def draw(label: int, number: int) -> Image.Image:
        colour = list(colours.values())[label]
        return Image.new("RGB", (9 + number % 3, 10), tuple(abs(level - number) for level in colour))

    return class_folders(path, colours, draw, **{split: 12 if split == "train" else 4 for split in splits})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pets` and the run on them, which names them by a relative path."""
    place = tmp_path_factory.mktemp("own")
    pictures(place / "pets", **COLOURS)
    spec = small_spec(
        "data.name=imagefolder:pets", "data.size=8", "data.limit=null", "data.validation=0.2", "train.batch_size=8",
        "train.epochs=12", "model.head=none", "optimizer.lr=0.02", "augment.crop=0",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        train_run(spec, "run", runtime=CPU)
    stored = RunFolder(place / "run").predictions("test")
    assert torch.equal(stored.calibrated_logits.argmax(1), stored.labels), "it has learned its three colours"
    return place


@pytest.fixture
def place(trained, tmp_path, monkeypatch) -> Path:
    """A copy that a test may change, from whose parent it is used."""
    shutil.copytree(trained, tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own"


def test_a_model_is_loaded_where_its_images_are_not(place):
    stored = RunFolder(place / "run").predictions("test")
    (place / "pets").rename(place / "gone")
    images = data.in_memory(data.load(f"imagefolder:{place / 'gone'}", "test"), size=8)
    loaded = load(place / "run")
    with torch.no_grad():
        logits = loaded.model(loaded.transform(images.array))
    assert torch.allclose(logits, stored.calibrated_logits, atol=1e-5)
    assert loaded.class_names == ("cat", "dog", "owl")


@pytest.mark.parametrize("content", [None, "{}", "[]", '{"class_names": 3}'])
def test_a_damaged_or_missing_interface_is_named(place, content):
    path = place / "run" / "interface.json"
    path.unlink() if content is None else path.write_text(content)
    words = "cannot read .*" if content is None else ""
    with pytest.raises(RunFolderError, match=rf"{words}interface\.json"):
        load(place / "run")


def test_what_the_interface_says(trained):
    assert json.loads((trained / "run" / "interface.json").read_text()) == {
        "class_names": ["cat", "dog", "owl"],
        "channels": 3,
        "size": 8,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "interpolation": "bilinear",
        "stretched": False,
    }


def test_a_relative_path_that_leads_nowhere_is_explained(place):
    with pytest.raises(
        data.DataError,
        match=r"pets is relative to where training ran: run the command there, or .* --data imagefolder:PATH",
    ):
        predict_folder(place / "run", runtime=CPU)


def test_other_images_need_not_the_runs_own(place):
    (place / "pets").rename(place / "moved")
    (written,) = predict_folder(place / "run", PredictOptions(data=f"imagefolder:{place / 'moved'}"), runtime=CPU)
    run = RunFolder(place / "run")
    assert torch.equal(run.predictions(written.name).logits, run.predictions("test").logits)


def predicted(place: Path, other: Path) -> Predictions:
    (written,) = predict_folder(place / "run", PredictOptions(data=f"imagefolder:{other}"), runtime=CPU)
    return RunFolder(place / "run").predictions(written.name)


@pytest.mark.parametrize("names", [("dog", "owl"), ("cat", "owl"), ("owl",)])
def test_some_of_the_classes_are_matched_by_name(place, tmp_path, names):
    found = predicted(place, pictures(tmp_path / "some", ("test",), **{name: COLOURS[name] for name in names}))
    assert torch.equal(found.calibrated_logits.argmax(1), found.labels)
    assert found.labels.unique().tolist() == sorted(list(COLOURS).index(name) for name in names)
    assert found.class_names == ("cat", "dog", "owl")


def test_a_class_that_the_run_does_not_know_is_named(place, tmp_path):
    other = pictures(tmp_path / "other", ("test",), cat=COLOURS["cat"], hound=COLOURS["dog"])
    with pytest.raises(data.DataError, match=r"does not know: hound; it knows cat, dog, owl\. Rename .* --ood"):
        predicted(place, other)
    (written,) = predict_folder(place / "run", PredictOptions(data=f"imagefolder:{other}", ood=True), runtime=CPU)
    assert RunFolder(place / "run").predictions(written.name).labels.tolist() == [-1] * 8  # none


def test_the_runs_own_folder_with_a_class_renamed_is_refused(place, monkeypatch):
    """As many images a place as before, so the labels are the same; their meaning is not."""
    monkeypatch.chdir(place)
    for split in ("train", "test"):
        Path("pets", split, "cat").rename(Path("pets", split, "zebra"))
    with pytest.raises(
        data.DataError, match="now has the classes dog, owl, zebra; the run was trained on cat, dog, owl"
    ):
        predict_folder("run", runtime=CPU)
    Path("run/summary.json").unlink()
    with pytest.raises(data.DataError, match="now has the classes dog, owl, zebra"):
        train_run(RunFolder("run").spec(), "run", runtime=CPU)


def test_a_damaged_image_of_a_stream_stops_the_run_when_its_turn_comes_and_replaced_lets_it_go_on(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(build, "IN_MEMORY_BYTES", 0)
    spec = small_spec(
        "data.name=imagefolder:pets", "data.size=8", "data.limit=null", "train.epochs=2", "train.batch_size=4"
    )
    path = Path("pets/train/owl/3.png")
    good = path.read_bytes()
    path.write_bytes(good[:40])
    with pytest.raises(data.DataError, match=r"owl/3\.png cannot be decoded as an image"):
        train_run(spec, "again", runtime=CPU)
    assert Path("again/spec.yaml").exists()
    path.write_bytes(good)
    assert train_run(spec, "again", runtime=CPU).summary_path.exists()
