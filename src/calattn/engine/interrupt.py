"""The interrupt: SIGTERM and Ctrl-C become a flag that the training loop reads between steps, and then an `Interrupted`."""

from __future__ import annotations

import signal
import threading
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """SIGTERM or Ctrl-C: a checkpoint was written, and the same command resumes from there."""

    def __init__(self, number: int, update: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name} after update {update}; the same command resumes from there")


class Interrupt:
    """While the block runs, the first signal sets `requested`; a second Ctrl-C raises KeyboardInterrupt at once.

    Python lets only the main thread handle signals: elsewhere this does nothing. A signal that the process was started
    to ignore (as `nohup` does) stays ignored.

    >>> with Interrupt() as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interrupt.requested.name
    'SIGTERM'
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._keyboard = 0
        self._old: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                old = signal.getsignal(number)
                # None is a handler that was not set from Python: it could not be put back.
                if old not in (signal.SIG_IGN, None):
                    self._old[number] = old
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        while self._old:
            signal.signal(*self._old.popitem())

    def _note(self, number: int, _: object) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number)
        if number == signal.SIGINT:
            self._keyboard += 1
            if self._keyboard > 1:
                raise KeyboardInterrupt
