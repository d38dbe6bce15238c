"""A process of several that dies, or falls silent, ends the others with a message; the same command then goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from calattn.engine import log
from calattn.runs.runtime import Runtime
from calattn.runs.train import train_run
from tests.faults import tally
from tests.forking import Forked
from tests.integration.test_distributed import SHARDED, assert_same_but_for_rounding
from tests.small_runs import CPU, small_spec

CHANGES = (*SHARDED, "train.epochs=3")
CODE = """
import sys
from calattn.cli import errors
from tests.faults.test_several_processes import part_of_a_run
with errors.reported(as_json=False, debug=False) as outcome:
    part_of_a_run(sys.argv[1], sys.argv[2], float(sys.argv[3]))
sys.exit(outcome.code)
"""


def part_of_a_run(path: str, strategy: str, heartbeat: float) -> None:
    where = {"accelerator": "cpu", "devices": "2", "strategy": strategy, "threads": 1}
    runtime = Runtime(**where, save_seconds=0.0, heartbeat_seconds=heartbeat)  # type: ignore[arg-type]
    train_run(small_spec(*CHANGES), path, runtime=runtime)


def started(path: Path, strategy: str, *, heartbeat: float) -> list[Forked]:
    """Two processes, told what torchrun tells them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    same = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        Forked(CODE, path, strategy, heartbeat, environment={key: str(value) for key, value in {
            **same, "RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "test"}.items()})
        for rank in (0, 1)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "alone"
    train_run(small_spec(*CHANGES), path, runtime=CPU)
    return path


CASES = [
    (1, signal.SIGKILL, "ddp"),
    (0, signal.SIGSTOP, "fsdp"),
    (0, signal.SIGKILL, "fsdp"),
    (1, signal.SIGSTOP, "ddp"),
]


@pytest.mark.parametrize(("victim", "how", "strategy"), CASES[: tally.times(2, 4)])
def test_the_others_end_and_the_same_command_goes_on(
    tmp_path: Path, alone: Path, victim: int, how: signal.Signals, strategy: str
) -> None:
    """A process that is halted keeps its connections open, as a machine does that has lost its power."""
    path = tmp_path / "run"
    processes = started(path, strategy, heartbeat=0.5)
    while not log.RunLog(path / "log.jsonl").rows():
        assert os.waitpid(processes[victim].pid, os.WNOHANG) == (0, 0)
        time.sleep(0.02)
    processes[victim].send_signal(how)
    _, said = processes[1 - victim].communicate()
    os.kill(processes[victim].pid, signal.SIGKILL)
    processes[victim].communicate()
    assert processes[1 - victim].returncode == 1, said
    assert "another process of this run has ended" in said or "is no longer there, see its own messages" in said
    assert "Traceback" not in said
    again = started(path, strategy, heartbeat=5)
    said = "".join(process.communicate()[1] for process in again)
    assert [process.returncode for process in again] == [0, 0], said
    assert_same_but_for_rounding(path, alone, *CHANGES)
    tally.count(how.name, f"one of two processes ({strategy})", injected=1)
