"""The training loop against plain torch, update by update; and what a restart, a rule or a setting could get wrong."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import calattn
from calattn.data import DataError
from calattn.data.loading import TrainLoader
from calattn.engine.fit import Trainer
from calattn.engine.held import BestWeights
from calattn.engine.interrupt import Interrupted
from calattn.engine.log import distribution
from calattn.engine.predict import predict
from calattn.engine.step import FiniteGuard, NonFiniteLoss
from calattn.runs import build
from calattn.runs import train as training
from calattn.runs.folder import RunFolder
from calattn.runs.runtime import Runtime
from calattn.runs.spec import RunSpec
from tests.small_runs import CPU, learned, same, small_spec

AUGMENTED = (
    "augment.mixup=0.8",
    "augment.cutmix=1",
    "augment.erasing=0.5",
    "augment.randaugment_ops=1",
    "augment.crop=2",
)
SAVING = Runtime(accelerator="cpu", threads=1, save_seconds=0.0)
PLATEAU = (
    "schedule.name=plateau", "schedule.warmup_epochs=0", "schedule.options={patience_epochs: 0, decay_rate: 0.5}",
    "optimizer.lr=0.05", "optimizer.accumulate=2", "model.dropout=0.1", "train.epochs=6",
)  # fmt: skip


class Watcher:
    """A reporter that keeps what it is told, and may end the run as a kill would: at an update, or once an epoch is logged."""

    def __init__(self, *, dies_at: int | None = None, dies_after: int | None = None) -> None:
        self.count, self.dies_at, self.dies_after = 0, dies_at, dies_after
        self.rows: list[dict] = []
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.trainer: Trainer | None = None
        self.paces: list[tuple[int, float, float]] = []

    def pace(self, loss: float, images_per_second: float) -> None:
        self.paces.append((self.count, loss, images_per_second))

    def updates(self, count: int) -> None:
        self.count += count
        if self.count == self.dies_at:
            raise Killed

    def epoch(self, row: dict) -> None:
        assert self.trainer is not None
        self.rows.append(row)
        self.weights[row["epoch"]] = self.trainer.state.snapshot()
        if row["epoch"] == self.dies_after:
            raise Killed


class Killed(BaseException):
    """Nothing of ours may notice it."""


def made(path: Path, spec: RunSpec, watcher: Watcher | None = None, *, runtime: Runtime = CPU) -> Trainer:
    """The trainer of a run, without what comes after training."""
    found = build.load_data(spec)
    size = build.network_size(spec, found.train)
    model = build.build_model(spec, num_classes=found.train.num_classes, channels=found.dataset.channels, size=size)
    folder, fabric = RunFolder(path), runtime.fabric("32-true")
    session = training._Session(spec=spec, runtime=runtime, fabric=fabric, found=found, folder=folder, told=watcher)
    trainer = session.trainer(model)
    if watcher is not None:
        watcher.trainer = trainer
    trainer.resume()
    return trainer


def by_hand(trainer: Trainer, spec: RunSpec) -> tuple[nn.Module, dict[str, Tensor], list[float], list[float]]:
    """Plain torch on the same batches: SGD with momentum, a clipped norm, a cosine, a moving average.

    Gives the model, the average, and each epoch's mean loss and accuracy.
    """
    model, loss = copy.deepcopy(trainer.state.model).train(), build.build_loss(spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.optimizer.lr, momentum=0.9, weight_decay=0.01)
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    k, update, losses, accuracies = spec.optimizer.accumulate, 0, [], []
    for epoch in range(spec.train.epochs):
        batches = list(trainer.train.epoch(epoch))
        count, total, right = len(batches) // k, 0.0, 0
        for start in range(0, count * k, k):
            share = update / (spec.train.epochs * count)
            optimizer.param_groups[0]["lr"] = spec.optimizer.lr * 0.5 * (1 + math.cos(math.pi * share))
            optimizer.zero_grad()
            images = torch.cat([batch.images for batch in batches[start : start + k]])
            targets = torch.cat([batch.targets for batch in batches[start : start + k]])
            logits = model(images)
            value = loss(logits, targets)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), spec.optimizer.clip_norm or math.inf)
            optimizer.step()
            total, right = total + float(value.detach()), right + int((logits.argmax(1) == targets).sum())
            update += 1
            decay = 0.0 if update == 1 else min(0.9, 1 - update ** (-2 / 3))
            for name, tensor in model.state_dict().items():
                average[name].lerp_(tensor, 1 - decay)
        losses.append(total / count)
        accuracies.append(right / (count * spec.train.batch_size))
    return model, average, losses, accuracies


@pytest.mark.parametrize("accumulate", [1, 4])
def test_training_is_what_plain_torch_does(tmp_path, accumulate):
    """Also: micro-batches that are added up are one large batch. 192 images leave no whole batch of 40 at the end."""
    spec = small_spec(
        "optimizer.name=momentum", "optimizer.lr=0.5", "optimizer.options={momentum: 0.9}", "optimizer.decay_all=true",
        "optimizer.weight_decay=0.01", "optimizer.clip_norm=0.3", "optimizer.ema_decay=0.9", "loss.name=ce_brier",
        f"optimizer.accumulate={accumulate}", "train.batch_size=40", "train.epochs=3", "schedule.warmup_epochs=0",
    )  # fmt: skip
    trainer = made(tmp_path, spec)
    start = {name: tensor.clone() for name, tensor in trainer.state.model.state_dict().items()}
    model, average, losses, accuracies = by_hand(trainer, spec)
    trainer.fit()
    assert trainer.state.update == 3 * 4
    for name, tensor in model.state_dict().items():
        moved = float((tensor - start[name]).norm())
        ours, ours_averaged = trainer.state.model.state_dict()[name], trainer.state.weights()[name]
        assert float((ours - tensor).norm()) <= 1e-4 * moved + 1e-6, name
        assert float((ours_averaged - average[name]).norm()) <= 1e-4 * moved + 1e-6, name
    rows = trainer.log.rows()
    assert [row["train"]["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    assert [row["train"]["accuracy"] for row in rows] == pytest.approx(accuracies, abs=1e-9)
    assert [row["update"] for row in rows] == [4, 8, 12]


def test_networks_train_in_training_mode_with_numbers_of_their_own_and_are_validated_in_the_other(tmp_path):
    modes: list[tuple[bool, int]] = []
    trainer = made(tmp_path, small_spec("model.dropout=0.5", "train.epochs=2"))
    hook = trainer.state.model.register_forward_pre_hook(lambda m, _: modes.append((m.training, torch.initial_seed())))
    trainer.fit()
    hook.remove()
    seeds = [seed for training_mode, seed in modes if training_mode]
    assert len(seeds) == len(set(seeds)) == trainer.state.update == 12
    other = made(tmp_path / "other", small_spec("model.dropout=0.5", "train.epochs=2", "seed=1"))
    again: list[int] = []
    other.state.model.register_forward_pre_hook(lambda *_: again.append(torch.initial_seed()))
    other.fit()
    assert not set(seeds) & set(again)
    # What is validated is the network without dropout.
    model = copy.deepcopy(trainer.state.model).eval()
    found = calattn.evaluate(predict(model.output, trainer.validation, fabric=trainer.fabric), num_bootstrap=0)
    assert trainer.log.rows()[-1]["validation"]["nll"] == pytest.approx(found["nll"].value, rel=1e-6)


def test_training_leaves_the_random_numbers_of_the_caller_alone(tmp_path):
    trainer = made(tmp_path, small_spec("model.dropout=0.5"))
    before = torch.get_rng_state()
    trainer.fit()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = made(tmp_path_factory.mktemp("runs") / "whole", small_spec(*PLATEAU))
    trainer.fit()
    rates = [row["lr"] for row in trainer.log.rows()]
    assert len(set(rates)) >= 3, "the rate must fall more than once for the next test to mean anything"
    return trainer


@pytest.mark.parametrize("dies_at", [3, 10, 23])
def test_a_plateau_schedule_with_micro_batches_goes_on_from_the_middle_of_an_epoch(tmp_path, whole, dies_at):
    """Bit by bit: rates, weights, the best epochs, and the log's mean loss of the epoch that was cut in two."""
    spec = small_spec(*PLATEAU)
    with pytest.raises(Killed):
        made(tmp_path / "run", spec, Watcher(dies_at=dies_at), runtime=SAVING).fit()
    resumed = made(tmp_path / "run", spec, runtime=SAVING)
    assert resumed.state.update == dies_at - 1
    resumed.fit()
    assert learned(resumed.log) == learned(whole.log)
    assert same(resumed.state.model.state_dict(), whole.state.model.state_dict())


