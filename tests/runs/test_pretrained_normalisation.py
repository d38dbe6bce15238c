"""`model.pretrained`: images are normalised as the weights want it, and the run says so wherever it says what it takes.

The hub is out of reach of tests: `hub` stands for it, behind timm's own functions, so that timm names the variant, adapts the
first layer and the classifier, and states the mean and deviation.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models._hub import save_for_hf

from calattn import data
from calattn.models.attach import attach
from calattn.runs import build
from calattn.runs.folder import RunFolder, RunFolderError
from calattn.runs.interface import read_interface
from calattn.runs.load import load
from calattn.runs.plan import plan_run, run_path
from calattn.runs.predict import predict_folder
from calattn.runs.runtime import Runtime, settled
from calattn.runs.train import train_run
from tests.cli_runner import invoke
from tests.pictures import class_folders
from tests.small_runs import CPU, SMALL, set_flags, small_spec

TINY = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
PRETRAINED = "model.pretrained=true"
# Of timm's ViT-Ti, on which the backbone of the recipe is built; those of the digits are others.
HALF = ((0.5,), (0.5,))
ONE_EPOCH = Runtime(accelerator="cpu", threads=1, until_epoch=1)


@pytest.fixture
def hub(monkeypatch):
    """Gives the weights of a tiny ViT, whichever is asked for; what was asked for is in the list."""
    asked = []

    def fetch(location, *_, **__):
        asked.append(location)
        return pretrained_network().state_dict()

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", fetch)
    return asked


def pretrained_network():
    torch.manual_seed(3)
    return timm.create_model("vit_tiny_patch16_224", **TINY)


def normalisation(spec):
    return spec.data.mean, spec.data.std


def of_network(*changes, dataset="digits"):
    """What a spec gets for its network on that data set."""
    spec, described = small_spec(*changes), data.describe(dataset)
    model = build.build_model(spec, num_classes=10, channels=described.channels, size=8)
    return normalisation(build.with_pretrained_normalisation(spec, model, described))


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@pytest.mark.parametrize(
    ("backbone", "stated"),
    [
        ("vit_tiny_patch16_224", ((0.5,) * 3, (0.5,) * 3)),
        ("deit_tiny_patch16_224", IMAGENET),
        ("deit_tiny", IMAGENET),  # a family: for 8 px, patches of one pixel unless the options say otherwise
        ("vit_base_patch16_224.augreg_in21k", ((0.5,) * 3, (0.5,) * 3)),
        ("vit_base_patch16_224.mae", IMAGENET),
        ("vit_base_patch16_clip_224.openai", CLIP),
    ],
)
def test_of_the_very_variant(hub, backbone, stated):
    found = of_network(
        f"model.backbone={backbone}", f"model.options={TINY | {'pre_norm': False}}", PRETRAINED, dataset="cifar10"
    )
    assert found == stated
    assert len(hub) == 1
    assert backbone in str(hub[0]) or "." not in backbone


@pytest.mark.usefixtures("hub")
def test_grey_images_take_the_averages():
    found = of_network("model.backbone=deit_tiny_patch16_224", PRETRAINED)
    assert found == ((pytest.approx(0.449),), (pytest.approx(0.226),))


@pytest.mark.usefixtures("hub")
def test_a_grey_image_is_to_the_network_what_three_equal_channels_were():
    """timm adds the first layer's weights up: with one mean and deviation for all channels nothing changes."""
    spec, digits = small_spec(PRETRAINED), data.describe("digits")
    model = build.build_model(spec, num_classes=10, channels=1, size=8)
    spec = build.with_pretrained_normalisation(spec, model, digits)
    source = pretrained_network()
    stated = source.pretrained_cfg
    pixels = torch.rand(2, 1, 8, 8)
    mean, std = build.normalisation(spec, digits)
    wanted = (pixels.expand(-1, 3, -1, -1) - stated["mean"][0]) / stated["std"][0]
    found = model.backbone.patch_embed((pixels - mean[0]) / std[0])
    torch.testing.assert_close(found, source.patch_embed(wanted))


@pytest.mark.usefixtures("hub")
def test_other_runs_keep_theirs():
    """Also their hashes: a spec without pretrained weights says nothing of a mean."""
    assert of_network() == (None, None)
    assert "mean" not in small_spec().model_dump()["data"]
    own = ("data.mean=[0.25]", "data.std=[0.125]")
    assert of_network(PRETRAINED, *own) == ((0.25,), (0.125,))
    spec = small_spec(PRETRAINED)
    unstated = attach(build.backbones.create("resnet8_cifar", 10))
    assert build.with_pretrained_normalisation(spec, unstated, data.describe("digits")) is spec


