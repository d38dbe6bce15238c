"""The closing phase of a run, the command for networks that are trained already, and the Python call: whole, on real digits."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

import calattn
from calattn import data
from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.engine import closing
from calattn.engine.interrupt import Interrupted
from calattn.heads import Taught
from calattn.heads.lesson import Lesson
from calattn.heads.taught import KINDS
from calattn.runs import build
from calattn.runs.facts import data_of
from calattn.runs.folder import RunFolder
from calattn.runs.load import load
from calattn.runs.predict import PredictOptions, predict_folder
from calattn.runs.resolving import resolve
from calattn.runs.spec import TAUGHT_HEADS, TeachSpec
from calattn.runs.train import train_run
from tests.cli_runner import invoke
from tests.small_runs import CPU, OPTIONS, TAUGHT, final_weights, same, set_flags, small_spec

LESSON = set_flags(*TAUGHT[1:])


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    return train_run(small_spec(*TAUGHT), tmp_path_factory.mktemp("runs") / "taught", runtime=CPU)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The same network without a head."""
    return train_run(small_spec("model.head=none"), tmp_path_factory.mktemp("runs") / "bare", runtime=CPU)


def test_the_head_is_part_of_last_and_of_the_model_that_is_loaded(taught, bare):
    weights = final_weights(taught.path)
    assert weights["head.anchor"].any()
    assert json.loads(taught.log_path.read_text().splitlines()[-1])["event"] == "teach"
    loaded = load(taught.path).model
    assert isinstance(loaded.head, Taught)
    assert loaded.head.is_taught
    images = data.in_memory(data.load("digits", "test"))
    transformed = load(taught.path).transform(images.array[:240])
    stored = taught.predictions("test")
    assert torch.allclose(loaded(transformed), stored.calibrated_logits, atol=1e-5)
    assert stored.scale.std() > 0
    # Training saw a head that does nothing: the network is the one that was trained without any.
    of_network = {name: t for name, t in weights.items() if name.startswith("backbone.")}
    assert same(of_network, {n: t for n, t in final_weights(bare.path).items() if n.startswith("backbone.")})
    assert not final_weights(taught.path, "best-nll")["head.anchor"].any()


def test_teaching_a_trained_run_gives_the_head_of_the_closing_phase(taught, bare, tmp_path, capsys):
    """`calattn train` with the head, and `train` without one followed by `teach`: the same bits."""
    line = ("teach", bare.path, "--out", tmp_path / "new", "--accelerator", "cpu", "--threads", 1, *LESSON)
    result = invoke(capsys, *line)
    assert result.code == 0, result.err
    assert same(final_weights(tmp_path / "new"), final_weights(taught.path))
    new = RunFolder.open(tmp_path / "new")
    assert torch.equal(new.predictions("test").calibrated_logits, taught.predictions("test").calibrated_logits)
    summary = json.loads(new.summary_path.read_text())
    assert (summary["epochs"], summary["last_epoch"]) == (0, None)
    again = invoke(capsys, *line)
    assert again.code == 0
    assert "nothing to do" in again.err


def test_a_kill_in_the_closing_phase_costs_the_phase_only(taught, tmp_path, monkeypatch):
    spec = small_spec(*TAUGHT)

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(closing, "teach_head", killed)  # all is read by then
        with pytest.raises(Killed):
            train_run(spec, tmp_path / "run", runtime=CPU)
    assert not final_weights(tmp_path / "run")["head.anchor"].any()
    assert not (tmp_path / "run" / "summary.json").exists()
    with pytest.warns(UserWarning, match="is not taught at checkpoint last"):
        predict_folder(tmp_path / "run", PredictOptions(corruptions=["fog-5"]), runtime=CPU)
    with pytest.warns(UserWarning, match="are removed: test-fog-5"):  # they were those of the bare network
        train_run(spec, tmp_path / "run", runtime=CPU)
    assert same(final_weights(tmp_path / "run"), final_weights(taught.path))
    assert not (tmp_path / "run" / "predictions" / "test-fog-5").exists()


