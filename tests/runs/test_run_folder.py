"""The run folder: same spec resumes, another is refused, only ours is removed, one writer at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from calattn import Predictions, save_predictions
from calattn.engine.checkpoint import CheckpointFolder
from calattn.runs.folder import RunFolder, RunFolderError, read_json, write_json, write_spec
from calattn.runs.predict import predict_folder
from calattn.runs.spec import EvaluationSpec, RunSpec, SpecError, TrainSpec, read_yaml

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="flock and fork are POSIX")


def spec(**changes: object) -> RunSpec:
    return RunSpec.model_validate(changes)


def predictions() -> Predictions:
    return Predictions(logits=torch.tensor([[2.0, 0.0]]), labels=torch.tensor([0]), split="test")


def files(path: Path) -> list[str]:
    return sorted(found.relative_to(path).as_posix() for found in path.rglob("*") if found.is_file())


# --- YAML


def test_a_spec_comes_back_from_plain_yaml(tmp_path: Path) -> None:
    options = {
        "eps": 1e-8,
        "betas": [0.9, 0.999],
        "text": "1e-3",
        "flag": "yes",
        "none": None,
        "word": "größe",
        "num": 5,
    }
    given = spec(name="a: b # c", seed=3, optimizer={"lr": 1e-5, "options": options})
    write_spec(given, tmp_path / "spec.yaml")
    text = (tmp_path / "spec.yaml").read_text(encoding="utf-8")
    assert text.startswith(f"# calattn run spec {given.hash}\nname:")
    for read in (yaml.safe_load(text), read_yaml(tmp_path / "spec.yaml")):
        assert RunSpec.model_validate(read) == given
    assert RunSpec.model_validate(read_yaml(tmp_path / "spec.yaml")).hash == given.hash


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("-2E+4", -2e4), ("1.5e-3", 1.5e-3), ("'1e-3'", "1e-3"), ("e1", "e1")]
)
def test_an_exponent_without_a_point_is_a_number(tmp_path: Path, text: str, value: object) -> None:
    (tmp_path / "a.yaml").write_text(f"lr: {text}")
    found = read_yaml(tmp_path / "a.yaml")["lr"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; a spec is a YAML mapping"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n- b\n", "holds a list, not a mapping"),
        (b"just text", "holds a str, not a mapping"),
        (b"a: 1\nb: [1, 2\nc: 3\n", r"line 3, column 2: .*fix the YAML there"),
        (b"a: 1\n\tb: 2\n", r"line 2, column 1: "),
        (b"train:\n  epochs: 1\n  epochs: 2\n", r"line 3, column 3: 'epochs' is given twice"),
        (b"a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not text"),
        (b"a: \x00\x01", "is not text"),
        (b"a: 2024-99-99", "cannot read"),
        (b"[" * 5000, "cannot read"),
    ],
)
def test_broken_yaml_is_one_line_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=message) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"a\.yaml does not exist; look in "):
        read_yaml(tmp_path / "a.yaml")
    with pytest.raises(SpecError, match="is a folder; name a YAML file"):
        read_yaml(tmp_path)


def test_json_for_people(tmp_path: Path) -> None:
    write_json({"a": float("nan"), "b": ("ü", 1)}, tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == {"a": None, "b": ["ü", 1]}
    assert read_json(tmp_path / "s.json") == {"a": None, "b": ["ü", 1]}
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"s\.json is not JSON"):
        read_json(tmp_path / "s.json")


# --- creating and opening


def test_a_new_folder_holds_the_spec_and_the_same_spec_resumes(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with RunFolder.create_or_open(path, spec(seed=1)) as folder:
        assert folder.spec() == spec(seed=1)
        folder.log_path.write_text('{"epoch": 1}\n')
    again = spec(seed=1, name="renamed", evaluation={"checkpoints": ["last", "best-nll"]})
    with RunFolder.create_or_open(path, again) as folder:
        assert folder.log_path.read_text() == '{"epoch": 1}\n'
        assert folder.spec() == again
    assert RunFolder.open(path).spec().evaluation == EvaluationSpec(checkpoints=("last", "best-nll"))


def test_another_spec_is_refused_key_by_key(tmp_path: Path) -> None:
    RunFolder.create_or_open(tmp_path / "a", spec(train={"epochs": 60})).close()
    other = spec(train={"epochs": 5}, loss={"name": "ce", "options": {"x": 1.0}}, evaluation={"batch_size": 7})
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create_or_open(tmp_path / "a", other)
    message = str(caught.value)
    for part in ("train.epochs: 60 → 5", "loss.name: ce_brier → ce", "another --out, or --overwrite"):
        assert part in message
    assert "evaluation" not in message
    many = spec(
        seed=9, train={"epochs": 5, "batch_size": 8}, data={"name": "digits", "size": 8, "limit": 7, "split_seed": 4}
    )
    with pytest.raises(RunFolderError, match=r"seed: 0 → 9, .*, and 2 more;") as caught:
        RunFolder.create_or_open(tmp_path / "a", many)
    assert str(caught.value).count("→") == 5
    assert RunFolder.open(tmp_path / "a").spec().train == TrainSpec(epochs=60)


def test_a_spec_of_another_version_is_named(tmp_path: Path) -> None:
    RunFolder.create_or_open(tmp_path / "a", spec()).close()
    with (tmp_path / "a" / "spec.yaml").open("a") as file:
        file.write("future: 1\n")
    with pytest.raises(RunFolderError, match=r"spec\.yaml is no spec that this calattn reads \(future: .*--overwrite"):
        RunFolder.create_or_open(tmp_path / "a", spec())
    with pytest.raises(RunFolderError, match=r"\(future: .*\); install the calattn that wrote it$"):
        RunFolder.open(tmp_path / "a").spec()  # whoever reads it overwrites nothing
    with RunFolder.create_or_open(tmp_path / "a", spec(), overwrite=True) as folder:
        assert folder.spec() == spec()


def test_a_folder_of_somebody_else_is_refused_even_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(RunFolderError, match=r"holds other files \('thesis\.tex'\) and no spec\.yaml"):
            RunFolder.create_or_open(tmp_path, spec(), overwrite=overwrite)
    assert files(tmp_path) == ["thesis.tex"]
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create_or_open(tmp_path / "thesis.tex", spec())


def test_overwrite_removes_ours_and_only_ours(tmp_path: Path) -> None:
    with RunFolder.create_or_open(tmp_path / "a", spec()) as folder:
        checkpoints = CheckpointFolder(folder.checkpoints_path, "h")
        checkpoints.save_weights({}, step=1, epoch=1)
        checkpoints.save_state({}, step=1, epoch=1)
        save_predictions(predictions(), folder.predictions_path("test", "best-nll"))
        save_predictions(predictions(), folder.predictions_path("test"))
        for name in ("environment.json", "splits.json", "interface.json", "log.jsonl", "summary.json"):
            (folder.path / name).write_text("{}")
        (folder.trackers_path / "tensorboard").mkdir(parents=True)
        for path in (folder.trackers_path / "tensorboard" / "events.out", folder.path / ".part-dead.json"):
            path.write_text("x")
        theirs = [
            "notes.md",
            "checkpoints/mine.pt",
            "predictions/mine.csv",
            "predictions/test/why.txt",
            "figures/a.png",
        ]
        for name in theirs:
            (folder.path / name).parent.mkdir(exist_ok=True)
            (folder.path / name).write_text("keep")
        save_predictions(predictions(), folder.path / "mine")
        theirs += [f"mine/{name}" for name in files(folder.path / "mine")]
    with RunFolder.create_or_open(tmp_path / "a", spec(seed=2), overwrite=True) as folder:
        assert files(folder.path) == sorted([".lock", "spec.yaml", *theirs])
        assert not folder.trackers_path.exists()
        assert folder.spec().seed == 2


@needs_posix
@pytest.mark.parametrize("linked", ["checkpoints", "predictions", "predictions/test", "trackers"])
def test_overwrite_does_not_follow_links(tmp_path: Path, linked: str) -> None:
    with RunFolder.create_or_open(tmp_path / "theirs", spec()) as folder:
        CheckpointFolder(folder.checkpoints_path, "h").save_state({}, step=1, epoch=1)
        save_predictions(predictions(), folder.predictions_path("test"))
        folder.trackers_path.mkdir()
        (folder.trackers_path / "events.out").write_text("x")
    before = files(tmp_path / "theirs")
    RunFolder.create_or_open(tmp_path / "a", spec()).close()
    (tmp_path / "a" / linked).parent.mkdir(exist_ok=True)
    (tmp_path / "a" / linked).symlink_to(tmp_path / "theirs" / linked)
    RunFolder.create_or_open(tmp_path / "a", spec(seed=2), overwrite=True).close()
    assert files(tmp_path / "theirs") == before
    assert not (tmp_path / "a" / linked).exists()


def test_the_next_start_clears_away_what_a_kill_left(tmp_path: Path) -> None:
    with RunFolder.create_or_open(tmp_path / "a", spec()) as folder:
        left = [
            folder.path / ".part-a.json",
            folder.checkpoints_path / ".tmpAb12Cd",
            folder.checkpoints_path / ".part-b",
        ]
        left.append(folder.predictions_path("test") / ".part-c.safetensors")
        for path in left:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    RunFolder.create_or_open(tmp_path / "a", spec()).close()
    assert not any(path.exists() for path in left)
    with folder.adding(), folder.adding(), pytest.raises(RunFolderError, match="is being written by process"):
        RunFolder.create_or_open(tmp_path / "a", spec())
    with RunFolder.create_or_open(tmp_path / "a", spec()), folder.adding():
        pass  # a run at work: predictions of its checkpoints may be written


def test_what_is_no_run_folder_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(RunFolderError, match=r"is not a run folder; it has no spec\.yaml"):
        RunFolder.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.open(tmp_path / "file")
    RunFolder.create_or_open(tmp_path / "b", spec()).close()
    RunFolder.create_or_open(tmp_path / "a", spec()).close()
    with pytest.raises(RunFolderError, match=r"name one of the runs in it: a, b$"):
        RunFolder.open(tmp_path)


def test_predictions_by_split_and_rule(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.predictions_path("test") == tmp_path / "predictions" / "test"
    with pytest.raises(RunFolderError, match=r"no predictions 'test' in .*; there are: none"):
        folder.predictions("test")
    save_predictions(predictions(), tmp_path / "predictions" / "test.best-nll")
    assert torch.equal(folder.predictions("test", "best-nll").logits, predictions().logits)
    with pytest.raises(RunFolderError, match=r"there are: test\.best-nll"):
        folder.predictions("validation")


# --- permission


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A folder below one that everybody may enter: pytest's own are closed to other users, who are needed here."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        place = Path(above) / "sealed"
        place.mkdir()
        yield place
        place.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_that_cannot_be_written(sealed: Path, existing: bool) -> None:
    if existing:
        RunFolder.create_or_open(sealed, spec()).close()
    for found in sealed.iterdir():
        found.chmod(0o444)
    sealed.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # permissions do not bind root
    try:
        with pytest.raises(
            RunFolderError, match=r"cannot write to \S+sealed\S*: Permission denied; choose another --out"
        ):
            RunFolder.create_or_open(sealed if existing else sealed / "new", spec())
    finally:
        if root:
            os.seteuid(0)


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot write to .*: Not a directory"):
        RunFolder.create_or_open(tmp_path / "file" / "run", spec())


# --- the lock

HOLD = """
import os, sys, time
from calattn.runs.folder import RunFolder
from calattn.runs.spec import RunSpec
folder = RunFolder.create_or_open(sys.argv[1], RunSpec())
worker = os.fork() if sys.argv[2] == "fork" else None
if not worker:  # the child itself speaks, once it is past the fork; without one, the parent
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def holder(path: Path, how: str = "plain") -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@needs_posix
def test_two_processes_do_not_write_into_one_folder(tmp_path: Path) -> None:
    process, _ = holder(tmp_path / "a")
    try:
        for overwrite in (False, True):
            with pytest.raises(RunFolderError, match=f"is being written by process {process.pid};"):
                RunFolder.create_or_open(tmp_path / "a", RunSpec(), overwrite=overwrite)
        assert RunFolder.open(tmp_path / "a").spec() == RunSpec()  # readers need no lock
        with pytest.raises(RunFolderError, match=f"no checkpoint yet, and is being written by process {process.pid};"):
            predict_folder(tmp_path / "a")
    finally:
        process.kill()
        process.communicate()
    RunFolder.create_or_open(tmp_path / "a", RunSpec()).close()
    with pytest.raises(RunFolderError, match="no checkpoint yet; train it first"):
        predict_folder(tmp_path / "a")


@needs_posix
def test_a_worker_that_outlives_a_killed_run_does_not_keep_the_lock(tmp_path: Path) -> None:
    process, worker = holder(tmp_path / "a", "fork")
    try:
        process.kill()
        process.wait()
        os.kill(int(worker), 0)  # it lives
        RunFolder.create_or_open(tmp_path / "a", RunSpec()).close()
    finally:
        os.kill(int(worker), signal.SIGKILL)
        process.communicate()


@needs_posix
def test_the_lock_ends_with_the_block_and_with_an_error(tmp_path: Path) -> None:
    with (
        RunFolder.create_or_open(tmp_path / "a", spec()),
        pytest.raises(RunFolderError, match=f"process {os.getpid()};"),
    ):
        RunFolder.create_or_open(tmp_path / "a", spec())
    with pytest.raises(RunFolderError, match="another spec") as caught:
        RunFolder.create_or_open(tmp_path / "a", spec(seed=4))
    assert caught.tb is not None  # it holds the refused folder: the lock must not wait for the collector
    RunFolder.create_or_open(tmp_path / "a", spec()).close()
