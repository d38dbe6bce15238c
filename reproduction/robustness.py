"""What the verdicts hang on: the same results judged by other rules than those fixed beforehand."""

from __future__ import annotations

from reproduction.claims import CLAIMS, verdicts
from reproduction.evidence import REGISTERED, Results, Rules
from reproduction.verdicts import Verdict

VARIANTS: dict[str, Rules] = {
    "as fixed": REGISTERED,
    "Welch": Rules(welch=True),
    "seeds for all": Rules(welch=True, pooled_seeds=True),
    "scaled only": Rules(scaled=True),
    "like accuracy": Rules(like_accuracy=True),
    "counted": Rules(counted=True),
    "T by NLL": Rules(by_nll=True),
    "any effect": Rules(smallest=False),
    "uncorrected": Rules(correct=False),
    "most for every": Rules(most=True),
}
"""By the names that verdicts.csv has; `Rules` says what each changes."""


def variants(results: Results) -> dict[str, dict[str, Verdict]]:
    """Claim → variant → verdict, of the claims that compare networks."""
    found = {name: verdicts(results, rules) for name, rules in VARIANTS.items()}
    names = [name for name, claim in CLAIMS.items() if claim.compares]
    return {claim: {name: judged[claim] for name, judged in found.items()} for claim in names}
