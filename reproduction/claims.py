"""The paper's claims, each with its test: `claims.yaml` says which cells are compared, and what a reader is told.

What decides a difference is in `evidence`, what makes one verdict of many differences in `verdicts`. All of it was written
before any cell of the grid was trained.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from calattn.registry import Registry
from reproduction import afterwards
from reproduction.cells import CIFARS, TRANSFORMERS, Cell, ScaleName, combinations
from reproduction.evidence import REGISTERED, Arm, Comparison, Outcome, Results, Rules, outcomes_of
from reproduction.phases import find_phases
from reproduction.results import RULES, CellResult, Phase, ResultStore
from reproduction.sizes import cost_of
from reproduction.verdicts import Gain, Judge, Verdict, kept, not_tested, same, verdict_of

PARAMETER_LIMIT = 0.001
MODERATE = (0.3, 0.7)
"""A rank correlation between these is called moderate."""
TOLD: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Claim → its title, what the paper says, how it is tested in words, and the comparisons."""

OPTIONS = ("seeds", "guard", "other_metrics", "not_tested_below_paper")

ByRule = dict[str, tuple[Outcome, ...]]
Others = dict[str, ByRule]
"""metric or title → rule → outcomes"""


SEEDS = (0, 1, 2)
Group = dict[str, Any]


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
    return Arm(cell=Cell(**cell), phase=phase)


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

    @property
    def compares(self) -> bool:
        return not self.not_tested

    def comparisons(self, scale: ScaleName) -> list[Comparison]:
        return _comparisons(self.pairs, scale)

    def cells(self, scale: ScaleName) -> list[Cell]:
        planned = [each for each in self.comparisons(scale) if each.b.cell.seed in self.seeds]
        return list(dict.fromkeys(cell for each in planned for cell in (each.a.cell, each.b.cell)))

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:
        if reason := self.not_tested or (self.not_tested_below_paper if store.scale != "paper" else ""):
            return not_tested(reason)
        results, wanted = _read(store), self.comparisons(store.scale)
        if rules.scaled:
            wanted = [each for each in wanted if each.a.phase != "pre" or each.b.phase == "pre"]
        if rules.by_nll:
            wanted = [each.with_temperature_by_nll() for each in wanted]
        planned = len({(each.family, each.metric) for each in wanted})
        judge = Gain("most") if rules.most and isinstance(self.judge, Gain) else self.judge
        return verdict_of(self._outcomes(wanted, results, rules), planned=planned, judge=judge)

    def beside(self, results: Results) -> Others:
        """What is shown and not judged: other metrics of the same comparisons, and other pairs by their title."""
        wanted = self.comparisons(results.scale)
        others = {name: [each._replace(metric=name) for each in wanted] for name in self.other_metrics}
        others |= {title: _comparisons(pairs, results.scale) for title, pairs in self.other_pairs.items()}
        return {part: self._outcomes(those, results) for part, those in others.items()}

    def _outcomes(self, wanted: Sequence[Comparison], results: Results, rules: Rules = REGISTERED) -> ByRule:
        return {rule: outcomes_of(wanted, rule=rule, results=results, guard=self.guard, rules=rules) for rule in RULES}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """A claim that is read off networks one by one: of the grid, those that it `needs`, or of `results/head`."""

    read: Callable[[Results, str], Iterable[Outcome]]
    judge: Judge
    planned: int
    needs: Sequence[Cell] = ()
    rule: str = "any"
    other_metrics: Sequence[str] = ()
    not_tested_below_paper: str = ""
    compares: ClassVar[bool] = False

    def cells(self, _scale: ScaleName) -> list[Cell]:
        return list(self.needs)

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:  # noqa: ARG002
        if self.not_tested_below_paper and store.scale != "paper":
            return not_tested(self.not_tested_below_paper)
        return verdict_of({self.rule: self._outcomes(_read(store))}, planned=self.planned, judge=self.judge)

    def beside(self, results: Results) -> Others:
        """Other metrics, and what was read where that is no test."""
        others = {metric: {self.rule: self._outcomes(results, metric)} for metric in self.other_metrics}
        if self.not_tested_below_paper and results.scale != "paper":
            others["seen, not judged"] = {self.rule: self._outcomes(results)}
        return others

    def _outcomes(self, results: Results, metric: str = "ece") -> tuple[Outcome, ...]:
        return tuple(self.read(results, metric))