@pytest.mark.parametrize("saved", [True, False])
def test_an_epoch_that_was_logged_and_not_saved_is_in_the_log_once(tmp_path, whole, saved):
    """With a save after every update the last is before the epoch's last update; without, there is none."""
    spec = small_spec(*PLATEAU)
    with pytest.raises(Killed):
        made(tmp_path, spec, Watcher(dies_after=3), runtime=SAVING if saved else CPU).fit()
    resumed = made(tmp_path, spec)
    assert resumed.state.update == (3 * whole.updates_per_epoch - 1 if saved else 0)
    assert [row["epoch"] for row in resumed.log.rows()] == ([1, 2] if saved else [])
    resumed.fit()
    assert learned(resumed.log) == learned(whole.log)


def test_until_epoch_ends_the_epoch_under_way_and_goes_no_further_than_the_last(tmp_path, whole):
    spec = small_spec(*PLATEAU)
    with pytest.raises(Killed):
        made(tmp_path, spec, Watcher(dies_at=16), runtime=SAVING).fit()
    early = made(tmp_path, spec, runtime=dataclasses.replace(CPU, until_epoch=1))
    assert (early.state.epoch, early.state.update_in_epoch) == (2, 3)
    early.fit()
    assert learned(early.log) == learned(whole.log)[:3], "predictions are never of the middle of an epoch"
    late = made(tmp_path, spec, runtime=dataclasses.replace(CPU, until_epoch=99))
    late.fit()
    assert learned(late.log) == learned(whole.log)
    assert late.checkpoints.latest().step == whole.state.update, "the end is saved, however soon after the last time"


