"""The ledger of the verdicts, as two CSV files: what every rule says of every claim, and every family that it rests on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from reproduction.claims import CLAIMS
from reproduction.evidence import Outcome, Results
from reproduction.robustness import variants

_FIELDS = ("family", "metric", "a", "b", "effect", "low", "high", "p_value", "accuracy", "seeds", "paired", "decision")


def verdicts_csv(results: Results) -> str:
    """A row for each claim, variant of the rules and checkpoint; numbers are fractions (NLL in nats)."""
    judged = variants(results)
    rows = []
    for name, claim in CLAIMS.items():
        for rules, verdict in judged.get(name, {"as fixed": claim.verdict(results)}).items():
            for checkpoint, finding in verdict.findings.items():
                row: dict[str, Any] = {
                    "claim": name,
                    "rules": rules,
                    "verdict": verdict.title,
                    "manner": verdict.manner,
                }
                row |= {"checkpoint": checkpoint, "holds": verdict.holds_at(checkpoint), "reading": finding.reading}
                row |= {each: finding.counts.get(each, 0) for each in ("better", "worse")}
                row |= {"families": len(finding.outcomes), "planned": verdict.planned}
                rows.append(row | {each: getattr(finding.effect, each, None) for each in ("value", "low", "high")})
    return _csv(rows)


def evidence_csv(results: Results) -> str:
    """A row for each family of each claim, b against a: those that are judged, and those that are shown beside them."""
    rows = []
    for name, claim in CLAIMS.items():
        findings = claim.verdict(results).findings
        rows += _families(name, "judged", ((rule, finding.outcomes) for rule, finding in findings.items()))
        for part, by_rule in {**claim.also(results), **claim.beside(results)}.items():
            rows += _families(name, part, by_rule.items())
    return _csv(rows)


def _families(claim: str, part: str, by_rule: Iterable[tuple[str, Sequence[Outcome]]]) -> list[dict[str, Any]]:
    return [
        {"claim": claim, "part": part, "checkpoint": rule} | {name: getattr(outcome, name) for name in _FIELDS}
        for rule, outcomes in by_rule
        for outcome in outcomes
    ]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _text(cell) for name, cell in row.items()} for row in rows)
    return text.getvalue()


def _text(cell: Any) -> Any:
    """
    >>> _text(1 / 3), _text((0, 1)), _text("x")
    ('0.3333333333', '0 1', 'x')
    """
    if isinstance(cell, float):
        return f"{cell:.10g}"
    return " ".join(map(str, cell)) if isinstance(cell, tuple) else cell
