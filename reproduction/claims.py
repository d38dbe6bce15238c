"""The paper's claims, each with its test; `claims.yaml` has what a reader is told of them, under the same names.

What decides a difference is in `evidence`, what makes one verdict of many differences in `verdicts`, and which cells are
compared in `comparisons`. All of it was written before any cell of the grid was trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import yaml

from calattn.registry import Registry
from reproduction import comparisons as compared
from reproduction.cells import CIFARS, TRANSFORMERS, Cell, ScaleName
from reproduction.evidence import REGISTERED, Comparison, Outcome, Results, Rules, outcomes_of
from reproduction.phases import find_phases
from reproduction.results import RULES, CellResult, ResultStore
from reproduction.sizes import cost_of
from reproduction.verdicts import Gain, Judge, Verdict, kept, same, verdict_of

PARAMETER_LIMIT = 0.001
TOLD: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Claim → its title, what the paper says, and how it is tested: what a reader is told."""

ByRule = dict[str, tuple[Outcome, ...]]
Others = dict[str, ByRule]
"""metric or title → rule → outcomes"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that is a list of comparisons. `seeds` are those planned; others count where they exist. Shown and not judged:
    `also`, other metrics of the same comparisons, and `beside`, other comparisons by their title."""

    name: str
    comparisons: compared.Comparisons
    judge: Judge
    seeds: Sequence[int] = (0,)
    guard: bool = True
    other_metrics: Sequence[str] = ()
    other_pairs: Mapping[str, compared.Comparisons] = dataclasses.field(default_factory=dict)
    compares: ClassVar[bool] = True

    def cells(self, scale: ScaleName) -> list[Cell]:
        planned = [each for each in self.comparisons(scale) if each.b.cell.seed in self.seeds]
        return list(dict.fromkeys(cell for each in planned for cell in (each.a.cell, each.b.cell)))

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:
        results, wanted = _read(store), self.comparisons(store.scale)
        if rules.scaled:
            wanted = [each for each in wanted if each.a.phase != "pre" or each.b.phase == "pre"]
        if rules.by_nll:
            wanted = [each.with_temperature_by_nll() for each in wanted]
        planned = len({(each.family, each.metric) for each in wanted})
        judge = Gain("most") if rules.most and isinstance(self.judge, Gain) else self.judge
        return verdict_of(self._outcomes(wanted, results, rules), planned=planned, judge=judge)

    def also(self, results: Results) -> Others:
        wanted = self.comparisons(results.scale)
        by_metric = {name: [dataclasses.replace(each, metric=name) for each in wanted] for name in self.other_metrics}
        return {metric: self._outcomes(those, results) for metric, those in by_metric.items()}

    def beside(self, results: Results) -> Others:
        return {title: self._outcomes(those(results.scale), results) for title, those in self.other_pairs.items()}

    def _outcomes(self, wanted: Sequence[Comparison], results: Results, rules: Rules = REGISTERED) -> ByRule:
        return {rule: outcomes_of(wanted, rule=rule, results=results, guard=self.guard, rules=rules) for rule in RULES}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """A claim that is read off each cell by itself, whatever the checkpoint rule."""

    name: str
    cells: Callable[[ScaleName], list[Cell]]
    read: Callable[[Cell, Results], Outcome | None]
    judge: Judge
    compares: ClassVar[bool] = False

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:  # noqa: ARG002
        results = _read(store)
        outcomes = [self.read(cell, results) for cell in self.cells(store.scale)]
        known = [outcome for outcome in outcomes if outcome is not None]
        return verdict_of({"any": known}, planned=len(outcomes), judge=self.judge)

    def also(self, results: Results) -> Others:  # noqa: ARG002
        return {}

    beside = also


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