def test_a_signal_during_the_last_save_is_not_dropped(tmp_path, whole, monkeypatch):
    trainer = made(tmp_path, small_spec(*PLATEAU))
    save = trainer.checkpoints.save_state
    monkeypatch.setattr(
        trainer.checkpoints, "save_state", lambda *a, **k: (signal.raise_signal(signal.SIGTERM), save(*a, **k))[1]
    )
    with pytest.raises(Interrupted, match="SIGTERM"):
        trainer.fit()
    assert trainer.checkpoints.latest().step == whole.state.update


def test_checkpoints_are_so_many_seconds_apart(tmp_path, monkeypatch):
    """By a clock on which each update takes 10 seconds: every third is saved, also where an epoch ends."""

    class Clock(Watcher):
        def updates(self, count: int) -> None:
            super().updates(count)
            monkeypatch.setattr("calattn.engine.fit.time.monotonic", lambda: 10.0 * self.count)

    monkeypatch.setattr("calattn.engine.fit.time.monotonic", lambda: 0.0)
    runtime = dataclasses.replace(CPU, save_seconds=25.0)
    trainer = made(tmp_path, small_spec("train.epochs=2"), Clock(), runtime=runtime)
    saved, save = [], trainer.checkpoints.save_state
    monkeypatch.setattr(
        trainer.checkpoints, "save_state", lambda *a, step, **k: saved.append(step) or save(*a, step=step, **k)
    )
    trainer.fit()
    assert saved == [3, 6, 9, 12]


