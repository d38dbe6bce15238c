"""How numbers are printed and what figures look like, in one place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Okabe and Ito's palette: told apart by colour-blind readers, and in grey.
BLUE, ORANGE, GREEN, PURPLE, INK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222", "#8A8A8A"

STYLE = Path(__file__).with_name("calattn.mplstyle")
"""The style sheet of the figures, for `matplotlib.style.use`."""


def unit_of(metric: str) -> tuple[float, int, str]:
    """Factor, decimals and unit: NLL has no per cent."""
    return (1.0, 3, "nats") if metric == "nll" else (100.0, 2, "points")


def number(metric: str, value: float | None, *, signed: bool = False) -> str:
    """A fraction as the tables print it.

    >>> number("ece", 0.0123), number("nll", 0.5), number("ece", -0.01, signed=True), number("nll", math.inf)
    ('1.23', '0.500', '−1.00', '∞')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return ("+" if signed and value > 0 else "−" if value < 0 else "") + "∞"
    factor, places, _ = unit_of(metric)
    return f"{factor * value:{'+' if signed else ''}.{places}f}".replace("-", "−")


def between(metric: str, low: float | None, high: float | None, *, signed: bool = False) -> str:
    """An interval as the tables print it; empty where none was computed."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f"[{number(metric, low, signed=signed)}, {number(metric, high, signed=signed)}]"


def percent(level: float) -> str:
    """A level such as 0.95, with the space that units have.

    >>> percent(0.95), percent(0.999)
    ('95 %', '99.9 %')
    """
    return f"{100 * level:.6g} %"


@contextmanager
def figure_style() -> Iterator[None]:
    """The style sheet's settings for the figures made inside the block; the caller's own settings come back after it.

    A dollar in a name is a dollar and starts no formula.
    """
    import matplotlib

    # Only what the sheet names: the caller's fonts, say, stay. (`rc_context(fname=…)` would reset all the rest.)
    with matplotlib.rc_context(matplotlib.rc_params_from_file(STYLE, use_default_template=False)):
        matplotlib.rcParams["text.parse_math"] = False
        yield
