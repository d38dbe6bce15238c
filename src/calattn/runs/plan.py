"""The plan of a run before it is run: folder, network, steps, and how long it may take."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from calattn.backbones import fitted
from calattn.engine.step import StepResult, TrainStep
from calattn.heads.lesson import draws_of
from calattn.models.attach import CalibratedModel, overhead
from calattn.runs import build
from calattn.runs.durations import duration
from calattn.runs.folder import spec_text
from calattn.runs.runtime import Runtime, settled
from calattn.runs.spec import RunSpec
from calattn.runs.trial import check_run

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
        test_images=len(found.test),
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
