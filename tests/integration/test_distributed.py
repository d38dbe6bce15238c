"""Two processes give the result of one, for the same global batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calattn.workbench.folder import RunFolder
from calattn.workbench.training import train_run
from tests.runs import CPU, SMALL, final_weights, small_spec

# Mixing pairs neighbours, so it survives the division; drop-path does not: each process draws its own.
CHANGES = ("augment.mixup=0.8", "optimizer.accumulate=2", "optimizer.ema_decay=0.9", "data.limit=250")


def launched(path: Path, *, strategy: str, elastic: bool) -> None:
    start = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "calattn"]
        if elastic
        else ["-m", "calattn"]
    )
    changes = [argument for change in (*SMALL, *CHANGES) for argument in ("--set", change)]
    where = ["--accelerator", "cpu", "--devices", "2", "--strategy", strategy, "--threads", "1", "--out", str(path)]
    command = [sys.executable, *start, "train", "digits", *changes, *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "alone"
    train_run(small_spec(*CHANGES), path, runtime=CPU)
    return path


@pytest.mark.parametrize("elastic", [False, True], ids=["own launcher", "torchrun"])
def test_two_processes_give_the_weights_and_predictions_of_one(tmp_path, alone, elastic):
    path = tmp_path / "two"
    launched(path, strategy="ddp", elastic=elastic)
    one, two = final_weights(alone), final_weights(path)
    start = small_start()
    for name, tensor in one.items():
        # Sums are taken in another order, so the bits differ; the distance must be small beside what training moved.
        moved = (tensor - start[name]).norm()
        assert (two[name] - tensor).norm() <= 1e-3 * moved + 1e-6, name
    for split in ("validation", "test"):
        a, b = (RunFolder.open(p).predictions(split) for p in (alone, path))
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.labels, b.labels)
        assert torch.allclose(a.logits, b.logits, atol=2e-3)


def small_start() -> dict[str, torch.Tensor]:
    from calattn.workbench import build

    return build.build_model(small_spec(*CHANGES), num_classes=10, channels=1, size=8).state_dict()
