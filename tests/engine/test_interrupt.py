"""The interrupt: signals become a flag, the second Ctrl-C is heard at once, handlers are put back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from calattn.engine.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_flag_and_the_old_handler_comes_back(number: signal.Signals) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _: heard.append(number))
    try:
        with Interrupt() as interrupt:
            assert interrupt.requested is None
            os.kill(os.getpid(), number)
            assert interrupt.requested is number
        assert heard == []
        os.kill(os.getpid(), number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


def test_the_first_signal_is_the_one_reported() -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested is signal.SIGTERM


def test_a_second_ctrl_c_raises_and_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert interrupt.requested is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def work() -> None:
        with Interrupt() as interrupt:
            found.append(interrupt.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]
    assert signal.getsignal(signal.SIGTERM) == before
