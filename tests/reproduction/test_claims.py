"""Verdicts on made-up stores whose truth is known, and the statistics under them against scipy."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from calattn.metrics.groups import holm
from reproduction import claims, paper
from reproduction.cells import GridCell, ScaleName
from reproduction.claims import CLAIMS, TOLD, verdicts
from reproduction.evidence import (
    Arm,
    Comparison,
    Outcome,
    Rules,
    decide,
    mean_interval,
    outcomes_of,
)
from reproduction.planned import ordered_cells
from reproduction.results import CellResult, ResultStore
from reproduction.verdicts import Verdict, kept, mean_effect, mostly_seen, needs_all, same
from tests.reproduction.made_claims import Effect, MadeStore, changes, helps, made, nothing, on_disk, world

GAINS = ("ece_falls", "complementary_to_ts", "high_confidence_errors", "ood_auroc")
UNTESTED = {
    "imagenet1k",
    "optimizer_robust",
    "cls_norm",
    "corruptions_gain_more",
    "architecture_gap",
    "joint_beats_posthoc",
}
"""In no made-up world of the reduced scale: what they need is not measured there."""


def kinds(found: dict[str, Verdict]) -> dict[str, str]:
    return {name: verdict.title for name, verdict in found.items()}


@pytest.fixture(scope="module")
def good() -> MadeStore:
    return world(helps)


def _hurts(cell: GridCell, rule: str, phase: str, metric: str) -> float:
    return -helps(cell, rule, phase, metric)


# --- worlds ------------------------------------------------------------------------------------------------------------


def test_a_world_as_the_paper_has_it(good: MadeStore) -> None:
    found = kinds(verdicts(good))
    assert found.pop("few_parameters") == "does not hold"  # counted, whatever the world
    assert found.pop("cls_best") == "does not hold"  # in this world the patch mean is the best input everywhere
    assert {name for name, kind in found.items() if kind == "not tested"} == {*UNTESTED, "three_phases"}
    assert set(found.values()) == {"holds", "not tested"}


def _where(part: Callable[[GridCell, str], bool], inside: Effect, outside: Effect = nothing) -> Effect:
    """One world for some cells or phases, another for the rest."""
    return lambda cell, rule, phase, metric: (inside if part(cell, phase) else outside)(cell, rule, phase, metric)


def _by_weight(cell: GridCell, _rule: str, _phase: str, metric: str) -> float:
    return 0.02 * cell.weight if metric == "ece" else 0.0


BEFORE_TS = _where(lambda _, phase: phase == "pre", helps)
ONE_WORSE = _where(lambda cell, _: (cell.dataset, cell.loss) == ("cifar10", "mmce"), _hurts, helps)
WORSE_IN_PART = _where(lambda cell, _: cell.dataset == "cifar10", changes("accuracy", -0.018))
HELPS_IN_PART = _where(lambda cell, _: cell.dataset == "cifar100", helps)
NONE = "does not hold, not confirmed: better in 0, worse in 0 of "
TRADED = f"{NONE}21 families (21 traded against accuracy)"


@pytest.mark.parametrize(
    ("claim", "effect", "said"),
    [
        *((name, nothing, NONE) for name in GAINS),
        *((name, _hurts, "does not hold, contradicted") for name in GAINS),
        ("ece_falls", BEFORE_TS, "holds, "),
        ("complementary_to_ts", BEFORE_TS, "does not hold, "),
        # A gain bought with accuracy is none, and neither is a loss that came with accuracy.
        ("ece_falls", changes("accuracy", -0.03, helps), TRADED),
        ("ece_falls", changes("accuracy", 0.03, _hurts), TRADED),
        ("accuracy_kept", changes("accuracy", -0.03, helps), "does not hold, contradicted"),
        ("accuracy_kept", changes("accuracy", -0.0105), "does not hold, "),
        ("accuracy_kept", changes("accuracy", -0.004), "holds, "),
        ("accuracy_kept", nothing, "holds, "),
        ("accuracy_kept", changes("accuracy", 0.02), "holds, "),
        # One worse family ends a claim of consistency, but not one about most.
        ("ece_falls", ONE_WORSE, "does not hold, mixed"),
        ("complementary_to_ts", ONE_WORSE, "holds, "),
        ("ood_auroc", ONE_WORSE, "holds, "),
        ("ece_falls", HELPS_IN_PART, "does not hold, not confirmed: better in 9, worse in 0 of 21 families"),
        ("lambda_insensitive", _by_weight, "does not hold, contradicted"),
        ("lambda_insensitive", nothing, "holds, "),
    ],
)
def test_worlds_whose_verdict_is_known(claim: str, effect: Effect, said: str) -> None:
    verdict = CLAIMS[claim].verdict(world(effect))
    assert f"{verdict.title}, {verdict.reading}".startswith(said)


@pytest.mark.parametrize(
    ("claim", "effect", "half"), [("accuracy_kept", WORSE_IN_PART, 0.1), ("lambda_insensitive", nothing, 0.02)]
)
def test_nothing_is_kept_or_the_same_where_nobody_can_tell(claim: str, effect: Effect, half: float) -> None:
    """Nearly two points lost in some families, hidden by wide intervals: the mean is below a point, yet not safe."""
    verdict = CLAIMS[claim].verdict(world(effect, half=half))
    assert (verdict.kind, verdict.reading.split(":")[0]) == ("does not hold", "not confirmed")


@pytest.mark.parametrize(
    ("effect", "state"),
    [(helps, "holds"), (_hurts, "contradicted"), (nothing, "undecided"), (ONE_WORSE, "undecided")],
)
def test_four_states(effect: Effect, state: str) -> None:
    found = verdicts(world(effect))
    for rule in claims.RULES:
        assert found["ece_falls"].state(rule) == state
        assert found["few_parameters"].state(rule) == "contradicted"
        assert {found[name].state(rule) for name in UNTESTED} == {"not tested"}
    assert len(found) == 21
    assert len(UNTESTED) == 6


@pytest.mark.parametrize("only", claims.RULES)
def test_a_gain_at_one_checkpoint_only(only: str) -> None:
    def effect(cell: GridCell, rule: str, phase: str, metric: str) -> float:
        return helps(cell, rule, phase, metric) if rule == only else 0.0

    verdict = CLAIMS["ece_falls"].verdict(world(effect))
    assert (verdict.kind, verdict.rule) == ("holds only under", only)
    assert verdict.title == f"holds only under `{only}`"
    other = next(rule for rule in claims.RULES if rule != only)
    assert f"under `{only}` confirmed: better in 21, worse in 0 of 21 families" in verdict.reading
    assert f"under `{other}` not confirmed: better in 0, worse in 0 of 21 families" in verdict.reading


# --- missing, order, chance --------------------------------------------------------------------------------------------


def test_an_empty_store_tests_nothing(tmp_path: Path) -> None:
    found = verdicts(ResultStore(tmp_path, "reduced"))
    del found["few_parameters"]  # needs no training
    for name, verdict in found.items():
        assert verdict.kind == "not tested", name


CELLS = CLAIMS["ece_falls"].cells("reduced")  # of 21 families, each a head and its twin


@pytest.mark.parametrize(
    ("cells", "rules", "kind"),
    [
        (CELLS[: 2 * 10], claims.RULES, "not tested"),
        (CELLS[: 2 * 11], claims.RULES, "holds"),
        (CELLS, ("last",), "not tested"),
        ([cell for cell in CELLS if cell.head == "calattn"], claims.RULES, "not tested"),
    ],
)
def test_half_of_the_pairs_are_needed_under_both_rules(
    cells: list[GridCell], rules: tuple[str, ...], kind: str
) -> None:
    store = world(helps, cells=cells)
    for cell, document in store.found.items():
        store.found[cell] = dataclasses.replace(document, rules={rule: document.rules[rule] for rule in rules})
    assert CLAIMS["ece_falls"].verdict(store).kind == kind


def test_order_changes_nothing(tmp_path: Path) -> None:
    def effect(cell: GridCell, rule: str, phase: str, metric: str) -> float:
        return helps(cell, rule, phase, metric) * (1 + 0.3 * cell.seed)

    forward = world(effect)
    backward = on_disk(tmp_path, world(effect, cells=reversed(ordered_cells("reduced"))))
    assert verdicts(forward) == verdicts(backward)


def _with_ece(cell: GridCell, **phases: tuple[float, float, float]) -> CellResult:
    """A cell whose ECE by phase has these values and ends."""
    result = made(cell, nothing)
    for phase, (value, low, high) in phases.items():
        result.rules["last"]["phases"][phase]["ece"] = {"value": value, "low": low, "high": high}
    return result


def test_intervals_that_are_not_paired_are_joined_arm_by_arm() -> None:
    """b − a is low where b is low and a is high: the arms that face away from each other belong together."""
    b = GridCell(dataset="cifar10", model="deit", head="calattn")
    a = dataclasses.replace(b.twin, loss="ce")
    found = {a: _with_ece(a, pre=(0.10, 0.07, 0.14)), b: _with_ece(b, pre=(0.06, 0.05, 0.11))}
    pair = Comparison(family="f", metric="ece", a=Arm(cell=a), b=Arm(cell=b))
    outcome = outcomes_of([pair], rule="last", store=MadeStore("reduced", found))[0]
    assert not outcome.paired
    assert outcome.effect == pytest.approx(-0.04)
    assert outcome.low == pytest.approx(-0.04 - np.hypot(0.01, 0.04))
    assert outcome.high == pytest.approx(-0.04 + np.hypot(0.05, 0.03))


def test_a_twin_at_another_phase_is_not_paired() -> None:
    """What the file holds is the difference at one phase; CalAttn + TS against the bare twin is another."""
    b = GridCell(dataset="cifar10", model="deit", head="calattn")
    found = {b.twin: _with_ece(b.twin, pre=(0.08, 0.07, 0.09)), b: _with_ece(b, post=(0.01, 0.008, 0.012))}
    pair = Comparison(family="f", metric="ece", a=Arm(cell=b.twin), b=Arm(cell=b, phase="post"))
    outcome = outcomes_of([pair], rule="last", store=MadeStore("reduced", found))[0]
    assert not outcome.paired
    assert outcome.effect == pytest.approx(-0.07)


def _family(seeds: int) -> tuple[list[GridCell], list[Comparison]]:
    """The seeds of one network with CalAttn, each against its twin."""
    heads = [GridCell(dataset="cifar10", model="deit", head="calattn", seed=seed) for seed in range(seeds)]
    return heads, [Comparison(family="f", metric="ece", a=Arm(cell=head.twin), b=Arm(cell=head)) for head in heads]


@pytest.mark.parametrize("known", [True, False])
def test_one_seed_without_a_pair_or_an_interval_speaks_for_its_family(known: bool) -> None:
    heads, pairs = _family(2)
    store = world(helps, cells=[cell for head in heads for cell in (head.twin, head)])
    store.found[heads[1]] = dataclasses.replace(store.found[heads[1]], pair={})
    if not known:
        store.found[heads[1]].rules["last"]["phases"]["pre"]["ece"] |= {"low": None, "high": None}
    outcome = outcomes_of(pairs, rule="last", store=store)[0]
    assert outcome.seeds == (0, 1)
    assert not outcome.paired
    assert (outcome.low is not None, outcome.p_value is not None) == (known, known)
    assert outcome.decision == ("better" if known else "undecided")


def _outcome(effect: float, low: float | None, high: float | None, **changes: object) -> Outcome:
    made_up = Outcome(
        family="f",
        cell=GridCell(dataset="cifar10", model="deit", head="calattn"),
        metric="ece",
        a=0.1,
        b=0.1 + effect,
        effect=effect,
        low=low,
        high=high,
        p_value=1e-6,
        accuracy=0.0,
        paired=True,
        seeds=(0,),
        cells=("a", "b"),
    )
    return dataclasses.replace(made_up, **changes)


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (_outcome(-0.02, -0.03, -0.01), "better"),
        (_outcome(0.02, 0.01, 0.03), "worse"),
        (_outcome(-0.02, -0.04, 0.0), "within chance"),  # touches zero
        (_outcome(0.02, 0.0, 0.04), "within chance"),
        (_outcome(-0.02, -0.03, -0.01, p_value=0.0501), "within chance"),
        (_outcome(-0.001, -0.0012, -0.0008), "too small"),
        (_outcome(-0.02, -0.03, -0.01, accuracy=-0.011), "traded"),
        (_outcome(-0.02, -0.03, -0.01, accuracy=-0.009), "better"),
        (_outcome(0.02, 0.01, 0.03, accuracy=0.011), "traded"),
        (_outcome(0.02, 0.01, 0.03, accuracy=-0.011), "worse"),
        (_outcome(-0.02, None, None, p_value=None), "undecided"),
        (_outcome(0.02, 0.01, 0.03, metric="accuracy", accuracy=0.02), "better"),
    ],
)
def test_decisions(outcome: Outcome, decision: str) -> None:
    assert decide([outcome])[0].decision == decision


@given(
    effect=st.floats(-0.1, 0.1).filter(lambda x: x != 0),
    below=st.floats(0, 0.1),
    above=st.floats(0, 0.1),
    accuracy=st.floats(-0.05, 0.05),
)
def test_gains_and_losses_are_treated_alike(effect: float, below: float, above: float, accuracy: float) -> None:
    there = _outcome(effect, effect - below, effect + above, accuracy=accuracy)
    back = _outcome(-effect, -effect - above, -effect + below, accuracy=-accuracy)
    mirror = {"better": "worse", "worse": "better"}
    decided = decide([there])[0].decision
    assert decide([back])[0].decision == mirror.get(decided, decided)


@pytest.mark.parametrize("scale", ["reduced", "paper"])
def test_every_cell_that_a_claim_plans_is_run(scale: ScaleName) -> None:
    """Seeds beyond those count where they exist, and nobody misses them."""
    run = set(ordered_cells(scale))
    for name, claim in CLAIMS.items():
        assert set(claim.cells(scale)) <= run, name


def test_comparisons_at_the_papers_scale() -> None:
    weights = CLAIMS["lambda_insensitive"].comparisons("paper")
    assert {each.b.cell.weight for each in weights} == {tenth / 10 for tenth in range(2, 11)}
    assert {(each.a.cell.weight, each.a.phase, each.b.phase) for each in weights} == {(0.1, "post", "post")}
    inputs = CLAIMS["cls_best"].comparisons("paper")
    rivals = {
        model: {each.a.cell.features for each in inputs if each.b.cell.model == model} for model in ("vit", "swin")
    }
    assert rivals == {"vit": {"patch_mean", "concat"}, "swin": {"concat"}}  # Swin's CLS is its patch mean
    final = CLAIMS["calattn_ts_best"].comparisons
    models = {scale: {each.b.cell.model for each in final(scale)} for scale in ("reduced", "paper")}
    assert models == {"reduced": {"deit"}, "paper": {"vit"}}


def test_judges_at_their_limits() -> None:
    yes, no = (_outcome(0.0, None, None, decision=decision) for decision in ("better", "worse"))
    close, wide = _outcome(0.0, -0.009, 0.009), _outcome(0.0, -0.02, 0.009)
    for judge, holds, does_not in (
        (needs_all("one is not"), [yes, yes], [yes, yes, no]),
        (mostly_seen, [yes, yes, no], [yes, no]),
        (same, [close, close, wide], [close, wide]),
    ):
        assert (judge(holds)[0], judge(does_not)[0]) == (True, False)
    for low, holds in ((-0.0099, True), (-0.01, False), (None, False)):
        high = None if low is None else 0.01
        assert kept([_outcome(0.0, low, high, metric="accuracy", decision="within chance")])[0] is holds


def test_the_mean_over_families_has_students_interval_from_five_on() -> None:
    effects = (-0.03, -0.02, -0.01, 0.0, 0.02)
    outcomes = [_outcome(effect, effect - 0.002, effect + 0.004) for effect in effects]
    five, four = mean_effect(outcomes), mean_effect(outcomes[:4])
    student = stats.ttest_1samp(effects, 0).confidence_interval(0.95)
    assert (five.value, five.low, five.high) == pytest.approx((np.mean(effects), student.low, student.high))
    middle = np.mean(effects[:4])
    assert (four.value, four.low, four.high) == pytest.approx((middle, middle - 0.002, middle + 0.004))
    unknown = mean_effect([*outcomes[:3], _outcome(0.0, None, None)])
    assert (unknown.value, unknown.low, unknown.high) == (pytest.approx(np.mean(effects[:4])), None, None)


@pytest.mark.parametrize("welch", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_p_value_is_that_of_the_arm_which_faces_zero(sign: float, welch: bool) -> None:
    """0.02, with an arm of 0.03 towards zero and hardly any away from it: the interval holds zero, so p is no finding."""
    heads, pairs = _family(3)
    store = world(nothing, cells=[cell for head in heads for cell in (head.twin, head)])
    for head, value in zip(heads, (0.018, 0.020, 0.022), strict=True):
        ends = sorted((sign * (value - 0.03), sign * (value + 0.001)))
        row = {"difference": sign * value, "low": ends[0], "high": ends[1], "p_value": 0.5}
        store.found[head].pair["last"]["pre"]["ece"] = row
    outcome = outcomes_of(pairs, rule="last", store=store, rules=Rules(welch=welch))[0]
    assert outcome.low < 0 < outcome.high
    assert outcome.p_value > 0.05


def test_chance_is_corrected_for_over_the_families() -> None:
    """p = 0.03 alone is a finding; among twenty it is not."""
    alone = _outcome(-0.02, -0.038, -0.002, p_value=0.03)
    assert decide([alone])[0].decision == "better"
    assert {each.decision for each in decide([alone] * 20)} == {"within chance"}


# --- seeds -------------------------------------------------------------------------------------------------------------


def _seeded(sizes: tuple[float, ...]) -> Outcome:
    def effect(cell: GridCell, _rule: str, _phase: str, metric: str) -> float:
        return sizes[cell.seed] if metric == "ece" else 0.0

    heads, pairs = _family(len(sizes))
    store = world(effect, cells=[cell for head in heads for cell in (head.twin, head)])
    return outcomes_of(pairs, rule="last", store=store)[0]


def test_the_spread_over_seeds_widens_the_interval() -> None:
    sizes = (-0.03, -0.02, -0.004)
    outcome = _seeded(sizes)
    assert outcome.seeds == (0, 1, 2)
    assert outcome.effect == pytest.approx(np.mean(sizes))
    seeds = stats.ttest_1samp(sizes, 0).confidence_interval(0.95)
    reach = np.hypot(0.001, (seeds.high - seeds.low) / 2)
    assert (outcome.low, outcome.high) == pytest.approx((outcome.effect - reach, outcome.effect + reach))
    assert outcome.decision == "within chance"


def test_equal_seeds_do_not_shrink_the_noise_of_the_test_images() -> None:
    three, one = _seeded((-0.02,) * 3), _seeded((-0.02,))
    assert (three.low, three.high) == pytest.approx((one.low, one.high))
    assert three.decision == one.decision == "better"


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20))
def test_mean_interval_is_students(values: list[float]) -> None:
    assume(np.std(values) > 0)
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((np.mean(values), *expected), abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_what_stepping_down_rejects(p_values: list[float]) -> None:
    """Holm's procedure as he states it: from the smallest on, reject p_(k) ≤ α / (m − k + 1), stop at the first that is not."""
    level, rejected = 0.05, set()
    assume(all(abs(p * m - level) > 1e-12 for p in p_values for m in range(1, 13)))  # rounding decides there
    for k, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] > level / (len(p_values) - k):
            break
        rejected.add(int(place))
    found = {place for place, p in enumerate(holm(p_values)) if p is not None and p <= level}
    assert found == rejected