def test_ctrl_c_in_the_closing_phase_says_how_to_resume(tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(closing, "teach_head", interrupted)
    with pytest.raises(Interrupted, match="stopped by SIGINT after update"):
        train_run(small_spec(*TAUGHT), tmp_path / "run", runtime=CPU)


def test_a_run_in_bfloat16_is_taught_too(tmp_path):
    folder = train_run(small_spec(*TAUGHT, "train.precision=bf16-true"), tmp_path / "run", runtime=CPU)
    assert load(folder.path).model.head.is_taught


def test_weights_that_are_not_finite_are_named(taught, tmp_path, capsys):
    weights = final_weights(taught.path)
    weights["backbone.norm.weight"] = weights["backbone.norm.weight"] * float("nan")
    save_file(
        {k.removeprefix("backbone."): v for k, v in weights.items() if "backbone." in k}, tmp_path / "bad.safetensors"
    )
    line = ("teach", "vit_tiny_patch16_224", "--weights", tmp_path / "bad.safetensors", "--data", "digits")
    result = invoke(
        capsys, *line, *set_flags("data.validation=0.2", OPTIONS), "--out", tmp_path / "run", "--accelerator", "cpu"
    )
    assert result.code == 2
    assert "gives logits that are not finite for two random images; look at its weights" in result.err
    assert "bad.safetensors" in result.err


def test_the_names_of_taught_heads_and_their_settings_are_said_once():
    assert tuple(KINDS) == TAUGHT_HEADS
    assert TeachSpec().model_dump() == {
        key: value for key, value in dataclasses.asdict(Lesson()).items() if key not in ("kind", "hidden")
    }


def test_an_unfinished_run_has_no_head_yet_and_gets_it_at_the_end(taught, tmp_path):
    spec = small_spec(*TAUGHT)
    train_run(spec, tmp_path / "run", runtime=dataclasses.replace(CPU, until_epoch=1))
    assert not final_weights(tmp_path / "run")["head.anchor"].any()
    assert RunFolder(tmp_path / "run").predictions("test").scale.unique().tolist() == [1.0]
    train_run(spec, tmp_path / "run", runtime=CPU)
    assert same(final_weights(tmp_path / "run"), final_weights(taught.path))


def test_it_beats_one_temperature_on_digits_clean_and_corrupted(tmp_path):
    """Not a matter of a lucky seed: the margins are a fraction of what is seen (10 % and 20 %). Logits before the head are those
    of the network without one, as shown above."""
    spec = resolve("digits", ["train.epochs=12", "schedule.warmup_epochs=1", "teach.steps=800"])
    folder = train_run(spec, tmp_path / "taught", runtime=CPU)
    predict_folder(folder.path, PredictOptions(corruptions=["all-5"]), runtime=CPU)
    validation, *judged = (folder.predictions(split) for split in ("validation", "test", "test-all-5"))
    best = min(
        (math.exp(step / 50) for step in range(-50, 100)),
        key=lambda t: float(functional.cross_entropy(validation.logits / t, validation.labels)),
    )
    bare = [float(functional.cross_entropy(found.logits / best, found.labels)) for found in judged]
    taught = [float(functional.cross_entropy(found.calibrated_logits, found.labels)) for found in judged]
    assert taught[0] < bare[0]
    assert taught[1] < 0.95 * bare[1]


def test_corrupted_test_images_are_those_of_corrupt(taught):
    paths = predict_folder(taught.path, PredictOptions(corruptions=["fog-3", "all-1"]), runtime=CPU)
    assert [path.name for path in paths] == ["test-fog-3", "test-all-1"]
    loaded = load(taught.path)
    images = data.in_memory(data.load("digits", "test")).array[:240]
    fog = corrupt(images, "fog", 3, generator=torch.Generator().manual_seed(0))
    ours = taught.predictions("test-fog-3")
    assert torch.allclose(ours.calibrated_logits, loaded.model(loaded.transform(fog)).detach(), atol=1e-5)
    assert len(taught.predictions("test-all-1")) == 240 * len(CORRUPTIONS)


def folder_of_digits(path, *, splits=("train", "val", "test")):
    images = data.in_memory(data.load("digits", "train"))
    for place, split in enumerate(splits):
        for row in range(place * 90, place * 90 + 90):
            where = path / split / str(int(images.labels[row]) % 2)
            where.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.array[row, 0].numpy()).save(where / f"{row}.png")
    return path