def test_weights_of_your_own_say_nothing(tmp_path):
    spec = small_spec()
    model = build.build_model(spec, num_classes=10, channels=1, size=8)
    torch.save(model.backbone.state_dict(), tmp_path / "mine.pt")
    assert of_network(f"model.weights={tmp_path}/mine.pt") == (None, None)


def test_the_run_says_so_once_and_everywhere(hub, capsys, tmp_path):
    command = ("train", "digits", *set_flags(*SMALL, PRETRAINED), "--accelerator", "cpu", "--out", tmp_path / "run")
    first = invoke(capsys, *command, "--until-epoch", "1")
    assert first.code == 0
    line = "images are normalised as for the pretrained weights: mean 0.5, deviation 0.5 (data.mean and data.std set others)"
    assert first.err.splitlines().count(line) == 1
    assert line not in first.out
    folder = RunFolder(tmp_path / "run")
    assert normalisation(folder.spec()) == HALF
    noted = read_interface(folder)
    assert (noted.mean, noted.std) == HALF
    again = invoke(capsys, *command)
    assert again.code == 0
    assert "normalised" not in again.err
    assert "resuming from update" in again.err
    asked = len(hub)
    finished = invoke(capsys, *command)
    assert "finished, nothing to do" in finished.err
    assert len(hub) == asked, "what is finished fetches nothing"
    assert invoke(capsys, *command, "--dry-run", "--json").json["spec"]["data"]["mean"] == [0.5]

    loaded, pixels = load(folder.path), data.load("digits", "test").array[:240]
    images = loaded.transform(pixels)
    assert torch.allclose(images, (pixels / 255 - 0.5) / 0.5, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(loaded.model.output(images).logits, folder.predictions("test").logits, atol=1e-4)
    before = folder.predictions("test").logits
    predict_folder(folder.path, runtime=CPU)
    assert torch.equal(folder.predictions("test").logits, before)


@pytest.mark.usefixtures("hub")
def test_another_spec_is_still_refused(tmp_path):
    train_run(small_spec(PRETRAINED), tmp_path / "run", runtime=ONE_EPOCH)
    with pytest.raises(RunFolderError, match=r"another spec: seed: 0 → 1; choose"):
        train_run(small_spec(PRETRAINED, "seed=1"), tmp_path / "run", runtime=CPU)
    train_run(small_spec(), tmp_path / "plain", runtime=ONE_EPOCH)
    with pytest.raises(RunFolderError, match=r"another spec: model.pretrained: False → True"):
        train_run(small_spec(PRETRAINED), tmp_path / "plain", runtime=CPU)


@pytest.mark.usefixtures("hub")
def test_the_folder_is_that_of_the_spec_as_it_was_given():
    spec = settled(small_spec(PRETRAINED), CPU)
    plan = plan_run(spec, CPU)
    assert normalisation(plan.spec) == HALF
    assert plan.run == run_path(spec)


def test_colour_images_and_a_model_saved_in_the_hubs_form(tmp_path, monkeypatch):
    """timm's local-dir: has the files of a model on the hub, with a mean and deviation that no timm model has."""
    stated = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    saved = timm.create_model("vit_tiny_patch16_224", pretrained_cfg_overlay=stated, num_classes=3, **TINY)
    save_for_hf(saved, tmp_path / "hub", model_args=TINY, safe_serialization=True)
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["pretrained_cfg"]["mean"] == [0.1, 0.2, 0.3]
    draw = np.random.default_rng(0)
    noise = lambda *_: Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))  # noqa: E731
    class_folders(tmp_path / "pets", ("cat", "dog"), noise, train=20, test=20)
    monkeypatch.chdir(tmp_path)
    spec = small_spec(
        "data.name=imagefolder:pets", "data.size=8", f"model.backbone=local-dir:{tmp_path}/hub", "model.options={}", PRETRAINED,
        "train.epochs=1", "schedule.warmup_epochs=0", "train.batch_size=8", "data.validation=0.2", "data.limit=40",
    )  # fmt: skip
    folder = train_run(spec, tmp_path / "run", runtime=CPU)
    assert normalisation(folder.spec()) == (stated["mean"], stated["std"])
    loaded = load(folder.path)
    pixels = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    mean, std = (torch.tensor(stated[key])[:, None, None] for key in ("mean", "std"))
    assert torch.allclose(loaded.transform(pixels), (pixels / 255 - mean) / std, atol=1e-6)
