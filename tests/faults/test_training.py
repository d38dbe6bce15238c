"""Runs that are killed or stopped at random moments: started again, they end with the bits of one that was left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calattn.runs.folder import RunFolder, RunFolderError
from calattn.runs.predict import PredictOptions, predict_folder
from calattn.runs.resolving import resolve
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from tests.faults import tally
from tests.forking import Forked
from tests.integration.test_resume import Silent, assert_same_run
from tests.small_runs import STATEFUL

CHANGES = (*STATEFUL, "train.epochs=2", "data.limit=180")
SPEC = resolve("digits", CHANGES)
SAVING = Runtime(accelerator="cpu", threads=1, save_seconds=0.0)  # a checkpoint after every update
PHASES = ("training", "closing phase", "predictions")
FORK = multiprocessing.get_context("fork")


class Told(Silent):
    """Tells the time at which each phase begins, by a pipe."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.before = pipe, ""

    def start(self, *_: object, **__: object) -> None:
        self._begins("training")

    def teaching(self, *_: object, **__: object) -> None:
        self._begins("closing phase")

    def predicted(self, *_: object, **__: object) -> None:
        self._begins("predictions")

    def finished(self, *_: object, **__: object) -> None:
        self._begins("end")

    def _begins(self, phase: str) -> None:
        if phase != self.before:
            self.before = phase
            self.pipe.send((phase, time.monotonic()))


class Child:
    """A run in a copy of this process, which has imported everything; a group of its own shows whom it leaves behind."""

    def __init__(self, work: Callable[[Any], object]) -> None:
        self.ours, theirs = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=self._work, args=(work, theirs))
        self.process.start()
        theirs.close()

    @staticmethod
    def _work(work: Callable[[Any], object], pipe: Any) -> None:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        torch.set_num_threads(1)
        work(pipe)

    def phases(self) -> Iterator[tuple[str, float]]:
        while True:
            try:
                yield self.ours.recv()
            except EOFError:
                return

    def ended(self) -> int:
        self.process.join()
        with pytest.raises(ProcessLookupError):  # no orphans
            os.killpg(self.process.pid, 0)
        return self.process.exitcode

    def killed(self, after: float) -> bool:
        time.sleep(after)
        os.kill(self.process.pid, signal.SIGKILL)
        return self.ended() == -signal.SIGKILL


def trained(path: Path) -> Callable[[Any], object]:
    return lambda pipe: train_run(SPEC, path, runtime=SAVING, reporter=Told(pipe))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A run that is left alone, and how long each of its phases takes."""
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    child = Child(trained(path))
    began = dict(child.phases())
    assert child.ended() == 0
    ends = list(began.values())[1:]
    return path, {phase: end - began[phase] for phase, end in zip(PHASES, ends, strict=True)}


def unfinished(path: Path) -> list[str]:
    return [found.name for found in path.rglob("*") if found.name.startswith((".part-", ".tmp"))]


@pytest.mark.parametrize("phase", PHASES)
def test_killed_in_a_phase(phase: str, tmp_path: Path, undisturbed: tuple[Path, dict[str, float]]) -> None:
    reference, durations = undisturbed
    chance, kills, wanted = random.Random(phase), 0, tally.times(1, 60)
    path = tmp_path / "run"
    while kills < wanted:
        child = Child(trained(path))
        for begun, _ in child.phases():
            if begun == phase:
                kills += child.killed(chance.uniform(0, durations[phase]))
                break
        else:  # an earlier kill came too late to cost the phase
            assert child.ended() == 0
            finished(path, reference)
            shutil.rmtree(path)
    child = Child(trained(path))
    assert child.ended() == 0
    finished(path, reference)
    tally.count("SIGKILL", phase, injected=kills)


def finished(path: Path, reference: Path) -> None:
    assert_same_run(path, reference)
    assert json.loads((path / "summary.json").read_text())["results"].keys() == {"last"}
    assert unfinished(path) == []


def test_killed_while_predictions_are_written(tmp_path: Path, undisturbed: tuple[Path, dict[str, float]]) -> None:
    """`calattn predict`: what was there stays whole and is what it was, or what it will be."""
    folder = RunFolder(shutil.copytree(undisturbed[0], tmp_path / "run"))
    reference = RunFolder(undisturbed[0])
    kept = {split: reference.predictions(split).logits for split in ("validation", "test")}

    def work(pipe: Any) -> None:
        predict_folder(folder.path, PredictOptions(features=True), runtime=SAVING, on_batch=pipe.send)
        pipe.send(-1)

    child = Child(work)
    child.ours.recv()  # the first batch
    began = time.monotonic()
    assert child.ended() == 0
    duration, chance, kills, wanted = time.monotonic() - began, random.Random(0), 0, tally.times(1, 60)
    while kills < wanted:
        child = Child(work)
        child.ours.recv()
        kills += child.killed(chance.uniform(0, duration))
        for split, logits in kept.items():
            assert torch.equal(folder.predictions(split).logits, logits)
    assert Child(work).ended() == 0
    assert unfinished(folder.path) == []
    tally.count("SIGKILL", "calattn predict", injected=kills)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_stopped_at_random_moments(number: signal.Signals, tmp_path: Path, undisturbed: tuple[Path, dict]) -> None:
    """Through the command line: its exit code says so, its last line is no traceback, and the same command goes on."""
    reference, durations = undisturbed
    chance, stops, wanted = random.Random(number), 0, tally.times(1, 60)
    path = tmp_path / "run"
    arguments = ["train", "digits", "--accelerator", "cpu", "--threads", "1", "--out", path]
    arguments += [part for change in CHANGES for part in ("--set", change)]
    code = (
        "from calattn.cli.app import *; errors.notice_signals(); print('here', flush=True); sys.exit(run(sys.argv[1:]))"
    )
    total = sum(durations.values())
    while True:
        child = Forked(code, *arguments, environment={})
        assert child.stdout.readline() == "here\n"
        if stops < wanted:
            time.sleep(chance.uniform(0, total + 0.3))
            child.send_signal(number)
        _, said = child.communicate()
        assert "Traceback" not in said, said
        assert child.returncode in (0, 128 + number), said
        if child.returncode == 0:
            finished(path, reference)
            if stops == wanted:
                break
            shutil.rmtree(path)
        else:
            stops += 1
    tally.count(number.name, "training, closing phase, predictions", injected=stops)


def test_of_two_runs_in_one_folder_one_refuses(tmp_path: Path, undisturbed: tuple[Path, dict]) -> None:
    """Started together, as two jobs of a queue are; as often as not it is the first that comes second to the lock."""
    rounds = tally.times(1, 10)
    for attempt in range(rounds):
        path = tmp_path / str(attempt)

        def work(pipe: Any, path: Path = path) -> None:
            try:
                train_run(SPEC, path, runtime=SAVING)
            except RunFolderError as error:
                pipe.send(str(error))

        children = [Child(work) for _ in range(2)]
        said = [list(child.phases()) for child in children]
        assert [child.ended() for child in children] == [0, 0]
        refusals = [each for each in said if each]
        assert len(refusals) == 1
        assert "is being written by process" in refusals[0][0]
        finished(path, undisturbed[0])
    tally.count("second writer", "run folder", injected=rounds)
