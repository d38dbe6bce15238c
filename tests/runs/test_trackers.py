"""Trackers, each with the real package and nothing sent anywhere: what the log has is what they have."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import struct
from collections.abc import Iterator

import pytest
from lightning_fabric.loggers import CSVLogger
from wandb.proto import wandb_internal_pb2

from calattn.engine.log import RunLog
from calattn.runs.train import train_run
from tests.small_runs import CPU, small_spec

SPEC = small_spec("train.epochs=2", "name=mine")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def losses(folder) -> list[float]:
    return [row["train"]["loss"] for row in RunLog(folder.log_path).rows()]


def trained(path, *track, **changes):
    return train_run(SPEC, path, runtime=dataclasses.replace(CPU, track=track, **changes))


def rows_of(path) -> list[tuple[int, float]]:
    with path.open() as file:
        return [(int(row["step"]), float(row["train/loss"])) for row in csv.DictReader(file)]


def test_csv_has_a_file_for_each_start(tmp_path):
    trained(tmp_path / "run", "csv", until_epoch=1)
    folder = trained(tmp_path / "run", "csv")
    first, second = losses(folder)
    places = folder.trackers_path / "csv"
    assert rows_of(places / "after-epoch-0" / "metrics.csv") == [(1, pytest.approx(first))]
    assert rows_of(places / "after-epoch-1" / "metrics.csv") == [(2, pytest.approx(second))]


def test_a_logger_of_ones_own_is_passed_through(tmp_path):
    logger = CSVLogger(tmp_path, "own", "mine")
    folder = trained(tmp_path / "run", logger)
    assert [loss for _, loss in rows_of(tmp_path / "own" / "mine" / "metrics.csv")] == pytest.approx(losses(folder))


def records(content: bytes) -> Iterator[bytes]:
    """Of a .wandb file, LevelDB's log format: blocks of 32 KiB; a checksum, a length and a kind (whole or part) before each."""
    place, parts = 7, b""
    while place < len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.usefixtures("offline")
def test_weights_and_biases_offline(tmp_path):
    folder = trained(tmp_path / "run", "wandb")
    (file,) = folder.trackers_path.glob("wandb/offline-run-*/*.wandb")
    found = []
    for content in records(file.read_bytes()):
        (record := wandb_internal_pb2.Record()).ParseFromString(content)
        items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        found += [float(items["train/loss"])] if "train/loss" in items else []
    assert found == pytest.approx(losses(folder))


@pytest.mark.usefixtures("offline")
def test_mlflow_in_a_local_store(tmp_path):
    from mlflow.tracking import MlflowClient

    folder = trained(tmp_path / "run", "mlflow")
    client = MlflowClient((folder.trackers_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("calattn").experiment_id])
    assert run.info.run_name == "mine"
    assert run.info.status == "FINISHED"
    assert run.data.params["train/epochs"] == "2"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == list(enumerate(losses(folder), start=1))


def test_what_cannot_track_is_told_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        trained(tmp_path / "run", "tensorbord")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(ValueError, match="--track wandb needs wandb; pip install wandb"):
        trained(tmp_path / "run", "wandb")
    assert not (tmp_path / "run").exists()
