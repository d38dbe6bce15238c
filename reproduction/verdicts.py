"""Verdicts: from the outcomes of a claim's families to one of four words.

Under one checkpoint rule a claim of a gain holds if more than half of the tested families are better and, where the paper
says that the gain is consistent, none is worse. A claim that something is kept or does not matter has its own judge below.
Over the rules: "holds" needs both (`last`, and `best-ece`, which the authors' log points to); one alone is "holds only under";
neither is "does not hold", with the reading: contradicted (most families worse), mixed, or not confirmed. Fewer than half
of the planned families with results under either rule is "not tested". The mirror image of every result gets the mirror
image of its reading: the counts are symmetrical, only the burden of proof lies with the claim.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from calattn.types import MetricRow
from reproduction.evidence import SMALLEST, Decision, Outcome, mean_interval

Kind = Literal["holds", "holds only under", "does not hold", "not tested"]
Quantifier = Literal["every", "most"]
State = Literal["holds", "contradicted", "undecided", "not tested"]
READINGS = ("contradicted", "mixed", "not confirmed")
"""How a claim does not hold, the gravest first."""
WIDE = "the intervals are too wide to call the settings the same"
ENOUGH_FAMILIES = 5
SAME_ECE = 0.01
"""Two weights λ count as the same where the interval of their difference lies within this much ECE on either side of 0."""


class AtRule(NamedTuple):
    """What one checkpoint rule gave ("any" for claims that no checkpoint decides)."""

    outcomes: tuple[Outcome, ...]
    holds: bool
    reading: str

    @property
    def counts(self) -> Counter[Decision]:
        return Counter(outcome.decision for outcome in self.outcomes)

    @property
    def effect(self) -> MetricRow | None:
        return mean_effect(self.outcomes)


class Verdict(NamedTuple):
    """A claim's verdict: `rule` names the checkpoint rule of "holds only under"."""

    kind: Kind
    rule: str | None
    findings: Mapping[str, AtRule]
    planned: int
    reading: str

    @property
    def title(self) -> str:
        return f"{self.kind} `{self.rule}`" if self.rule else self.kind

    @property
    def manner(self) -> str:
        """Of a claim that does not hold: the gravest reading, and at which checkpoint if not at both. Else nothing."""
        if self.kind != "does not hold":
            return ""
        words = {rule: finding.reading.split(":")[0] for rule, finding in self.findings.items()}
        gravest = next(word for word in READINGS if word in words.values())
        where = [rule for rule, word in words.items() if word == gravest]
        return gravest if len(where) == len(words) else f"{gravest} at `{where[0]}`"

    def holds_at(self, rule: str) -> bool | None:
        """Whether the claim holds under a checkpoint rule; None where too few families have results."""
        finding = self.findings[rule]
        return finding.holds if _enough(len(finding.outcomes), self.planned) else None

    def state(self, rule: str) -> State:
        """Of a claim under a checkpoint rule; "undecided" are the readings "mixed" and "not confirmed"."""
        rule = rule if rule in self.findings else "any"
        holds = self.holds_at(rule) if rule in self.findings else None
        if holds is None:
            return "not tested"
        contradicted = self.findings[rule].reading.startswith("contradicted")
        return "holds" if holds else "contradicted" if contradicted else "undecided"


Judge = Callable[[Sequence[Outcome]], tuple[bool, str]]


def not_tested(reason: str) -> Verdict:
    return Verdict("not tested", None, {"any": AtRule((), holds=False, reading=reason)}, planned=0, reading=reason)


def verdict_of(outcomes: Mapping[str, Sequence[Outcome]], *, planned: int, judge: Judge) -> Verdict:
    """The verdict over all rules in `outcomes` (rule → decided outcomes)."""
    findings = {}
    for rule, found in outcomes.items():
        findings[rule] = AtRule(tuple(found), *(judge(found) if found else (False, "no results")))
    kind, only, reading = _over_rules(findings, planned)
    return Verdict(kind, only, findings, planned, reading)


