"""The paper's claims, each with its test: `claims.yaml` says which cells are compared, and what a reader is told.

What decides a difference is in `evidence`, what makes one verdict of many differences in `verdicts`, what is counted instead of
compared in `counted`. All of it was written before any cell of the grid was trained.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from calattn.registry import Registry
from reproduction import counted
from reproduction.cells import GridCell, ScaleName, combinations
from reproduction.evidence import REGISTERED, Arm, Comparison, Outcome, Rules, outcomes_of
from reproduction.results import RULES, Phase, ResultStore
from reproduction.verdicts import Gain, Judge, Verdict, kept, mostly_seen, needs_all, not_tested, same, verdict_of

TOLD: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Claim → its title, what the paper says, how it is tested in words, and the comparisons."""
OPTIONS = ("seeds", "guard", "other_metrics", "not_tested_below_paper")
SEEDS = (0, 1, 2)

Group = dict[str, Any]
ByRule = dict[str, tuple[Outcome, ...]]
Others = dict[str, ByRule]
"""metric or title → rule → outcomes"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """A tested network against each of its rivals, wherever both are trained: an entry of `claims.yaml`."""

    where: Sequence[Group] | dict[str, Sequence[Group]]
    tested: dict[str, Any]
    rivals: Sequence[dict[str, Any]]
    metrics: Sequence[str]
    family: str

    def comparisons(self, scale: ScaleName) -> list[Comparison]:
        """One for each place, rival, metric and seed."""
        where = (
            self.where["paper" if scale == "paper" else "below_paper"] if isinstance(self.where, dict) else self.where
        )
        places = [place for group in where for place in combinations(group)]
        every = itertools.product(places, self.rivals, self.metrics, SEEDS)
        return [self._comparison(place | {"seed": seed}, rival, metric) for place, rival, metric, seed in every]

    def _comparison(self, place: dict[str, Any], rival: dict[str, Any], metric: str) -> Comparison:
        tested = place | self.tested
        a, b = _arm(**tested | rival), _arm(**tested)
        return Comparison(family=self.family.format(a=a, b=b, metric=metric), metric=metric, a=a, b=b)


def _arm(*, phase: Phase = "pre", **cell: Any) -> Arm:
    return Arm(cell=GridCell(**cell), phase=phase)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that is a list of comparisons, as an entry of `claims.yaml` says; `not_tested`: why no run of ours can judge it."""

    pairs: Sequence[Pairs] = ()
    judge: Judge = same
    seeds: Sequence[int] = (0,)
    guard: bool = True
    other_metrics: Sequence[str] = ()
    other_pairs: Mapping[str, Sequence[Pairs]] = dataclasses.field(default_factory=dict)
    not_tested: str = ""
    not_tested_below_paper: str = ""

    def comparisons(self, scale: ScaleName) -> list[Comparison]:
        return _comparisons(self.pairs, scale)

    def cells(self, scale: ScaleName) -> list[GridCell]:
        planned = [each for each in self.comparisons(scale) if each.b.cell.seed in self.seeds]
        return list(dict.fromkeys(cell for each in planned for cell in (each.a.cell, each.b.cell)))

    def verdict(self, store: ResultStore, rules: Rules = REGISTERED) -> Verdict:
        if reason := self.not_tested or (self.not_tested_below_paper if store.scale != "paper" else ""):
            return not_tested(reason)
        wanted = self.comparisons(store.scale)
        if rules.scaled:
            wanted = [each for each in wanted if each.a.phase != "pre" or each.b.phase == "pre"]
        if rules.by_nll:
            wanted = [each.with_temperature_by_nll() for each in wanted]
        planned = len({(each.family, each.metric) for each in wanted})
        judge = Gain("most") if rules.most and isinstance(self.judge, Gain) else self.judge
        return verdict_of(self._outcomes(wanted, store, rules), planned=planned, judge=judge)

    def beside(self, store: ResultStore) -> Others:
        """What is shown and not judged: other metrics of the same comparisons, and other pairs by their title."""
        wanted = self.comparisons(store.scale)
        others = {name: [each._replace(metric=name) for each in wanted] for name in self.other_metrics}
        others |= {title: _comparisons(pairs, store.scale) for title, pairs in self.other_pairs.items()}
        return {part: self._outcomes(those, store) for part, those in others.items()}

    def _outcomes(self, wanted: Sequence[Comparison], store: ResultStore, rules: Rules = REGISTERED) -> ByRule:
        return {rule: outcomes_of(wanted, rule=rule, store=store, guard=self.guard, rules=rules) for rule in RULES}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedClaim:
    """A claim that is read off networks one by one: of the grid, those that it `needs`, or of `results/head`."""

    read: Callable[[ResultStore, str], Iterable[Outcome]]
    judge: Judge
    planned: int
    needs: Sequence[GridCell] = ()
    rule: str = "any"
    other_metrics: Sequence[str] = ()
    not_tested_below_paper: str = ""

    def cells(self, _scale: ScaleName) -> list[GridCell]:
        return list(self.needs)

    def verdict(self, store: ResultStore, rules: Rules = REGISTERED) -> Verdict:  # noqa: ARG002
        if self.not_tested_below_paper and store.scale != "paper":
            return not_tested(self.not_tested_below_paper)
        return verdict_of(self._outcomes(store), planned=self.planned, judge=self.judge)

    def beside(self, store: ResultStore) -> Others:
        """Other metrics, and what was read where that is no test."""
        others = {metric: self._outcomes(store, metric) for metric in self.other_metrics}
        if self.not_tested_below_paper and store.scale != "paper":
            others["seen, not judged"] = self._outcomes(store)
        return others

    def _outcomes(self, store: ResultStore, metric: str = "ece") -> ByRule:
        return {self.rule: tuple(self.read(store, metric))}


