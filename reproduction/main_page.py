"""The report: numbers and tables from the results, put into the sentences of a template."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from calattn.report.style import between, number
from reproduction import appendix, counted, ledger, paper
from reproduction.catalogue import tables_of
from reproduction.cells import CIFARS, SCALES
from reproduction.claims import CLAIMS, TOLD, verdicts
from reproduction.paper_tables import LAYOUTS
from reproduction.planned import ordered_cells
from reproduction.render import markdown_table, ours_text, with_spread, write_texts
from reproduction.results import NOT_RUN, RULES, CellResult, Hole, ResultStore, missing
from reproduction.verdicts import AtRule, State, Verdict

NONE = "–"
JUDGED_BY_MORE = ("complementary_to_ts", "joint_beats_posthoc")
"""Claims of which the report says what other metrics have, too."""
BY_HEART, AHEAD, POOR = 0.95, 0.01, 0.5
"""A network knows its training images by heart if it has 95 % of them right, and a point more than of new images."""


def write_report(store: ResultStore, path: Path, *, folder: Path) -> list[Path]:
    """The report, and the ledger of its verdicts beside the tables in `folder`."""
    tables = Path(os.path.relpath(folder, path.parent)).as_posix()
    texts = {
        path: report_text(store, tables=tables),
        folder / "verdicts.csv": ledger.verdicts_csv(store),
        folder / "evidence.csv": ledger.evidence_csv(store),
    }
    return write_texts(texts | {folder / f"{name}.md": page(store) for name, page in appendix.PAGES.items()})


def report_text(store: ResultStore, *, tables: str) -> str:
    """The template of the scale, or the one for any; `tables` is their folder as seen from the report."""
    template = store.scale if (appendix.TEMPLATES / f"{store.scale}.md").exists() else "any"
    return appendix.filled(template, numbers(store, tables) | {"tables": tables})


def numbers(store: ResultStore, tables: str) -> dict[str, object]:
    """Every placeholder that a template may have → what is put there.

    Of a claim at a checkpoint, for example: $ece_falls_last (mean effect), $ece_falls_last_better (families).
    """
    found, stored = verdicts(store), list(store.stored())
    wanted, plain = [store.get(cell) for cell in ordered_cells(store.scale)], appendix.baselines(store)
    values: dict[str, object] = {
        "baselines": len(plain),
        "scale": store.scale,
        "scale_title": SCALES[store.scale].title.rstrip("?"),
        "planned": len(wanted),
        "run": sum(isinstance(result, CellResult) for result in wanted),
        "waiting": sum(isinstance(result, Hole) and result.reason == NOT_RUN for result in wanted),
        "claims": len(found),
        "claims_table": _claims_table(found, store),
        "afterwards_table": counted.heads_table(store),
        "schedule_table": appendix.schedule_table(store),
        "nll_rises": appendix.course_of("ece_falls", store).text("nll"),
        "not_run": missing(wanted) or "none",
        "three_seeds": _three_seeds(store),
        "oddities": len(paper.oddities()),
        "table_links": ", ".join(f"[{name}]({tables}/{name}.md)" for name in (*LAYOUTS, "checkpoint_size")),
        **_schedule(store),
        **_memory(stored),
        **_early(stored),
        **_contradictions(stored),
    }
    values |= {f"baselines_{each}": appendix.reproduced(plain, each) for each in appendix.RULES_SHOWN}
    for state, at in itertools.product(get_args(State), RULES):
        values[f"{state.replace(' ', '_')}_{at}"] = sum(verdict.state(at) == state for verdict in found.values())
    for name in JUDGED_BY_MORE:
        for metric, by_rule in CLAIMS[name].beside(store).items():
            for rule, outcomes in by_rule.items():
                counts = Counter(outcome.decision for outcome in outcomes)
                values |= {f"{name}_{rule}_{metric}_{each}": counts[each] for each in ("better", "worse")}
    for name, verdict in found.items():
        for rule, finding in verdict.findings.items():
            key = f"{name}_{rule}"
            values |= {f"{key}_{each}": finding.counts[each] for each in ("better", "worse")}
            values |= {key: effect_text(finding), f"{key}_families": len(finding.outcomes)}
            values[f"{key}_one_seed"] = sum(len(outcome.seeds) == 1 for outcome in finding.outcomes)
            for dataset in CIFARS:
                of_one = tuple(outcome for outcome in finding.outcomes if outcome.cell.dataset == dataset)
                values[f"{key}_{dataset}"] = effect_text(finding._replace(outcomes=of_one))
    return {name.replace("-", "_"): value for name, value in values.items()}


def effect_text(finding: AtRule) -> str:
    """The mean effect with its interval; of what was counted, from the least to the most."""
    effect = finding.effect
    if effect is None:
        return NONE
    values = [outcome.effect for outcome in finding.outcomes]
    if effect.name == "parameters":
        return f"{100 * min(values):.3f} to {100 * max(values):.3f} %"
    if effect.name in ("cv", "correlation"):
        return f"{min(values):+.3f} to {max(values):+.3f}"
    ends = between(effect.name, effect.low, effect.high, signed=True)
    unit = " nats" if effect.name == "nll" else ""
    return f"{number(effect.name, effect.value, signed=True)} {ends}{unit}".strip()


def _claims_table(found: Mapping[str, Verdict], store: ResultStore) -> str:
    """All: effect and state at each checkpoint, or why it was not tested. At `best-nll` by the logs, where they allow it."""
    rows = []
    for name, verdict in found.items():
        rules = [rule if rule in verdict.findings else "any" for rule in RULES]
        findings = [verdict.findings.get(rule) for rule in rules]
        if all(verdict.state(rule) == "not tested" for rule in RULES):
            reason = _trained(name, store) if verdict.planned else verdict.reading
            rows.append([TOLD[name]["title"], NONE, f"not tested: {reason}", NONE, NONE])
            continue
        said = [f"{effect_text(f)}, {verdict.state(r)}" if f else NONE for r, f in zip(rules, findings, strict=True)]
        course = appendix.course_of(name, store) if name in appendix.JUDGED_BY_LOG else None
        said.append(f"{course.text(course.metric)}, {course.state}" if course else NONE)
        families = f"{len(verdict.findings[rules[0]].outcomes)} of {verdict.planned}"
        rows.append([TOLD[name]["title"], families, *(part.replace("holds", "**holds**") for part in said)])
    return markdown_table(["claim", "families", *(f"`{rule}`" for rule in (*RULES, "best-nll"))], rows)


def _trained(name: str, store: ResultStore) -> str:
    """How many of the networks that a claim compares have results."""
    cells = CLAIMS[name].cells(store.scale)
    count = sum(isinstance(store.get(cell), CellResult) for cell in cells)
    return f"{count or 'none'} of the {len(cells)} networks that it needs {'is' if count == 1 else 'are'} trained"


def _three_seeds(store: ResultStore) -> str:
    """Accuracy, and ECE before and after temperature scaling, under each checkpoint rule; ours and the paper's."""
    tables, lines = tables_of("three_seeds", store), []
    places = {column.title: i for i, column in enumerate(tables[0].layout.columns)}
    rows = {(table.rule, row.header[0], row.quantity.metric): row for table in tables for row in table.rows}
    for dataset in dict.fromkeys(row.header[0] for row in tables[0].rows):
        for method in (title for title in places if ", " not in title):
            pair, line = (method, f"{method}, TS"), [dataset, method]
            for table in tables:
                for metric, title in (("accuracy", method), *(("ece", title) for title in pair)):
                    row = rows[table.rule, dataset, metric]
                    entry = row.entries[places[title]]
                    # The number of seeds is said only where some are missing.
                    line.append(ours_text(table, row, entry).replace(f" (n {len(entry.cells)})", ""))
            printed = [rows["last", dataset, "ece"].entries[places[title]] for title in pair]
            lines.append([*line, *(with_spread("ece", each.paper, each.paper_spread) or NONE for each in printed)])
    ours = [title for table in tables for title in (f"accuracy at `{table.rule}`", "ECE", "after TS")]
    return markdown_table(["data set", "method", *ours, "paper: ECE", "after TS"], lines)


