"""What a reader of a claim's result must be told beside its counts."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from calattn.report.style import between, number
from reproduction.cells import Cell
from reproduction.claims import RULES, Claim
from reproduction.comparisons import CLS_WINS, PATCH_MEAN_WINS
from reproduction.evidence import PHASE_TITLES, SMALLEST, Outcome, Results, better_sign
from reproduction.layouts.parts import DATASETS
from reproduction.phases import FIRST_CUT, Phases, find_phases, scale_moments
from reproduction.printed import has_printed, printed
from reproduction.results import CellResult, Rule
from reproduction.retrained import pairs_of
from reproduction.verdicts import ENOUGH_FAMILIES, SAME_ECE, Finding, Verdict, mean_effect

PHASE_PARTS = {
    "alignment": "I: both fall",
    "uniform": "II: stays low",
    "diverse": "III: rises",
    "crossing": "III: mean crosses 1",
}
ONE_SEED = "seeds for all"
"""The variant of the rules that says how much hangs on families with one seed."""
BY_NLL = "T by NLL"
"""The variant of the rules that says how much hangs on how temperatures are fitted."""
_FAR = 5  # epochs between the two checkpoints of a pair


def remarks(claim: Claim, verdict: Verdict, results: Results, variants: Mapping[str, Verdict]) -> str:
    found = (
        _price_of_rule(claim, verdict, results),
        _untouched(verdict, results),
        _by_data_set(verdict),
        _floor(verdict),
        _like_the_papers(claim, verdict),
        _marked(claim, verdict),
        _weights(claim, verdict, results),
        _epochs(claim, verdict, results),
        _small_loss(claim, verdict, results),
        _phase_parts(claim, results),
        _settings(verdict),
        _one_seed(verdict, variants),
        _other_temperature(verdict, variants),
    )
    return "".join(f" {text}" for text in found if text)


def out_of_reach(finding: Finding) -> int:
    """Families in which nothing could be better by the smallest effect that matters, because the reference is below it."""
    return sum(better_sign(each.metric) < 0 and each.a < SMALLEST[each.metric] for each in finding.outcomes)


def unreachable(verdict: Verdict) -> bool:
    """Whether most families are out of reach at every checkpoint rule: no head could have made such a claim hold."""
    found = [each for rule, each in verdict.findings.items() if rule in RULES]
    return bool(found) and all(2 * out_of_reach(each) >= len(each.outcomes) > 0 for each in found)


def too_little(claim: Claim, verdict: Verdict) -> bool:
    """Whether falls in the proportion of the paper's would be too small to count in half of the families or more, at every
    checkpoint rule: then a claim cannot hold even where all is as in the paper."""
    found = [_falls(claim, each) for rule, each in verdict.findings.items() if rule in RULES]
    return bool(found) and all(
        falls and 2 * sum(fall < SMALLEST[each.metric] for each, fall in falls) >= len(falls) for falls in found
    )


def _falls(claim: Claim, finding: Finding) -> list[tuple[Outcome, float]]:
    """Each family's reference, times what the paper's falls by in proportion; of errors, where it has a table of them."""
    if not has_printed(claim.name) or any(better_sign(each.metric) > 0 for each in finding.outcomes):
        return []
    pairs = [(each, printed(claim.name, each)) for each in finding.outcomes]
    return [
        (each, each.a * (1 - pair.head / pair.without)) for each, pair in pairs if pair is not None and pair.without
    ]


def _like_the_papers(claim: Claim, verdict: Verdict) -> str:
    if not too_little(claim, verdict):
        return _partly_too_little(claim, verdict)
    shown = [
        f"{', '.join(number(each.metric, fall) for each, fall in _falls(claim, verdict.findings[rule]))} points at `{rule}`"
        for rule in RULES
    ]
    least = number(metric := verdict.findings[RULES[0]].outcomes[0].metric, SMALLEST[metric])
    return (
        f"A fall as large as the paper's, in proportion, would be {'; '.join(shown)}, in the order of the table, and {least} is "
        "the least that counts: the claim could not have been confirmed by it."
    )


def _partly_too_little(claim: Claim, verdict: Verdict) -> str:
    """In how many families the paper's own change, in proportion, would not count as a gain; by data set."""
    shown = []
    for rule in RULES:
        falls = _falls(claim, verdict.findings[rule]) if rule in verdict.findings else []
        small = [each for each, fall in falls if fall < SMALLEST[each.metric]]
        of = Counter(each.cell.dataset for each, _ in falls)
        counts = Counter(each.cell.dataset for each in small)
        sets = [f"{title} {counts[name]} of {of[name]}" for name, title in DATASETS.items() if counts[name]]
        if small:
            least = number(metric := small[0].metric, SMALLEST[metric])
            shown.append(f"{len(small)} of {len(falls)} families at `{rule}` ({', '.join(sets)})")
    if not shown:
        return ""
    return f"The paper's own change, in proportion, would be no fall of the {least} points that count in {', '.join(shown)}."


