"""The verdicts in words and tables: the part of REPRODUCTION.md that is about the paper's claims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from calattn.metrics import METRICS
from calattn.report.style import between, number
from reproduction.claims import CLAIMS, Claim
from reproduction.evidence import (
    ACCURACY_PRICE,
    DECISIONS,
    LEVEL,
    SMALLEST,
    Outcome,
    Results,
)
from reproduction.layouts.parts import DATASETS, LOSS_TITLES, MODELS
from reproduction.phases import find_phases
from reproduction.printed import has_printed, printed
from reproduction.remarks import PHASE_PARTS, remarks
from reproduction.results import CellResult, Phase, Rule
from reproduction.verdicts import ENOUGH_FAMILIES, SAME_ECE, Effect, Finding, Verdict, mean_accuracy, mean_effect

NONE = "–"
_OOD_TITLES = {"ood_svhn": "AUROC against SVHN", "ood_cifar10_c": "AUROC against CIFAR-10-C"}
_COUNTED = ("parameters", "cv")
_TITLES = DATASETS | MODELS | LOSS_TITLES | {"cls": "CLS", "patch_mean": "patch mean", "concat": "both"}


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""A Markdown table; bars inside a cell are escaped, line breaks become spaces.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]), end="")
    | a | b |
    |---|---|
    | 1 | x\|y |
    """

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.splitlines()).replace("|", "\\|") for cell in cells) + " |\n"

    return line(header) + "|---" * len(header) + "|\n" + "".join(map(line, rows))


def verdict_table(verdicts: Mapping[str, Verdict]) -> str:
    """One row a claim: the verdict and, for each checkpoint rule, the mean effect and how many families it rests on."""
    header = ["claim", "verdict", "why", "effect at `last`", "effect at `best-ece`"]
    header += ["families with results / planned", "seeds a family"]
    rows = []
    for name, verdict in verdicts.items():
        findings = [verdict.findings.get("last", verdict.findings.get("any")), verdict.findings.get("best-ece")]
        shown = [f"**{CLAIMS[name].title}** (`{name}`)", verdict.full_title, verdict.reading]
        shown += [_effect_of(finding) for finding in findings]
        rows.append([*shown, _coverage(verdict), _seeds(verdict)])
    return markdown_table(header, rows)


def rules_text() -> str:
    """How a verdict comes about, with the constants that the code uses."""
    smallest = ", ".join(f"{metric_title(name)} {_amount(name, least)}" for name, least in SMALLEST.items())
    price, same = number("accuracy", ACCURACY_PRICE), number("ece", SAME_ECE)
    return f"""The rules treat gains and losses alike.

1. A *family* is a comparison of two settings (data set, network, loss, head, post-hoc step) over all seeds that were run.
2. The difference is the tested setting minus the reference. Against the same network without the head it is a paired
   bootstrap difference on the test images (for AUROC against other images, DeLong's paired difference); otherwise the
   intervals of both sides are joined as if independent. That is too wide as a rule; of ECE it can be a tenth too
   narrow (seen where a pair has both kinds of interval). All intervals are 95 %, and take checkpoint and temperature as
   given.
3. Several seeds are averaged, and their spread (Student) is joined to the interval. With one seed the interval covers the
   choice of test images, not another training: such a verdict is about these networks.
4. *better* or *worse* needs an interval without zero, p ≤ {LEVEL:g} after Holm's correction over the families of the claim at
   that checkpoint rule (those with results), and
   at least the smallest effect that matters ({smallest}). Less than that is *too small*; no interval is *undecided*; the rest
   is *within chance*. p follows, by the normal distribution, from the end of the interval towards
   zero. Where the spread over few seeds makes the interval, such a p is right at {LEVEL:g} and too small below it, where Holm's
   correction decides: see *Welch* in the next section.
5. A gain that comes with more than {price} point of accuracy lost is *traded*, and so is a loss that comes with more than
   {price} point of accuracy won. Neither counts.
6. A claimed gain holds under a checkpoint rule if more than half of the families with results are better and, where the paper
   claims it throughout, none is worse. "Kept" and "does not matter" have their own rules, given with the claim; settings are
   the same where the interval lies within ± {same} points.
7. A claim *holds* if it holds at the last epoch (`last`) and at the epoch with the lowest validation ECE (`best-ece`, the
   rule that the authors' published log points to); if at one of them only, it *holds only under* that rule. With results for
   fewer than half of the planned families it is *not tested*. Otherwise it *does not hold*, with how: *contradicted* (more
   than half of the families worse; of “kept”, “does not matter” and the parameters, at least one; of the phases, not all
   seen in most networks), *mixed* (some better, some worse), or *not confirmed* (neither: the evidence does not decide).
8. The effect in the table is the mean over families. Its interval is Student's over families, where there are at least
   {ENOUGH_FAMILIES} of them; otherwise its ends are the means of theirs, which leaves out the spread
   between them; means by data set likewise. Families share test images and networks: read it as the spread of the effect; the
   decisions rest on the families.
"""


