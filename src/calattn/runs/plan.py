"""The plan of a run before it is run: a trial of what its spec builds, its folder and steps, and how long it may take."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calattn import losses
from calattn.backbones import fitted
from calattn.data.augment.mixing import soft_labels
from calattn.engine.step import StepResult, TrainStep
from calattn.errors import InputError
from calattn.heads.lesson import draws_of
from calattn.models.attach import CalibratedModel, overhead
from calattn.runs import build
from calattn.runs.folder import spec_text
from calattn.runs.runtime import Runtime, settled
from calattn.runs.spec import RunSpec
from calattn.types import ModelOutput

_CHECKED_ROWS = 256  # of a micro-batch, on which the loss is tried out
_TIMED_IMAGES = 8  # of a step on a CPU: enough to time, small enough for ViT-B at 224 px on a laptop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What `calattn train --dry-run` prints."""

    spec: RunSpec
    run: Path
    backbone: str
    backbone_params: int
    head_params: int
    train_images: int
    validation_images: int
    test_images: int
    updates_per_epoch: int
    epochs: int
    readings: int
    seconds: float
    measured: str

    @property
    def yaml(self) -> str:
        return spec_text(self.spec)

    @property
    def text(self) -> str:
        share = self.head_params / self.backbone_params
        updates = self.updates_per_epoch * self.epochs
        return "\n".join(
            [
                f"run        {self.run}",
                f"network    {self.backbone}: {self.backbone_params:,} parameters + head {self.head_params:,} ({share:.3%})",
                f"images     {self.train_images:,} train, {self.validation_images:,} validation, {self.test_images:,} test",
                f"steps      {self.updates_per_epoch:,} an epoch, {updates:,} in all",
                *(
                    [f"head       taught at the end, from {self.readings:,} readings of images"]
                    if self.readings
                    else []
                ),
                f"time       about {duration(self.seconds)} ({self.measured})",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "run": str(self.run), "spec": self.spec.model_dump(mode="json"), "spec_hash": self.spec.hash}


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(600), duration(40000)
    ('42 s', '10 min', '11.1 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def run_path(spec: RunSpec) -> Path:
    """runs/<name>-<hash>: the same spec gives the same folder, so that the same command resumes.

    The hash is that of the spec before the normalisation of pretrained weights is put in: it is known once they are loaded.
    """
    name = spec.name or "-".join([spec.data.name, spec.model.backbone, spec.model.head, spec.loss.name])
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return Path("runs") / f"{safe}-{spec.hash[:8]}"


def plan_run(spec: RunSpec, runtime: Runtime, run: Path | None = None) -> Plan:
    """Everything that training would build, built and counted; one or two steps are timed, nothing is written."""
    spec = settled(spec, runtime)
    found = build.load_data(spec, root=runtime.data_root)
    size = build.network_size(spec, found.train)
    model = build.build_model(spec, num_classes=found.train.num_classes, channels=found.dataset.channels, size=size)
    run = run or run_path(spec)
    spec = build.with_pretrained_normalisation(spec, model, found.dataset)
    updates = check_run(spec, model, found)
    cost = overhead(model)
    seconds, measured = _timed(spec, runtime, model, found.dataset.channels, size)
    images = updates * spec.train.batch_size + len(found.validation_rows) / 3  # a forward pass is a third of a step
    epochs = spec.train.epochs if runtime.until_epoch is None else min(runtime.until_epoch, spec.train.epochs)
    readings = _readings(spec, found) if epochs == spec.train.epochs else 0
    return Plan(
        spec=spec,
        run=run,
        backbone=fitted(spec.model.backbone, size)[0],
        backbone_params=cost.backbone_params,
        head_params=cost.added_params,
        train_images=len(found.train_rows),
        validation_images=len(found.validation_rows),
        test_images=0 if found.test is None else len(found.test),
        updates_per_epoch=updates,
        epochs=epochs,
        readings=readings,
        seconds=seconds * (epochs * images + readings / 3) / max(1, runtime.num_devices),
        measured=measured,
    )


def _readings(spec: RunSpec, found: build.RunData) -> int:
    """How many images the closing phase reads: distorted ones, held-out ones as they are, and shifted ones."""
    if spec.teach is None:
        return 0
    pairs = ((len(found.train_rows), spec.teach.readings), (len(found.validation_rows), spec.teach.shifted))
    return len(found.validation_rows) + sum(count * draws_of(count, wanted) for count, wanted in pairs)


def _timed(spec: RunSpec, runtime: Runtime, model: CalibratedModel, channels: int, size: int) -> tuple[float, str]:
    """Seconds an image, from uncompiled steps on random images."""
    gpu = runtime.uses_gpu
    device = torch.device("cuda" if gpu else "cpu")
    count = min(spec.train.batch_size, 256 if gpu else _TIMED_IMAGES)
    step = TrainStep(model, build.build_loss(spec)).to(device).train()
    images = torch.randn(count, channels, size, size, device=device)
    targets = torch.zeros(count, dtype=torch.int64, device=device)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=gpu and spec.train.precision == "bf16-mixed"):
            result = step(images, targets)
        assert isinstance(result, StepResult)
        result.loss.backward()
        if gpu:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    name = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} CPU thread(s)"
    return best / count, f"from steps of {count} random images on {name}, not compiled"


