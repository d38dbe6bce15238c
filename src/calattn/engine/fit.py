"""The training loop: updates, validation after every epoch, checkpoints, exact resume."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from calattn.data.loading import Batch, EvalLoader, TrainLoader
from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.held import BestWeights, HeldState
from calattn.engine.interrupt import Interrupt, Interrupted
from calattn.engine.log import RunLog, measure
from calattn.engine.optim import Schedule
from calattn.engine.predict import predict
from calattn.engine.step import FiniteGuard, LaggedCopy, NonFiniteLoss, StepResult, TrainingState, TrainStep
from calattn.errors import BadRowError
from calattn.heads.taught import Taught
from calattn.losses import LossFunction, check_labels
from calattn.models.attach import CalibratedModel
from calattn.seeds import seed_of
from calattn.types import ModelOutput, Predictions

# How often several processes agree on whether to stop or save: it makes the host wait.
_AGREE_EVERY = 25
_POLL_EVERY = 25
_TELL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the loop itself has to know. `save_seconds` is the time between checkpoints; 0 saves after every update.

    `until_epoch` stops a run early without changing it: its schedule is that of all `epochs`, and it can go on later.
    """

    epochs: int
    until_epoch: int | None = None
    seed: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    ema_decay: float | None = None
    compile: bool | Literal["default", "reduce-overhead", "max-autotune"] = False
    channels_last: bool = False
    save_seconds: float = 60.0

    @property
    def last_epoch(self) -> int:
        return self.epochs if self.until_epoch is None else min(self.epochs, self.until_epoch)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """What is trained, on what, and where it is written down. `scores` are further numbers of the validation predictions."""

    model: CalibratedModel
    loss: LossFunction
    optimizer: Optimizer
    schedule: Callable[[Optimizer, int], Schedule]
    train: TrainLoader
    validation: EvalLoader
    checkpoints: CheckpointFolder
    log: RunLog
    scores: Mapping[str, Callable[[Predictions], float]] = dataclasses.field(default_factory=dict)


class Reporter(Protocol):
    """Who is told how far training is; see the command line's progress bar."""

    def updates(self, count: int) -> None: ...

    def pace(self, loss: float, images_per_second: float) -> None:
        """Of the epoch under way, now and then: the mean loss so far, and how fast it goes."""

    def epoch(self, row: dict[str, Any]) -> None: ...