def claim_section(claim: Claim, verdict: Verdict, results: Results, variants: Mapping[str, Verdict]) -> str:
    """What the paper says, how it was tested, and every number the verdict rests on. `variants`: what other rules say."""
    parts = [f"### {claim.title}: {verdict.full_title}\n", f"**Paper.** {claim.paper}\n", f"**Test.** {claim.test}\n"]
    parts.append(f"**Result.** {_result(verdict)}{remarks(claim, verdict, results, variants)}\n")
    outcomes = _by_rule({rule: finding.outcomes for rule, finding in verdict.findings.items()})
    if outcomes:
        parts.append(_table(claim, outcomes, results))
    if others := _others(claim, results):
        parts.append(f"Not judged, for comparison:\n\n{others}")
    for title, outcomes_beside in claim.beside(results).items():
        if beside := _by_rule(outcomes_beside):
            parts.append(f"Not judged, {title} (Holm's correction over these alone):\n\n{outcome_table(beside)}")
    if verdict.missing:
        cells = "1 planned cell has" if len(verdict.missing) == 1 else f"{len(verdict.missing)} planned cells have"
        parts.append(f"{cells} no result: see “What was not run”.\n")
    return "\n".join(parts)


def _by_rule(found: Mapping[str, Sequence[Outcome]]) -> list[tuple[str, Outcome]]:
    return [(rule, outcome) for rule, outcomes in found.items() for outcome in outcomes]


def _table(claim: Claim, outcomes: Sequence[tuple[str, Outcome]], results: Results) -> str:
    metric = outcomes[0][1].metric
    if metric == "parameters":
        return _parameter_table([outcome for _, outcome in outcomes])
    return phase_table(results) if metric == "cv" else outcome_table(outcomes, claim=claim.name)


