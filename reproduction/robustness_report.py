"""The section of REPRODUCTION.md on what the verdicts hang on."""

from __future__ import annotations

from collections.abc import Mapping

from reproduction.claim_report import NONE, markdown_table
from reproduction.claims import CLAIMS
from reproduction.robustness import VARIANTS
from reproduction.verdicts import Verdict

FIXED = next(iter(VARIANTS))


def other_rules(found: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Verdicts under other rules, and which of them are others than by the rules as they were fixed."""
    described = "\n".join(f"- *{name}*: {variant.told}" for name, variant in VARIANTS.items())
    rows = [
        [CLAIMS[claim].title, *(_holds(verdict) for verdict in by_variant.values())]
        for claim, by_variant in found.items()
    ]
    table = markdown_table(["claim holds at `last`, at `best-ece`", *VARIANTS], rows)
    return (
        "The verdicts above rest on the rules as they were fixed. This is what the same numbers say by others, with how many "
        "families are better and how many worse; – is for fewer than half of the planned families.\n\n"
        f"{described}\n\n{table}\nOther answers than by the rules as they were fixed: {flips(found) or 'none'}. "
        f"Other words for how a claim does not hold: {other_readings(found) or 'none'}.\n"
    )


def other_readings(found: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Claims that hold by neither rules, but with another word for how they do not."""
    told = []
    for claim, by_variant in found.items():
        fixed = by_variant[FIXED].manner.split(" at ")[0]
        for name, verdict in by_variant.items():
            word = verdict.manner.split(" at ")[0]
            enough = all(verdict.holds_at(rule) is not None for rule in verdict.findings)
            if fixed and word and word != fixed and enough:
                told.append(f"“{CLAIMS[claim].title}” is {word} rather than {fixed} {VARIANTS[name].when} (*{name}*)")
    return "; ".join(told)


def _holds(verdict: Verdict) -> str:
    shown = []
    for rule, finding in verdict.findings.items():
        better, worse = (finding.counts.get(each, 0) for each in ("better", "worse"))
        holds = verdict.holds_at(rule)
        shown.append(NONE if holds is None else f"{'yes' if holds else 'no'} ({better} : {worse})")
    return ", ".join(shown)


def flips(found: Mapping[str, Mapping[str, Verdict]]) -> str:
    """The answers that hang on the rules."""
    told = []
    for claim, by_variant in found.items():
        for rule in by_variant[FIXED].findings:
            answers = {name: verdict.holds_at(rule) for name, verdict in by_variant.items()}
            fixed = answers[FIXED]
            others = [
                f"{VARIANTS[name].when} (*{name}*)"
                for name, answer in answers.items()
                if None not in (answer, fixed) and answer != fixed
            ]
            if others:
                said = "does not hold" if fixed else "holds"
                told.append(f"“{CLAIMS[claim].title}” {said} at `{rule}` {', or '.join(others)}")
    return "; ".join(told)
