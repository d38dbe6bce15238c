"""The ledger of the verdicts, as two CSV files: what every rule says of every claim, and every family that it rests on.

The same results are judged by other rules than those fixed beforehand too: what the verdicts hang on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction.claims import CLAIMS, Claim, verdicts
from reproduction.evidence import REGISTERED, Rules
from reproduction.render import csv_text
from reproduction.results import ResultStore
from reproduction.verdicts import Verdict

_FIELDS = ("family", "metric", "a", "b", "effect", "low", "high", "p_value", "accuracy", "seeds", "paired", "decision")


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


def variants(store: ResultStore) -> dict[str, dict[str, Verdict]]:
    """Claim → variant → verdict, of the claims that compare networks."""
    found = {name: verdicts(store, rules) for name, rules in VARIANTS.items()}
    names = [name for name, claim in CLAIMS.items() if isinstance(claim, Claim) and not claim.not_tested]
    return {claim: {name: judged[claim] for name, judged in found.items()} for claim in names}


def verdicts_csv(store: ResultStore) -> str:
    """A row for each claim, variant of the rules and checkpoint; numbers are fractions (NLL in nats)."""
    judged = variants(store)
    rows: list[dict[str, Any]] = []
    for name, claim in CLAIMS.items():
        for rules, verdict in judged.get(name, {"as fixed": claim.verdict(store)}).items():
            said = {"claim": name, "rules": rules, "verdict": verdict.title, "manner": verdict.manner}
            for at, finding in verdict.findings.items():
                row: dict[str, Any] = {"checkpoint": at, "holds": verdict.holds_at(at), "reading": finding.reading}
                row |= {each: finding.counts[each] for each in ("better", "worse")}
                row |= {"families": len(finding.outcomes), "planned": verdict.planned}
                row |= {each: getattr(finding.effect, each, None) for each in ("value", "low", "high")}
                rows.append(said | row)
    return _csv(rows)


def evidence_csv(store: ResultStore) -> str:
    """A row for each family of each claim, b against a: those that are judged, and those that are shown beside them."""
    rows = []
    for name, claim in CLAIMS.items():
        judged = {rule: finding.outcomes for rule, finding in claim.verdict(store).findings.items()}
        for part, by_rule in ({"judged": judged} | claim.beside(store)).items():
            for rule, outcome in ((rule, outcome) for rule, outcomes in by_rule.items() for outcome in outcomes):
                row = {"claim": name, "part": part, "checkpoint": rule}
                rows.append(row | {field: getattr(outcome, field) for field in _FIELDS})
    return _csv(rows)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    return csv_text([{name: _text(cell) for name, cell in row.items()} for row in rows])


def _text(cell: Any) -> Any:
    """
    >>> _text(1 / 3), _text((0, 1)), _text("x")
    ('0.3333333333', '0 1', 'x')
    """
    if isinstance(cell, float):
        return f"{cell:.10g}"
    return " ".join(map(str, cell)) if isinstance(cell, tuple) else cell
