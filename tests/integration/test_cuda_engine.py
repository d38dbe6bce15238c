"""The engine on a GPU: no synchronisation inside an update, and a run from start to summary. Skipped where there is no GPU."""

from __future__ import annotations

import json

import jaxtyping
import pytest
import torch

from calattn.data.loading import EvalLoader, TrainLoader
from calattn.engine.checkpoint import CheckpointFolder
from calattn.engine.fit import Settings, Setup, Trainer
from calattn.engine.log import RunLog
from calattn.runs import build
from calattn.runs.resolving import resolve
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from tests.small_runs import STATEFUL, TAUGHT, final_weights, small_spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

GPU = Runtime(accelerator="cuda")


@pytest.fixture(autouse=True)
def _unchecked():
    """What is compiled here is compiled as users have it: torch 2.11 cannot trace jaxtyping's checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_nothing_in_an_update_waits_for_the_device(tmp_path, compiled):
    spec = resolve("digits", [*STATEFUL, "train.precision=bf16-mixed", "optimizer.fused=true", "data.limit=1000"])
    fabric = GPU.fabric("bf16-mixed")
    found = build.load_data(spec)
    model = build.build_model(spec, num_classes=10, channels=1, size=8)
    augment = build.build_augment(spec, found)
    loader = TrainLoader(found.train, found.train_rows, augment, seed=0, batch_size=16, device=fabric.device)
    setup = Setup(
        model=model,
        loss=build.build_loss(spec),
        optimizer=build.optimizer_for(spec, model),
        schedule=build.schedule_for(spec),
        train=loader,
        validation=EvalLoader(found.validation, found.validation_rows, augment, batch_size=16, device=fabric.device),
        checkpoints=CheckpointFolder(tmp_path, spec.hash),
        log=RunLog(tmp_path / "log.jsonl"),
    )
    settings = Settings(epochs=1, accumulate=2, clip_norm=1.0, ema_decay=0.9, compile=compiled)
    trainer = Trainer(fabric, setup, settings)
    trainer.step.train()
    batches = iter(loader.epoch(0))
    for _ in range(4):
        trainer.update([next(batches), next(batches)])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            trainer.update([next(batches), next(batches)])
            trainer.guard.poll()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_run_on_the_gpu(tmp_path):
    changes = ("train.precision=bf16-mixed", "train.compile=true", "data.limit=900", "train.epochs=4")
    folder = train_run(small_spec(*changes), tmp_path / "run", runtime=GPU)
    rows = RunLog(folder.log_path).rows()
    assert rows[-1]["train"]["loss"] < 0.8 * rows[0]["train"]["loss"]
    again = train_run(small_spec(*changes, "evaluation.checkpoints=[last, best-nll]"), tmp_path / "run", runtime=GPU)
    assert set(json.loads(again.summary_path.read_text())["results"]) == {"last", "best-nll"}


def test_a_head_is_taught_on_the_gpu(tmp_path):
    changes = (*TAUGHT, "train.precision=bf16-mixed", "train.compile=true", "data.limit=900", "optimizer.ema_decay=0.9")
    folder = train_run(small_spec(*changes), tmp_path / "run", runtime=GPU)
    assert final_weights(folder.path)["head.anchor"].any()
    assert folder.predictions("test").scale.std() > 0
