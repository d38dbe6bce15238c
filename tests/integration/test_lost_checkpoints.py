"""Predictions of a run are never replaced by those of an earlier update."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from calattn.engine.checkpoint import CheckpointError
from calattn.runs.folder import RunFolder
from calattn.runs.load import load
from calattn.runs.predict import predict_folder
from calattn.runs.resolving import run_values
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from tests.small_runs import CPU, final_weights, same, small_spec

SAVING = Runtime(accelerator="cpu", threads=1, save_seconds=0.0)  # so that there is a state before the last
SPEC = small_spec("evaluation.checkpoints=[last, best-nll]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "trained"
    train_run(SPEC, path, runtime=SAVING)
    return path


def _newest(folder: RunFolder) -> Path:
    return max(folder.checkpoints_path.glob("state-*"))


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [Path.unlink, _damage])
def test_a_run_that_lost_its_newest_state_is_not_predicted_with_the_one_before(
    trained: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    before = {path: path.read_bytes() for path in folder.all_predictions_path.rglob("*.safetensors")}
    harm(_newest(folder))
    for use in (
        lambda: predict_folder(folder.path, runtime=CPU),
        lambda: load(folder.path, "best-nll"),
        lambda: run_values(folder.path, "last"),
    ):
        with pytest.raises(
            CheckpointError, match=r"put (it|the newest) back from a copy, or (remove it and )?train again"
        ):
            use()
    assert {path: path.read_bytes() for path in folder.all_predictions_path.rglob("*.safetensors")} == before
    # The remedy that the message names.
    _newest(folder).unlink() if harm is _damage else None
    train_run(SPEC, folder.path, runtime=SAVING)
    predict_folder(folder.path, runtime=CPU)
    assert same(final_weights(folder.path), final_weights(trained))
    assert {path: path.read_bytes() for path in folder.all_predictions_path.rglob("*.safetensors")} == before
