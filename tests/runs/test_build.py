"""What a spec asks for is what is built; and which images a run gets to see."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from calattn import data
from calattn.runs import build
from calattn.runs import train as training
from calattn.runs.folder import RunFolder
from calattn.runs.interface import interface_of
from calattn.runs.load import load
from calattn.runs.plan import check_run
from calattn.runs.predict import foreign_images, own_images
from calattn.runs.resolving import resolve
from tests.pictures import class_folders
from tests.small_runs import CPU, small_spec


def folder_of_images(path: Path, *, classes: int = 4, count: int = 6, size: tuple[int, int] = (10, 10)) -> Path:
    """Class by class, as folders are; the red of an image is its class, the green its number."""
    names = [f"class {label}é" for label in range(classes)]
    return class_folders(path, names, lambda *place: Image.new("RGB", size, (*place, 0)), train=count, test=count)


def test_every_augmentation_of_the_spec_is_in_the_augment():
    wanted = {
        "crop": 3, "flip": True, "randaugment_ops": 2, "randaugment_magnitude": 7.0, "erasing": 0.3, "mixup": 0.4,
        "cutmix": 0.6,
    }  # fmt: skip
    spec = small_spec(
        *(f"augment.{key}={str(value).lower()}" for key, value in wanted.items()), "data.size=16",
        "data.interpolation=bicubic",
    )  # fmt: skip
    found = build.load_data(spec)
    dataset = data.describe("digits")
    assert dataclasses.asdict(build.build_augment(spec, found)) == {
        **wanted, "channels": 1, "size_in": (8, 8), "size_out": 16, "interpolation": "bicubic", "num_classes": 10,
        "mean": dataset.mean, "std": dataset.std, "shifts": False,
    }  # fmt: skip
    assert build.build_augment(small_spec(), found).flip is dataset.flip is False


def test_a_spec_may_have_a_normalisation_of_its_own(tmp_path):
    """That of the images which the network was pretrained on."""
    own = ("data.mean=[0.5]", "data.std=[0.25]")
    spec, plain = small_spec(*own, "train.epochs=1", "schedule.warmup_epochs=0"), small_spec()
    assert spec.hash != plain.hash
    found = build.load_data(spec)
    augment = build.build_augment(spec, found)
    assert (augment.mean, augment.std) == ((0.5,), (0.25,))
    loaded = load(training.train_run(spec, tmp_path / "run", runtime=CPU).path)
    assert (loaded.augment.mean, loaded.augment.std) == ((0.5,), (0.25,))
    pixels = found.test.array[:3]
    assert torch.allclose(loaded.transform(pixels), (pixels / 255 - 0.5) / 0.25, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"data.mean and data.std have 3 number\(s\), the images of digits have 1 channel"
    ):
        build.build_augment(small_spec("data.mean=[0.5, 0.5, 0.5]", "data.std=[1, 1, 1]"), found)


def test_the_statistics_of_digits_are_those_of_its_training_images():
    dataset, pixels = data.describe("digits"), data.load("digits", "train").array.double() / 255
    assert dataset.mean == pytest.approx((float(pixels.mean()),), abs=2e-3)
    assert dataset.std == pytest.approx((float(pixels.std()),), abs=2e-3)


def test_every_setting_of_the_spec_is_in_the_trainer(tmp_path):
    spec = small_spec(
        "seed=7", "optimizer.accumulate=2", "optimizer.clip_norm=0.7", "optimizer.ema_decay=0.95",
        "train.channels_last=true", "train.epochs=9", "train.batch_size=16",
    )  # fmt: skip
    found = build.load_data(spec)
    model = build.build_model(spec, num_classes=10, channels=1, size=8)
    runtime = dataclasses.replace(CPU, save_seconds=5.0, until_epoch=4)
    session = training._Session(
        spec=spec, runtime=runtime, fabric=runtime.fabric("32-true"), found=found, folder=RunFolder(tmp_path), told=None
    )
    trainer = session.trainer(model)
    assert dataclasses.asdict(trainer.settings) == {
        "epochs": 9, "until_epoch": 4, "seed": 7, "accumulate": 2, "clip_norm": 0.7, "ema_decay": 0.95, "compile": False,
        "channels_last": True, "save_seconds": 5.0,
    }  # fmt: skip
    assert (trainer.train.seed, trainer.train.batch_size) == (7, 8)
    assert check_run(spec, model, found) == trainer.updates_per_epoch == 192 // 16


def test_every_option_of_the_network_is_in_the_network():
    def built(*changes: str):
        return build.build_model(small_spec(*changes), num_classes=10, channels=1, size=8)

    plain = built()
    assert built("model.features=concat").head.mlp.fc1.in_features == 2 * plain.head.mlp.fc1.in_features
    assert built("model.hidden=9").head.mlp.fc1.out_features == 9
    assert plain.head.mlp.fc1.bias is not None
    assert built("model.bias=false").head.mlp.fc1.bias is None
    assert built("model.dropout=0.3").backbone.head_drop.p == 0.3
    dropped = built(
        "model.drop_path=0.4", "model.options={img_size: 8, patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2}"
    )
    assert dropped.backbone.blocks[-1].drop_path1.drop_prob == pytest.approx(0.4)
    seeds = [next(built(f"seed={seed}").parameters()) for seed in (0, 0, 1)]
    assert torch.equal(seeds[0], seeds[1])
    assert not torch.equal(seeds[0], seeds[2])


def test_every_option_of_loss_optimiser_and_schedule_is_in_them():
    spec = small_spec(
        "loss.name=ce_brier", "loss.options={weight: 3.0}", "optimizer.name=momentum", "optimizer.lr=0.2",
        "optimizer.options={momentum: 0.8}", "optimizer.decay_all=true", "optimizer.weight_decay=0.3",
        "schedule.name=cosine", "schedule.warmup_epochs=1", "schedule.warmup_lr=0.01", "schedule.min_lr=0.02",
        "train.epochs=4",
    )  # fmt: skip
    logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([1])
    probs = logits.softmax(1)[0]
    assert float(build.build_loss(spec)(logits, labels)) == pytest.approx(
        float(-probs[1].log() + 3 * (probs[0] ** 2 + (probs[1] - 1) ** 2)), rel=1e-5
    )
    model = build.build_model(spec, num_classes=10, channels=1, size=8)
    optimizer = build.optimizer_for(spec, model)
    assert {(g["weight_decay"], g["momentum"], g["nesterov"]) for g in optimizer.param_groups} == {(0.3, 0.8, False)}
    schedule = build.schedule_for(spec)(optimizer, 10)
    rates = []
    for update in (0, 5, 10, 40):
        schedule.before_update(update)
        rates.append(schedule.rates[0])
    assert rates[:2] == pytest.approx([0.01, 0.01 + 0.5 * 0.19])
    assert rates[3] == pytest.approx(0.02)
    steps = small_spec("schedule.name=multistep", "schedule.options={decay_milestones: [2], decay_rate: 0.5}")
    schedule = build.schedule_for(steps)(optimizer, 10)
    schedule.before_update(20)
    assert schedule.rates[0] == pytest.approx(0.1)


def test_the_split_follows_its_own_seed_and_not_the_runs():
    rows = [build.load_data(small_spec(change)).validation_rows for change in ("seed=0", "seed=1", "data.split_seed=1")]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_validation_and_test_are_predicted_each_on_its_own_images():
    found = build.load_data(small_spec())
    validation, test = own_images(found)
    assert validation.images is found.train
    assert torch.equal(validation.rows, found.validation_rows)
    assert (test.images, test.rows, test.count) == (found.test, None, 240)


def test_a_limit_keeps_the_first_images_where_they_are_mixed():
    found = build.load_data(small_spec("data.limit=100"))
    for split, images in (("train", found.train), ("test", found.test)):
        assert torch.equal(images.array, data.load("digits", split).array[:100])


@pytest.mark.parametrize("limit", [4, 8, 11, 23])
def test_a_limit_takes_of_every_class_where_they_lie_one_after_the_other(tmp_path, limit):
    spec = small_spec(
        f"data.name=imagefolder:{folder_of_images(tmp_path)}",
        "data.size=10",
        f"data.limit={limit}",
        "data.validation=0.3",
    )
    found = build.load_data(spec)
    for images in (found.train, found.test):
        assert len(images) == limit
        counts = torch.bincount(images.labels, minlength=4)
        assert int(counts.max() - counts.min()) <= 1
        assert torch.equal(images.array[:, 0, 0, 0].long(), images.labels)
        assert images.labels.diff().min() >= 0  # still in the folder's order
        for label in range(4):  # and the first of each class
            assert images.array[images.labels == label, 1, 0, 0].tolist() == list(range(int(counts[label])))
    assert len(found.train_rows) + len(found.validation_rows) == limit


def test_only_the_images_within_the_limit_are_decoded(tmp_path):
    """A damaged image beyond it is nobody's concern; ImageNet would otherwise be decoded for a trial of ten."""
    root = folder_of_images(tmp_path)
    (root / "train" / "class 3é" / "5.png").write_bytes(b"no image")
    name = f"data.name=imagefolder:{root}"
    assert len(build.load_data(small_spec(name, "data.size=10", "data.limit=12")).train) == 12
    with pytest.raises(data.DataError, match=r"5\.png cannot be decoded"):
        build.load_data(small_spec(name, "data.size=10", "data.limit=null"))