def _schedule(store: ResultStore) -> dict[str, str]:
    """The network of the paper's schedule without the head, at its last epoch."""
    result = store.get(appendix.PAIR[0])
    row = result.metric("ece")
    if row is None or not isinstance(result, CellResult):
        return {"schedule_ece": NONE, "schedule_temperature": NONE}
    return {"schedule_ece": number("ece", row.value), "schedule_temperature": f"{result.temperature():.1f}"}


def _memory(stored: Sequence[CellResult]) -> dict[str, int]:
    """How many networks know their training images by heart; with mixup, accuracy is of mixed images and says nothing."""
    last = [each.log[-1] for each in stored if each.log and each.cell.recipe != "mixup"]
    pairs = [(row["train"].get("accuracy"), row["validation"].get("accuracy", 0.0)) for row in last]
    known = [train >= BY_HEART and train - new >= AHEAD for train, new in pairs if train is not None]
    return {"by_heart": sum(known), "by_heart_of": len(known)}


def _early(stored: Sequence[CellResult]) -> dict[str, object]:
    """What the epoch of the lowest validation ECE costs in accuracy."""
    pairs = [[each.metric("accuracy", rule=rule) for rule in RULES] for each in stored]
    both = [(last.value, best.value) for last, best in pairs if last and best]
    price = statistics.fmean(best - last for last, best in both) if both else math.nan
    poor = sum(best < POOR for _, best in both)
    return {"best_ece_price": number("accuracy", price, signed=True), "best_ece_poor": poor, "judged": len(both)}


def _contradictions(stored: Sequence[CellResult]) -> dict[str, object]:
    """How our epochs of about the paper's NLL compare with the accuracy and the Brier score that it prints beside."""
    rows = [(result.cell.dataset, row["validation"]) for result in stored for row in result.log]
    hundred = [row["accuracy"] for name, row in rows if name == "cifar100" and 2.5 <= row.get("nll", 0.0) <= 2.7]
    ten = [row["brier"] for name, row in rows if name == "cifar10" and 0.8 <= row.get("nll", 0.0) <= 0.9]
    highest, lowest = max(hundred, default=math.nan), min(ten, default=math.nan)
    return {
        "nll_epochs": len(hundred),
        "nll_accuracy": number("accuracy", highest),
        "brier_epochs": len(ten),
        "brier_lowest": number("brier", lowest),
    }
