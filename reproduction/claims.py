"""The paper's claims: what each says, how it is tested, and the test.

What decides a difference is in `evidence`, what makes one verdict of many differences in `verdicts`, and which cells are
compared in `comparisons`. All of it was written before any cell of the grid was trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from calattn.registry import Registry
from reproduction import comparisons as compared
from reproduction.cells import TRANSFORMERS, Cell, ScaleName
from reproduction.evidence import REGISTERED, Comparison, Outcome, Results, Rules, outcomes_of
from reproduction.phases import find_phases
from reproduction.results import CellResult, Hole, ResultStore, Rule
from reproduction.sizes import cost_of
from reproduction.verdicts import Gain, Judge, Verdict, kept, same, verdict_of

RULES: tuple[Rule, ...] = ("last", "best-ece")
PARAMETER_LIMIT = 0.001

ByRule = dict[str, tuple[Outcome, ...]]
Others = dict[str, ByRule]
"""metric or title → rule → outcomes"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """`paper` and `test` are what a reader is told; `judge_with` does what `test` says. Shown and not judged: `also`, other
    metrics of the same comparisons, and `beside`, other comparisons by their title. `compares`: cells with each other, at
    both rules."""

    name: str
    title: str
    paper: str
    test: str
    cells: Callable[[ScaleName], list[Cell]]
    judge_with: Callable[[Results, Rules], Verdict]
    also: Callable[[Results], Others] = lambda _results: {}
    beside: Callable[[Results], Others] = lambda _results: {}
    compares: bool = True

    def verdict(self, store: ResultStore | Results, rules: Rules = REGISTERED) -> Verdict:
        return self.judge_with(store if isinstance(store, Results) else Results(store), rules)


CLAIMS: Registry[Claim] = Registry("claim")


def verdicts(store: ResultStore | Results, rules: Rules = REGISTERED) -> dict[str, Verdict]:
    """Claim → verdict, every result read once."""
    results = store if isinstance(store, Results) else Results(store)
    return {name: claim.verdict(results, rules) for name, claim in CLAIMS.items()}


def _compare(
    name: str,
    comparisons: compared.Comparisons,
    *,
    judge: Judge,
    seeds: Sequence[int] = (0,),
    guard: bool = True,
    also: Sequence[str] = (),
    beside: Mapping[str, compared.Comparisons] = MappingProxyType({}),
    title: str,
    paper: str,
    test: str,
) -> None:
    """Registers a claim that is a list of comparisons; `seeds` are those planned, others count where they exist."""

    def cells(scale: ScaleName) -> list[Cell]:
        planned = [each for each in comparisons(scale) if each.b.cell.seed in seeds]
        return list(dict.fromkeys(cell for each in planned for cell in (each.a.cell, each.b.cell)))

    def judged(results: Results, rules: Rules) -> Verdict:
        wanted = comparisons(results.scale)
        if rules.scaled:
            wanted = [each for each in wanted if each.a.phase != "pre" or each.b.phase == "pre"]
        if rules.by_nll:
            wanted = [each.with_temperature_by_nll() for each in wanted]
        outcomes = _outcomes(wanted, results, guard=guard, rules=rules)
        planned = len({(each.family, each.metric) for each in wanted})
        by = Gain("most") if rules.most and isinstance(judge, Gain) else judge
        return verdict_of(outcomes, planned=planned, judge=by, missing=_holes(cells(results.scale), results))

    def others(results: Results) -> Others:
        wanted = comparisons(results.scale)
        return {
            metric: _outcomes([dataclasses.replace(each, metric=metric) for each in wanted], results, guard=guard)
            for metric in also
        }

    def shown_beside(results: Results) -> Others:
        return {title: _outcomes(wanted(results.scale), results, guard=guard) for title, wanted in beside.items()}

    CLAIMS.add(
        name,
        Claim(
            name=name,
            title=title,
            paper=paper,
            test=test,
            cells=cells,
            judge_with=judged,
            also=others,
            beside=shown_beside,
        ),
    )


def _outcomes(wanted: Sequence[Comparison], results: Results, *, guard: bool, rules: Rules = REGISTERED) -> ByRule:
    return {rule: outcomes_of(wanted, rule=rule, results=results, guard=guard, rules=rules) for rule in RULES}


def _holes(cells: Iterable[Cell], results: Results) -> list[str]:
    return [cell.name for cell in cells if isinstance(results.get(cell), Hole)]


# --- claims that are counted, not estimated ----------------------------------------------------------------------------


def _head_cells(_scale: ScaleName) -> list[Cell]:
    return [Cell(dataset=data, model=model, head="calattn") for data in compared.CIFAR for model in TRANSFORMERS]


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


def _count(
    name: str,
    cells: Callable[[ScaleName], list[Cell]],
    read: Callable[[Cell, Results], Outcome | None],
    *,
    judge: Judge,
    title: str,
    paper: str,
    test: str,
) -> None:
    """Registers a claim that is read off each cell by itself, whatever the checkpoint rule."""

    def judged(results: Results, _rules: Rules) -> Verdict:
        outcomes = {cell: read(cell, results) for cell in cells(results.scale)}
        missing = [cell.name for cell, outcome in outcomes.items() if outcome is None]
        known = [outcome for outcome in outcomes.values() if outcome is not None]
        return verdict_of({"any": known}, planned=len(outcomes), judge=judge, missing=missing)

    CLAIMS.add(
        name, Claim(name=name, title=title, paper=paper, test=test, cells=cells, judge_with=judged, compares=False)
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
_compare(
    "ece_falls",
    compared.twins(compared.pair_families, "ece", "pre"),
    judge=Gain("every"),
    also=("smooth_ece", "adaptive_ece", "classwise_ece"),
    title="ECE falls",
    paper="Abstract, contributions, main results: CalAttn improves calibration consistently, ECE by 3.7 % to 77.7 %, and so it "
    "is said of the other calibration errors (tab:smece_comparison, tab:adaece_comparison, tab:classece_comparison). The main "
    "text adds that changes are mostly negative; tab:ece_comparison has ECE rise in 12 of 84 settings.",
    test="ECE before temperature scaling, CalAttn against the same network, loss and seed without it. Holds "
    "if none of the families is worse and more than half are better.",
)
_compare(
    "accuracy_kept",
    compared.twins(compared.pair_families, "accuracy", "pre"),
    judge=kept,
    beside={"other pairs": compared.final_against_baseline},
    title="Accuracy is kept",
    paper="Abstract, tab:cls_acc: accuracy is preserved; the table has it higher with CalAttn in each row "
    "(for example 66.1 → 72.8 for ViT on CIFAR-10).",
    test="Top-1 accuracy, CalAttn against its twin. Holds if no family is lower beyond chance by a point or "
    "more, and the lower end of the mean's interval lies above a loss of one point. One-sided by "
    "nature: a gain is welcome.",
)
_compare(
    "complementary_to_ts",
    compared.twins(compared.pair_families, "ece", "post"),
    judge=Gain("most"),
    also=("nll", "brier"),
    beside={_BY_NLL: compared.twins(compared.pair_families, "ece", "post_nll")},
    title="The gain remains after temperature scaling",
    paper="Contributions, main results, tab:ece_comparison (Post-T): CalAttn is complementary to post-hoc "
    "temperature scaling; the gain often remains after it (for example 3.86 → 0.86 for DeiT-S on "
    "CIFAR-100).",
    test="ECE after temperature scaling by the paper's grid, CalAttn against its twin, each with its own T*."
    " Holds if more than half of the families are better.",
)
_compare(
    "high_confidence_errors",
    compared.twins(compared.confident_families, "high_confidence_error_share", "post"),
    judge=Gain("every"),
    also=("high_confidence_error_rate", "misclassification_auroc"),
    beside={
        "before temperature scaling": compared.twins(compared.confident_families, "high_confidence_error_share", "pre")
    },
    title="Fewer confident mistakes",
    paper="tab:hc_err: CIFAR-100 after temperature scaling, CE+BS against CalAttn: HCFP@0.90 falls from 21.99"
    " to 17.99 (ViT), 11.99 to 6.99 (DeiT-S) and 23.99 to 6.99 (Swin-S).",
    test="The share of all errors that are made with a confidence of at least 0.90 (the paper does not "
    "define HCFP; the error rate among such predictions stands beside it), the same cells and phase. "
    "Holds if none is worse and more than half are better.",
)
_compare(
    "ood_auroc",
    compared.twins(compared.cifar10_families, ("ood_svhn", "ood_cifar10_c"), "pre"),
    judge=Gain("most"),
    title="Other images are told apart better",
    paper="tab:ood: AUROC of telling SVHN and CIFAR-10-C from CIFAR-10 rises in most settings, more so for "
    "CIFAR-10-C (ViT, plain cross-entropy: 70.03 → 74.48 and 52.86 → 62.40).",
    test="AUROC of 1 − max probability, CalAttn against its twin, SVHN and CIFAR-10-C (mean over the "
    "corruptions) counted as families of their own. Holds if more than half are better.",
)
_compare(
    "cls_best",
    compared.features(compared.CLS_WINS, "cls"),
    judge=Gain("every"),
    beside={_AFTER: compared.features(compared.CLS_WINS, "cls", "post")},
    title="CLS is the best input where the paper marks it",
    paper="tab:calattn_ablation: CLS is marked best on CIFAR-10 for all three backbones (DeiT-S: 4.10 against"
    " 4.89 and 4.20) and on CIFAR-100 for Swin-S.",
    test="ECE before temperature scaling, CLS against each other input, under cross-entropy. (For Swin, which is compared at the "
    "paper's scale alone, CLS and the patch mean are the same tensor.) Holds if none is worse and more than half are better.",
)
_compare(
    "patch_mean_best",
    compared.features(compared.PATCH_MEAN_WINS, "patch_mean"),
    judge=Gain("every"),
    beside={_AFTER: compared.features(compared.PATCH_MEAN_WINS, "patch_mean", "post")},
    title="The patch mean is the best input where the paper marks it",
    paper="tab:calattn_ablation: on CIFAR-100 the patch mean is marked best for DeiT-S (4.38 against 6.87 "
    "with CLS) and ViT (2.46 against 4.76).",
    test="ECE before temperature scaling, the patch mean against CLS and against both together, under cross-entropy. Holds if "
    "none is worse and more than half are better.",
)
_compare(
    "scalar_beats_dirichlet",
    compared.scalar_against_dirichlet(),
    judge=Gain("every"),
    also=("nll", "accuracy"),
    beside={_AFTER: compared.scalar_against_dirichlet(("ece", "nll", "brier"), "post")},
    title="A scalar beats a Dirichlet head",
    paper="tab:dirichlet: CIFAR-100, ViT: ECE 2.46 with the scalar head, 7.33 with the Dirichlet head, with "
    "fewer parameters (0.07 % against 0.21 %).",
    test="ECE before temperature scaling, the scalar head against the Dirichlet head on CIFAR-100. Holds if "
    "it is better.",
)
_compare(
    "lambda_insensitive",
    compared.lambdas,
    judge=same,
    guard=False,
    also=("nll",),
    title="The weight λ does not matter much",
    paper="Main results, tab:lambda_full: with CalAttn, ECE is comparatively insensitive to λ. Its own tables"
    " say otherwise: 0.11 points between the best and the worst λ without CalAttn, 0.93 points with it. The appendix grants that "
    "it depends more on λ with CalAttn, and claims that it is stable near the default.",
    test="ECE after temperature scaling with CalAttn on CIFAR-100, DeiT, other λ against 0.1. Holds if none "
    "differs beyond chance and most intervals lie within one point on either side of zero. λ = 0 is not"
    " in the paper's sweep and not judged; λ = 1, where its ECE with CalAttn is highest, is run at its own scale alone.",
)
_count(
    "few_parameters",
    _head_cells,
    _share,
    judge=_below_limit,
    title="Less than 0.1 % more parameters",
    paper="Abstract, main results: less than 0.1 % additional parameters; tab:dirichlet: 0.07 %.",
    test="Parameters of the head over those of the network without it, counted in the paper's networks (ViT-B/16, "
    "DeiT-S/16, Swin-S at 224 px), which need no training for it. Holds if all are below 0.1 %. The paper's own checkpoint "
    "sizes say the same: see the oddities.",
)
_count(
    "three_phases",
    _phase_cells,
    _phased,
    judge=_mostly_seen,
    title="Three phases of the scale s",
    paper="Section on temporal behaviour, with a figure of ViT on CIFAR-10: mean and variation of s fall (epochs 0 to 30 of "
    "350), the variation stays low (to 150), then rises while the mean of s crosses 1 from above (to 350).",
    test="The run's log, with the boundaries at the same shares of its epochs: mean and coefficient of "
    "variation below their first values at the first boundary; the latter not above its first value in "
    "the second phase; at the end (last tenth) at least a tenth above its mean there; the mean of s "
    "above 1 in the second phase and below 1 at the end. Holds if most networks on CIFAR-10 show all "
    "four. Before the first update the paper's head has s = 1 for every image (its initialisation): variation must rise before "
    "it can fall. Whether it has risen by the end of epoch 1, the first value that we have, hangs on the learning rate: after "
    "one epoch of warm-up it is still small, which makes our tests of the first two phases hard to pass; SGD at the paper's "
    "rate is another matter (below, where such a network was begun). Each part is therefore shown by itself, for every network "
    "with CalAttn.",
)
_compare(
    "calattn_ts_best",
    compared.against_final((("ce", "none", "pre"), ("ce", "none", "post"), ("ce_brier", "calattn", "pre"))),
    judge=Gain("every"),
    seeds=compared.SEEDS,
    also=("smooth_ece", "nll", "brier"),
    beside={
        "other pairs": compared.against_final((("ce_brier", "none", "post"),)),
        _BY_NLL: compared.against_final(
            (("ce", "none", "post_nll"), ("ce_brier", "none", "post_nll")), scaled="post_nll"
        ),
        "what scaling does without the head": compared.against_final(
            (("ce", "none", "pre"), ("ce", "none", "post"), ("ce_brier", "none", "pre")), tested="none"
        ),
    },
    title="CalAttn with temperature scaling is best",
    paper="Appendix on SATS, tab:c100&10_vit_3seeds: over three seeds CalAttn+TS has the lowest ECE "
    "(CIFAR-100: 1.42, against 8.54 of the baseline and 6.39 of CalAttn; CIFAR-10: 0.92, against 3.35 "
    "and 2.10). The baseline with TS is not in that table.",
    test="ECE of CalAttn+TS against cross-entropy, cross-entropy+TS and CalAttn; three seeds. The baseline "
    "gets the same step, or the step alone would win. Holds if none is worse and more than half are "
    "better. SATS is a claim of its own. Against references that have no temperature of their own, scaling can win whatever the "
    "head does; how the same comparisons end without any head (CE+BS+TS in the place of CalAttn+TS, CE+BS in that of CalAttn) is "
    "shown as well. What speaks for the head are cross-entropy+TS and, not in the paper's table and not judged, CE+BS+TS.",
)
_compare(
    "sats_behind",
    compared.against_final((("ce", "none", "sats"), ("ce_brier", "calattn", "sats"))),
    judge=Gain("every"),
    seeds=compared.SEEDS,
    also=("nll", "brier"),
    title="SATS stays behind",
    paper="Appendix on SATS, tab:c100&10_vit_3seeds, tab:sats: SATS alone, and on top of CalAttn (CIFAR-100: "
    "2.70, CIFAR-10: 1.12), has a higher ECE than CalAttn+TS (1.42, 0.92). SATS alone is claimed but "
    "not printed for transformers.",
    test="ECE of CalAttn+TS against cross-entropy+SATS and CalAttn+SATS; three seeds. Holds if none is worse"
    " and more than half are better. The second compares two calibrators on one network and says nothing of the head.",
)