def check_run(spec: RunSpec, model: CalibratedModel, found: build.RunData) -> int:
    """Builds what is left to build and tries it out: whatever a spec has wrong shows before a folder is made.

    Returns the updates an epoch.
    """
    images = len(found.train_rows)
    updates = images // (spec.train.batch_size // spec.optimizer.accumulate) // spec.optimizer.accumulate
    if updates == 0:
        raise ValueError(
            f"train.batch_size={spec.train.batch_size} is more than the {images} training images; make it smaller"
        )
    losses.check_loss(
        build.build_loss(spec), spec.loss.name, _some_targets(spec, found), num_classes=found.train.num_classes
    )
    _check_steps(spec, updates)
    build.optimizer_for(spec, model)
    build.build_augment(spec, found)
    _check_forward(spec, model, found)
    return updates


def _check_steps(spec: RunSpec, updates: int) -> None:
    """Steps of the optimiser on nine weights, at the first and the last rate: some options are only looked at then."""
    with torch.random.fork_rng(devices=[]):
        tiny = torch.nn.Linear(3, 3, bias=False)
    options = {key: value for key, value in spec.optimizer.options.items() if key != "layer_decay"}
    chosen = spec.optimizer.model_copy(update={"options": options})
    try:
        optimizer = build.optimizer_for(spec.model_copy(update={"optimizer": chosen}), tiny)
        schedule = build.schedule_for(spec)(optimizer, updates)
        for update in (0, updates * spec.train.epochs):
            schedule.before_update(update)
            tiny(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        schedule.after_epoch(spec.train.epochs, 1.0)
    except ValueError:
        raise
    except (TypeError, AttributeError, LookupError, ArithmeticError, AssertionError, RuntimeError) as error:
        raise ValueError(
            f"a step cannot be made with optimizer.options and schedule.options ({build.told(error)})"
        ) from error


def _some_targets(spec: RunSpec, found: build.RunData) -> Tensor:
    """The first training labels, as many as a micro-batch has, as a loss gets them: soft ones where images are mixed."""
    rows = found.train_rows[: min(_CHECKED_ROWS, spec.train.batch_size // spec.optimizer.accumulate)]
    soft = found.train.soft_labels
    targets = found.train.labels[rows].long() if soft is None else soft[rows].float()
    mixed = spec.augment.mixup or spec.augment.cutmix
    return soft_labels(targets, found.train.num_classes) if mixed else targets


def _check_forward(spec: RunSpec, model: CalibratedModel, found: build.RunData) -> None:
    """What backbone and head give for two images: with one, a wrong shape may pass as a broadcast.

    A network that halves its grid too often says so only when it runs.
    """
    size, name = build.network_size(spec, found.train), spec.model.backbone
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, found.dataset.channels, size, size, generator=generator)
    training, in_head = model.training, []
    seen = model.head.register_forward_pre_hook(lambda *_: in_head.append(True))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = model.eval().output(images)
            if in_head:
                _check_output(output, spec, num_classes=found.train.num_classes)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        if isinstance(error, torch.OutOfMemoryError | _Refused):
            raise
        if in_head:
            raise ValueError(
                f"the head {spec.model.head!r} fails on two images ({build.told(error)}); fix it"
            ) from error
        raise ValueError(
            f"{name} does not take images of {size} px ({build.told(error)}); choose another --size or model.backbone"
        ) from error
    finally:
        seen.remove()
        model.train(training)


class _Refused(InputError):
    """What a network gives does not fit; the message says how."""


def _check_output(output: ModelOutput, spec: RunSpec, *, num_classes: int) -> None:
    if list(output.logits.shape) != [2, num_classes]:
        raise _Refused(
            f"the backbone {spec.model.backbone!r} gives logits {list(output.logits.shape)} for two images of {num_classes} "
            f"classes; they must be [2, {num_classes}]: let its last layer have num_classes outputs"
        )
    if not torch.isfinite(output.logits).all():
        raise _Refused(
            f"the backbone {spec.model.backbone!r} gives logits that are not finite for two random images; look at its weights "
            f"({spec.model.weights or 'random ones'})"
        )
    if list(output.scale.shape) != [2]:
        raise _Refused(
            f"the head {spec.model.head!r} gives a scale of shape {list(output.scale.shape)} for two images; it must be [2], "
            "one number per image: squeeze(1) or expand it"
        )
    if not (torch.isfinite(output.scale) & (output.scale > 0)).all():
        raise _Refused(
            f"the head {spec.model.head!r} gives the scale {output.scale.tolist()} for two random images; a temperature must be "
            "positive and finite: end it with softplus(…) + 1e-6, or exp(…)"
        )
    calibrated = output.calibrated_logits
    if calibrated.shape != output.logits.shape:
        raise _Refused(
            f"the head {spec.model.head!r} turns logits {list(output.logits.shape)} into {list(calibrated.shape)}; its offset "
            "must have the shape of the logits"
        )