def by_data_set(finding: Finding) -> str:
    """The mean effect of each data set, where a claim has many families of several; else nothing."""
    sets = {each.cell.dataset for each in finding.outcomes}
    if len(sets) < 2 or len(finding.outcomes) < 2 * ENOUGH_FAMILIES:
        return ""
    shown = []
    for name in (name for name in DATASETS if name in sets):
        own = [each for each in finding.outcomes if each.cell.dataset == name]
        effect = mean_effect(own)
        assert effect is not None
        ends = between(effect.metric, effect.low, effect.high, signed=True)
        families = f"{len(own)} {'family' if len(own) == 1 else 'families'}"
        if 1 < len(own) < ENOUGH_FAMILIES:
            families += ", the mean of their ends"
        shown.append(f"{DATASETS[name]} {number(effect.metric, effect.value, signed=True)} {ends} ({families})")
    return ", ".join(shown)


def _by_data_set(verdict: Verdict) -> str:
    shown = [f"{text} at `{rule}`" for rule, each in verdict.findings.items() if (text := by_data_set(each))]
    return f"By data set, not judged: {'; '.join(shown)}." if shown else ""


def _price_of_rule(claim: Claim, verdict: Verdict, results: Results) -> str:
    """What the early checkpoint costs, where a claim holds there only: both sides of a pair pay it."""
    if verdict.rule != "best-ece":
        return ""
    found = [each for cell in claim.cells(results.scale) if isinstance(each := results.get(cell), CellResult)]
    changes = [each.price for each in found if each.price is not None]
    if not changes:
        return ""
    mean = number("accuracy", statistics.fmean(changes), signed=True)
    return f"At `best-ece` the accuracy of these networks, with and without the head, is {mean} points from that at `last`."


def _untouched(verdict: Verdict, results: Results) -> str:
    """Where T* = 1, what is judged after temperature scaling is what was judged before it."""
    by_name = {result.cell.name + PHASE_TITLES["post"]: result for result in results.stored()}
    counts, with_itself = [], False
    for rule in RULES:
        outcomes = verdict.findings[rule].outcomes if rule in verdict.findings else ()
        names = dict.fromkeys(name for outcome in outcomes for name in outcome.cells if name in by_name)
        if not names:
            return ""
        known = [by_name[name].temperature(rule=rule) for name in names]
        counts.append(f"{sum(t == 1.0 for t in known)} of {len(known)} at `{rule}`")
        with_itself |= any(_with_itself(each) for each in outcomes)
    text = f"Networks with T* = 1, whose numbers are those before scaling: {', '.join(counts)}."
    return f"{text} Before and after scaling, these are compared with themselves." if with_itself else text


def _with_itself(outcome: Outcome) -> bool:
    """Whether a network is compared with itself at another phase."""
    return any(name + PHASE_TITLES["post"] in outcome.cells for name in outcome.cells)


def _floor(verdict: Verdict) -> str:
    counts = {rule: out_of_reach(finding) for rule, finding in verdict.findings.items() if rule in RULES}
    if not any(counts.values()):
        return ""
    shown = ", ".join(
        f"{count} of {len(verdict.findings[rule].outcomes)} at `{rule}`" for rule, count in counts.items()
    )
    text = (
        f"Families whose reference is below the smallest effect that matters, so that nothing could be better: {shown}"
    )
    return f"{text}. The claim could not have been confirmed here." if unreachable(verdict) else f"{text}."


def _marked(claim: Claim, verdict: Verdict) -> str:
    """Of the inputs of the head: in how many of the settings that the paper marks they were compared."""
    wins = {"cls_best": CLS_WINS, "patch_mean_best": PATCH_MEAN_WINS}.get(claim.name)
    if wins is None:
        return ""
    cells = [outcome.cell for finding in verdict.findings.values() for outcome in finding.outcomes]
    tested = {(cell.dataset, cell.model) for cell in cells} & set(wins)
    return (
        f"Of the {len(wins)} settings that the paper marks, {len(tested)} {'is' if len(tested) == 1 else 'are'} tested."
    )


