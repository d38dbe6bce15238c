"""Training through runs: what is learned, what is written, and that nothing leaks."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import yaml

import calattn
from calattn import data
from calattn.data.loading import EvalLoader, TrainLoader
from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.log import RunLog
from calattn.runs import build
from calattn.runs import predict as predicting
from calattn.runs import train as training
from calattn.runs.folder import RunFolder
from calattn.runs.interface import interface_of
from calattn.runs.load import load
from calattn.runs.plan import plan_run, run_path
from calattn.runs.predict import PredictOptions, predict_folder
from calattn.runs.resolving import resolve
from calattn.runs.train import train_run
from tests.pictures import class_folders
from tests.small_runs import CPU, final_weights, small_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    spec = small_spec(
        "data.limit=900",
        "train.epochs=4",
        "evaluation.checkpoints=[last, best-nll, best-ece, best-accuracy, best-nll-ts]",
    )
    return train_run(spec, tmp_path_factory.mktemp("runs") / "run", runtime=CPU)


def test_the_run_folder_holds_what_everything_to_the_right_needs(run):
    names = {path.name for path in run.path.iterdir()}
    files = {"spec.yaml", "environment.json", "splits.json", "interface.json", "log.jsonl", "summary.json"}
    assert files | {"checkpoints", "predictions"} <= names
    rules = ("", ".best-nll", ".best-ece", ".best-accuracy", ".best-nll-ts")
    assert {p.name for p in (run.path / "predictions").iterdir()} == {
        f"{s}{r}" for s in ("validation", "test") for r in rules
    }
    spec = yaml.safe_load((run.path / "spec.yaml").read_text())
    assert spec["train"]["precision"] == "32-true"  # what was done, no longer "auto"
    assert (spec["data"]["size"], spec["augment"]["flip"]) == (8, False)  # no longer empty
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__


def test_something_is_learned(run):
    rows = RunLog(run.log_path).rows()
    assert rows[-1]["train"]["loss"] < 0.8 * rows[0]["train"]["loss"]
    assert rows[-1]["validation"]["accuracy"] > 0.5


def test_the_log_has_what_the_dynamics_figure_needs_of_images_that_were_not_trained_on(run):
    row = RunLog(run.log_path).rows()[-1]["validation"]
    predictions = run.predictions("validation")
    scale = predictions.scale.double()
    assert row["scale"]["mean"] == pytest.approx(float(scale.mean()), rel=1e-6)
    assert row["inverse_scale"]["mean"] == pytest.approx(float((1 / scale).mean()), rel=1e-6)
    assert row["scale"]["cv"] == pytest.approx(float(scale.std(correction=0) / scale.mean()), rel=1e-5)
    assert row["scale"]["quantiles"]["0.5"] == pytest.approx(float(scale.quantile(0.5)), rel=1e-6)
    found = build.load_data(run.spec())
    rows = found.validation_rows
    assert torch.equal(predictions.indices, rows)
    assert sorted([*rows.tolist(), *found.train_rows.tolist()]) == list(range(900)), "nothing is in both"
    model = build.build_model(run.spec(), num_classes=10, channels=1, size=8).eval()
    model.load_state_dict(final_weights(run.path))
    with torch.no_grad():  # by hand: the plain, normalised images
        images = (found.train.array[rows].float() / 255 - found.dataset.mean[0]) / found.dataset.std[0]
        out = model.output(images)
    assert torch.allclose(out.logits, predictions.logits, atol=1e-4)
    assert torch.allclose(out.scale, predictions.scale, atol=1e-4)
    lengths = out.features.double().square().sum(1).sqrt()
    assert row["feature_norm"]["mean"] == pytest.approx(float(lengths.mean()), rel=1e-5)
    for name in ("scale", "inverse_scale", "feature_norm"):
        assert sum(row[name]["histogram"]["counts"]) == len(predictions)
    result = calattn.evaluate(predictions, num_bootstrap=0)
    for name in ("accuracy", "nll", "ece"):
        assert row[name] == pytest.approx(result[name].value, rel=1e-6)


def test_best_means_best_on_validation(run):
    rows = RunLog(run.log_path).rows()
    for rule, metric, choose in (
        ("best-nll", "nll", min),
        ("best-ece", "ece", min),
        ("best-accuracy", "accuracy", max),
    ):
        best = choose(row["validation"][metric] for row in rows)
        predictions = run.predictions("validation", rule)
        assert calattn.evaluate(predictions, num_bootstrap=0)[metric].value == pytest.approx(best, rel=1e-6), rule


def test_the_refinement_rule_is_the_epoch_of_the_lowest_nll_after_temperature_scaling(run):
    logged = [row["validation"]["nll_ts"] for row in RunLog(run.log_path).rows()]
    predictions = run.predictions("validation", "best-nll-ts")
    temperatures = torch.logspace(-1, 1, 4001, dtype=torch.float64)  # a grid, as nobody's Newton can be wrong with it
    logits = predictions.logits.double() / predictions.scale.double().unsqueeze(1)
    grid = [float(torch.nn.functional.cross_entropy(logits / t, predictions.labels)) for t in temperatures]
    assert min(logged) == pytest.approx(min(grid), rel=1e-5)
    with pytest.raises(ValueError, match=r"evaluation\.checkpoints names it"):
        CheckpointFolder(run.checkpoints_path, run.spec().hash).weights("best-brier")


@pytest.mark.filterwarnings("ignore::calattn.posthoc.FitWarning")
def test_the_summary_tells_checkpoints_and_splits_apart(run):
    summary = json.loads((run.path / "summary.json").read_text())
    state = CheckpointFolder(run.checkpoints_path, run.spec().hash).latest()
    assert state is not None
    for rule, found in summary["results"].items():
        validation, test = (run.predictions(split, rule) for split in ("validation", "test"))
        assert found["epoch"] == (4 if rule == "last" else state.best[rule].epoch)
        assert found["validation"]["nll"] == pytest.approx(calattn.evaluate(validation, num_bootstrap=0)["nll"].value)
        raw = calattn.evaluate(test, num_bootstrap=0)
        for metric in ("nll", "ece"):
            assert found["test"][metric]["value"] == pytest.approx(raw[metric].value)
        assert found["scale"]["mean"] == pytest.approx(float(test.scale.mean()))
        scaling = calattn.posthoc.TemperatureScaling().fit(validation)
        assert found["test_ts"]["temperature"] == pytest.approx(scaling.temperature_)
        scaled = calattn.evaluate(scaling(test), num_bootstrap=0)
        for metric in ("nll", "ece"):
            assert found["test_ts"][metric]["value"] == pytest.approx(scaled[metric].value)
    last = RunLog(run.log_path).rows()[-1]
    assert summary["last_epoch"]["train"] == last["train"]
    assert summary["last_epoch"]["validation"]["nll"] == last["validation"]["nll"]
    assert summary["spec_hash"] == run.spec().hash
    assert summary["parameters"]["head"] == 128 * 16 + 128 + 128 + 1


def test_the_head_does_not_change_the_backbone_it_starts_from():
    with_head = build.build_model(small_spec(), num_classes=10, channels=1, size=8)
    without = build.build_model(small_spec("model.head=none"), num_classes=10, channels=1, size=8)
    for a, b in zip(with_head.backbone.parameters(), without.backbone.parameters(), strict=True):
        assert torch.equal(a, b)


def test_predict_writes_the_same_predictions_again(run):
    before = run.predictions("test")
    features = predict_folder(run.path, PredictOptions(splits=["test"], features=True, batch_size=37), runtime=CPU)
    after = run.predictions("test")
    assert features == [run.predictions_path("test")]
    assert after.features is not None
    assert torch.allclose(before.logits, after.logits, atol=1e-5)  # another batch size, another order of sums
    predict_folder(run.path, PredictOptions(splits=["test"]), runtime=CPU)
    assert run.predictions("test").features is not None, "predicting again lost what was kept on request"


def test_a_run_is_loaded_as_a_model(run):
    loaded = load(run.path)
    test = data.in_memory(data.load("digits", "test"))
    stored = run.predictions("test")
    with torch.no_grad():
        logits = loaded.model(loaded.transform(test.array[: len(stored)]))
    assert torch.allclose(logits, stored.calibrated_logits, atol=1e-5)
    assert torch.equal(stored.labels, test.labels[: len(stored)]), "the same images"
    assert loaded.class_names == stored.class_names
    assert not loaded.model.training
    with pytest.raises(ValueError, match=r"uint8 \[n, 1, h, w\], got torch.float32"):
        loaded.transform(torch.zeros(1, 1, 8, 8))
    with pytest.raises(ValueError, match="no checkpoint for rule 'best'"):
        load(run.path, "best")


def test_predict_on_foreign_images(run, tmp_path):
    from PIL import Image

    grey = class_folders(tmp_path / "L", "37", lambda _, number: Image.new("L", (20 + number, 16)), test=3)
    (grey,) = predict_folder(run.path, PredictOptions(data=f"imagefolder:{grey}"), runtime=CPU)
    assert calattn.load_predictions(grey).labels.tolist() == [3, 3, 3, 7, 7, 7]
    written = predict_folder(
        run.path, PredictOptions(rules=["best-nll"], data="digits", splits=["train"], ood=True), runtime=CPU
    )
    assert [path.name for path in written] == ["digits-train.best-nll"]
    assert int(calattn.load_predictions(written[0]).labels.max()) == -1  # none of them has a class of the run


def test_grey_images_for_a_network_that_sees_colour(tmp_path, monkeypatch):
    """The usual out-of-distribution data: the same predictions as of colour images with three equal channels."""
    from PIL import Image

    drawn = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    for mode in ("RGB", "L"):
        for i, image in enumerate(drawn):
            place = tmp_path / mode / ("train", "test")[i % 2] / "ab"[i // 2 % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).convert(mode).save(place / f"{i}.png")
    spec = small_spec(
        f"data.name=imagefolder:{tmp_path / 'RGB'}",
        "data.size=8",
        "data.validation=0.5",
        "train.batch_size=4",
    )
    run = train_run(spec, tmp_path / "run", runtime=CPU)
    for in_memory in (True, False):
        if not in_memory:
            monkeypatch.setattr(build, "IN_MEMORY_BYTES", 0)
        written = [
            predict_folder(run.path, PredictOptions(data=f"imagefolder:{tmp_path / mode}"), runtime=CPU)[0]
            for mode in ("RGB", "L")
        ]
        colour, grey = (calattn.load_predictions(path).logits for path in written)
        assert torch.equal(grey, colour)


@pytest.mark.parametrize("head", ["none", "calattn", "relaxed_softmax", "dirichlet"])
def test_every_loss_trains_every_head_on_mixed_images(tmp_path, monkeypatch, head):
    """A whole run with one loss, and a step with each."""
    monkeypatch.setattr(training, "write_summary", lambda *_: None)  # its bootstrap takes longer than the training
    changes = ("augment.mixup=0.8", "augment.cutmix=1", "train.epochs=1", "schedule.warmup_epochs=0", "data.limit=80")
    spec = small_spec(f"model.head={head}", *changes)
    folder = train_run(spec, tmp_path / "run", runtime=CPU)
    assert 0 < RunLog(folder.log_path).rows()[0]["train"]["loss"] < 100
    found, model = build.load_data(spec), load(folder.path).model.train()
    augment = build.build_augment(spec, found)
    batch = next(iter(TrainLoader(found.train, found.train_rows, augment, seed=0, batch_size=16).epoch(0)))
    for name in calattn.losses.LOSSES:
        loss = build.build_loss(small_spec(f"loss.name={name}", "loss.options={}"))
        model.zero_grad()
        value = loss(model(batch.images), batch.targets)
        value.backward()
        assert 0 < float(value.detach()) < 100, name
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.isfinite(g).all() for g in gradients), name
        assert any(g.any() for g in gradients), name


def test_images_too_many_for_memory_go_through_workers(tmp_path):
    from PIL import Image

    generator = torch.Generator().manual_seed(0)

    def draw(label, _):
        return Image.fromarray((torch.randint(100, (12, 10, 3), generator=generator) + 150 * label).byte().numpy())

    images = class_folders(tmp_path / "images", ("dark", "light"), draw, train=24, test=4)
    changes = [
        f"data.name=imagefolder:{images}", "data.size=8", "augment.crop=resized", "train.batch_size=16",
        "train.epochs=6", "data.limit=null", "model.head=none", "optimizer.lr=0.02",
    ]  # fmt: skip
    runtime = type(CPU)(accelerator="cpu", threads=1, workers=1)
    folder = train_run(small_spec(*changes), tmp_path / "run", runtime=runtime)
    assert RunLog(folder.log_path).rows()[-1]["validation"]["accuracy"] > 0.9
    assert len(folder.predictions("test")) == 8
    assert folder.predictions("test").class_names == ("dark", "light")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_network_sees_the_same_pixels_from_memory_and_through_workers(tmp_path, monkeypatch, interpolation):
    from PIL import Image

    generator = torch.Generator().manual_seed(0)

    def draw(_, number):
        return Image.fromarray(torch.randint(256, (11 + number, 17, 3), generator=generator).byte().numpy())

    name = f"imagefolder:{class_folders(tmp_path / 'images', 'ab', draw, train=4, test=4)}"
    spec = small_spec(f"data.name={name}", "data.size=8", f"data.interpolation={interpolation}")
    interface = interface_of(spec, build.load_data(spec))
    seen = []
    for limit in (build.IN_MEMORY_BYTES, 0):
        monkeypatch.setattr(build, "IN_MEMORY_BYTES", limit)
        found, foreign = (
            build.load_data(spec),
            predicting.foreign_images(name, "test", spec=spec, interface=interface, root=None, ood=False),
        )
        augment = build.build_augment(spec, found)
        for images in (found.train, found.test, foreign.images):
            assert isinstance(images, data.ArrayImages) is (limit > 0)
            seen.append(next(iter(EvalLoader(images, None, augment, batch_size=8))).images)
    assert all(torch.equal(kept, streamed) for kept, streamed in zip(seen[:3], seen[3:], strict=True))


def test_the_moving_average_is_what_is_evaluated_and_kept(tmp_path):
    changes = ("optimizer.ema_decay=0.95", "model.dropout=0.5", "evaluation.features=true")
    folder = train_run(small_spec(*changes), tmp_path / "run", runtime=CPU)
    state = CheckpointFolder(folder.checkpoints_path, folder.spec().hash).latest()
    assert state is not None
    averaged, raw = state.tree["weights"], state.tree["model"]
    assert any(not torch.equal(averaged[name], raw[name]) for name in raw)
    model = build.build_model(folder.spec(), num_classes=10, channels=1, size=8).eval()
    model.load_state_dict(averaged)
    stored = folder.predictions("test")
    assert stored.features is not None
    test = build.load_data(folder.spec())
    augment = build.build_augment(folder.spec(), test)
    with torch.no_grad():
        assert torch.allclose(model.output(augment.test(test.test.array)).logits, stored.logits, atol=1e-4)
    validated = calattn.evaluate(folder.predictions("validation"), num_bootstrap=0)
    assert RunLog(folder.log_path).rows()[-1]["validation"]["nll"] == pytest.approx(validated["nll"].value, rel=1e-6)


def test_the_plan_counts_what_training_would_do():
    plan = plan_run(resolve("digits"), CPU)
    assert plan.updates_per_epoch == 934 // 32
    assert (plan.train_images, plan.validation_images, plan.test_images) == (934, 234, 629)
    assert plan.seconds > 0
    assert plan.run == run_path(plan.spec)
    assert not plan.run.exists()


def test_an_option_that_the_network_does_not_take():
    spec = resolve("cifar10", ["model.backbone=resnet8_cifar", "model.drop_path=0.1"])
    with pytest.raises(ValueError, match="does not take these options"):
        build.build_model(spec, num_classes=10, channels=3, size=32)


def test_a_changed_data_set_is_noticed(run, monkeypatch):
    real = build.load_data

    def changed(spec, **options):
        found = real(spec, **options)
        return build.dataclasses.replace(found, train=found.train.select(torch.arange(899)))

    monkeypatch.setattr(predicting.build, "load_data", changed)
    with pytest.raises(data.DataError, match="data set has changed"):
        predict_folder(run.path, runtime=CPU)


def test_a_class_without_test_images_is_named(tmp_path, monkeypatch):
    load = build.load_data

    def without_nine(*arguments, **options):
        found = load(*arguments, **options)
        return dataclasses.replace(found, test=found.test.select((found.test.labels != 9).nonzero().squeeze(1)))

    monkeypatch.setattr(build, "load_data", without_nine)
    with pytest.warns(UserWarning, match=r"hold none of 1 of the 10 classes \(9\)"):
        train_run(small_spec("train.epochs=1", "schedule.warmup_epochs=0"), tmp_path / "run", runtime=CPU)
