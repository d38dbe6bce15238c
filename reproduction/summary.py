"""The first sentences of REPRODUCTION.md: what came out, for who reads no further."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calattn.report.style import between, number
from reproduction.cells import Cell
from reproduction.claim_report import effect_text, family_title, value_text
from reproduction.claims import CLAIMS
from reproduction.evidence import Results, outcomes_of
from reproduction.phases import find_phases
from reproduction.remarks import (
    BY_NLL,
    begun_phases,
    by_data_set,
    decided,
    seen_phases,
    too_little,
    turned,
    unreachable,
)
from reproduction.results import CellResult
from reproduction.rival_report import MIXUP, head_with_mixup
from reproduction.robustness_report import flips, other_readings
from reproduction.verdicts import READINGS, WIDE, Verdict

BY_HEART = 0.95
"""The training accuracy from which a network is counted as one that knows its training images ..."""
AHEAD = 0.01
"""... if it is so far above that of the validation images too: where new images are as easy, nothing need be learned by heart."""
_POOR = 0.5
_ORDER = ("holds only under", "holds", "does not hold", "not tested")


def summary(found: Mapping[str, Verdict], results: Results, variants: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Counts of verdicts, the effect on ECE before and after temperature scaling, and what all of it is worth.

    `variants`: claim → other rules → verdict, for the answers that hang on the rules, of which a reader of the counts alone
    would not hear.
    """
    stored = list(results.stored())
    if results.scale == "smoke" or not stored:
        return ""
    lines: list[str] = []
    if results.scale != "paper":
        lines.append(
            "No verdict rests on the paper's own protocol (224 px, 350 epochs): what is said of trained networks is said of this "
            "scale."
        )
    if out := [f"“{CLAIMS[name].title}”" for name, verdict in found.items() if unreachable(verdict)]:
        lines.append(f"{', '.join(out)} could not have been confirmed: the references leave too little to gain.")
    if out := [f"“{CLAIMS[name].title}”" for name, verdict in found.items() if too_little(CLAIMS[name], verdict)]:
        lines.append(
            f"{', '.join(out)} could not have been confirmed by a fall as large as the paper's, in proportion: the references "
            "leave too little."
        )
    lines += _open_sameness(found) + _phase_three(found, results)
    if hanging := "; ".join(text for text in (flips(variants), other_readings(variants)) if text):
        lines.append(
            f"Other rules than those that were fixed beforehand would say otherwise of some (below): {hanging}."
        )
    more = {"before": _with_mixup(results), "after": _with_other_temperatures(found, variants)}
    for name, when in (("ece_falls", "before"), ("complementary_to_ts", "after")):
        parts = [
            f"{effect_text(finding.effect)} at `{rule}` (mean over {len(finding.outcomes)} families)"
            for rule, finding in found[name].findings.items()
            if finding.outcomes
        ]
        if parts:
            told = [f"With CalAttn, ECE {when} temperature scaling changes by {', by '.join(parts)}."]
            if each := by_data_set(found[name].findings["last"]):
                told.append(f"At `last` that is {each}.")
            lines.append(" ".join([*told, *more[when]]))
    lines += [*_worth(found, stored), *_early(stored)]
    listed = "\n".join([*_named(found), *(f"- {line}" for line in lines)])
    return f"\n**In short.** {len(found)} claims:\n\n{listed}\n"


class Known(NamedTuple):
    """How many networks know their training images by heart, of how many that saw them unmixed; what the others know, and
    those that know as much of new images."""

    often: int
    networks: int
    others: tuple[tuple[float, str], ...]
    easy: tuple[tuple[float, str], ...]


def known_by_heart(stored: Sequence[CellResult]) -> Known | None:
    """By the accuracies in the last epoch; with mixup that of training is of mixed images, and says nothing of this."""
    shares: dict[tuple[float, str], float] = {}
    for result in stored:
        row = result.log[-1] if result.log and result.cell.recipe != MIXUP else {}
        accuracy = row.get("train", {}).get("accuracy")
        if accuracy is not None:
            shares[accuracy, result.cell.name] = accuracy - row.get("validation", {}).get("accuracy", 0.0)
    others = tuple(each for each in sorted(shares) if each[0] < BY_HEART)
    easy = tuple(each for each in sorted(shares) if each[0] >= BY_HEART and shares[each] < AHEAD)
    return Known(len(shares) - len(others) - len(easy), len(shares), others, easy) if shares else None