def test_a_backbone_with_its_own_weights_and_validation_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_of_digits(tmp_path / "mine")
    network = calattn.backbones.create("resnet8_cifar", 2, in_chans=1)
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    line = ("teach", "resnet8_cifar", "--weights", "net.safetensors", "--data", "imagefolder:mine", "--size", 8)
    result = invoke(capsys, *line, "--out", "run", "--accelerator", "cpu", *LESSON)
    assert result.code == 0, result.err
    run = RunFolder("run")
    assert len(run.predictions("validation")) == len(run.predictions("test")) == 90
    expected = calattn.attach(network.eval(), head="none")
    loaded = load("run")
    assert loaded.model.head.is_taught
    pixels = build.load_split(
        "imagefolder:mine", "validation", build.LoadOptions(size=8, interpolation="bilinear")
    ).array
    bare = expected.output(loaded.transform(pixels))
    ours = loaded.model.output(loaded.transform(pixels))
    assert torch.allclose(ours.logits, bare.logits, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("resnet8_cifar",), "give --weights FILE"),
        (("resnet8_cifar", "--weights", "net.safetensors"), "give --data DATA"),
        (
            ("resnet8_cifar", "--weights", "x.pt", "--data", "imagefolder:two"),
            "put some that the network was not trained on",
        ),
        (("RUN", "--weights", "x.pt"), "--weights is for a backbone's name"),
        (("RUN", "--checkpoint", "best-f1"), "no checkpoint for rule 'best-f1'"),
        (("RUN", "--head", "calattn"), "--head must be taught, taught_classwise or taught_scale, got 'calattn'"),
        (
            ("resnet8_cifar", "--weights", "x.pt", "--data", "digits"),
            "say which share it left out: --set data.validation",
        ),
    ],
)
def test_what_teach_refuses(line, message, taught, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_of_digits(tmp_path / "two", splits=("train", "test"))
    given = [taught.path if part == "RUN" else part for part in line]
    result = invoke(capsys, "teach", *given, "--out", "new")
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "new").exists()


def test_corrupt_goes_with_neither_data_nor_split(taught, capsys):
    for flags in (("--data", "digits"), ("--split", "test")):
        result = invoke(capsys, "predict", taught.path, "--corrupt", "fog-5", *flags)
        assert (result.code, "--corrupt is about the run's own test images" in result.err) == (2, True)
    assert "there is no corruption 'smog-5'" in invoke(capsys, "predict", taught.path, "--corrupt", "smog-5").err


# --- the Python call