@pytest.mark.parametrize("lost", ["all", "a row"])
def test_a_log_that_lacks_epochs_is_refused(tmp_path, lost):
    """The rates of a plateau and the summary follow from it."""
    made(tmp_path, small_spec("train.epochs=2")).fit()
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"" if lost == "all" else log.read_bytes().splitlines(keepends=True)[1])
    with pytest.raises(
        ValueError, match=r"log\.jsonl lacks some of the 2 epochs that state-00000012.*put the log back"
    ):
        made(tmp_path, small_spec("train.epochs=2"))


def test_the_speed_is_that_of_the_updates_that_were_made(tmp_path, monkeypatch):
    """By a clock on which each update takes a second; the first epoch is cut in two."""

    class Clock(Watcher):
        def updates(self, count: int) -> None:
            monkeypatch.setattr("calattn.engine.fit.time.perf_counter", lambda: float(self.count))
            super().updates(count)

    spec = small_spec("train.epochs=2")
    monkeypatch.setattr("calattn.engine.fit.time.perf_counter", lambda: 0.0)
    with pytest.raises(Killed):
        made(tmp_path, spec, Clock(dies_at=4), runtime=SAVING).fit()
    monkeypatch.setattr("calattn.engine.fit.time.perf_counter", lambda: 0.0)
    resumed = made(tmp_path, spec, Clock())
    assert resumed.state.update == 3
    resumed.fit()
    assert [row["images_per_second"] for row in resumed.log.rows()] == [spec.train.batch_size] * 2


