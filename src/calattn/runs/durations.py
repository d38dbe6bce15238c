"""Durations in words. A module of its own: a plan is printed without what a run imports."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """
    >>> duration(42), duration(600), duration(40000)
    ('42 s', '10 min', '11.1 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