@dataclasses.dataclass(frozen=True)
class Gain:
    """Judges a claimed gain in "every" setting (none worse, most better) or in "most" (most better)."""

    quantifier: Quantifier

    def __call__(self, outcomes: Sequence[Outcome]) -> tuple[bool, str]:
        better, worse, traded = (_count(outcomes, each) for each in ("better", "worse", "traded"))
        total = len(outcomes)
        counts = f"better in {better}, worse in {worse} of {total} {'family' if total == 1 else 'families'}"
        counts += f" ({traded} traded against accuracy)" if traded else ""
        if 2 * better > total and (self.quantifier == "most" or worse == 0):
            return True, f"confirmed: {counts}"
        if 2 * worse > total:
            return False, f"contradicted: {counts}"
        return False, f"mixed: {counts}" if better and worse else f"not confirmed: {counts}"


def kept(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    """Judges "accuracy is kept": none of the families worse, and the mean loss below the smallest that matters.

    The second condition is on the lower end of the mean's interval, so that noise cannot pass for safety.
    """
    if _count(outcomes, "worse"):
        return False, "contradicted: lower in at least one family"
    effect = mean_effect(outcomes)
    assert effect is not None
    if effect.low is None or effect.low <= -SMALLEST[effect.name]:
        return False, "not confirmed: the interval of the mean reaches a loss that matters"
    return True, "confirmed"


def same(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    """Judges "it does not matter": no family differs, and most intervals lie within ± `SAME_ECE`."""
    if any(outcome.decision in ("better", "worse") for outcome in outcomes):
        return False, "contradicted: at least one setting differs"
    ends = [(each.low, each.high) for each in outcomes]
    close = sum(low is not None and high is not None and low > -SAME_ECE and high < SAME_ECE for low, high in ends)
    if 2 * close > len(outcomes):
        return True, "confirmed"
    return False, f"not confirmed: {WIDE}"


def needs_all(otherwise: str) -> Judge:
    """Judges what has to be so in every network."""

    def judge(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
        good = all(each.decision == "better" for each in outcomes)
        return good, "confirmed" if good else f"contradicted: {otherwise}"

    return judge


def mostly_seen(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    if 2 * _count(outcomes, "better") > len(outcomes):
        return True, "confirmed"
    return False, "contradicted: the phases are not all seen in most networks"


def mean_effect(outcomes: Sequence[Outcome]) -> MetricRow | None:
    """The mean over families with an interval, None where there are none: Student's where there are five families or more.

    Of fewer, the spread says little (two families have one degree of freedom): the mean arms of their own intervals instead,
    not shrunk, because the families share their test images.
    """
    if not outcomes:
        return None
    metric, effects = outcomes[0].metric, [outcome.effect for outcome in outcomes]
    over = mean_interval(effects) if len(effects) >= ENOUGH_FAMILIES else None
    if over is not None:
        return MetricRow(name=metric, value=over[0], low=over[1], high=over[2])
    lows, highs = [o.low for o in outcomes if o.low is not None], [o.high for o in outcomes if o.high is not None]
    known = len(lows) == len(highs) == len(effects)
    ends = {"low": statistics.fmean(lows), "high": statistics.fmean(highs)} if known else {}
    return MetricRow(name=metric, value=effects[0] if len(effects) == 1 else statistics.fmean(effects), **ends)


def _over_rules(findings: Mapping[str, AtRule], planned: int) -> tuple[Kind, str | None, str]:
    fewest = min((len(each.outcomes) for each in findings.values()), default=0)
    if not _enough(fewest, planned):
        return "not tested", None, f"{fewest} of {planned} planned families have results"
    holding = [rule for rule, each in findings.items() if each.holds]
    readings = dict.fromkeys(each.reading for each in findings.values())
    by_rule = "; ".join(f"under `{rule}` {each.reading}" for rule, each in findings.items())
    reading = next(iter(readings)) if len(readings) == 1 else by_rule
    if len(holding) == len(findings):
        return "holds", None, reading
    return ("holds only under", holding[0], reading) if holding else ("does not hold", None, reading)


def _enough(tested: int, planned: int) -> bool:
    return tested > 0 and 2 * tested >= planned


def _count(outcomes: Sequence[Outcome], decision: Decision) -> int:
    return sum(outcome.decision == decision for outcome in outcomes)
