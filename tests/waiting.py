"""How long tests waited for a core: what of a slow suite is the machine's doing and not theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic  # tests replace time.monotonic and Path.read_text
from typing import Any

import pytest

_SCHEDULED = "/proc/self/schedstat"  # Linux: nanoseconds at work, nanoseconds ready and waiting for a core
_IS_LINUX = Path(_SCHEDULED).exists()
_NAME = "waited"
SHARE = 0.2
"""Of the time of all tests: below it, two workers and the processes that they start wait for each other only."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """In the process that runs the test; its report carries the times to the one that writes the summary."""
    began, waited = monotonic(), _waited()
    try:
        return (yield)
    finally:
        item.user_properties.append((_NAME, (monotonic() - began, _waited() - waited)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    told = {r.nodeid: dict(r.user_properties) for r in reports if getattr(r, "when", None) == "call"}
    line = line_of({name: each[_NAME] for name, each in told.items() if _NAME in each})
    if line is not None:
        terminalreporter.write_line(line)


def line_of(times: Mapping[str, Sequence[float]]) -> str | None:
    """From test → (seconds, of which it waited for a core).

    >>> line_of({"test_a": (10.0, 0.5), "test_b": (30.0, 20.0)})
    'The machine was busy: tests waited for a core in 51 % of their time; test_b in 20 of 30 s.'
    >>> line_of({"test_a": (10.0, 0.5)})
    """
    seconds, waited = (sum(each[i] for each in times.values()) for i in (0, 1))
    if waited < max(SHARE * seconds, 1.0):
        return None
    name = max(times, key=lambda each: times[each][1])
    return (
        f"The machine was busy: tests waited for a core in {100 * waited / seconds:.0f} % of their time; "
        f"{name} in {times[name][1]:.0f} of {times[name][0]:.0f} s."
    )


def _waited() -> float:
    """Seconds; of this process alone, not of those that a test starts."""
    if not _IS_LINUX:
        return 0.0
    with open(_SCHEDULED) as file:
        return int(file.read().split()[1]) / 1e9
