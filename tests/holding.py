"""A run that waits after an epoch until it is told to stop: no test has to be quicker than training.

This file is the plugin that makes a process wait, and what the tests start such processes with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calattn import plugins
from calattn.engine.interrupt import Interrupt
from calattn.engine.log import RunLog
from tests.forking import Forked

EPOCH = "CALATTN_TESTS_HOLD"


def held(after: int) -> dict[str, str]:
    """What the environment of a process has to hold for it to wait after so many epochs."""
    return {plugins.VARIABLE: __file__, EPOCH: str(after)}


def stopped(process: subprocess.Popen | Forked, run: Path, *, after: int) -> tuple[int, str]:
    """SIGTERM to a process that is held, once it waits; its exit code and what it said."""
    while len(RunLog(run / "log.jsonl").rows()) < after:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode is not None
    return process.returncode, stderr


def hold(epoch: int) -> None:
    """The row of that epoch is written, and nothing more until a signal has come."""
    entered: list[Interrupt] = []
    enter, append = Interrupt.__enter__, RunLog.append

    def entering(self: Interrupt) -> Interrupt:
        entered.append(self)
        return enter(self)

    def appending(self: RunLog, row: Mapping[str, Any]) -> None:
        append(self, row)
        while row.get("epoch") == epoch and entered[-1].requested is None:
            time.sleep(0.01)

    Interrupt.__enter__, RunLog.append = entering, appending  # type: ignore[method-assign]


if EPOCH in os.environ:
    hold(int(os.environ[EPOCH]))