def _counted(cell: Cell, metric: str, effect: float, *, a: float, b: float, good: bool) -> Outcome:
    """An outcome without an interval, decided by what was counted; parameters have no seed."""
    return Outcome(
        family=cell.name,
        cell=cell,
        metric=metric,
        a=float(a),
        b=float(b),
        effect=effect,
        low=None,
        high=None,
        p_value=None,
        accuracy=None,
        paired=False,
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

_AFTER = "after temperature scaling (the paper does not say which it means)"
_BY_NLL = "with T of the lowest validation NLL; intervals joined, not paired"
_PAIRS = compared.pair_families
_CE: compared.Rival = ("ce", "none", "pre")
_CE_TS: compared.Rival = ("ce", "none", "post")
CLAIMS: Registry[Claim | Count] = Registry("claim")
for _claim in (
    Claim(
        name="ece_falls",
        comparisons=compared.twins(_PAIRS, "ece", "pre"),
        judge=Gain("every"),
        other_metrics=("smooth_ece", "adaptive_ece", "classwise_ece"),
    ),
    Claim(
        name="accuracy_kept",
        comparisons=compared.twins(_PAIRS, "accuracy", "pre"),
        judge=kept,
        other_pairs={"other pairs": compared.final_against_baseline},
    ),
    Claim(
        name="complementary_to_ts",
        comparisons=compared.twins(_PAIRS, "ece", "post"),
        judge=Gain("most"),
        other_metrics=("nll", "brier"),
        other_pairs={_BY_NLL: compared.twins(_PAIRS, "ece", "post_nll")},
    ),
    Claim(
        name="high_confidence_errors",
        comparisons=compared.twins(compared.confident_families, "high_confidence_error_share", "post"),
        judge=Gain("every"),
        other_metrics=("high_confidence_error_rate", "misclassification_auroc"),
        other_pairs={
            "before temperature scaling": compared.twins(
                compared.confident_families, "high_confidence_error_share", "pre"
            )
        },
    ),
    Claim(
        name="ood_auroc",
        comparisons=compared.twins(compared.cifar10_families, ("ood_svhn", "ood_cifar10_c"), "pre"),
        judge=Gain("most"),
    ),
    Claim(
        name="cls_best",
        comparisons=compared.features(compared.CLS_WINS, "cls"),
        judge=Gain("every"),
        other_pairs={_AFTER: compared.features(compared.CLS_WINS, "cls", "post")},
    ),
    Claim(
        name="patch_mean_best",
        comparisons=compared.features(compared.PATCH_MEAN_WINS, "patch_mean"),
        judge=Gain("every"),
        other_pairs={_AFTER: compared.features(compared.PATCH_MEAN_WINS, "patch_mean", "post")},
    ),
    Claim(
        name="scalar_beats_dirichlet",
        comparisons=compared.scalar_against_dirichlet(),
        judge=Gain("every"),
        other_metrics=("nll", "accuracy"),
        other_pairs={_AFTER: compared.scalar_against_dirichlet(("ece", "nll", "brier"), "post")},
    ),
    Claim(name="lambda_insensitive", comparisons=compared.lambdas, judge=same, guard=False, other_metrics=("nll",)),
    Count(name="few_parameters", cells=_head_cells, read=_share, judge=_below_limit),
    Count(name="three_phases", cells=_phase_cells, read=_phased, judge=_mostly_seen),
    Claim(
        name="calattn_ts_best",
        comparisons=compared.against_final((_CE, _CE_TS, ("ce_brier", "calattn", "pre"))),
        judge=Gain("every"),
        seeds=compared.SEEDS,
        other_metrics=("smooth_ece", "nll", "brier"),
        other_pairs={
            "other pairs": compared.against_final((("ce_brier", "none", "post"),)),
            _BY_NLL: compared.against_final(
                (("ce", "none", "post_nll"), ("ce_brier", "none", "post_nll")), scaled="post_nll"
            ),
            "what scaling does without the head": compared.against_final(
                (_CE, _CE_TS, ("ce_brier", "none", "pre")), tested="none"
            ),
        },
    ),
    Claim(
        name="sats_behind",
        comparisons=compared.against_final((("ce", "none", "sats"), ("ce_brier", "calattn", "sats"))),
        judge=Gain("every"),
        seeds=compared.SEEDS,
        other_metrics=("nll", "brier"),
    ),
):
    CLAIMS.add(_claim.name, _claim)
