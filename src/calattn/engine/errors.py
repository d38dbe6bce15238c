"""The two ways in which training stops early."""

from __future__ import annotations

import signal


class NonFiniteLoss(ArithmeticError):
    """The loss, or the weights, became NaN or infinite; the message says where and what to try."""


class Interrupted(Exception):
    """SIGTERM or Ctrl-C: a checkpoint was written, and the same command resumes from there."""

    def __init__(self, number: int, update: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"stopped by {self.signal.name} after update {update}; the same command resumes from there")
