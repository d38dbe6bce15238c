"""A run that is killed, terminated or damaged and started again ends with the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from calattn.engine.checkpoint import CheckpointWarning
from calattn.engine.interrupt import Interrupted
from calattn.engine.log import RunLog
from calattn.runs.folder import RunFolder
from calattn.runs.resolving import resolve
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from tests.small_runs import CPU, STATEFUL, final_tree, learned, same, small_spec

SPEC = resolve("digits", [*STATEFUL, "train.epochs=5"])
SAVING = Runtime(accelerator="cpu", threads=1, save_seconds=0.0)


class Silent:
    """A reporter that hears and says nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    train_run(SPEC, path, runtime=CPU)
    return path


def assert_same_run(path: Path, undisturbed: Path) -> None:
    assert same(final_tree(path), final_tree(undisturbed))
    logs = [RunLog(RunFolder.open(each).log_path) for each in (path, undisturbed)]
    assert learned(logs[0]) == learned(logs[1])
    for split in ("validation", "test"):
        mine, theirs = (RunFolder.open(p).predictions(split) for p in (path, undisturbed))
        assert torch.equal(mine.logits, theirs.logits)
        assert torch.equal(mine.indices, theirs.indices)


def test_the_same_spec_gives_the_same_bits_and_another_seed_others(tmp_path, undisturbed):
    train_run(SPEC, tmp_path / "again", runtime=CPU)
    assert_same_run(tmp_path / "again", undisturbed)
    train_run(resolve("digits", [*STATEFUL, "seed=1"]), tmp_path / "other", runtime=CPU)
    assert not same(final_tree(tmp_path / "other"), final_tree(undisturbed))


def test_a_finished_run_is_left_alone(tmp_path):
    path = tmp_path / "run"
    train_run(small_spec(), path, runtime=CPU)
    before = {p: p.stat().st_mtime_ns for p in (path / "checkpoints").iterdir()}
    train_run(small_spec("evaluation.checkpoints=[last, best-ece]"), path, runtime=CPU)
    assert {p: p.stat().st_mtime_ns for p in (path / "checkpoints").iterdir()} == before
    assert set(json.loads((path / "summary.json").read_text())["results"]) == {"last", "best-ece"}


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path, undisturbed):
    """One bit; tests/engine/test_checkpoint.py has the other kinds of damage."""
    path = tmp_path / "run"

    class Stop(Silent):
        def epoch(self, row: dict) -> None:
            if row["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train_run(SPEC, path, runtime=SAVING, reporter=Stop())
    newest = max((path / "checkpoints").glob("state-*"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(CheckpointWarning, match=newest.name):
        train_run(SPEC, path, runtime=CPU)
    assert_same_run(path, undisturbed)