def _named(found: Mapping[str, Verdict]) -> list[str]:
    """A list of the claims by verdict; of those that do not hold, by reading."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, verdict in found.items():
        groups.setdefault(verdict.title, {}).setdefault(verdict.manner, []).append(_with_families(name, verdict))
    ordered = sorted(groups, key=lambda title: next(i for i, kind in enumerate(_ORDER) if title.startswith(kind)))
    shown = []
    for title in ordered:
        parts = sorted(
            groups[title].items(), key=lambda part: READINGS.index(part[0].split(" at ")[0]) if part[0] else 0
        )
        count = sum(len(claims) for _, claims in parts)
        shown.append(f"- *{title[:1].upper()}{title[1:]}* ({count}):")
        for reading, claims in parts:
            names = ", ".join(claims)
            if reading:
                open_still = ", that is, the evidence does not decide" if reading == READINGS[-1] else ""
                shown.append(f"  - {reading}{open_still}: {names}.")
            else:
                shown[-1] += f" {names}."
    return shown


def _open_sameness(found: Mapping[str, Verdict]) -> list[str]:
    """Of claims that something does not matter: that this is not shown does not show that it matters."""
    return [
        f"“{CLAIMS[name].title}” is not refuted: no setting differs beyond chance, but the intervals are too wide to call the "
        "settings the same."
        for name, verdict in found.items()
        if verdict.manner == READINGS[-1] and all(each.reading.endswith(WIDE) for each in verdict.findings.values())
    ]


def _phase_three(found: Mapping[str, Verdict], results: Results) -> list[str]:
    """Of the phases, the first two can hardly be seen after a warm-up, and the rise at the end may be."""
    if found["three_phases"].kind != "does not hold":
        return []
    seen = seen_phases(results)
    rises = sum(each.diverse for each in seen)
    early, begun = "", ""
    if results.scale == "reduced":  # the paper's protocol has no warm-up
        early = (
            ", and after one epoch of warm-up, our first value, there is little that could fall in the first phase or be kept "
            "below in the second"
        )
        begun = f" {text}" if (text := begun_phases(results)) else ""
    pictured = results.get(Cell(dataset="cifar10", model="vit", head="calattn"))
    phases = find_phases(pictured.log) if isinstance(pictured, CellResult) else None
    apart = ""
    if phases is not None and not phases.diverse:
        apart = ", but not in ViT on CIFAR-10, the setting of the paper's figure"
        if phases.crossing:
            apart += f"; there the mean does cross 1 ({phases.middle.mean:.2f} → {phases.end.mean:.2f})"
    return [
        f"“{CLAIMS['three_phases'].title}”: s starts without variation (the paper's initialisation){early}; the rise in the "
        f"third is seen in {rises} of {len(seen)} networks{apart}.{begun}"
    ]


def _with_families(name: str, verdict: Verdict) -> str:
    tested = min((len(each.outcomes) for each in verdict.findings.values()), default=0)
    what = ("family" if tested == 1 else "families") if CLAIMS[name].compares else "networks"
    return f"{CLAIMS[name].title} ({tested} {what})" if tested else CLAIMS[name].title


def _with_mixup(results: Results) -> list[str]:
    """What is left of the effect on ECE where networks memorise less."""
    every = outcomes_of(head_with_mixup(), rule="last", results=results)  # decided as in the table of the recipe
    outcomes = [each for each in every if each.metric == "ece" and each.cell.name in each.cells]  # before scaling
    if not outcomes:
        return []
    shown = [
        f"{value_text('ece', each.effect, signed=True)} {between('ece', each.low, each.high, signed=True)} points "
        f"({family_title(each.cell.dataset)}: {each.decision})"
        for each in outcomes
    ]
    return [
        f"With mixup, which is meant to keep networks from memorising, it changes by {', by '.join(shown)} at `last`; one seed "
        "each, not judged."
    ]


def _with_other_temperatures(found: Mapping[str, Verdict], variants: Mapping[str, Mapping[str, Verdict]]) -> list[str]:
    """How much hangs on the way in which temperatures are fitted."""
    name = "complementary_to_ts"
    if BY_NLL not in variants.get(name, {}):
        return []
    other = variants[name][BY_NLL]
    often, families = turned(found[name], other, "last"), len(found[name].findings["last"].outcomes)
    return [
        f"With temperatures of the lowest validation NLL it changes by {effect_text(other.findings['last'].effect)} at `last`, "
        f"and {often} of the {families} differences have the other sign (*{BY_NLL}*).{_other_counts(found, variants)}"
    ]


def _other_counts(found: Mapping[str, Verdict], variants: Mapping[str, Mapping[str, Verdict]]) -> str:
    """Families better and worse at the last epoch, where the way of fitting temperatures changes them."""
    told = []
    for name, by_variant in variants.items():
        fixed, other = decided(found[name], "last"), decided(by_variant[BY_NLL], "last")
        if other != fixed:
            told.append(f"{other[0]} : {other[1]} instead of {fixed[0]} : {fixed[1]} (“{CLAIMS[name].title}”)")
    return f" Families better and worse at `last` are then {', '.join(told)}." if told else ""


def _worth(found: Mapping[str, Verdict], stored: Sequence[CellResult]) -> list[str]:
    lines = []
    known = known_by_heart(stored)
    if known is not None and 2 * known.often > known.networks:
        lines.append(
            f"Most networks know their training images by heart: {known.often} of {known.networks} trained without mixup end at "
            f"a training accuracy of {number('accuracy', BY_HEART)} or more, and a point or more above that of new images."
        )
    families = found["ece_falls"].findings["last"].outcomes
    single = sum(len(each.seeds) == 1 for each in families)
    if single:
        lines.append(f"{single} of the {len(families)} families have one seed, and say nothing about another training.")
    return lines


def _early(stored: Sequence[CellResult]) -> list[str]:
    """What `best-ece` costs in accuracy, with and without the head."""
    changes = [result.price for result in stored if result.price is not None]
    if not changes:
        return []
    mean = number("accuracy", statistics.fmean(changes), signed=True)
    rows = [result.metric("accuracy", rule="best-ece") for result in stored]
    poor = sum(row is not None and row.value < _POOR for row in rows)
    return [
        f"`best-ece` stops early: accuracy there is {mean} points from that at `last`, in the mean over all networks, and below "
        f"{number('accuracy', _POOR)} in {poor} of {len(rows)}."
    ]
