"""Statements of the paper's text against its own tables that the report cites: of the `claim` rows of `oddities.csv`."""

from __future__ import annotations

from collections.abc import Iterator

from reproduction.paper import oddities
from tests.reproduction.conftest import value
from tests.reproduction.test_paper_oddities import FOUR, PAIRS, TABLES, Found, number


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