def _parameter_table(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for each in outcomes:
        shown = [family_title(f"{each.cell.dataset} {each.cell.model}"), f"{each.a:,.0f}", f"{each.b:,.0f}"]
        rows.append(
            [*shown, value_text("parameters", each.effect), "below" if each.decision == "better" else "not below"]
        )
    return markdown_table(["the paper's network", "its parameters", "the head's", "share", "0.1 %"], rows)


def phase_table(results: Results) -> str:
    """Every network with CalAttn that has a log long enough, part by part; the judged ones are among them."""
    header = ["network", "mean s: epoch 1", "phase I's end", "phase II", "end", "variation: epoch 1", "phase I's end"]
    header += ["phase II", "end", *PHASE_PARTS.values()]
    rows, counts = [], Counter[str]()
    for result in results.stored():
        phases = find_phases(result.log) if result.cell.head == "calattn" else None
        if phases is None:
            continue
        moments = (phases.start, phases.aligned, phases.middle, phases.end)
        seen = {name: getattr(phases, name) for name in PHASE_PARTS}
        counts.update(name for name, there in seen.items() if there)
        shown = [f"`{result.cell.name}`", *(f"{each.mean:.3f}" for each in moments)]
        shown += [*(f"{each.cv:.3f}" for each in moments), *("yes" if there else "no" for there in seen.values())]
        rows.append(shown)
    rows.append([f"**yes in, of {len(rows)}**", *[""] * 8, *(str(counts[name]) for name in PHASE_PARTS)])
    return markdown_table(header, rows)


def outcome_table(outcomes: Sequence[tuple[str, Outcome]], *, claim: str = "") -> str:
    """One row a family and rule; with the name of a claim, beside the paper's numbers where it has a table of them."""
    beside = has_printed(claim)
    relative = any(each.metric == "ece" for _, each in outcomes)
    header = [
        "family",
        "rule",
        "metric",
        "reference → tested",
        "difference [95 %]",
        *(["relative"] if relative else []),
    ]
    header += ["p (Holm)", "difference of accuracy", "seeds"]
    rows = []
    for rule, each in outcomes:
        values = f"{value_text(each.metric, each.a)} → {value_text(each.metric, each.b)}"
        ends = between(each.metric, each.low, each.high, signed=True)
        difference = f"{value_text(each.metric, each.effect, signed=True)} {ends}"
        shown = [family_title(each.family), rule, metric_title(each.metric), values, difference.strip()]
        shown += [_relative(each)] if relative else []
        shown += [_p(each.p_value), number("accuracy", each.accuracy, signed=True)]
        shown += [", ".join(map(str, each.seeds)), each.decision]
        rows.append([*shown, *([_printed(claim, each)] if beside else [])])
    return markdown_table([*header, "decision", *(["the paper's"] if beside else [])], rows)


def family_title(family: str) -> str:
    """A family by the names of the tables.

    >>> family_title("cifar10 deit ce_brier, ood_svhn"), family_title("cifar100 deit: patch_mean against cls")
    ('CIFAR-10 DeiT-S CE+BS', 'CIFAR-100 DeiT-S: patch mean against CLS')
    """
    family = re.sub(r", ood_\w+$", "", family)  # the metric's column says so
    return re.sub(r"\w+", lambda word: _TITLES.get(word[0], word[0]), family)


def _relative(outcome: Outcome) -> str:
    if outcome.metric != "ece" or not outcome.a:
        return NONE
    return f"{100 * outcome.effect / outcome.a:+.0f} %".replace("-", "−")


def _printed(claim: str, outcome: Outcome) -> str:
    pair = printed(claim, outcome)
    return NONE if pair is None else f"{pair.without:.2f} → {pair.head:.2f}"


def counts_text(outcomes: Sequence[Outcome]) -> str:
    """How many families were decided which way; what did not occur is left out."""
    counts = {decision: sum(each.decision == decision for each in outcomes) for decision in DECISIONS}
    return ", ".join(f"{count} {decision}" for decision, count in counts.items() if count) or NONE


def _decided(outcomes: Sequence[Outcome]) -> str:
    """The families that are better or worse, by name."""
    named = {d: [family_title(o.family) for o in outcomes if o.decision == d] for d in ("better", "worse")}
    return "; ".join(f"{decision}: {', '.join(names)}" for decision, names in named.items() if names) or NONE


def effect_text(effect: Effect | None) -> str:
    if effect is None:
        return NONE
    ends = between(effect.metric, effect.low, effect.high, signed=True)
    return f"{value_text(effect.metric, effect.value, signed=True)} {ends}".strip() + f" {_unit(effect.metric)}"


def metric_title(metric: str) -> str:
    """The name that people read, with the threshold that HCFP has."""
    if metric in _OOD_TITLES:
        return _OOD_TITLES[metric]
    return METRICS[metric].title.replace("≥ t", "≥ 0.90")


def value_text(metric: str, value: float, *, signed: bool = False) -> str:
    """A value of a metric; a count of parameters as such, a coefficient of variation as it is."""
    if metric == "parameters":
        return f"{value:,.0f}" if value >= 1 else f"{100 * value:.3f} %"
    if metric == "cv":
        return f"{value:{'+' if signed else ''}.3f}".replace("-", "−")
    return number(metric, value, signed=signed)


def _result(verdict: Verdict) -> str:
    parts = [f"{verdict.reading[:1].upper()}{verdict.reading[1:]}."]
    for rule, finding in verdict.findings.items():
        if finding.outcomes and rule != "any":
            price = mean_accuracy(finding.outcomes)
            with_accuracy = (
                "" if price is None else f"; mean difference of accuracy {number('accuracy', price, signed=True)}"
            )
            counted = f"{counts_text(finding.outcomes)} of {len(finding.outcomes)}"
            parts.append(f"At `{rule}`: {effect_text(finding.effect)}; {counted}{with_accuracy}.")
    if "last" in verdict.findings and verdict.seeds and verdict.seeds[0] == 1:
        parts.append("Families with one seed say nothing about another training.")
    return " ".join(parts)


def _others(claim: Claim, results: Results) -> str:
    rows = [
        [metric_title(metric), rule, effect_text(mean_effect(outcomes)), counts_text(outcomes), _decided(outcomes)]
        for metric, by_rule in claim.also(results).items()
        for rule, outcomes in by_rule.items()
        if outcomes
    ]
    return markdown_table(["metric", "rule", "mean effect [95 %]", "families", "which"], rows) if rows else ""


def _effect_of(finding: Finding | None) -> str:
    if finding is None or not finding.outcomes:
        return NONE
    metric = finding.outcomes[0].metric
    if metric not in _COUNTED:
        return effect_text(finding.effect)
    effects = [outcome.effect for outcome in finding.outcomes]
    ends = dict.fromkeys(value_text(metric, end) for end in (min(effects), max(effects)))
    return " to ".join(ends) + (
        " more parameters" if metric == "parameters" else " more variation at the end than in phase II"
    )


def _coverage(verdict: Verdict) -> str:
    tested = min((len(each.outcomes) for each in verdict.findings.values()), default=0)
    return f"{tested} / {verdict.planned}"


def _seeds(verdict: Verdict) -> str:
    if not verdict.seeds:
        return NONE
    fewest, most = verdict.seeds
    if not most:
        return NONE
    return str(fewest) if fewest == most else f"{fewest} to {most}"


def _amount(metric: str, value: float) -> str:
    return f"{number(metric, value)} {_unit(metric)}"


def _unit(metric: str) -> str:
    return "nats" if metric == "nll" else "points"


def _p(p_value: float | None) -> str:
    if p_value is None:
        return NONE
    if p_value < 0.001:
        return "< 0.001"
    return f"{p_value:.4f}" if round(p_value, 2) == LEVEL else f"{p_value:.3f}"  # on which side of the level it lies


def checkpoint_row(result: CellResult, rule: Rule) -> list[str]:
    """Epoch, accuracy, ECE and NLL, the last two again after temperature scaling, and the mean scale."""
    chosen = result.rules.get(rule, {})
    shown: list[tuple[str, Phase]] = [
        ("accuracy", "pre"),
        ("ece", "pre"),
        ("nll", "pre"),
        ("ece", "post"),
        ("nll", "post"),
    ]
    scale = chosen.get("scale", {}).get("mean")
    values = [metric_value(result, metric, rule, phase) for metric, phase in shown]
    return [str(chosen.get("epoch", NONE)), *values, NONE if scale is None else f"{scale:.3f}"]


def metric_value(result: CellResult, metric: str, rule: Rule, phase: Phase) -> str:
    row = result.metric(metric, rule=rule, phase=phase)
    return NONE if row is None else number(metric, row.value)


def commit_text(environment: Mapping[str, Any]) -> str:
    """The code that trained a network."""
    commit = environment.get("commit")
    if not commit:
        return NONE
    changed = " with changes" if commit.get("dirty") else ""
    return f"`{str(commit['hash'])[:10]}`{changed}"
