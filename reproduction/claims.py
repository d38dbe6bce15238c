"""The paper's claims, each with its test: `claims.yaml` says which cells are compared, and what a reader is told.

What decides a difference is in `evidence`, what makes one verdict of many differences in `verdicts`. All of it was written
before any cell of the grid was trained.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
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
        others = {name: [dataclasses.replace(each, metric=name) for each in wanted] for name in self.other_metrics}
        others |= {title: _comparisons(pairs, results.scale) for title, pairs in self.other_pairs.items()}
        return {part: self._outcomes(those, results) for part, those in others.items()}

    def _outcomes(self, wanted: Sequence[Comparison], results: Results, rules: Rules = REGISTERED) -> ByRule:
        return {rule: outcomes_of(wanted, rule=rule, results=results, guard=self.guard, rules=rules) for rule in RULES}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """A claim that is read off each cell by itself, whatever the checkpoint rule."""

    cells: Callable[[ScaleName], list[Cell]]
    read: Callable[[Cell, Results], Outcome | None]
    judge: Judge
    not_tested_below_paper: str = ""
    compares: ClassVar[bool] = False

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:  # noqa: ARG002
        if self.not_tested_below_paper and store.scale != "paper":
            return not_tested(self.not_tested_below_paper)
        return verdict_of({"any": self._outcomes(_read(store))}, planned=len(self.cells(store.scale)), judge=self.judge)

    def beside(self, results: Results) -> Others:
        """What was read where that is no test."""
        tested = not self.not_tested_below_paper or results.scale == "paper"
        return {} if tested else {"seen, not judged": {"any": self._outcomes(results)}}

    def _outcomes(self, results: Results) -> tuple[Outcome, ...]:
        outcomes = (self.read(cell, results) for cell in self.cells(results.scale))
        return tuple(outcome for outcome in outcomes if outcome is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A claim about networks of `results/head`, which no cell is, at their last epoch."""

    read: Callable[..., tuple[Outcome, ...]]
    judge: Judge
    planned: int
    other_metrics: Sequence[str]
    compares: ClassVar[bool] = False

    def cells(self, _scale: ScaleName) -> list[Cell]:
        return []

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:  # noqa: ARG002
        found = self.read(_read(store).heads)
        return verdict_of({"last": found}, planned=self.planned, judge=self.judge)

    def beside(self, results: Results) -> Others:
        return {metric: {"last": self.read(results.heads, metric)} for metric in self.other_metrics}


def _comparisons(pairs: Sequence[Pairs], scale: ScaleName) -> list[Comparison]:
    return [comparison for each in pairs for comparison in each.comparisons(scale)]


def _read(store: ResultStore | Results) -> Results:
    return store if isinstance(store, Results) else Results(store)


def verdicts(store: ResultStore | Results, rules: Rules = REGISTERED) -> dict[str, Verdict]:
    """Claim → verdict, every result read once."""
    results = _read(store)
    return {name: claim.verdict(results, rules) for name, claim in CLAIMS.items()}


# --- claims that are counted, not estimated ----------------------------------------------------------------------------


def _head_cells(_scale: ScaleName) -> list[Cell]:
    return [Cell(dataset=data, model=model, head="calattn") for data in CIFARS for model in TRANSFORMERS]


def _phase_cells(scale: ScaleName) -> list[Cell]:
    return [cell for cell in _head_cells(scale) if cell.dataset == "cifar10"]


def _share(cell: Cell, _results: Results) -> Outcome:
    """Of the paper's network, which need not be trained to be counted."""
    cost = cost_of(cell.dataset, cell.model)
    good = cost.fraction < PARAMETER_LIMIT
    return _counted(cell, "parameters", cost.fraction, a=cost.backbone_params, b=cost.added_params, good=good)


def _phased(cell: Cell, results: Results) -> Outcome | None:
    found = results.get(cell)
    phases = find_phases(found.log) if isinstance(found, CellResult) else None
    if phases is None:
        return None
    before, after = phases.middle.cv, phases.end.cv
    return _counted(cell, "cv", after - before, a=before, b=after, good=phases.all)


def _norm_cells(_scale: ScaleName) -> list[Cell]:
    """The second seed: the norm is measured in networks that are trained now."""
    return [Cell(dataset="cifar10", model="vit", head=head, seed=1) for head in ("none", "calattn")]


def _correlated(cell: Cell, results: Results) -> Outcome | None:
    found = results.get(cell)
    value = found.rules["last"].get("cls_norm_correlation") if isinstance(found, CellResult) else None
    if value is None:
        return None
    low, high = MODERATE
    return _counted(cell, "correlation", value, a=low, b=high, good=low <= value <= high)


def _all_moderate(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    if all(each.decision == "better" for each in outcomes):
        return True, "confirmed"
    return False, "contradicted: outside 0.3 to 0.7 in at least one network"


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


def _below_limit(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    if any(each.decision == "worse" for each in outcomes):
        return False, "contradicted: at or above the limit in at least one network"
    return True, "confirmed"


def _mostly_seen(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    if 2 * sum(each.decision == "better" for each in outcomes) > len(outcomes):
        return True, "confirmed"
    return False, "contradicted: the phases are not all seen in most networks"


# --- the claims --------------------------------------------------------------------------------------------------------

_JUDGES: dict[str, Judge] = {"every": Gain("every"), "most": Gain("most"), "kept": kept, "same": same}
_COUNTS: dict[str, Count | Elsewhere] = {
    "joint_beats_posthoc": Elsewhere(read=afterwards.outcomes, judge=Gain("every"), planned=4, other_metrics=["nll"]),
    "few_parameters": Count(cells=_head_cells, read=_share, judge=_below_limit),
    "cls_norm": Count(cells=_norm_cells, read=_correlated, judge=_all_moderate),
    "three_phases": Count(
        cells=_phase_cells,
        read=_phased,
        judge=_mostly_seen,
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


CLAIMS: Registry[Claim | Count | Elsewhere] = Registry("claim")
for _name, _told in TOLD.items():
    CLAIMS.add(_name, _COUNTS.get(_name) or _claim(_told))
