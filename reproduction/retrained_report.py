"""The section of REPRODUCTION.md on networks that were trained twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from calattn.report.style import number
from reproduction.claim_report import commit_text, markdown_table
from reproduction.claims import CLAIMS, RULES, verdicts
from reproduction.evidence import Results
from reproduction.results import CellResult
from reproduction.retrained import SHOWN, Pair, Training, pairs_of


def retrained(results: Results) -> str:
    """Both trainings of each network beside each other, how far they are apart, and what hangs on which of them counts."""
    pairs = list(pairs_of(results))
    if not pairs:
        return "None.\n"
    header = ["network", "result", "commit"]
    for rule in RULES:
        header += [f"{rule}: epoch", *(title for title, _, _ in SHOWN)]
    rows = [_row(pair, each) for pair in pairs for each in (pair.counted, pair.other)]
    text = (
        "Training on a GPU does not always give the same network again. These were trained twice with the same settings and "
        "seed; CE+BS with λ = 0 is cross-entropy. The first of two is the one that counts for the claims; the other has its "
        "place in the λ tables, and counts wherever this report counts networks, or is in no table.\n\n"
    )
    return f"{text}{markdown_table(header, rows)}\n{_apart(pairs)}{_hangs_on_it(pairs, results)}"


def _row(pair: Pair, training: Training) -> list[str]:
    shown = [f"`{pair.cell.name}`", training.where, commit_text(training.environment)]
    for rule in RULES:
        shown.append(str(training.epochs[rule]))
        shown += [number(metric, training.values[rule, metric, phase]) for _, metric, phase in SHOWN]
    return shown


def _apart(pairs: Sequence[Pair]) -> str:
    others = [pair for pair in pairs if not pair.same]
    text = f"{len(pairs) - len(others)} of {len(pairs)} came out the same."
    if not others:
        return f"{text}\n"
    most = [
        (f"{title} at `{rule}`", max(abs(pair.apart(rule, metric, phase)) for pair in others))
        for rule in RULES
        for title, metric, phase in SHOWN
    ]
    shown = ", ".join(f"{title} {number('ece', value)}" for title, value in most)
    return (
        f"{text} The others are apart by up to, in points: {shown}. So what is decided with one seed may not survive another "
        "training, least of all at `best-ece`.\n"
    )


def _hangs_on_it(pairs: Sequence[Pair], results: Results) -> str:
    """What would be different if the other training counted."""
    lines = []
    for pair in pairs:
        if pair.same:
            continue
        told = [*_accuracies(pair, results), *_counts(pair, pairs, results)]
        if told:
            lines.append(f"- `{pair.cell.name}`: {'; '.join(told)}.")
    return "\nIf the other of the two counted:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _accuracies(pair: Pair, results: Results) -> list[str]:
    """The difference of accuracy to the twin, or to the network with CalAttn whose twin it is."""
    head = dataclasses.replace(pair.cell, head="calattn")
    partner = results.get(pair.cell.twin if pair.cell.head != "none" else head)
    row = partner.metric("accuracy", rule="best-ece") if isinstance(partner, CellResult) else None
    if row is None:
        return []
    plain = pair.cell.head == "none"
    values = [
        number("accuracy", row.value - ours if plain else ours - row.value, signed=True)
        for each in (pair.other, pair.counted)
        for ours in (each.values["best-ece", "accuracy", "pre"],)
    ]
    return [
        f"the difference of accuracy that comes with CalAttn at `best-ece` would be {values[0]} instead of {values[1]}"
    ]


def _counts(pair: Pair, pairs: Sequence[Pair], results: Results) -> list[str]:
    """Counts of families that would be others. A paired difference is to the other training's own twin: where that came out
    as the counted twin did, it can take the place."""
    twins_same = any(each.cell == pair.cell.twin and each.same for each in pairs)
    if pair.result is None or not twins_same:
        return []
    before, after = verdicts(results), verdicts(results.with_result(pair.result))
    told = []
    for name, verdict in before.items():
        for rule, finding in verdict.findings.items():
            pairs_of_counts = [
                [each.counts.get("better", 0), each.counts.get("worse", 0)]
                for each in (after[name].findings[rule], finding)
            ]
            if pairs_of_counts[0] != pairs_of_counts[1]:
                shown = " instead of ".join(
                    f"better in {better}, worse in {worse}" for better, worse in pairs_of_counts
                )
                told.append(f"“{CLAIMS[name].title}” at `{rule}` would be {shown} of {len(finding.outcomes)} families")
        if after[name].title != verdict.title:
            told.append(f"“{CLAIMS[name].title}” would have the verdict “{after[name].title}”")
    return told