def _comparisons(pairs: Sequence[Pairs], scale: ScaleName) -> list[Comparison]:
    return [comparison for each in pairs for comparison in each.comparisons(scale)]


def _read(store: ResultStore | Results) -> Results:
    return store if isinstance(store, Results) else Results(store)


def verdicts(store: ResultStore | Results, rules: Rules = REGISTERED) -> dict[str, Verdict]:
    """Claim → verdict, every result read once."""
    results = _read(store)
    return {name: claim.verdict(results, rules) for name, claim in CLAIMS.items()}


# --- claims that are counted, not estimated ----------------------------------------------------------------------------

HEADS = tuple(Cell(dataset=data, model=model, head="calattn") for data in CIFARS for model in TRANSFORMERS)
OF_CIFAR10 = tuple(cell for cell in HEADS if cell.dataset == "cifar10")
NORMED = tuple(Cell(dataset="cifar10", model="vit", head=head, seed=1) for head in ("none", "calattn"))
"""The second seed: the norm is measured in networks that are trained now."""


def _shares(_results: Results, _metric: str) -> Iterator[Outcome]:
    """Of the paper's networks, which need not be trained to be counted."""
    for cell in HEADS:
        cost = cost_of(cell.dataset, cell.model)
        ends = {"a": cost.backbone_params, "b": cost.added_params}
        yield _counted(cell, "parameters", cost.fraction, **ends, good=cost.fraction < PARAMETER_LIMIT)


def _phased(results: Results, _metric: str) -> Iterator[Outcome]:
    for cell in OF_CIFAR10:
        found = results.get(cell)
        phases = find_phases(found.log) if isinstance(found, CellResult) else None
        if phases is not None:
            before, after = phases.middle.cv, phases.end.cv
            yield _counted(cell, "cv", after - before, a=before, b=after, good=phases.all)


def _correlated(results: Results, _metric: str) -> Iterator[Outcome]:
    low, high = MODERATE
    for cell in NORMED:
        found = results.get(cell)
        value = found.rules["last"].get("cls_norm_correlation") if isinstance(found, CellResult) else None
        if value is not None:
            yield _counted(cell, "correlation", value, a=low, b=high, good=low <= value <= high)


def _counted(cell: Cell, metric: str, effect: float, *, a: float, b: float, good: bool) -> Outcome:
    """An outcome without an interval, decided by what was counted; parameters have no seed."""
    return Outcome(
        family=cell.name,
        cell=cell,
        metric=metric,
        a=float(a),
        b=float(b),
        effect=effect,
        seeds=() if metric == "parameters" else (cell.seed,),
        cells=(cell.name,),
        decision="better" if good else "worse",
    )


def needs_all(otherwise: str) -> Judge:
    """Judges what has to be so in every network."""

    def judge(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
        good = all(each.decision == "better" for each in outcomes)
        return good, "confirmed" if good else f"contradicted: {otherwise}"

    return judge


def mostly_seen(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    if 2 * sum(each.decision == "better" for each in outcomes) > len(outcomes):
        return True, "confirmed"
    return False, "contradicted: the phases are not all seen in most networks"


# --- the claims --------------------------------------------------------------------------------------------------------

_JUDGES: dict[str, Judge] = {"every": Gain("every"), "most": Gain("most"), "kept": kept, "same": same}
_READINGS = {
    "joint_beats_posthoc": Reading(
        read=lambda results, metric: afterwards.outcomes(results.heads, metric),
        judge=Gain("every"),
        planned=4,
        rule="last",
        other_metrics=["nll"],
    ),
    "few_parameters": Reading(
        read=_shares, judge=needs_all("at or above the limit in at least one network"), planned=len(HEADS)
    ),
    "cls_norm": Reading(
        read=_correlated, judge=needs_all("outside 0.3 to 0.7 in at least one network"), planned=2, needs=NORMED
    ),
    "three_phases": Reading(
        read=_phased,
        judge=mostly_seen,
        planned=len(OF_CIFAR10),
        needs=OF_CIFAR10,
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


CLAIMS: Registry[Claim | Reading] = Registry("claim")
for _name, _told in TOLD.items():
    CLAIMS.add(_name, _READINGS.get(_name) or _claim(_told))
