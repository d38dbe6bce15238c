"""`calattn train` and `calattn predict` as somebody at a shell sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

import calattn
from calattn.cli.train import TrainingProgress, epoch_line
from calattn.engine import checkpoint
from calattn.runs.folder import RunFolder
from calattn.runs.train import is_finished
from tests.cli_runner import Result, invoke, ran, refused
from tests.small_runs import OPTIONS, SMALL, small_spec

KEYS = [part for change in SMALL for part in ("--set", change)]
ROW = {
    "epoch": 300,
    "train": {"loss": 12.3456},
    "validation": {"accuracy": 1.0, "nll": 12.3456, "ece": 0.1234, "scale": {"mean": 12.34, "std": 1.23}},
    "seconds": 123.4,
    "images_per_second": 123456.0,
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(capsys, *flags: str) -> Result:
    return ran(capsys, "train", "digits", *KEYS, "--out", "run", "--accelerator", "cpu", "--threads", 1, *flags)


# --- dry run


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(capsys, tmp_path):
    shown = train(capsys, "--dry-run", "--size", "8", "--epochs", "4", "--seed", "7").out
    text, _, facts = shown.partition("\nrun  ")
    spec = yaml.safe_load(text)
    assert (spec["data"]["size"], spec["train"]["epochs"], spec["seed"]) == (8, 4, 7)
    assert spec["train"]["precision"] == "32-true", "auto is resolved"
    # 240 digits, a fifth held out, batches of 32
    assert "192 train, 48 validation, 240 test" in facts
    assert "6 an epoch, 24 in all" in facts
    assert "parameters" in facts
    assert "time " in facts
    assert list(tmp_path.iterdir()) == []


def test_the_plan_in_json_counts_the_parameters_of_the_network(capsys):
    plan = train(capsys, "--dry-run", "--json").json
    assert {key: plan[key] for key in ("schema", "command", "dry_run", "run")} == {
        "schema": 1,
        "command": "train",
        "dry_run": True,
        "run": "run",
    }
    import timm

    network = timm.create_model(
        "vit_tiny_patch16_224", num_classes=10, in_chans=1, **yaml.safe_load(OPTIONS.partition("=")[2])
    )
    assert plan["backbone_params"] == sum(parameter.numel() for parameter in network.parameters())
    assert plan["head_params"] == 16 * 128 + 128 + 128 + 1
    assert plan["updates_per_epoch"] == 6
    assert plan["seconds"] > 0
    settled = (
        "train.precision=32-true",
        "train.compile=false",
        "optimizer.fused=false",
        "data.size=8",
        "augment.flip=false",
    )
    assert plan["spec_hash"] == small_spec(*settled).hash


# --- a run


def test_json_is_the_summary_and_nothing_else_on_stdout(capsys, tmp_path):
    result = train(capsys, "--json", "--epochs", "2", "--set", "evaluation.checkpoints=[last, best-nll]")
    found = result.json
    assert (found["schema"], found["command"], found["run"]) == (1, "train", "run")
    assert (found["epochs"], found["spec"]["train"]["epochs"]) == (2, 2)
    assert list(found["results"]) == ["last", "best-nll"]
    on_disk = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {key: found[key] for key in on_disk} == on_disk
    test = calattn.load_predictions(tmp_path / "run" / "predictions" / "test")
    hits = (test.logits.argmax(1) == test.labels).double().mean()
    assert found["results"]["last"]["test"]["accuracy"]["value"] == pytest.approx(float(hits))
    assert isinstance(found["results"]["last"]["test_ts"]["converged"], bool)


def test_a_temperature_at_its_bound_is_a_remark_and_no_warning(capsys):
    """One digit to validate on, which the network has right: the lower the temperature, the better."""
    result = train(capsys, "--epochs", "20", "--set", "data.validation=0.005", "--set", "optimizer.lr=0.01")
    assert "the end of its range" in result.out
    assert "warning" not in result.err


def test_piped_lines_are_whole_and_an_epoch_has_one(capsys):
    result = train(capsys)
    started, *epochs = result.err.splitlines()
    assert started == "training in run"
    assert [line.split("  ")[0] for line in epochs] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all(len(line) <= 100 and line.endswith("img/s") for line in epochs)
    assert result.out.splitlines()[-1] == "next: calattn evaluate run --ts"
    assert "test accuracy" in result.out


def test_a_finished_run_is_left_alone_and_said_so(capsys, tmp_path):
    first = train(capsys)

    def files():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}

    before = files()
    again = train(capsys)
    assert again.err == "run is finished, nothing to do; --overwrite trains it again\n"
    assert again.out == first.out
    assert files() == before


@pytest.mark.parametrize("missing", ["summary.json", "predictions/test/manifest.json", "damaged summary"])
def test_what_a_finished_run_lacks_is_made_without_training(capsys, tmp_path, missing):
    first = train(capsys)
    if missing == "damaged summary":
        (tmp_path / "run" / "summary.json").write_text("{")
    else:
        (tmp_path / "run" / missing).unlink()
    again = train(capsys)
    assert again.err == "run is trained; writing predictions and summary\n"
    assert again.out == first.out
    assert is_finished(RunFolder("run"), RunFolder("run").spec())


def test_another_checkpoint_to_evaluate_needs_no_training(capsys, tmp_path):
    train(capsys)
    again = train(capsys, "--set", "evaluation.checkpoints=[last, best-ece]")
    assert "epoch 1/3" not in again.err
    assert "best-ece (epoch" in again.out
    assert (tmp_path / "run" / "predictions" / "test.best-ece").is_dir()


def test_overwrite_trains_again(capsys):
    train(capsys)
    assert train(capsys, "--overwrite").err.startswith("training in run\nepoch 1/3")


def test_a_resumed_run_says_where_it_goes_on(capsys, monkeypatch):
    """Interrupted after the second epoch: exit code 143, one line, and the same command goes on."""
    write = TrainingProgress.epoch

    def interrupting(self, row):
        write(self, row)
        if row["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "epoch", interrupting)
        stopped = invoke(capsys, "train", "digits", *KEYS, "--out", "run", "--accelerator", "cpu", "--threads", 1)
    assert stopped.code == 143
    assert stopped.out == ""
    last = stopped.err.splitlines()[-1]
    assert last == "calattn: stopped by SIGTERM after update 12; the same command resumes from there"
    went_on = train(capsys)
    assert went_on.err.splitlines()[0] == "training in run: resuming from update 12, epoch 3"
    assert [line.split("  ")[0] for line in went_on.err.splitlines()[1:]] == ["epoch 3/3"]


def test_until_epoch_stops_there_and_the_run_goes_on_later(capsys, tmp_path):
    first = train(capsys, "--until-epoch", "2")
    assert "last (epoch 2)" in first.out
    assert "unfinished: 2 of 3 epochs" in first.err
    assert "2 of 3 epochs" in train(capsys, "--until-epoch", "2").err
    assert "is unfinished: these are predictions after 2 of 3 epochs" in invoke(capsys, "evaluate", "run").err
    assert "6 an epoch, 12 in all" in train(capsys, "--until-epoch", "2", "--dry-run").out
    ran(capsys, "predict", "run", "--checkpoint", "best-nll", "--split", "test")
    outdated = tmp_path / "run" / "predictions" / "test.best-nll"
    assert outdated.is_dir()
    assert not is_finished(RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run").spec())
    second = train(capsys, "--until-epoch", "3")
    assert "test.best-nll; calattn predict makes them again" in second.err
    assert not outdated.exists(), "it was of epoch 2 and would pass for the trained network's"
    assert is_finished(RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run").spec())
    whole = RunFolder(tmp_path / "run").predictions("test").logits
    train(capsys, "--overwrite")
    assert torch.equal(RunFolder(tmp_path / "run").predictions("test").logits, whole), "stopping changes nothing"


def test_ctrl_c_in_a_process_of_its_own():
    script = Path(sys.executable).with_name("calattn")
    line = [str(script), "train", "digits", *KEYS, "--epochs", "100000", "--out", "run", "--accelerator", "cpu"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while not process.stderr.readline().startswith("epoch"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().splitlines()
        assert process.stdout.read() == ""
    assert process.returncode == 130
    assert [text for text in rest if not text.startswith("epoch")] == [rest[-1]]
    assert rest[-1].startswith("calattn: stopped by SIGINT after update")
    assert list(Path("run/checkpoints").glob("state-*")), "it can go on"


def test_tensorboard_gets_what_the_log_has(capsys, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(capsys, "--track", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "trackers" / "tensorboard")).Reload()
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    logged = [row["train"]["loss"] for row in rows if row.get("event") == "epoch"]
    tag = next(tag for tag in events.Tags()["scalars"] if tag.endswith("train/loss"))
    assert [event.value for event in events.Scalars(tag)] == pytest.approx(logged)


def test_the_folder_is_named_by_the_spec(capsys, tmp_path):
    ran(capsys, "train", "digits", *KEYS, "--accelerator", "cpu", "--set", "name=my run")
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name == f"my-run-{RunFolder(made).spec().hash[:8]}"


# --- predict


def test_predict_writes_what_it_says(capsys, tmp_path):
    train(capsys)
    result = ran(capsys, "predict", "run", "--checkpoint", "best-nll", "--split", "test", "--features", "--json")
    assert result.json == {
        "schema": 1,
        "command": "predict",
        "run": "run",
        "written": ["run/predictions/test.best-nll"],
    }
    found = calattn.load_predictions(tmp_path / "run/predictions/test.best-nll")
    assert found.features is not None
    assert found.features.shape == (240, 16)
    folder = RunFolder("run")
    weights = checkpoint.CheckpointFolder(folder.checkpoints_path, folder.spec().hash).weights("best-nll")
    # The last layer by hand, from the features and the checkpoint's own numbers.
    by_hand = found.features @ weights["backbone.head.weight"].T + weights["backbone.head.bias"]
    torch.testing.assert_close(found.logits, by_hand, atol=1e-4, rtol=1e-4)


def test_predict_prints_a_path_a_line(capsys):
    train(capsys)
    result = invoke(capsys, "predict", "run", "--threads", 1)
    assert result.out.splitlines() == ["run/predictions/validation", "run/predictions/test"]
    assert all(Path(line).is_dir() for line in result.out.splitlines())


def test_images_without_meaningful_labels(capsys):
    train(capsys)
    result = invoke(capsys, "predict", "run", "--data", "digits", "--ood", "--split", "train")
    assert result.out == "run/predictions/digits-train\n"
    found = calattn.load_predictions("run/predictions/digits-train")
    assert (found.labelled, len(found)) == (False, 1168)
    refusal = refused(capsys, "evaluate", "run", "--split", "digits-train")
    assert "it holds predictions without labels; pass --labels" in refusal


# --- the lines


def test_the_longest_epoch_line_fits_and_gives_way_from_the_right():
    assert len(epoch_line(ROW, 300)) <= 112
    for width in (40, 60, 80, 100):
        line = epoch_line(ROW, 300, width)
        assert len(line) <= width
        assert line.startswith("epoch 300/300  loss 12.3456")


def test_bars_are_for_terminals_and_leave_nothing():
    """A terminal that is a text: the bar is drawn, names the work, and is erased at the end."""
    import io

    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=100)
        with TrainingProgress(console) as bars:
            bars.preparing("reading digits")
            bars._bars.refresh()
            bars.decoded("decoding train", 5, 10)
            bars.start(RunFolder("run"), epochs=2, updates_per_epoch=10, done=10, main=True)
            bars.updates(1)
            bars.pace(0.25, 1234.0)
            bars._bars.refresh()
            bars.epoch(ROW)
            bars.predicted(3, 6)
            bars.predicted(3, 6)
            bars._bars.refresh()
        for shown in ("reading digits", "loss 0.2500  1,234 img/s"):
            assert (shown in file.getvalue()) == terminal
        assert ("epoch 2/2" in file.getvalue() and "11/20" in file.getvalue() and "6/6" in file.getvalue()) == terminal
        assert ("\x1b[2K" in file.getvalue().rpartition("━")[2]) == terminal, "erased after it was last drawn"
        assert "training in run: resuming from update 10, epoch 2" in file.getvalue()


def test_processes_that_help_do_not_print():
    import io

    file = io.StringIO()
    with TrainingProgress(Console(file=file)) as bars:
        bars.start(RunFolder("run"), epochs=2, updates_per_epoch=10, done=0, main=False)
    assert bars.started
    assert not bars.is_main
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("name", "rank", "lines"), [("LOCAL_RANK", "0", 1), ("LOCAL_RANK", "1", 0), ("SLURM_LOCALID", "1", 1)]
)
def test_an_error_that_all_processes_meet_is_said_once(capsys, monkeypatch, name, rank, lines):
    """SLURM numbers commands of one process too, each of which has its own error to tell."""
    monkeypatch.setenv(name, rank)
    result = refused(capsys, "train", "digits", *KEYS, "--out", "run", "--accelerator", "cpu", "--set", "loss.name=cee")
    assert len(result.splitlines()) == lines


def test_a_short_trial_shortens_the_warm_up_and_says_so(capsys):
    result = train(capsys, "--dry-run", "--epochs", "1", "--set", "schedule.warmup_epochs=3")
    spec = yaml.safe_load(result.out.partition("\nrun ")[0])
    assert 0 < spec["schedule"]["warmup_epochs"] <= 0.5
    assert "the warm-up of 3 epochs is shortened" in result.err
    longer = train(capsys, "--dry-run", "--epochs", "8", "--set", "schedule.warmup_epochs=3")
    assert "shortened" not in longer.err


@pytest.mark.parametrize(
    ("places", "speaks"),
    [
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),  # the first of the second machine
        ({"LOCAL_RANK": "1"}, False),
        ({"RANK": "colonel"}, True),
        ({"SLURM_PROCID": "3"}, True),  # one of several commands, each for itself
        ({"SLURM_PROCID": "3", "devices": "2"}, False),
    ],
)
def test_the_first_of_several_processes_speaks_for_all(capsys, monkeypatch, places, speaks):
    more = ("--devices", places["devices"]) if "devices" in places else ()
    for name in places.keys() - {"devices"}:
        monkeypatch.setenv(name, places[name])
    found = train(capsys, "--dry-run", "--epochs", "1", "--set", "schedule.warmup_epochs=3", *more)
    assert ("is shortened" in found.err) == speaks
