"""Workers for tests: copies of this process in place of new ones."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import torch

FORK = multiprocessing.get_context("fork")


class Forked:
    """As much of `Popen` as jobs need, for `python -P -m MODULE …`: a new process needs ten seconds to import everything.

    `before` is called in the copy.
    """

    def __init__(self, command: list[str], *, before: Callable[[], object] | None = None, **more: Any) -> None:
        assert command[1:3] == ["-P", "-m"]
        read, write = os.pipe()
        self.process = FORK.Process(target=self._work, args=(command[3:], read, write, more["stdout"], before))
        self.process.start()
        os.close(read)
        self.stdin = os.fdopen(write, "wb")
        self.terminate, self.kill = self.process.terminate, self.process.kill
        self.pid = self.process.pid

    def _work(
        self, arguments: list[str], read: int, write: int, log: BinaryIO, before: Callable[[], object] | None
    ) -> None:
        os.setsid()
        os.close(write)
        os.dup2(read, 0)
        sys.stdout = sys.stderr = os.fdopen(os.dup(log.fileno()), "w", buffering=1)
        torch.set_num_threads(1)  # the threads of the process were not copied
        if before is not None:
            before()
        sys.argv[1:] = arguments[1:]
        runpy.run_module(arguments[0], run_name="__main__")

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired([], timeout or 0)
        return self.process.exitcode
