"""A program in a copy of this process: it has imported torch and calattn, which takes a fresh one seconds."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

import torch

COMMAND = "import runpy; runpy.run_module('calattn', run_name='__main__', alter_sys=True)"
"""What `python -m calattn` does, and so do the processes that it starts."""


def limit_files(size: int) -> None:
    """In bytes, for this process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the kernel kills; a full disk only fails the write
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Forked:
    """As much of `subprocess.Popen` with pipes of text as tests need. `before` is called in the copy, before the program."""

    def __init__(
        self, code: str, *arguments: object, environment: Mapping[str, str], before: Callable[[], None] | None = None
    ) -> None:
        self.returncode: int | None = None
        pipes = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(code, [str(each) for each in arguments], environment, before, [end for _, end in pipes])
        for _, end in pipes:
            os.close(end)
        self.stdout, self.stderr = (os.fdopen(end, encoding="utf-8") for end, _ in pipes)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def communicate(self) -> tuple[str, str]:
        with self.stdout, self.stderr:
            said = self.stdout.read(), self.stderr.read()
        self._ended(0)
        return said

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def _run(
        self,
        code: str,
        arguments: list[str],
        environment: Mapping[str, str],
        before: Callable[[], None] | None,
        ends: list[int],
    ) -> NoReturn:
        status, leaving = 1, contextlib.ExitStack()
        try:
            for place, end in enumerate(ends, start=1):
                os.dup2(end, place)
            sys.stdout, sys.stderr = (os.fdopen(place, "w", encoding="utf-8") for place in (1, 2))
            sys.argv[:] = ["-c", *arguments]
            os.environ.update(environment)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            atexit.register = leaving.callback  # those of the test session are not this program's
            torch.set_num_threads(1)  # the threads of the process were not copied, and waiting for them has no end
            if before is not None:
                before()
            exec(code, {"__name__": "__main__"})
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        finally:  # what is left of the test session must not run on in the copy
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            try:
                leaving.close()
            except BaseException:  # Python, too, keeps its exit status then
                traceback.print_exc()
            try:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            except OSError:
                status = 120  # as Python ends when it cannot flush
            os._exit(status)