def _comparisons(pairs: Sequence[Pairs], scale: ScaleName) -> list[Comparison]:
    return [comparison for each in pairs for comparison in each.comparisons(scale)]


def verdicts(store: ResultStore, rules: Rules = REGISTERED) -> dict[str, Verdict]:
    """Claim → verdict."""
    return {name: claim.verdict(store, rules) for name, claim in CLAIMS.items()}


# --- the claims --------------------------------------------------------------------------------------------------------

_JUDGES: dict[str, Judge] = {"every": Gain("every"), "most": Gain("most"), "kept": kept, "same": same}
_COUNTED = {
    "joint_beats_posthoc": CountedClaim(
        read=counted.joint, judge=Gain("every"), planned=4, rule="last", other_metrics=["nll"]
    ),
    "few_parameters": CountedClaim(
        read=counted.shares,
        judge=needs_all("at or above the limit in at least one network"),
        planned=len(counted.HEADS),
    ),
    "cls_norm": CountedClaim(
        read=counted.correlated,
        judge=needs_all("outside 0.3 to 0.7 in at least one network"),
        planned=len(counted.NORMED),
        needs=counted.NORMED,
    ),
    "three_phases": CountedClaim(
        read=counted.phased,
        judge=mostly_seen,
        planned=len(counted.OF_CIFAR10),
        needs=counted.OF_CIFAR10,
        not_tested_below_paper=TOLD["three_phases"]["not_tested_below_paper"],
    ),
}


def _claim(told: Mapping[str, Any]) -> Claim:
    if "not_tested" in told:
        return Claim(not_tested=told["not_tested"])
    return Claim(
        pairs=[Pairs(**each) for each in told["compare"]],
        judge=_JUDGES[told["judge"]],
        other_pairs={title: [Pairs(**each) for each in pairs] for title, pairs in told.get("other_pairs", {}).items()},
        **{name: told[name] for name in OPTIONS if name in told},
    )


CLAIMS: Registry[Claim | CountedClaim] = Registry("claim")
for _name, _told in TOLD.items():
    CLAIMS.add(_name, _COUNTED.get(_name) or _claim(_told))