# --- the claims themselves ---------------------------------------------------------------------------------------------


def test_every_number_of_the_papers_words_is_the_papers() -> None:
    folder = resources.files(paper)
    known = " ".join(each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name.endswith(".csv"))
    numbers = {float(found) for found in re.findall(r"\d+(?:\.\d+)?", known)}
    for name, told in TOLD.items():
        text = re.sub(r"tab:\S+|CIFAR-\d+|@0\.90|ImageNet-1K", "", told["paper"])
        for found in re.findall(r"\d+(?:\.\d+)?", text):
            # Epochs are in the paper's section on phases, not in a table.
            assert float(found) in numbers | {0.0, 30.0, 150.0, 350.0}, (name, found)


def test_every_table_that_a_claim_cites_is_one() -> None:
    labels = {printed.label for printed in paper.PAPER_TABLES.values()}
    assert TOLD.keys() == set(CLAIMS)
    for told in TOLD.values():
        assert set(re.findall(r"tab:[\w&]+", told["paper"])) <= labels


def test_the_winners_of_the_ablation_are_those_in_bold() -> None:
    backbones = {"vit_base": "vit", "deit_small": "deit", "swin_small": "swin"}
    bold: dict[str, set[tuple[str, str]]] = {"cls": set(), "patch_mean": set(), "concat": set()}
    for row in paper.rows_of("feature_ablation"):
        if row["bold"] and row["metric"] == "ece":
            bold[str(row["features"])].add((str(row["dataset"]), backbones[str(row["backbone"])]))
    tested: dict[str, set[tuple[str, str]]] = {"cls": set(), "patch_mean": set(), "concat": set()}
    for each in CLAIMS["cls_best"].comparisons("paper") + CLAIMS["patch_mean_best"].comparisons("paper"):
        tested[each.b.cell.features].add((each.b.cell.dataset, each.b.cell.model))
    assert bold == tested


def test_stored_leaves_out_failures_and_other_specs(tmp_path: Path) -> None:
    cell, other = GridCell(dataset="cifar10", model="deit"), GridCell(dataset="cifar100", model="deit")
    store = on_disk(tmp_path, world(helps, cells=[cell]))
    store.put(dataclasses.replace(made(other, helps), cell_hash="of yesterday"))
    store.fail(GridCell(dataset="mnist", model="deit"), "out of memory")
    assert [found.cell for found in store.stored()] == [cell]
    assert isinstance(store.get(cell), CellResult)
