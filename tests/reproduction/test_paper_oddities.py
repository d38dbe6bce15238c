"""What does not add up in the paper's numbers, found again: `oddities.csv` lists these and no others of their kinds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from calattn import metrics
from reproduction.paper import ODDITIES, PAPER_TABLES, oddities, rows_of
from tests.reproduction.conftest import value

FOUR = ("ece", "smece", "adaece", "classece")
THREE = FOUR[:3]
TABLE_OF = {"ece": "ece", "smooth_ece": "smece", "adaptive_ece": "adaece", "classwise_ece": "classece"}
TABLES = {name: rows_of(name) for name in PAPER_TABLES}

Found = tuple[str, str, str, str, str]  # kind, table, where, what, values
Key = tuple[str, str, str]  # dataset, model, loss, in the paper's words

GRID = {
    name: {(r["paper_dataset"], r["paper_model"], r["paper_method"], r["phase"]): r for r in TABLES[name]}
    for name in FOUR
}
KEYS: list[Key] = [cell[:3] for cell in GRID["ece"] if cell[3] == "pre"]
WITH_HEAD = {key: (key[0], f"{key[1]}+CalAttn(Ours)", key[2]) for key in KEYS}
PAIRS = [(base, ours) for base, ours in WITH_HEAD.items() if ours in KEYS]


def number(table: str, key: Key, phase: str) -> float:
    return GRID[table][(*key, phase)]["value"]


def temperature(table: str, key: Key) -> float:
    return GRID[table][(*key, "post")]["temperature"]


def text(*parts: str) -> str:
    return " / ".join(parts)


def apart(a: float, b: float) -> float:
    return abs(a - b) / max(a, b)


def is_swapped(one: tuple[float, float], two: tuple[float, float]) -> bool:
    """Crosswise the two tables agree within a tenth, straight they differ by more."""
    crosswise = max(apart(one[0], two[1]), apart(one[1], two[0]))
    return crosswise < 0.1 and min(apart(one[0], two[0]), apart(one[1], two[1])) > 0.15


def swapped() -> Iterator[Found]:
    for base, ours in PAIRS:
        seen = {name: (number(name, base, "pre"), number(name, ours, "pre")) for name in THREE}
        if any(is_swapped(seen[a], seen[b]) for a, b in itertools.combinations(THREE, 2)):
            better = [name for name, (without, with_head) in seen.items() if with_head < without]
            what = f"CalAttn is better in {' and '.join(better)}, worse in {' and '.join(n for n in THREE if n not in better)}"
            values = "; ".join(f"{name} {a:.2f} → {b:.2f}" for name, (a, b) in seen.items())
            yield "swapped", "ece smece adaece", text(*base), what, f"baseline → CalAttn: {values}"


def swapped_in_classes() -> Iterator[Found]:
    """ClassECE is of another size: there the pair goes up by half or more where all three others fall to less than half."""
    for base, ours in PAIRS:
        seen = {name: (number(name, base, "pre"), number(name, ours, "pre")) for name in FOUR}
        if all(seen[name][1] < seen[name][0] / 2 for name in THREE) and seen["classece"][1] > 1.5 * seen["classece"][0]:
            values = "; ".join(f"{name} {a:.2f} → {b:.2f}" for name, (a, b) in seen.items())
            what = "CalAttn is far better in ece, smece and adaece, far worse in classece"
            yield "swapped", " ".join(FOUR), text(*base), what, f"baseline → CalAttn: {values}"


def temperatures() -> Iterator[Found]:
    for key in KEYS:
        printed = {name: temperature(name, key) for name in FOUR}
        if len(set(printed.values())) > 1:
            values = "; ".join(f"{name} {t:.1f}" for name, t in printed.items())
            yield "temperature", " ".join(FOUR), text(*key), "T* differs between tables", values


def before_and_after() -> Iterator[Found]:
    for name, key in itertools.product(FOUR, KEYS):
        pre, post, t = number(name, key, "pre"), number(name, key, "post"), temperature(name, key)
        if t == 1 and pre != post:
            yield "identity", name, text(*key), "differs although T* = 1.0", f"{pre:.2f} → {post:.2f}"
        if post > pre:
            yield "worse", name, text(*key), f"rises at T* = {t:.1f}", f"{pre:.2f} → {post:.2f}"


def disagreement() -> Iterator[Found]:
    cells = {"head": "calattn", "loss": "ce", "phase": "pre"}
    for r in TABLES["feature_ablation"]:
        if r["features"] == "cls":
            yield from differs(r, "feature_ablation", TABLE_OF[r["metric"]], cells)
    for r in TABLES["sats"]:
        if r["head"] == "calattn":
            yield from differs(
                r, "sats", TABLE_OF[r["metric"]], {"head": "calattn", "loss": "ce_brier", "phase": "post"}
            )
    for name, head in (("lambda_cebs", "none"), ("lambda_full", "calattn")):
        for r in TABLES[name]:
            if r["lambda_min"] == 0.1:
                yield from differs(r, name, TABLE_OF[r["metric"]], {"head": head, "loss": "ce_brier", "phase": "post"})
    for r in TABLES["dirichlet"]:
        if r["head"] == "calattn" and r["metric"] in TABLE_OF:
            patches = value(
                "feature_ablation", dataset="cifar100", backbone="vit_base", features="patch_mean", metric=r["metric"]
            )
            what = "differs from CLS, equals Patch-Mean" if patches == r["value"] else "differs from CLS"
            yield from differs(
                r, "dirichlet", "feature_ablation", {"features": "cls", "metric": r["metric"]}, what=what
            )
        if r["head"] == "calattn" and r["metric"] == "accuracy":
            yield from differs(r, "dirichlet", "accuracy", {"head": "calattn"})
    yield from seeds_disagreement()


def seeds_disagreement() -> Iterator[Found]:
    """One seed elsewhere against mean and deviation here: three deviations are no chance."""
    for r in TABLES["three_seeds"]:
        if r["calibrator"] == "sats" or r["metric"] in ("nll", "brier"):
            continue
        if r["metric"] == "accuracy":
            other, keys = "accuracy", {"head": r["head"]}
            if r["calibrator"] != "none":
                continue
        else:
            other, phase = TABLE_OF[r["metric"]], "pre" if r["calibrator"] == "none" else "post"
            keys = {"head": r["head"], "loss": r["loss"], "phase": phase}
        yield from differs(r, "three_seeds", other, keys, tolerance=3 * r["std"])


def differs(
    r: dict, name: str, other: str, keys: dict, *, tolerance: float = 0.0, what: str = "differs"
) -> Iterator[Found]:
    there = value(other, dataset=r["dataset"], backbone=r["backbone"], **keys)
    if abs(there - r["value"]) > tolerance:
        where = text(*(str(r[c]) for c in r if c.startswith("paper_")))
        deviation = f" ± {r['std']:.2f}" if r.get("std") else ""
        yield "disagreement", f"{name} {other}", where, what, f"{name} {r['value']:.2f}{deviation}; {other} {there:.2f}"


def impossible() -> Iterator[Found]:
    for dataset, method in itertools.product(("CIFAR-100", "CIFAR-10"), ("CalAttn+TS", "CalAttn+SATS")):
        keys = {"paper_dataset": dataset, "metric": "accuracy"}
        before, after = (value("three_seeds", paper_method=m, **keys) for m in ("CalAttn", method))
        if before != after:
            what = "dividing the logits by a positive number cannot change Top-1"
            yield "impossible", "three_seeds", text(dataset, method), what, f"{before:.2f} → {after:.2f}"
    for r in TABLES["three_seeds"]:
        if r["metric"] == "brier":
            keys = {c: r[c] for c in ("dataset", "head", "calibrator")}
            accuracy, ece = (value("three_seeds", metric=m, **keys) / 100 for m in ("accuracy", "ece"))
            if r["value"] > brier_bound(accuracy, ece):
                what = "a Brier score (sum over classes) too high for this Top-1 and ECE"
                limit = f"at most {brier_bound(accuracy, ece):.3f} at Top-1 {accuracy:.3f}, ECE {ece:.4f}"
                values = f"Brier {r['value']:.3f}; {limit}"
                yield "impossible", "three_seeds", text(r["paper_dataset"], r["paper_method"]), what, values


def brier_bound(accuracy: float, ece: float) -> float:
    """Largest Brier score that 15-bin ECE allows.

    With confidence c and r = 1 if right, one sample scores at most 2(1 − c) + 2c(c − r): the rest of the mass on one wrong class.
    The mean of c is at least accuracy − ECE; the mean of c(c − r) is at most ECE plus half a bin, 1/30, of mean |c − r|, and
    that is at most 1/2 + ECE + 2/15.
    """
    return 2 * (1 - accuracy) + 4 * ece + 2 / 30 * (0.5 + ece + 2 / 15)


BY_EYE = ("claim", "text", "spread", "copied", "digits", "bold")
"""Of `claim` those that the report cites are found again below; the others are pinned as they were found."""
FINDERS = (
    swapped,
    swapped_in_classes,
    disagreement,
    temperatures,
    before_and_after,
    impossible,
)


def found() -> list[Found]:
    everything = [each for finder in FINDERS for each in finder()]
    order = list(ODDITIES)
    return sorted(everything, key=lambda each: order.index(each[0]))


def test_the_list_holds_what_the_tables_show_and_nothing_else():
    assert [tuple(each.values()) for each in oddities() if each["kind"] not in BY_EYE] == found()


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_brier_bound_holds_for_bad_predictions(sharpness: float, generator: torch.Generator):
    """Calibrated or not, with all remaining mass on one wrong class: near the bound, never above it."""
    confidence = 0.5 + 0.5 * torch.rand(20_000, generator=generator, dtype=torch.float64)
    right = torch.rand(20_000, generator=generator, dtype=torch.float64) < confidence**sharpness
    probs = torch.stack([confidence, 1 - confidence, torch.zeros_like(confidence)], dim=1)
    labels = torch.where(right, 0, 2)
    ece, brier = metrics.ece(probs, labels), metrics.brier(probs, labels)
    assert brier <= brier_bound(right.double().mean().item(), ece) <= brier + 5 * ece + 0.07


# --- statements of the paper's text against its own tables ----------------------------------------------------------------


def changes(name: str, phase: str) -> list[float]:
    pairs = [(number(name, base, phase), number(name, ours, phase)) for base, ours in PAIRS]
    return [100 * (after - before) / before for before, after in pairs]


def claims() -> Iterator[Found]:
    for phase, said in (("pre", "before"), ("post", "after")):
        seen = changes("ece", phase)
        rises = sum(change > 0 for change in seen)
        if (round(min(seen), 1), round(max(seen), 1)) != (-77.7, -3.7):
            values = f"{min(seen):+.1f} % to {max(seen):+.1f} %; {rises} of {len(seen)} rise"
            yield "claim", "ece", f"abstract / {said} scaling", "ECE falls by 3.7 % to 77.7 %", values
    rises = {name: [sum(c > 0 for c in changes(name, phase)) for phase in ("pre", "post")] for name in FOUR}
    if any(sum(counts) for counts in rises.values()):
        values = "; ".join(f"{name} {a} and {b}" for name, (a, b) in rises.items())
        what = "every metric falls consistently"
        yield (
            "claim",
            " ".join(FOUR),
            "appendix on metrics",
            what,
            f"of 84 cells rise, before and after scaling: {values}",
        )
    yield from size_claim()
    yield from lambda_claims()


def size_claim() -> Iterator[Found]:
    shares = {}
    for r in TABLES["checkpoint_size"]:
        if r["change"] is not None and r["dataset"] == "cifar10":
            base = value("checkpoint_size", dataset="cifar10", backbone=r["backbone"], head="none")
            shares[r["paper_model"]] = 100 * r["change"] / base
    if min(shares.values()) >= 0.1:
        values = "; ".join(f"{model} {share:.2f} %" for model, share in shares.items())
        yield "claim", "checkpoint_size", "abstract / main results", "less than 0.1 % more parameters", values
    printed = value("dirichlet", head="calattn", metric="parameters_added")
    if round(shares["ViT_224"], 2) != printed:
        values = f"dirichlet {printed:.2f} %; checkpoint_size {shares['ViT_224']:.2f} %"
        yield "claim", "dirichlet checkpoint_size", "ViT-224", "cost of the scalar head", values


def lambda_claims() -> Iterator[Found]:
    ranges = {}
    for name in ("lambda_cebs", "lambda_full"):
        eces = [r["value"] for r in TABLES[name] if r["metric"] == "ece"]
        ranges[name] = max(eces) - min(eces)
    if ranges["lambda_full"] > ranges["lambda_cebs"]:
        values = "; ".join(f"{name} {size:.2f} points" for name, size in ranges.items())
        what = "ECE depends less on λ with CalAttn than without"
        yield "claim", "lambda_cebs lambda_full", "main results / sensitivity to λ", what, values
    for name in ("lambda_cebs", "lambda_full"):
        spans = {(r["lambda_min"], r["lambda_max"]) for r in TABLES[name]}
        missing = [n / 10 for n in range(1, 11) if not any(low <= n / 10 <= high for low, high in spans)]
        if missing:
            values = f"no λ = {', '.join(map(str, missing))}"
            yield "claim", name, "main results / sensitivity to λ", "λ from 0.1 to 1.0 in steps of 0.1", values


def test_the_list_holds_the_claims_that_fail():
    assert set(claims()) <= {tuple(each.values()) for each in oddities() if each["kind"] == "claim"}
    assert len(list(claims())) == 7