def test_classes_and_labels_of_a_folder_are_torchvisions(tmp_path):
    root = folder_of_images(tmp_path, classes=11, count=2)  # "class 10é" sorts before "class 2é"
    ours, theirs = data.load(f"imagefolder:{root}", "train"), ImageFolder(str(root / "train"))
    assert list(ours.class_names) == theirs.classes
    assert ours.labels.tolist() == theirs.targets
    assert [ours.source(i) for i in range(len(ours))] == [path for path, _ in theirs.samples]


def test_images_of_one_size_are_kept_in_that_size_and_not_in_the_networks(tmp_path, monkeypatch):
    """Tiny ImageNet for a network of 224 px: 1.2 GB as it is, 15 GB resized. And its crop is one of 64 px."""
    wnids = [f"n{number:08d}" for number in range(200)]
    base = tmp_path / "tiny_imagenet" / "tiny-imagenet-200"
    for wnid in wnids:
        (base / "train" / wnid / "images").mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(base / "train" / wnid / "images" / f"{wnid}_0.JPEG")
    (base / "val" / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(base / "val" / "images" / "val_0.JPEG")
    (base / "wnids.txt").write_text("\n".join(wnids))
    (base / "words.txt").write_text("\n".join(f"{wnid}\tname of {wnid}" for wnid in wnids))
    (base / "val" / "val_annotations.txt").write_text(f"val_0.JPEG\t{wnids[0]}\t0\t0\t1\t1\n")
    monkeypatch.setattr(build, "IN_MEMORY_BYTES", 200 * 3 * 64 * 64)
    found = build.load_data(resolve("sgd-step", ["data.name=tiny_imagenet", "data.size=224"]), root=tmp_path)
    assert isinstance(found.train, data.ArrayImages)
    augment = build.build_augment(resolve("sgd-step", ["data.name=tiny_imagenet", "data.size=224"]), found)
    assert (augment.size_in, augment.size) == ((64, 64), (224, 224))


def test_colour_is_seen_though_every_class_begins_in_grey(tmp_path):
    """Mixed folders are colour: the other way round, colours would be lost without a word."""
    for label in ("a", "b"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for i, mode in enumerate(("L", "L", "L", "RGB")):
            Image.new(mode, (8, 8)).save(tmp_path / "train" / label / f"{i}.png")
    assert data.describe(f"imagefolder:{tmp_path}").channels == 3
    for label in ("a", "b"):
        (tmp_path / "train" / label / "3.png").unlink()
    assert data.describe(f"imagefolder:{tmp_path}").channels == 1


def test_predictions_of_a_deep_folder_have_a_name_that_file_systems_take(tmp_path):
    names = []
    for deep in ("ü" * 60, "ö" * 60):
        root = folder_of_images(tmp_path / deep / deep / "images", classes=2, count=2)
        spec = small_spec(f"data.name=imagefolder:{root}", "data.size=10", "data.validation=0.5")
        interface = interface_of(spec, build.load_data(spec))
        each = foreign_images(spec.data.name, "test", spec=spec, interface=interface, root=None, ood=False)
        names.append(each.name)
    assert len(set(names)) == 2
    for name in names:
        assert name.endswith("-images-test")
        (tmp_path / f"{name}.best-accuracy").mkdir()


def test_a_run_that_goes_on_must_find_the_data_it_began_with(tmp_path):
    spec = small_spec()
    found = build.load_data(spec)
    training._record(RunFolder(tmp_path), spec, found)
    training._record(RunFolder(tmp_path), spec, found)
    changed = dataclasses.replace(found.train, labels=found.train.labels.flip(0))
    with pytest.raises(data.DataError, match="the data set has changed"):
        training._record(RunFolder(tmp_path), spec, dataclasses.replace(found, train=changed))