def _weights(claim: Claim, verdict: Verdict, results: Results) -> str:
    """Of λ: how narrow an effect would have had to be, and what lies between the weights, beside that between two trainings."""
    outcomes = [each for finding in verdict.findings.values() for each in finding.outcomes]
    arms = [(each.high - each.low) / 2 for each in outcomes if each.low is not None and each.high is not None]
    if claim.name != "lambda_insensitive" or not arms:
        return ""
    ends = dict.fromkeys(number("ece", end) for end in (min(arms), max(arms)))
    told = [
        f"The intervals alone reach {' to '.join(ends)} points to either side, of the {number('ece', SAME_ECE)} granted."
    ]
    for rule in RULES:
        between = {head: _spread_of_weights(head, outcomes, rule, results) for head in ("calattn", "none")}
        if all(each is not None for each in between.values()):
            shown = [number("ece", each) for each in between.values() if each is not None]
            told.append(
                f"At `{rule}`, {shown[0]} points lie between the best and the worst λ with CalAttn, {shown[1]} without it."
            )
    return " ".join([*told, *_of_two_trainings(results)])


def _spread_of_weights(head: str, outcomes: Sequence[Outcome], rule: Rule, results: Results) -> float | None:
    cells = dict.fromkeys(
        dataclasses.replace(each.cell, head=head, weight=weight)
        for each in outcomes
        for weight in (0.1, each.cell.weight)
    )
    found = [each for cell in cells if isinstance(each := results.get(cell), CellResult)]
    values = [row.value for each in found if (row := each.metric("ece", rule=rule, phase="post")) is not None]
    return max(values) - min(values) if len(values) == len(cells) else None


def _of_two_trainings(results: Results) -> list[str]:
    """λ = 0 and cross-entropy are one setting."""
    cell = Cell(dataset="cifar100", model="deit", loss="ce", head="calattn")
    pair = next((each for each in pairs_of(results) if each.cell == cell), None)
    if pair is None:
        return []
    shown = [f"{number('ece', abs(pair.apart(rule, 'ece', 'post')))} at `{rule}`" for rule in RULES]
    return [f"Two trainings of one setting (cross-entropy, which is λ = 0) differ by {', '.join(shown)}."]


def _epochs(claim: Claim, verdict: Verdict, results: Results) -> str:
    """Of families with one seed: which epochs `best-ece` compares, where they are far apart."""
    if not claim.compares or verdict.seeds != (1, 1) or "best-ece" not in verdict.findings:
        return ""
    by_name = {result.cell.name: result for result in results.stored()}
    far = []
    for outcome in verdict.findings["best-ece"].outcomes:
        names = [name.removesuffix(PHASE_TITLES["post"]) for name in outcome.cells]
        epochs = [by_name[name].rules["best-ece"]["epoch"] for name in names if name in by_name]
        if len(epochs) == len(names) == 2 and abs(epochs[0] - epochs[1]) >= _FAR:
            far.append(f"{epochs[0]} and {epochs[1]} (`{names[0]}`, `{names[1]}`)")
    return (
        f"At `best-ece`, far apart are epochs {', '.join(far)}: there, epochs are compared rather than heads."
        if far
        else ""
    )


def _small_loss(claim: Claim, verdict: Verdict, results: Results) -> str:
    """Of accuracy: a mean loss that the rule grants, and pairs of which the checkpoints are compared rather than the heads."""
    if claim.name != "accuracy_kept":
        return ""
    told = []
    for rule, finding in verdict.findings.items():
        effect = finding.effect
        if finding.holds and effect is not None and effect.high is not None and effect.high < 0:
            told.append(
                f"At `{rule}` the mean loss is less than the point that the rule grants, but beyond chance. Holm's correction, "
                "which makes it harder to find a family worse, works for this claim: see *uncorrected* and *counted*."
            )
    pairs = [
        (found, results.get(found.cell.twin))
        for cell in claim.cells(results.scale)
        if cell.head != "none" and isinstance(found := results.get(cell), CellResult)
    ]
    epochs = [
        [each.rules["best-ece"]["epoch"] for each in (a, b)]
        for a, b in pairs
        if isinstance(b, CellResult) and "best-ece" in a.rules and "best-ece" in b.rules
    ]
    far = sum(abs(a - b) >= _FAR for a, b in epochs)
    if far:
        told.append(
            f"At `best-ece` the networks of {far} of {len(epochs)} pairs (seed 0) come from epochs {_FAR} or more apart: there, "
            "epochs are compared rather than heads."
        )
    return " ".join(told)


def seen_phases(results: Results) -> list[Phases]:
    """Of every network with CalAttn whose log is long enough."""
    return [p for r in results.stored() if r.cell.head == "calattn" and (p := find_phases(r.log)) is not None]


