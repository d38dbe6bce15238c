"""The three phases of the scale s that the paper sees in training, looked for in a run's log."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

FIRST_CUT, SECOND_CUT = 30 / 350, 150 / 350
"""The paper's boundaries (epochs 30 and 150 of 350) as shares of a run, so that shorter runs are asked the same."""
FEWEST_EPOCHS = 20
RISE = 1.1
"""The coefficient of variation has risen when it ends at least a tenth above its mean in the second phase."""


class Moment(NamedTuple):
    """Mean and coefficient of variation of s over the validation images: at an epoch, or in the mean over some."""

    mean: float
    cv: float


class Phases(NamedTuple):
    """What a log shows. `alignment`: mean and spread fall. `uniform`: the spread stays below where it began. `diverse`: it rises
    again. `crossing`: the mean is above 1 in the second phase and below 1 at the end."""

    alignment: bool
    uniform: bool
    diverse: bool
    crossing: bool
    middle: Moment
    end: Moment

    @property
    def all(self) -> bool:
        return all(self[:4])


def find_phases(log: Sequence[dict[str, Any]]) -> Phases | None:
    """The phases of a log with a row an epoch; None where it is shorter than 20 epochs or has no scale.

    Values at the end are means over the last tenth of the epochs, because a single epoch is noisy.
    """
    logged = [(row["epoch"], row["validation"]["scale"]) for row in log if "scale" in row["validation"]]
    moments = [(epoch, scale["mean"], scale["cv"]) for epoch, scale in logged]
    rows = sorted(each for each in moments if None not in each)  # NaN is null in a log
    if len(rows) < FEWEST_EPOCHS:
        return None
    epochs = rows[-1][0]
    first, second = math.ceil(epochs * FIRST_CUT), round(epochs * SECOND_CUT)
    start = rows[0]
    aligned = max((row for row in rows if row[0] <= first), default=start)
    middle = [row for row in rows if first < row[0] <= second]
    if not middle:
        return None
    end = rows[-max(1, len(rows) // 10) :]
    in_middle, at_end = (Moment(*(statistics.fmean(row[i] for row in part) for i in (1, 2))) for part in (middle, end))
    return Phases(
        alignment=aligned[1] < start[1] and aligned[2] < start[2],
        uniform=max(row[2] for row in middle) <= start[2],
        diverse=at_end.cv >= RISE * in_middle.cv,
        crossing=in_middle.mean > 1 > at_end.mean,
        middle=in_middle,
        end=at_end,
    )