def pictures(n: int, *, seed: int):
    """Bright and dark noise as PIL images: a threshold on the mean tells them apart, most of the time."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    level = rng.normal(100 + 50 * labels[:, None, None, None], 40, (n, 8, 8, 3)).clip(0, 255)
    return [(Image.fromarray(image.astype(np.uint8)), int(label)) for image, label in zip(level, labels, strict=True)]


def normalised(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - 0.5


def network() -> torch.nn.Module:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return net


SHORT = Lesson(hidden=8, readings=200, shifted=60, steps=50)


def test_teach_leaves_the_network_alone_and_gives_a_taught_one():
    net = network()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    told: list[tuple[str, int, int]] = []
    model = calattn.teach(
        net, pictures(60, seed=0), pictures(30, seed=1), normalised, lesson=SHORT, on_progress=lambda *a: told.append(a)
    )
    assert same(net.state_dict(), before)
    assert model.head.is_taught
    assert not model.training, "ready to predict, whatever state the network was in"
    x = torch.stack([normalised(image) for image, _ in pictures(5, seed=2)])
    assert torch.allclose(model.output(x).logits, net(x))
    assert {what for what, *_ in told} == {
        "reading distorted images", "reading held-out images", "reading shifted images", "teaching the head",
    }  # fmt: skip
    assert all(done <= total for _, done, total in told)
    assert [done == total for what, done, total in told if what.startswith("reading")][-1]


def test_teach_takes_pil_tensors_and_arrays_alike_and_workers_change_nothing():
    as_pil = pictures(40, seed=0), pictures(20, seed=1)
    as_array = [[(np.array(image), label) for image, label in part] for part in as_pil]
    as_tensor = [[(torch.from_numpy(array).permute(2, 0, 1), label) for array, label in part] for part in as_array]
    heads = [
        calattn.teach(network(), *parts, normalised, lesson=SHORT, workers=workers).head.state_dict()
        for parts, workers in ((as_pil, 0), (as_array, 0), (as_tensor, 0), (as_pil, 2))
    ]
    assert all(same(heads[0], other) for other in heads[1:])


def test_teach_replaces_the_head_that_a_model_has():
    model = calattn.attach(network(), head="calattn")
    taught = calattn.teach(model, pictures(40, seed=0), pictures(20, seed=1), normalised, lesson=SHORT)
    assert isinstance(taught.head, Taught)
    assert taught.backbone is model.backbone


def test_images_of_unlike_sizes_and_grey_ones():
    def sized(n: int, seed: int):
        return [
            (image.resize((8 + n % 3, 9)).convert("L"), label)
            for n, (image, label) in enumerate(pictures(n, seed=seed))
        ]

    def small(image: Image.Image) -> torch.Tensor:
        return normalised(image.convert("RGB").resize((8, 8)))

    model = calattn.teach(network(), sized(30, 0), sized(15, 1), small, lesson=SHORT)
    assert model.head.is_taught


def test_normalised_images_are_refused():
    made = [(normalised(image), label) for image, label in pictures(10, seed=0)]
    with pytest.raises(
        ValueError, match=r"the image of train\[\d+\] is torch.float32 .* pass them without their transform"
    ):
        calattn.teach(network(), made, made, lambda x: x, lesson=SHORT)


@pytest.mark.parametrize(
    ("train", "validation", "message"),
    [
        ([], [0, 1], "train holds no image"),
        ([0, 1], [], "validation holds no image"),
        ([0, 7], [0, 1], r"the label of train\[1\] is 7, outside \[0, 1\], the classes of the network"),
        ([0, 1], [0, "cat"], r"the label of validation\[1\] is 'cat'; it must be the number of a class"),
        ((label for label in (0, 1)), [0, 1], "train is generator, without a length; pass a data set"),
    ],
)
def test_data_that_cannot_teach(train, validation, message):
    def dataset(labels):
        images = pictures(2, seed=0)
        return [(images[i][0], label) for i, label in enumerate(labels)] if isinstance(labels, list) else labels

    with pytest.raises(ValueError, match=message):
        calattn.teach(network(), dataset(train), dataset(validation), normalised, lesson=SHORT)


def test_teach_never_writes_over_the_network_it_teaches(taught, capsys):
    before = sorted(path.name for path in taught.path.rglob("*"))
    (weights,) = taught.path.glob("checkpoints/state-*")
    for network in ((taught.path,), ("resnet8_cifar", "--weights", weights, "--data", "digits")):
        line = ("teach", *network, "--out", f"{taught.path}/", "--overwrite", "--set", "data.validation=0.2")
        result = invoke(capsys, *line)
        assert (result.code, "from which the run starts; choose another --out" in result.err) == (2, True), result.err
        assert sorted(path.name for path in taught.path.rglob("*")) == before


def test_a_taught_model_compiles_and_exports():
    model = calattn.teach(network(), pictures(40, seed=0), pictures(20, seed=1), normalised, lesson=SHORT).eval()
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        assert torch.allclose(program.module()(x), model(x), atol=1e-6)


@pytest.mark.parametrize("extra", [(), ("model.head=taught_scale",), ("model.head=taught_classwise",)])
def test_a_spec_says_how_its_head_is_taught(extra):
    spec = small_spec("model.head=taught", *extra)
    assert spec.teach is not None
    assert resolve(spec.model_dump(mode="json")) == spec
    assert spec.hash != small_spec("model.head=taught", *extra, "teach.tolerance=0.01").hash
    assert small_spec("model.head=none").teach is None


def test_a_dry_run_counts_the_closing_phase(capsys):
    taught = invoke(capsys, "train", "digits", "--dry-run", "--accelerator", "cpu", "--json").json
    assert taught["readings"] == 10 * 934 + 234 + 10 * 234  # each image at most ten times
    bare = invoke(capsys, "train", "digits", "--dry-run", "--accelerator", "cpu", "--json", "--set", "model.head=none")
    assert bare.json["readings"] == 0


def test_predictions_of_corrupted_images_are_named_by_their_data_set(taught, capsys):
    predict_folder(taught.path, PredictOptions(corruptions=["fog-2"]), runtime=CPU)
    assert data_of(taught.path / "predictions" / "test-fog-2") == "digits, fog-2"
    result = invoke(capsys, "evaluate", taught.path, "--split", "test-fog-4")
    assert (result.code, "--corrupt fog-4" in result.err) == (2, True)