def _phase_parts(claim: Claim, results: Results) -> str:
    """Of all networks with CalAttn: a claim of four parts can fail by one."""
    if claim.name != "three_phases":
        return ""
    found = seen_phases(results)
    counts = [f"{title} in {sum(getattr(each, name) for each in found)}" for name, title in PHASE_PARTS.items()]
    told = f"Part by part, of all {len(found)} networks with CalAttn: {'; '.join(counts)}." if found else ""
    return " ".join(part for part in (told, begun_phases(results)) if part)


def begun_phases(results: Results) -> str:
    """Of networks begun by the paper's own protocol: how far s has come, and whether the first phase looks as the paper says."""
    told = []
    for result in results.of_own_protocol():
        begun = result.cell.head == "calattn" and result.unfinished
        moments = scale_moments(result.log) if begun else []
        if len(moments) > 1:
            (first, start), (last, end) = moments[0], moments[-1]
            means, spreads = ([f"{start.mean:.2f}", f"{end.mean:.2f}"], [f"{start.cv:.3f}", f"{end.cv:.3f}"])
            fall = all(float(a) > float(b) for a, b in (means, spreads)) and last <= FIRST_CUT * result.planned_epochs
            told.append(
                f"`{result.cell.name}`, from epoch {first} to {last} of {result.planned_epochs}: mean {' → '.join(means)}, "
                f"variation {' → '.join(spreads)}{' (both fall, as the paper says of its first phase)' if fall else ''}"
            )
    return f"Begun by the paper's own protocol, not judged: {'; '.join(told)}." if told else ""


def _settings(verdict: Verdict) -> str:
    """Where two metrics of the same networks are families of their own."""
    counts = {rule: (len(each.outcomes), len(_pairs(each.outcomes))) for rule, each in verdict.findings.items()}
    told = [
        f"{families} families are of {pairs} pairs of settings" for families, pairs in dict.fromkeys(counts.values())
    ]
    return f"The {'; '.join(told)}." if any(families > pairs for families, pairs in counts.values()) else ""


def _pairs(outcomes: Sequence[Outcome]) -> set[tuple[str, ...]]:
    return {each.cells for each in outcomes}


def _one_seed(verdict: Verdict, variants: Mapping[str, Verdict]) -> str:
    """How the counts change if one lucky training decides less."""
    other = variants.get(ONE_SEED)
    if other is None or verdict.seeds[:1] != (1,):
        return ""
    if all(decided(other, rule) == decided(verdict, rule) for rule in verdict.findings):
        return ""
    shown = [
        f"better in {better}, worse in {worse} of {len(other.findings[rule].outcomes)} at `{rule}`"
        for rule in verdict.findings
        for better, worse in (decided(other, rule),)
    ]
    return (
        f"With the spread over seeds of other families for those that have one seed (*{ONE_SEED}*): {'; '.join(shown)}."
    )


def decided(verdict: Verdict, rule: str) -> tuple[int, int]:
    """How many families are better, and how many worse."""
    counts = verdict.findings[rule].counts
    return counts.get("better", 0), counts.get("worse", 0)


def _other_temperature(verdict: Verdict, variants: Mapping[str, Verdict]) -> str:
    """How the counts change with other temperatures, and how many differences change their sign."""
    other = variants.get(BY_NLL)
    scaled = [each for finding in verdict.findings.values() for each in finding.outcomes if _scaled(each)]
    if other is None or not scaled:
        return ""
    shown = []
    for rule, finding in verdict.findings.items():
        often, (better, worse) = turned(verdict, other, rule), decided(other, rule)
        counted = (
            f"better in {better}, worse in {worse} of {len(finding.outcomes)} at `{rule}`{_undecided(other, rule)}"
        )
        changes = "difference changes its sign" if often == 1 else "differences change their sign"
        shown.append(f"{counted}, where {often} {changes}")
    return f"With temperatures of the lowest validation NLL (*{BY_NLL}*): {'; '.join(shown)}."


def _undecided(verdict: Verdict, rule: str) -> str:
    count = verdict.findings[rule].counts.get("undecided", 0)
    return f" ({count} undecided: no interval)" if count else ""


def turned(verdict: Verdict, other: Verdict, rule: str) -> int:
    """How many differences have the other sign by other rules."""
    effects = {(each.family, each.metric): each.effect for each in other.findings[rule].outcomes}
    return sum(each.effect * effects[each.family, each.metric] < 0 for each in verdict.findings[rule].outcomes)


def _scaled(outcome: Outcome) -> bool:
    return any(name.endswith(PHASE_TITLES["post"]) for name in outcome.cells)