def test_the_pace_is_the_mean_loss_and_the_speed_of_the_epoch_so_far(tmp_path, monkeypatch):
    """By a clock on which each update takes a second."""

    class Clock(Watcher):
        def updates(self, count: int) -> None:
            super().updates(count)
            monkeypatch.setattr("calattn.engine.fit.time.perf_counter", lambda: float(self.count))

    monkeypatch.setattr("calattn.engine.fit.time.perf_counter", lambda: 0.0)
    spec, watcher = small_spec("train.epochs=2"), Clock()
    made(tmp_path, spec, watcher).fit()
    last_of = {epoch: [p for p in watcher.paces if (p[0] - 1) // 6 == epoch][-1] for epoch in (0, 1)}
    for epoch, (count, loss, speed) in last_of.items():
        assert count == 6 * (epoch + 1)
        assert loss == pytest.approx(watcher.rows[epoch]["train"]["loss"], rel=1e-6)
        assert speed == pytest.approx(spec.train.batch_size)


def test_weights_are_laid_out_as_asked(tmp_path):
    for number, asked in enumerate((True, False)):
        spec = small_spec("model.backbone=resnet8_cifar", "model.options={}", f"train.channels_last={asked}")
        model = made(tmp_path / str(number), spec).state.model
        kernels = [p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
        assert kernels
        assert all(p.is_contiguous(memory_format=torch.channels_last) is asked for p in kernels)


def test_several_processes_draw_unlike_numbers_and_share_one_sum(tmp_path, monkeypatch):
    """Two trainers play two processes: what one saves in the middle of an epoch holds both, and is taken up once."""
    ranks = [made(tmp_path / str(rank), small_spec("model.dropout=0.5")) for rank in range(2)]
    seeds = []
    for rank, trainer in enumerate(ranks):
        monkeypatch.setattr(type(trainer.fabric), "global_rank", property(lambda _, rank=rank: rank))
        trainer.update([next(trainer.train.epoch(rank))])
        seeds.append(torch.initial_seed())
    assert seeds[0] != seeds[1]
    parts = torch.stack([trainer._sums.clone() for trainer in ranks])
    assert not torch.equal(parts[0], parts[1])
    monkeypatch.undo()
    fabric = type(ranks[0].fabric)
    monkeypatch.setattr(fabric, "world_size", property(lambda _: 2))
    monkeypatch.setattr(fabric, "all_reduce", lambda _, value, **__: parts.sum(0) if value.shape == (2,) else value)
    ranks[0]._save()
    monkeypatch.setattr(fabric, "all_reduce", lambda *_, **__: pytest.fail("nothing is shared in a resume"))
    taken = []
    for zero in (True, False):
        monkeypatch.setattr(fabric, "is_global_zero", property(lambda _, zero=zero: zero))
        ranks[0]._sums.zero_()
        ranks[0].resume()
        taken.append(ranks[0]._sums.clone())
    assert torch.allclose(torch.stack(taken).sum(0), parts.sum(0))


@pytest.mark.parametrize("average", ["null", "0.8"])
def test_the_best_weights_are_those_of_the_epoch_that_is_named(tmp_path, average):
    spec = small_spec("train.epochs=6", "optimizer.lr=0.05", "schedule.name=constant", f"optimizer.ema_decay={average}")
    watcher = Watcher()
    trainer = made(tmp_path, spec, watcher)
    trainer.fit()
    state = trainer.checkpoints.latest()
    assert state is not None
    for rule, metric, sign in (("best-nll", "nll", 1), ("best-ece", "ece", 1), ("best-accuracy", "accuracy", -1)):
        values = [sign * row["validation"][metric] for row in watcher.rows]
        best = state.best[rule]
        assert best.epoch == 1 + values.index(min(values))  # the first of several
        assert best.value == sign * min(values)
        kept = trainer.checkpoints.weights(rule)
        assert same(kept, watcher.weights[best.epoch])
        with safe_open(tmp_path / "checkpoints" / best.file, framework="pt") as file:
            step = json.loads(file.metadata()["calattn.checkpoint"])["step"]
        assert step == watcher.rows[best.epoch - 1]["update"], "when the weights were made, not when they were written"
        assert [row["epoch"] for row in watcher.rows if rule in row["best"]][-1] == best.epoch
    assert len({record.epoch for record in state.best.values()} | {6}) > 1, (
        "all best at the end: nothing was told apart"
    )


def test_the_earlier_epoch_wins_a_tie():
    best = BestWeights()
    row = {"nll": 1.0, "ece": 0.1, "accuracy": 0.5}
    assert best.offer(1, row, dict) == ["best-nll", "best-ece", "best-accuracy"]
    assert best.offer(2, row, dict) == []
    assert best.offer(3, {**row, "accuracy": 0.6, "nll": 1.1}, dict) == ["best-accuracy"]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    """A finite loss may still have a gradient that is not: the weights are looked at before they replace good ones."""
    trainer = made(tmp_path, small_spec(), runtime=SAVING)
    batches = trainer.train.epoch(0)
    trainer.update([next(batches)])
    trainer._save()
    good = trainer.checkpoints.latest()
    trainer.update([next(batches)])
    with torch.no_grad():
        next(trainer.state.model.parameters()).view(-1)[0] = math.nan
    with pytest.raises(NonFiniteLoss, match=r"weights is not finite at update 1 \(epoch 1\).*state-00000001"):
        trainer._save()
    assert trainer.checkpoints.latest().path == good.path


def test_a_run_that_was_taken_up_names_the_state_it_came_from(tmp_path):
    trainer = made(tmp_path, small_spec())
    trainer.update([next(trainer.train.epoch(0))])
    trainer._save()
    resumed = made(tmp_path, small_spec())
    resumed.guard.note(torch.tensor(False), 1)
    with pytest.raises(NonFiniteLoss, match=r"the last good state is .*state-00000001"):
        resumed._save()


def test_a_loss_that_is_not_finite_stops_the_run_at_once_and_is_not_saved(tmp_path):
    class Poison(Watcher):
        def updates(self, count: int) -> None:
            super().updates(count)
            if self.count == 2:
                next(self.trainer.state.model.parameters()).data.view(-1)[0] = math.nan

    watcher = Poison()
    with pytest.raises(NonFiniteLoss, match=r"loss is not finite at update 2 \(epoch 1\).*nothing was saved"):
        made(tmp_path / "run", small_spec(), watcher).fit()
    assert watcher.count == 3
    trainer = made(tmp_path / "other", small_spec())
    trainer.guard.note(torch.tensor(False), 0)
    with pytest.raises(NonFiniteLoss, match=r"loss is not finite at update 0.*so look at the loss") as raised:
        trainer._save()
    assert "optimizer.lr" not in str(raised.value)
    assert trainer.checkpoints.latest() is None


@pytest.mark.parametrize("fails", ["nan", "raises"])
def test_what_fails_between_two_checkpoints_leaves_the_end_of_the_last_epoch(tmp_path, whole, fails):
    """With 60 s between them a run of seconds would have none; what was wrong can be mended, and the same run goes on."""

    class Fails(Watcher):
        def updates(self, count: int) -> None:
            super().updates(count)
            if self.count == 15:  # in the third epoch
                if fails == "raises":
                    raise KeyError("label")
                next(self.trainer.state.model.parameters()).data.view(-1)[0] = math.nan

    spec, watcher = small_spec(*PLATEAU), Fails()
    words = r"the last good state is .*state-00000012" if fails == "nan" else "label"
    with pytest.raises(NonFiniteLoss if fails == "nan" else KeyError, match=words):
        made(tmp_path, spec, watcher).fit()
    again = made(tmp_path, spec)
    found = again.checkpoints.latest()
    assert (found.step, found.epoch) == (12, 2)
    assert same(found.tree["weights"], watcher.weights[2])
    again.fit()
    assert learned(again.log) == learned(whole.log)
    assert same(again.state.model.state_dict(), whole.state.model.state_dict())


def test_validation_that_is_not_finite_names_the_epoch_that_ended(tmp_path):
    trainer = made(tmp_path, small_spec())
    for batch in trainer.train.epoch(0):
        trainer.update([batch])
    with torch.no_grad():
        next(trainer.state.model.parameters()).view(-1)[0] = math.nan
    with pytest.raises(
        NonFiniteLoss, match=r"^validation \(logits\[0, 0\] is nan\) is not finite at update 5 \(epoch 1\)"
    ):
        trainer.validate()


def test_another_error_in_validation_stays_what_it_is(tmp_path, monkeypatch):
    """Whatever its words are: "inf" stands in "information" too."""

    def refuse(*_, **__):
        raise DataError("no information about nan")

    trainer = made(tmp_path, small_spec())
    monkeypatch.setattr("calattn.engine.fit.predict", refuse)
    with pytest.raises(DataError, match="no information"):
        trainer.validate()


def test_the_first_update_that_was_not_finite_is_remembered():
    guard = FiniteGuard(torch.device("cpu"))
    for update, finite in enumerate([True, True, False, True, False]):
        guard.note(torch.tensor(finite), update)
    assert guard.wait() == guard.poll() == 2


def test_predictions_are_of_every_image_once_with_its_own_label(tmp_path):
    """48 images in batches of 20: the last is filled up, and what fills it must not be seen."""
    spec = small_spec("evaluation.batch_size=20")
    trainer, found = made(tmp_path, spec), build.load_data(spec)
    model = copy.deepcopy(trainer.state.model).eval()
    ours = predict(model.output, trainer.validation, fabric=trainer.fabric)
    rows = found.validation_rows
    assert torch.equal(ours.indices, rows)
    assert torch.equal(ours.labels, found.train.labels[rows])
    with torch.no_grad():
        theirs = model.output(trainer.validation.augment.test(found.train.array[rows]))
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-5)
    assert torch.allclose(ours.features, theirs.features, atol=1e-5)
    without = predict(model.output, trainer.validation, fabric=trainer.fabric, features=False)
    assert without.features is None
    for name in ("logits", "scale", "labels", "indices"):
        assert torch.equal(getattr(without, name), getattr(ours, name)), name


def test_features_that_are_all_zero_are_written_down_like_others():
    row = distribution(torch.zeros(3))
    assert (row["mean"], row["std"], row["cv"]) == (0.0, 0.0, 0.0)
    assert sum(row["histogram"]["counts"]) == 3
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_validation_sees_no_augmentation_and_training_no_validation_image(tmp_path, monkeypatch):
    spec = small_spec(*AUGMENTED)
    trainer = made(tmp_path, spec)
    found = build.load_data(spec)
    pixels = found.train.array[found.validation_rows].float() / 255
    seen = torch.cat([batch.images[: batch.count] for batch in trainer.validation])
    assert torch.allclose(seen, (pixels - found.dataset.mean[0]) / found.dataset.std[0], atol=1e-5)
    asked: list[Tensor] = []
    share = TrainLoader._share
    monkeypatch.setattr(TrainLoader, "_share", lambda self, values: asked.append(values) or share(self, values))
    list(trainer.train.epoch(0))
    assert set(asked[0].tolist()) == set(found.train_rows.tolist())


@pytest.fixture
def soft_table(tmp_path: Path) -> RunSpec:
    """A Parquet file of grey images with probabilities, none of which is certain."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 40), ("test", 6)):
        rows = []
        for array in torch.randint(256, (count, 8, 8), dtype=torch.uint8, generator=generator):
            content = io.BytesIO()
            Image.fromarray(array.numpy()).save(content, "png")
            rows.append({"bytes": content.getvalue(), "path": None})
        probs = torch.softmax(torch.randn(count, 3, generator=generator), dim=1).tolist()
        pq.write_table(pa.table({"image": rows, "probs": probs}), tmp_path / f"{split}.parquet")
    return small_spec(
        f"data.name=parquet:{tmp_path}", "data.size=8", "data.limit=null", "train.batch_size=8", "model.head=none",
        "augment.flip=false", "loss.name=ce", "train.epochs=1", "schedule.warmup_epochs=0",
    )  # fmt: skip


def trained_on(path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, list[Tensor]]:
    """The trainer after its end, and the targets that its loss saw."""
    seen: list[Tensor] = []
    real = build.build_loss(spec)
    monkeypatch.setattr(
        build, "build_loss", lambda _: lambda logits, targets: seen.append(targets) or real(logits, targets)
    )
    trainer = made(path, spec)
    trainer.fit()
    return trainer, seen


def test_soft_labels_reach_the_loss_as_they_are(tmp_path, soft_table, monkeypatch):
    trainer, seen = trained_on(tmp_path / "run", soft_table, monkeypatch)
    truth = build.load_data(soft_table).train.soft_labels
    assert truth is not None
    assert len(torch.cat(seen)) == trainer.state.update * 8
    for row in torch.cat(seen):
        assert (row == truth).all(1).any()


def test_right_under_soft_labels_is_the_likeliest_class(tmp_path, soft_table):
    trainer = made(tmp_path / "run", soft_table)
    images = next(trainer.train.epoch(0)).images
    said = trainer.state.model(images).detach().softmax(1)
    assert int(trainer.step(images, said).correct) == 8
    assert int(trainer.step(images, said.roll(1, dims=1)).correct) == 0


def test_mixed_labels_reach_the_loss_as_they_are(tmp_path, monkeypatch):
    spec = small_spec("augment.mixup=0.8", "train.epochs=1", "schedule.warmup_epochs=0")
    trainer, seen = trained_on(tmp_path, spec, monkeypatch)
    for ours, batch in zip(seen, trainer.train.epoch(0), strict=True):
        assert torch.equal(ours, batch.targets)
        assert ((ours > 0).sum(1) == 2).any()
