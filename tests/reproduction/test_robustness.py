"""The verdicts by other rules, on worlds whose truth is known; the statistics against scipy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from reproduction.cells import GridCell
from reproduction.claims import CLAIMS
from reproduction.evidence import REGISTERED, Arm, Comparison, Outcome, Rules, outcomes_of
from reproduction.ledger import VARIANTS, variants
from tests.reproduction.made_claims import changes, helps, nothing, world

HALF = 0.001  # of the interval of each pair in these worlds
Z = stats.norm.ppf(0.975)


def _families(sizes: dict[str, tuple[float, ...]], rules: Rules) -> dict[str, Outcome]:
    """Loss → seeds' effects on ECE; the outcomes by loss."""

    def effect(cell: GridCell, _rule: str, _phase: str, metric: str) -> float:
        return sizes[cell.loss][cell.seed] if metric == "ece" else 0.0

    heads = [
        GridCell(dataset="cifar10", model="deit", loss=loss, head="calattn", seed=seed)
        for loss, each in sizes.items()
        for seed in range(len(each))
    ]
    store = world(effect, cells=[cell for head in heads for cell in (head.twin, head)], half=HALF)
    pairs = [Comparison(family=h.loss, metric="ece", a=Arm(cell=h.twin), b=Arm(cell=h)) for h in heads]
    return {each.family: each for each in outcomes_of(pairs, rule="last", store=store, rules=rules)}


def test_welch_adds_the_errors_of_images_and_seeds() -> None:
    """Two independent estimates of known sum: scipy's Welch test with a second sample so large that its error is HALF / Z."""
    sizes = (-0.03, -0.02, -0.004)
    found = _families({"ce": sizes}, Rules(welch=True, correct=False))["ce"]
    n = 10**6
    known = stats.ttest_ind_from_stats(
        np.mean(sizes), np.std(sizes, ddof=1), 3, 0.0, HALF / Z * math.sqrt(n), n, equal_var=False
    )
    assert found.p_value == pytest.approx(known.pvalue, rel=1e-4)
    error = math.hypot(HALF / Z, np.std(sizes, ddof=1) / math.sqrt(3))
    freedom = 2 * (error**2 / (np.var(sizes, ddof=1) / 3)) ** 2
    assert found.high - found.effect == pytest.approx(stats.t.ppf(0.975, freedom) * error)


def test_one_seed_has_the_same_interval_by_welch() -> None:
    fixed, welch = (_families({"ce": (-0.02,)}, rules)["ce"] for rules in (REGISTERED, Rules(welch=True)))
    assert (fixed.low, fixed.high, fixed.p_value) == pytest.approx((welch.low, welch.high, welch.p_value))


def test_pooled_seeds_give_one_seed_the_spread_of_the_others() -> None:
    sizes = {"ce": (-0.03, -0.02, -0.004), "brier": (-0.02, -0.03), "mmce": (-0.02,)}
    found, own = (_families(sizes, Rules(correct=False, **{name: True})) for name in ("pooled_seeds", "welch"))
    pooled = (2 * np.var(sizes["ce"], ddof=1) + np.var(sizes["brier"], ddof=1)) / 3
    error = math.sqrt((HALF / Z) ** 2 + pooled)
    freedom = 3 * (error**2 / pooled) ** 2
    assert found["mmce"].high - found["mmce"].effect == pytest.approx(stats.t.ppf(0.975, freedom) * error)
    assert found["mmce"].p_value == pytest.approx(2 * stats.t.sf(0.02 / error, freedom))
    assert (found["ce"], found["brier"]) == (own["ce"], own["brier"]), "with several seeds they keep their own"
    alone = _families({"mmce": (-0.02,)}, Rules(pooled_seeds=True))["mmce"]
    assert alone.high - alone.effect == pytest.approx(HALF), "nothing to pool: as fixed"


