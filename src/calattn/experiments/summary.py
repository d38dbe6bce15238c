"""The first sentences of REPRODUCTION.md: what came out, for who reads no further."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from calattn.experiments.cells import ScaleName
from calattn.experiments.claim_report import effect_text
from calattn.experiments.claims import CLAIMS
from calattn.experiments.results import CellResult
from calattn.experiments.verdicts import Verdict
from calattn.report.style import number

_ORDER = ("holds only under", "holds", "does not hold", "not tested")


def summary(found: Mapping[str, Verdict], stored: Sequence[CellResult], scale: ScaleName, *, flips: str = "") -> str:
    """Counts of verdicts, the effect on ECE before and after temperature scaling, and the price of the early checkpoint.

    `flips`: the answers that hang on the rules, which a reader of the counts alone would not hear of.
    """
    if scale == "smoke" or not stored:
        return ""
    lines = [f"{len(found)} claims. {_named(found)}."]
    if flips:
        lines.append(f"Other rules than those that were fixed beforehand would say otherwise of some (below): {flips}.")
    for name, when in (("ece_falls", "before"), ("complementary_to_ts", "after")):
        parts = [
            f"{effect_text(finding.effect)} at `{rule}` (mean over {len(finding.outcomes)} families)"
            for rule, finding in found[name].findings.items()
            if finding.outcomes
        ]
        if parts:
            lines.append(f"With CalAttn, ECE {when} temperature scaling changes by {', by '.join(parts)}.")
    lines += _early(stored)
    return "\n**In short.** " + " ".join(lines) + "\n"


def _named(found: Mapping[str, Verdict]) -> str:
    groups: dict[str, list[str]] = {}
    for name, verdict in found.items():
        groups.setdefault(verdict.title, []).append(CLAIMS[name].title)
    ordered = sorted(groups, key=lambda title: next(i for i, kind in enumerate(_ORDER) if title.startswith(kind)))
    shown = [
        f"*{title[:1].upper()}{title[1:]}* ({len(groups[title])}): {', '.join(groups[title])}" for title in ordered
    ]
    return ". ".join(shown)


def _early(stored: Sequence[CellResult]) -> list[str]:
    """What `best-ece` costs in accuracy, with and without the head."""
    changes = [result.price for result in stored if result.price is not None]
    if not changes:
        return []
    mean = number("accuracy", statistics.fmean(changes), signed=True)
    return [
        f"`best-ece` stops early: accuracy there is {mean} points from that at `last`, in the mean over all networks."
    ]
