"""Your own images by the recipe `finetune`: train, predict, evaluate, in small and without a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import calattn
from calattn import data
from calattn.engine.optim import OptimizerSettings, build_optimizer
from calattn.runs import build
from calattn.runs.folder import RunFolder
from calattn.runs.resolving import resolve, sizes_for
from tests.cli_runner import invoke, refused
from tests.data.conftest import image_folder
from tests.pictures import class_folders
from tests.small_runs import set_flags

OFFLINE = ("model.pretrained=false", "model.backbone=vit_nano_patch8_32", "teach.readings=200", "teach.steps=20")
SMALL = [*set_flags(*OFFLINE), *["--size", "32", "--epochs", "2", "--accelerator", "cpu"]]


def pets(folder, **counts):
    """Cats are dark and dogs are bright, in images of unlike sizes."""
    rng = np.random.default_rng(0)

    def draw(label, number):
        pixels = rng.integers(-50, 50, (30 + number % 9, 36, 3)) + (60, 180)[label]
        return Image.fromarray(pixels.astype(np.uint8))

    return f"imagefolder:{class_folders(folder, ('cat', 'dog'), draw, **counts)}"


def test_train_predict_evaluate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = pets(tmp_path / "pets", train=40, val=10, test=12)
    done = invoke(capsys, "train", "finetune", "--data", name, "--out", "run", *SMALL)
    assert done.code == 0, done.err
    assert "test accuracy" in done.out
    run, spec = RunFolder("run"), RunFolder("run").spec()
    assert (spec.train.batch_size, spec.data.size, spec.model.head) == (sizes_for(80)["train.batch_size"], 32, "taught")
    assert len(run.predictions("validation")) == 20  # the folder val, and nothing of train
    assert run.predictions("test").class_names == ("cat", "dog")
    assert invoke(capsys, "predict", "run", "--data", pets(tmp_path / "new", test=3)).code == 0
    assert invoke(capsys, "predict", "run", "new", "--write", "new.csv").code == 0
    assert "only the likeliest classes of new images" in refused(capsys, "evaluate", "new.csv")
    shown = invoke(capsys, "evaluate", "run", "--json")
    assert shown.code == 0, shown.err


def test_without_test_images_a_run_is_judged_by_its_validation_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = pets(tmp_path / "pets", train=30, val=8)
    line = ("train", "finetune", "--data", name, "--out", "run", *SMALL)
    done = invoke(capsys, *line)
    assert done.code == 0, done.err
    assert "has no test images: the run is judged by its validation images; add a test folder" in done.err
    assert "validation accuracy" in done.out
    assert len(RunFolder("run").predictions("validation")) == 16
    assert not RunFolder("run").predictions_path("test").exists()
    again = invoke(capsys, *line)
    assert again.code == 0, again.err
    assert invoke(capsys, "evaluate", "run", "--split", "validation").code == 0
    missing = invoke(capsys, "evaluate", "run")
    assert missing.code == 2
    assert "validation" in missing.err
    assert "no test images to corrupt" in invoke(capsys, "predict", "run", "--corrupt", "fog-1").err
    assert "it has validation; other" in invoke(capsys, "predict", "run", "--split", "test").err


def test_the_recipe_needs_images(capsys):
    failed = invoke(capsys, "train", "finetune", "--set", "model.pretrained=false")
    assert failed.code == 2
    assert "the path of your images is missing" in failed.err
    told = invoke(capsys, "train", "imagefolder:pets").err
    assert "calattn train finetune --data imagefolder:pets" in told


@pytest.mark.parametrize("images", [1, 9, 20, 79, 300, 5_000, 60_000, 1_300_000])
def test_sizes_fit_the_data(images):
    """A batch is even, for mixup, and there are several of it in an epoch; epochs are between five and fifty."""
    found = sizes_for(images)
    kept = images - round(found["data.validation"] * images)
    assert found["train.batch_size"] % 2 == 0
    assert kept >= 4 * found["train.batch_size"] or images < 20
    assert 5 <= found["train.epochs"] <= 50
    assert 0 < found["schedule.warmup_epochs"] < found["train.epochs"]


def test_layers_near_the_images_learn_more_slowly():
    """timm's own groups: each block's rate is 0.75 of the next one's, and the heads have the full rate."""
    model = calattn.attach(calattn.backbones.create("vit_nano_patch8_32", num_classes=2), head="calattn")
    spec = resolve("finetune", ["data.name=imagefolder:x"]).optimizer
    settings = OptimizerSettings(name=spec.name, lr=spec.lr, weight_decay=spec.weight_decay, options=spec.options)
    scale = {
        id(p): group["lr_scale"] for group in build_optimizer(model, settings).param_groups for p in group["params"]
    }
    of = {name: scale[id(p)] for name, p in model.named_parameters()}
    assert of["backbone.head.weight"] == 1
    assert all(value == 1 for name, value in of.items() if name.startswith("head."))
    assert of["backbone.blocks.0.mlp.fc1.weight"] == pytest.approx(0.75 * of["backbone.blocks.1.mlp.fc1.weight"])
    assert of["backbone.patch_embed.proj.weight"] < of["backbone.blocks.0.mlp.fc1.weight"]
    flat = calattn.attach(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)), head="none")
    with pytest.raises(ValueError, match=r"does not take these options: .*group_matcher"):
        build_optimizer(flat, settings)


def test_images_differ_in_size_only_if_they_do(tmp_path):
    files = [f"{split}/{name}/{k}.png" for split in ("train", "test") for name in ("a", "b") for k in range(3)]
    options = build.LoadOptions(size=None, interpolation="bilinear")
    name = image_folder(tmp_path, *files, size=(16, 16))
    assert build.load_split(name, "train", options).array.shape == (6, 3, 16, 16)
    lazily = build.LoadOptions(size=None, interpolation="bilinear", lazily=True)
    assert build.load_split(name, "train", lazily).size == (16, 16)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (16, 8)).save(tmp_path / "train" / "a" / "0.png", exif=turned)
    for each in (options, lazily):
        with pytest.raises(data.DataError, match="images differ in size; say which"):
            build.load_split(name, "train", each)
    image_folder(tmp_path, *files, size=(8, 16))
    Image.new("RGB", (16, 8)).save(tmp_path / "train" / "a" / "0.png", exif=turned)
    assert build.load_split(name, "train", lazily).size == (16, 8)
    assert build.load_split(name, "test", lazily).size == (16, 8)
    with pytest.raises(data.DataError, match="images are 16 × 8, not square"):
        build.network_size(resolve("cifar10", [f"data.name={name}"]), build.load_split(name, "train", lazily))