def _seed(device: torch.device, seed: int) -> None:
    """`torch.manual_seed` for the CPU and this device; torch's own takes 0.8 ms where there is no GPU, for a stack trace."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


class Trainer:
    """Trains a model to the end of its epochs, from wherever the checkpoints in its folder left off.

    All randomness follows from (seed, epoch, update, rank): nothing has to be remembered across a restart but the weights, the
    optimiser and three counters, and so a run that is killed and started again ends with the bits of one that was not (on CPU).
    """

    def __init__(self, fabric: Fabric, setup: Setup, settings: Settings, *, reporter: Reporter | None = None) -> None:
        self.fabric, self.settings, self.reporter = fabric, settings, reporter
        self.train, self.validation = setup.train, setup.validation
        self.checkpoints, self.log, self.scores = setup.checkpoints, setup.log, setup.scores
        self.updates_per_epoch = self.train.steps // settings.accumulate
        if self.updates_per_epoch == 0:
            raise ValueError(
                f"an epoch has {self.train.steps} micro-batches, fewer than optimizer.accumulate={settings.accumulate}; lower "
                "one of train.batch_size and optimizer.accumulate"
            )
        model = setup.model
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        compiled = _compiler(settings.compile)
        self.step, self.optimizer = fabric.setup(compiled(TrainStep(model, setup.loss)), setup.optimizer)
        self.schedule = setup.schedule(setup.optimizer, self.updates_per_epoch)
        self.state = TrainingState(fabric, self.step, model, self.optimizer, ema_decay=settings.ema_decay)
        self.guard = FiniteGuard(fabric.device)
        self.best = BestWeights()
        self.held = HeldState()
        ema = self.state.ema
        self._ema_step = None if ema is None else compiled(TrainStep(ema.module, setup.loss))
        exact = torch.float32 if fabric.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        self._sums = torch.zeros(2, dtype=exact, device=fabric.device)
        self._loss, self._began, self._told_at = LaggedCopy(self._sums[0]), (0.0, 0), 0.0
        self._saved_at = time.monotonic()
        self._last_good: Path | None = None
        self._checked_labels = False

    # --- the run

    def fit(self) -> None:
        """Runs from where `resume` left the trainer to the end, or to the end of `until_epoch`.

        Raises `Interrupted` after writing a checkpoint; whatever else it raises, the end of the last epoch is on disk then,
        or something newer.
        """
        devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), Interrupt() as interrupt:
            self._interrupt = interrupt
            try:
                while self.state.epoch < self.settings.last_epoch or self.state.update_in_epoch:
                    self._epoch()
            except Exception:  # of the loss, the network, another process: it goes on its way
                with contextlib.suppress(Exception):  # a full disk, a lost GPU: the error under way says more
                    self._write_held()
                raise
            if self.state.unsaved:
                self._save()
            self._stop_if_asked()  # what came in the last epoch, or while its end was written

    def resume(self) -> None:
        """Takes up the newest whole checkpoint, if there is one; call it before `fit`."""
        found = self.checkpoints.latest()
        if found is None:
            self._rewind_log(0)
            return
        self._rewind_log(found.epoch)
        rows = self.log.epochs()
        if [row["epoch"] for row in rows] != list(range(1, found.epoch + 1)):
            raise ValueError(
                f"{self.log.path} lacks some of the {found.epoch} epochs that {found.path.name} has behind it; put the log "
                "back, or --overwrite starts the run again"
            )
        # Before the optimiser is loaded: a plateau schedule, told again, must lower the first rate, not the saved one.
        for row in rows:
            self.schedule.after_epoch(row["epoch"], row["validation"]["nll"])
        sums = self.state.load(found.tree)
        if self.fabric.is_global_zero:  # the sums are those of all processes: one takes them up
            self._sums.copy_(sums)
            self._sums[0] *= self.fabric.world_size
        self._last_good = found.path
        self.best = BestWeights(found.best)

    def _rewind_log(self, epoch: int) -> None:
        if self.fabric.is_global_zero:
            self.log.rewind(epoch)
        self.fabric.barrier()

    def _epoch(self) -> None:
        self._began = started, first = time.perf_counter(), self.state.update_in_epoch
        self.step.train()
        batches = iter(self.train.epoch(self.state.epoch, start=first * self.settings.accumulate))
        for _ in range(first, self.updates_per_epoch):
            self.update(list(itertools.islice(batches, self.settings.accumulate)))
            self._between_updates()
        row = self._finish_epoch(started, self.updates_per_epoch - first)
        self.log_row(row)
        self.schedule.after_epoch(row["epoch"], row["validation"]["nll"])
        if self._agree(time.monotonic() - self._saved_at >= self.settings.save_seconds):
            self._save()
        elif self.fabric.is_global_zero and self.state.epoch < self.settings.last_epoch:  # that one is written at once
            self.held.take(self.state, self._sums)
        self._stop_if_asked()

    # --- the closing phase

    def close(self, find_head: Callable[[Callable[[Tensor], ModelOutput]], Taught | None]) -> bool:
        """Fills a taught head after the last epoch, unless it is filled, and saves: a kill before that costs the phase only.

        Whether it did. `find_head` gets the network as a function of images, in evaluation mode and not compiled: its few passes
        over batches of another size would not pay for a graph of their own. It gives the head to the process that writes.
        """
        head = self.state.model.head
        if not isinstance(head, Taught) or head.is_taught or self.state.epoch < self.settings.epochs:
            return False
        started = time.perf_counter()
        self.step.eval()
        ema = self.state.ema
        evaluated = self.state.model if ema is None else ema.module.eval()
        try:
            found = find_head(self.step if self.state.sharded else evaluated.output)
        except KeyboardInterrupt:  # what was trained is on disk
            raise Interrupted(signal.SIGINT, self.state.update) from None
        self.state.put_head(self.fabric.broadcast({} if found is None else found.state_dict()))
        if found is not None:  # the row comes first: a kill between the two must not lose it
            seconds = round(time.perf_counter() - started, 3)
            self.log.drop("teach")
            self.log.append({"event": "teach", "anchor": found.anchor.tolist(), "seconds": seconds})
        self._save()
        return True

    # --- one update

    def update(self, batches: Sequence[Batch]) -> None:
        """One step of the optimiser, from so many micro-batches. Nothing in it makes the host wait for the device."""
        state, settings = self.state, self.settings
        if settings.compile == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # the tensors of the update before may be overwritten now
        self.schedule.before_update(state.update)
        # Dropout and drop-path draw from torch's own generators: seeding them here makes every update a function of its number.
        _seed(self.fabric.device, seed_of(settings.seed, "update", state.update, self.fabric.global_rank))
        last = len(batches) - 1
        for number, batch in enumerate(batches):
            with self.fabric.no_backward_sync(self.step, enabled=number < last and self.fabric.world_size > 1):
                result = self._forward(batch)
                self.fabric.backward(result.loss / len(batches))
            loss = result.loss.detach()
            self._sums += torch.stack([loss / len(batches), result.correct.to(loss.dtype)])
            self.guard.note(torch.isfinite(loss), state.update)
        if settings.clip_norm is not None:
            self.fabric.clip_gradients(self.step, self.optimizer, max_norm=settings.clip_norm, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        state.after_update()

    def _forward(self, batch: Batch) -> StepResult:
        images = batch.images
        if self.settings.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if not self._checked_labels:
            self._check_labels(images, batch.targets)
        return cast(StepResult, self.step(images, batch.targets))

    def _check_labels(self, images: Tensor, targets: Tensor) -> None:
        """Once a run: a label out of range would only show as a device-side assertion, far from its cause."""
        classes = int(self.state.model.num_classes)
        check_labels(torch.zeros(len(images), classes, device=targets.device), targets)
        self._checked_labels = True

    def _between_updates(self) -> None:
        update = self.state.update
        if self.reporter is not None:
            self._report(self.reporter)
        if self.fabric.device.type == "cpu" or update % _POLL_EVERY == 0:
            self._stop_if_bad(self.guard.poll())
        if self.state.update_in_epoch == self.updates_per_epoch:
            return  # the end of the epoch saves and stops by itself, after validation
        if self.fabric.world_size == 1 or update % _AGREE_EVERY == 0:
            if self._agree(time.monotonic() - self._saved_at >= self.settings.save_seconds):
                self._save()
            self._stop_if_asked()

    def _report(self, reporter: Reporter) -> None:
        reporter.updates(1)
        now, (started, first) = time.perf_counter(), self._began
        if now - self._told_at < _TELL_SECONDS:
            return
        loss = self._loss.poll(self._sums[0] / self.state.update_in_epoch)
        if loss is not None and now > started:
            images = (self.state.update_in_epoch - first) * self.settings.accumulate * self.train.batch_size
            reporter.pace(loss, images / (now - started))
            self._told_at = now

    # --- the end of an epoch

    def _finish_epoch(self, started: float, updates: int) -> dict[str, Any]:
        loss, correct = self._all_sums().tolist()
        self._stop_if_bad(self.guard.wait())
        trained = time.perf_counter() - started
        self.state.end_epoch()
        self._sums.zero_()
        per_epoch = self.updates_per_epoch * self.settings.accumulate * self.train.batch_size
        row: dict[str, Any] = {
            "event": "epoch",
            "epoch": self.state.epoch,
            "update": self.state.update,
            "lr": max(self.schedule.rates),
            "train": {"loss": loss / self.updates_per_epoch, "accuracy": correct / per_epoch},
            "validation": self.validate(),
        }
        row["best"] = self.best.offer(self.state.epoch, row["validation"], self.state.snapshot)
        row["seconds"] = round(time.perf_counter() - started, 3)
        row["images_per_second"] = round(per_epoch * updates / self.updates_per_epoch / trained, 1)
        return row

    def _all_sums(self) -> Tensor:
        """Of the epoch under way, over all processes: the sum over updates of their mean loss, and how many were right."""
        sums = self._sums.clone()
        if self.fabric.world_size > 1:
            sums = cast(Tensor, self.fabric.all_reduce(sums, reduce_op="sum"))
            sums[0] /= self.fabric.world_size
        return sums

    def validate(self) -> dict[str, Any]:
        """Metrics of the validation images under the weights that would be kept (the moving average where there is one)."""
        model = self.step if self._ema_step is None else self._ema_step
        model.eval()
        try:
            found = predict(model, self.validation, fabric=self.fabric)
        except BadRowError as error:
            where = BadRowError.of(error, remedy="")
            raise self._not_finite(self.state.update - 1, f"validation ({where})") from None
        return measure(found) | {name: score(found) for name, score in self.scores.items()}

    def log_row(self, row: dict[str, Any]) -> None:
        if self.fabric.is_global_zero:
            self.log.append(row)
        if self.reporter is not None:
            self.reporter.epoch(row)

    # --- saving and stopping

    def _save(self) -> None:
        self._stop_if_bad(self.guard.wait())
        if not self.state.is_finite():
            raise self._not_finite(self.state.update - 1, "weights")
        tree = self.state.tree(self._all_sums())
        if self.fabric.is_global_zero:
            best = self.best.write(self.checkpoints, updates_per_epoch=self.updates_per_epoch)
            self._last_good = self.checkpoints.save_state(
                tree, step=self.state.update, epoch=self.state.epoch, best=best
            )
            self.held.drop()
        self.fabric.barrier()
        self.state.unsaved = False
        self._saved_at = time.monotonic()

    def _stop_if_asked(self) -> None:
        number = self._interrupt.requested
        if self._agree(number is not None):
            if self.state.unsaved:
                self._save()
            raise Interrupted(number or 15, self.state.update)

    def _stop_if_bad(self, update: int | None) -> None:
        if self._agree(update is not None) if self.fabric.world_size > 1 else update is not None:
            raise self._not_finite(update if update is not None else self.state.update - 1, "loss")

    def _write_held(self) -> None:
        written = self.held.write(self.checkpoints, self.best, updates_per_epoch=self.updates_per_epoch)
        self._last_good = written or self._last_good

    def _not_finite(self, update: int, what: str) -> NonFiniteLoss:
        """`update` is the last one done, counted from 0."""
        self._write_held()
        remedy = (
            f"try a lower optimizer.lr (now {max(self.schedule.rates):g}), optimizer.clip_norm=1, schedule.warmup_epochs=5 or "
            "train.precision=32-true"
        )
        if update == 0 and what == "loss":  # no step was made by then: neither the rate nor the warm-up can help
            remedy = (
                "the weights are those it began with, so look at the loss (the logarithm or root of 0, a mean over nothing), "
                "model.weights and the images (data.mean, data.std), or try train.precision=32-true"
            )
        kept = f"the last good state is {self._last_good}" if self._last_good else "nothing was saved before it"
        return NonFiniteLoss(
            f"{what} is not finite at update {update} (epoch {update // self.updates_per_epoch + 1}); {remedy}; {kept}"
        )

    def _agree(self, mine: bool) -> bool:
        """Whether any process says so."""
        if self.fabric.world_size == 1:
            return mine
        flag = torch.tensor(float(mine), device=self.fabric.device)
        return bool(cast(Tensor, self.fabric.all_reduce(flag, reduce_op="sum")) > 0)


def _compiler(mode: bool | str) -> Callable[[TrainStep], Any]:
    if mode is False:
        return lambda step: step
    return lambda step: torch.compile(step, mode="default" if mode is True else mode)
