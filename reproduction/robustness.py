"""What the verdicts hang on: the same results judged by other rules than those fixed beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reproduction.claims import CLAIMS, verdicts
from reproduction.evidence import REGISTERED, Results, Rules
from reproduction.verdicts import Verdict


class Variant(NamedTuple):
    """`told`: what is other about the rules; `when`: the same for the middle of a sentence."""

    told: str
    rules: Rules
    when: str


VARIANTS: Mapping[str, Variant] = {
    "as fixed": Variant("The rules above.", REGISTERED, "by the rules as fixed"),
    "Welch": Variant(
        "Several seeds: the standard errors of images and seeds are added, and the interval and p-value are Student's with Welch "
        "and Satterthwaite's degrees of freedom. (The rules join intervals and take the p-value from a normal distribution.)",
        Rules(welch=True),
        "if the errors of images and seeds are joined by Welch's t",
    ),
    "seeds for all": Variant(
        "As before, and families with one seed get the variance over seeds of those that have several: one lucky training "
        "decides less. (The families that have several share networks, so this variance is itself known badly; it is one for all "
        "metrics of a claim. A claim of which no family has several seeds stays as it was, and of other trainings nothing is "
        "known: both claims on inputs of the head, Dirichlet, λ.)",
        Rules(welch=True, pooled_seeds=True),
        "if families with one seed get the spread of the others",
    ),
    "scaled only": Variant(
        "References without a temperature of their own are left out where the tested side has one.",
        Rules(scaled=True),
        "if only references that have temperature scaling too are counted",
    ),
    "like accuracy": Variant(
        "Families whose accuracies differ by more than a point, in either direction, are left out: at `best-ece` the two "
        "networks of a pair often come from very different epochs. (Not of the claim on accuracy.)",
        Rules(like_accuracy=True),
        "if families of unlike accuracy are left out",
    ),
    "counted": Variant(
        "Pairs with one seed keep the p-value of their own test: counted on 1,000 resamples, so never below 0.002 before the "
        "correction, or DeLong's. (The rules take it from the interval.)",
        Rules(counted=True),
        "if p-values are counted on resamples",
    ),
    "T by NLL": Variant(
        "Temperatures are those of the lowest validation NLL instead of the lowest validation ECE, which is the paper's way. "
        "(Pairs have no paired interval then: those of both sides are joined.)",
        Rules(by_nll=True),
        "with temperatures of the lowest validation NLL",
    ),
    "any effect": Variant("No smallest effect that matters.", Rules(smallest=False), "if any effect counts"),
    "uncorrected": Variant(
        "No correction for many families.", Rules(correct=False), "without correction for many families"
    ),
    "most for every": Variant(
        "“In every setting” is read as “in most”: families that are worse do not end the claim.",
        Rules(most=True),
        "if “in every setting” is read as “in most”",
    ),
}


def variants(results: Results) -> dict[str, dict[str, Verdict]]:
    """Claim → variant → verdict, of the claims that compare networks."""
    found = {name: verdicts(results, variant.rules) for name, variant in VARIANTS.items()}
    return {
        claim.name: {name: judged[claim.name] for name, judged in found.items()}
        for claim in CLAIMS.values()
        if claim.compares
    }