def test_like_accuracy_leaves_out_what_came_with_other_accuracy() -> None:
    def effect(cell: GridCell, rule: str, phase: str, metric: str) -> float:
        price = {"mmce": 0.02, "brier": -0.02}.get(cell.loss, 0.0)
        return price if metric == "accuracy" else helps(cell, rule, phase, metric)

    store = world(effect)
    kept = CLAIMS["ece_falls"].verdict(store, Rules(like_accuracy=True)).findings["last"].outcomes
    assert {each.cell.loss for each in kept}.isdisjoint({"mmce", "brier"})
    every = CLAIMS["accuracy_kept"].verdict(store, Rules(like_accuracy=True)).findings["last"].outcomes
    assert {"mmce", "brier"} <= {each.cell.loss for each in every}, "accuracy is not judged by itself"


@pytest.mark.parametrize(
    ("size", "half", "rules"),
    [(0.002, 0.0001, "any effect"), (0.003 / Z * stats.norm.isf(0.02), 0.003, "uncorrected")],
)
def test_what_hangs_on_the_smallest_effect_and_on_the_correction(size: float, half: float, rules: str) -> None:
    """A sure effect that is too small to matter; and p = 0.04 in every family, which is none after Holm's correction."""
    found = variants(world(changes("ece", -size), half=half))["ece_falls"]
    assert {name for name, each in found.items() if each.kind == "holds"} == {rules}


def test_counted_keeps_the_p_value_of_a_pair_that_has_one_seed() -> None:
    sizes = {"ce": (-0.02,), "brier": (-0.02, -0.03)}
    fixed, counted = (_families(sizes, Rules(correct=False, counted=each)) for each in (False, True))
    assert fixed["ce"].p_value == pytest.approx(2 * stats.norm.sf(0.02 * Z / HALF), abs=1e-300)
    assert counted["ce"].p_value == 0.002, "what the document says"
    assert (counted["ce"].low, counted["ce"].high) == (fixed["ce"].low, fixed["ce"].high)
    assert counted["brier"] == fixed["brier"]


def test_what_hangs_on_how_temperatures_are_fitted() -> None:
    def effect(_cell: GridCell, _rule: str, phase: str, metric: str) -> float:
        return 0.0 if metric != "ece" else {"post": -0.02, "post_nll": 0.02}.get(phase, 0.0)

    found = variants(world(effect))
    assert found["complementary_to_ts"]["as fixed"].kind == "holds"
    by_nll = found["complementary_to_ts"]["T by NLL"]
    assert by_nll.manner == "contradicted"
    assert all(outcome.effect == pytest.approx(0.02) for outcome in by_nll.findings["last"].outcomes)
    assert not any(outcome.paired for outcome in by_nll.findings["last"].outcomes)
    assert all(name.endswith(" + TS (NLL)") for each in by_nll.findings["last"].outcomes for name in each.cells)
    assert found["ece_falls"]["T by NLL"] == found["ece_falls"]["as fixed"], "no temperature in it"


def test_every_variant_but_the_first_changes_rules_and_every_rule_is_varied() -> None:
    changed = {
        name: {k for k, v in dataclasses.asdict(each).items() if v != getattr(REGISTERED, k)}
        for name, each in VARIANTS.items()
    }
    assert changed.pop("as fixed") == set()
    assert all(changed.values())
    assert set.union(*changed.values()) == {field.name for field in dataclasses.fields(Rules)}


def test_a_point_is_not_more_than_a_point() -> None:
    """Differences of counts over 10,000 images, in binary: 0.57 − 0.58 is a little more than a point below zero."""
    store = world(changes("accuracy", 0.57 - 0.58, helps))
    assert 0.58 - 0.57 > 0.01
    assert CLAIMS["ece_falls"].verdict(store).kind == "holds"
    assert CLAIMS["ece_falls"].verdict(store, Rules(like_accuracy=True)).kind == "holds"


def test_scaled_leaves_out_the_references_that_scaling_alone_beats() -> None:
    """With a head that does nothing, "best" holds against unscaled references, and not against scaled ones."""
    store = world(nothing)
    fixed, scaled = (CLAIMS["calattn_ts_best"].verdict(store, rules) for rules in (REGISTERED, Rules(scaled=True)))
    assert fixed.findings["last"].counts == {"better": 4, "within chance": 2}
    assert (scaled.findings["last"].counts, scaled.planned) == ({"within chance": 2}, 2)
    assert CLAIMS["ece_falls"].verdict(store, Rules(scaled=True)).planned == CLAIMS["ece_falls"].verdict(store).planned
