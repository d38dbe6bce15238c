"""`calattn compare --over-seeds`: runs whose specs differ in their seed alone are trainings of one method, calibrated or not."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calattn.cli.console import note
from calattn.cli.subjects import Subject
from calattn.cli.trainings import training_of

if TYPE_CHECKING:
    from rich.table import Table

_FEWEST = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The trainings of one method: seed → run. `number` tells methods apart whose runs have the same names."""

    runs: dict[int, Subject]
    number: int = 1

    @property
    def title(self) -> str:
        """What the names of the runs have in common, and how many there are.

        >>> from pathlib import Path
        >>> from calattn.cli.options import Reader
        >>> def title(name: str) -> str:
        ...     runs = {s: Subject(path=Path("p"), reader=Reader(), title=name.format(s)) for s in (1, 10)}
        ...     return Group(runs=runs).title
        >>> title("ce-loss-s{}"), title("calibrated/ce-s{}/vector"), title("seed{}/ce")
        ('ce-loss (2 seeds)', 'calibrated/ce/vector (2 seeds)', 'ce (2 seeds)')
        """
        titles = [each.title.split("\n")[0] for each in self.runs.values()]
        scaled = " + TS" * any(each.calibrator is not None for each in self.runs.values())
        which = f" no. {self.number}" * (self.number > 1)
        return f"{_in_common(titles)}{scaled}{which} ({len(titles)} seed{'s' * (len(titles) > 1)})"

    def described(self) -> dict[str, Any]:
        """What JSON says about where the numbers come from."""
        return {"title": self.title, "runs": [{"seed": seed} | run.described() for seed, run in self.runs.items()]}


def _in_common(titles: Sequence[str]) -> str:
    """The beginning, without what is left of a seed at its end, and the folders at the end."""
    if len(set(titles)) == 1:
        return titles[0]
    letters = os.path.commonprefix(titles)  # noqa: RUF071  (of names, not of folders)
    shared = re.sub(r"(?:(?:^|[\W_]+)s(?:eed)?)?[\W_]*\d*$", "", letters)
    rest = os.path.commonprefix([title[len(letters) :][::-1] for title in titles])[::-1]  # noqa: RUF071
    _, slash, folders = rest.partition("/")
    return f"{shared}{slash}{folders}".strip("/") or titles[0]


def group(found: Sequence[Subject]) -> list[Group]:
    """The methods, in the order in which the first run of each was named, their runs in the order of seeds."""
    methods: dict[str, dict[int, Subject]] = {}
    for each in found:
        method, seed = training_of(each)
        runs = methods.setdefault(method, {})
        if seed in runs:
            raise ValueError(
                f"{_place(runs[seed])} and {_place(each)} are the same {_kind(each)} with the same seed {seed}; name one of them"
            )
        runs[seed] = each
    groups: list[Group] = []
    for runs in methods.values():
        made = Group(runs=dict(sorted(runs.items())))
        while made.title in [each.title for each in groups]:
            made = dataclasses.replace(made, number=made.number + 1)
        groups.append(made)
    if len(groups) < _FEWEST:
        raise ValueError(
            "all of these runs are of one method: their specs differ in their seed alone; name those of another too"
        )
    return groups


def pairs(a: Group, b: Group) -> list[tuple[Subject, Subject]]:
    """The runs of both methods seed by seed; what only one of them has is left out, and said."""
    common = [seed for seed in a.runs if seed in b.runs]
    if len(common) < _FEWEST:
        raise ValueError(
            f"{a.title} and {b.title} have {len(common)} seed{'s' * (len(common) != 1)} in common ({_seeds(a)} and {_seeds(b)}); "
            f"--over-seeds needs at least {_FEWEST}: train more with calattn train … --seed N"
        )
    for each in (a, b):
        if alone := [str(seed) for seed in each.runs if seed not in common]:
            note(f"{each.title}: left out, because the other side has no such seed: {', '.join(alone)}")
    return [(a.runs[seed], b.runs[seed]) for seed in common]


def remark(found: Sequence[Subject]) -> str | None:
    """What the interval of a comparison of single runs does not cover; None where they are no runs."""
    seen: dict[str, tuple[str, int]] = {}
    for each in found:
        if each.run is None:
            return None
        try:
            method, seed = training_of(each)
        except ValueError:
            return None
        title = each.title.split("\n")[0]
        if method in seen:
            other, others_seed = seen[method]
            return (
                f"{other} (seed {others_seed}) and {title} (seed {seed}) are trainings of one method: what they differ by is "
                "another training, not another method"
            )
        seen[method] = title, seed
    if not seen:
        return None
    return (
        "one training each: the intervals are for other samples, not for another training; train several seeds of each and "
        "compare with --over-seeds"
    )


def table(comparisons: Mapping[str, Mapping[str, Any]], *, baseline: str, level: float, options: Any = None) -> Table:
    """Means and deviations of both sides, and the difference (`SeedsDifference`)."""
    from rich.markup import escape
    from rich.table import Table

    from calattn.report.style import between, number, percent, title_of

    caption = (
        f"mean ± standard deviation over seeds; differences from {baseline} with {percent(level)} intervals that cover "
        "other trainings and other samples; points of per cent, NLL in nats"
    )
    shown = Table(caption=escape(caption), caption_style="dim", caption_justify="left")
    shown.add_column("")
    for heading in (baseline, *(part for title in comparisons for part in (title, "difference", "p"))):
        shown.add_column(escape(heading), justify="right")
    for metric, first in next(iter(comparisons.values())).items():
        cells = [f"{number(metric, first.a)} ± {number(metric, first.std_a)}"]
        for each in (found[metric] for found in comparisons.values()):
            ends = between(metric, each.low, each.high, signed=True)
            cells.append(f"{number(metric, each.b)} ± {number(metric, each.std_b)}")
            cells += [
                f"{number(metric, each.difference, signed=True)}\n[dim]{escape(ends)}[/dim]",
                f"{each.p_value:.2g}",
            ]
        shown.add_row(title_of(metric, options), *cells)
    return shown


def _place(each: Subject) -> Path:
    return each.run or each.path.parent


def _kind(each: Subject) -> str:
    return "spec and calibrator" if each.run is None else "spec"


def _seeds(each: Group) -> str:
    return ", ".join(map(str, each.runs))
