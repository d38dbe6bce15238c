"""The report: numbers and tables from the results, put into the sentences of a template."""

from __future__ import annotations

import os
import statistics
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from calattn.report.style import between, number
from reproduction import baselines, best_nll, ledger, paper, schedule
from reproduction.catalogue import TABLES, tables_of
from reproduction.cells import SCALES
from reproduction.claims import TOLD, verdicts
from reproduction.evidence import Results
from reproduction.grid import ordered_cells
from reproduction.render import markdown_table, ours_text, shown, write_texts
from reproduction.results import RULES, CellResult, missing
from reproduction.verdicts import Finding, State, Verdict

TEMPLATES = Path(__file__).parent / "templates"
NONE = "–"
BY_HEART, AHEAD, POOR = 0.95, 0.01, 0.5
"""A network knows its training images by heart if it has 95 % of them right, and a point more than of new images."""


def write_report(results: Results, path: Path, *, folder: Path) -> list[Path]:
    """The report, and the ledger of its verdicts beside the tables in `folder`."""
    tables = Path(os.path.relpath(folder, path.parent)).as_posix()
    texts = {
        path: report_text(results, tables=tables),
        folder / "verdicts.csv": ledger.verdicts_csv(results),
        folder / "evidence.csv": ledger.evidence_csv(results),
        folder / "baselines.md": baselines.page(results),
        folder / "best_nll.md": best_nll.page(results),
        folder / "schedule.md": schedule.page(results),
    }
    return write_texts(texts)


def report_text(results: Results, *, tables: str) -> str:
    """The template of the scale, or the one for any; `tables` is their folder as seen from the report."""
    own = TEMPLATES / f"{results.scale}.md"
    template = own if own.exists() else TEMPLATES / "any.md"
    return string.Template(template.read_text(encoding="utf-8")).substitute(numbers(results, tables), tables=tables)


def numbers(results: Results, tables: str) -> dict[str, str]:
    """Every placeholder that a template may have → its text.

    Of a claim at a checkpoint, for example: $ece_falls_last (mean effect), $ece_falls_last_better (families).
    """
    found, stored = verdicts(results), list(results.stored())
    wanted, plain = ordered_cells(results.scale), baselines.rows(results)
    texts = {
        "baselines": str(len(plain)),
        "baselines_last": str(baselines.reproduced(plain, "last")),
        "baselines_best_ece": str(baselines.reproduced(plain, "best-ece")),
        "baselines_best_nll": str(baselines.reproduced(plain, "best-nll")),
        "scale": results.scale,
        "scale_title": SCALES[results.scale].title,
        "planned": str(len(wanted)),
        "run": str(sum(isinstance(results.get(cell), CellResult) for cell in wanted)),
        "claims": str(len(found)),
        "claims_table": _claims_table(found, results),
        "untested_table": _untested_table(found),
        "nll_rises": best_nll.course_of("ece_falls", results).text("nll"),
        "not_run": missing([results.get(cell) for cell in wanted]) or "none",
        "three_seeds": _three_seeds(results),
        "oddities": str(len(paper.oddities())),
        "table_links": ", ".join(f"[{name}]({tables}/{name}.md)" for name in TABLES),
        **_kinds(found),
        **_memory(stored),
        **_early(stored),
        **_contradictions(stored),
    }
    for name, verdict in found.items():
        for rule, finding in verdict.findings.items():
            key = f"{name}_{rule}".replace("-", "_")
            texts[key] = effect_text(finding)
            texts |= {f"{key}_{each}": str(finding.counts.get(each, 0)) for each in ("better", "worse")}
            texts[f"{key}_families"] = str(len(finding.outcomes))
            texts[f"{key}_one_seed"] = str(sum(len(outcome.seeds) == 1 for outcome in finding.outcomes))
    return texts


def effect_text(finding: Finding) -> str:
    """The mean effect with its interval; of what was counted, from the least to the most."""
    effect = finding.effect
    if effect is None:
        return NONE
    values = [outcome.effect for outcome in finding.outcomes]
    if effect.name == "parameters":
        return f"{100 * min(values):.3f} to {100 * max(values):.3f} %"
    if effect.name == "cv":
        return f"{min(values):+.3f} to {max(values):+.3f}"
    ends = between(effect.name, effect.low, effect.high, signed=True)
    unit = " nats" if effect.name == "nll" else ""
    return f"{number(effect.name, effect.value, signed=True)} {ends}{unit}".strip()


def _claims_table(found: Mapping[str, Verdict], results: Results) -> str:
    """Those that were tested: effect and state at each checkpoint. At `best-nll` by the logs, where they allow it."""
    rows = []
    for name, verdict in found.items():
        if _is_untested(verdict):
            continue
        rules = [rule if rule in verdict.findings else "any" for rule in RULES]
        said = [f"{effect_text(verdict.findings[rule])}, {verdict.state(rule)}" for rule in rules]
        course = best_nll.course_of(name, results) if name in best_nll.JUDGED else None
        said.append(f"{course.text(course.metric)}, {course.state}" if course else NONE)
        families = f"{len(verdict.findings[rules[0]].outcomes)} of {verdict.planned}"
        rows.append([TOLD[name]["title"], families, *(part.replace("holds", "**holds**") for part in said)])
    return markdown_table(["claim", "families", *(f"`{rule}`" for rule in (*RULES, "best-nll"))], rows)


def _is_untested(verdict: Verdict) -> bool:
    return all(verdict.state(rule) == "not tested" for rule in RULES)


def _untested_table(found: Mapping[str, Verdict]) -> str:
    rows = [[TOLD[name]["title"], v.reading] for name, v in found.items() if _is_untested(v)]
    return markdown_table(["not tested", "why"], rows)


def _kinds(found: Mapping[str, Verdict]) -> dict[str, str]:
    """How many claims are in each state, as $undecided_last."""
    return {
        f"{state}_{rule}".replace(" ", "_").replace("-", "_"): str(sum(v.state(rule) == state for v in found.values()))
        for state in get_args(State)
        for rule in RULES
    }


def _three_seeds(results: Results) -> str:
    """Accuracy and ECE of every method but SATS under each checkpoint rule, ours and the paper's."""
    tables, lines, titles = tables_of("three_seeds", results.store), [], list[str]()
    for header in dict.fromkeys(row.header for row in tables[0].rows):
        rows = [
            (t, r) for t in tables for r in t.rows if r.header == header and r.quantity.metric in ("accuracy", "ece")
        ]
        titles = [f"{row.quantity.title} at `{table.rule}`" for table, row in rows]
        for i, column in enumerate(tables[0].layout.columns):
            if column.phase == "sats":
                continue
            # The number of seeds is said only where some are missing.
            ours = [ours_text(t, r, r.entries[i]).replace(f" (n {len(r.entries[i].cells)})", "") for t, r in rows]
            entry = rows[1][1].entries[i]
            theirs = [shown("ece", each) for each in (entry.paper, entry.paper_spread) if each is not None]
            lines.append([header[0], column.title, *ours, " ± ".join(theirs) or NONE])
    return markdown_table(["data set", "method", *titles, "ECE in the paper"], lines)


def _memory(stored: Sequence[CellResult]) -> dict[str, str]:
    """How many networks know their training images by heart; with mixup, accuracy is of mixed images and says nothing."""
    last = [each.log[-1] for each in stored if each.log and each.cell.recipe != "mixup"]
    pairs = [(row["train"].get("accuracy"), row["validation"].get("accuracy", 0.0)) for row in last]
    known = [train >= BY_HEART and train - new >= AHEAD for train, new in pairs if train is not None]
    return {"by_heart": str(sum(known)), "by_heart_of": str(len(known))}


def _early(stored: Sequence[CellResult]) -> dict[str, str]:
    """What the epoch of the lowest validation ECE costs in accuracy."""
    prices = [each.price for each in stored if each.price is not None]
    rows = [row for each in stored if (row := each.metric("accuracy", rule="best-ece")) is not None]
    mean = number("accuracy", statistics.fmean(prices), signed=True) if prices else NONE
    return {
        "best_ece_price": mean,
        "best_ece_poor": str(sum(row.value < POOR for row in rows)),
        "judged": str(len(rows)),
    }


def _contradictions(stored: Sequence[CellResult]) -> dict[str, str]:
    """How our epochs of about the paper's NLL compare with the accuracy and the Brier score that it prints beside."""
    rows = [(result.cell.dataset, row["validation"]) for result in stored for row in result.log]
    hundred = [row["accuracy"] for name, row in rows if name == "cifar100" and 2.5 <= row.get("nll", 0.0) <= 2.7]
    ten = [row["brier"] for name, row in rows if name == "cifar10" and 0.8 <= row.get("nll", 0.0) <= 0.9]
    return {
        "nll_epochs": str(len(hundred)),
        "nll_accuracy": shown("accuracy", max(hundred)) if hundred else NONE,
        "brier_epochs": str(len(ten)),
        "brier_lowest": shown("brier", min(ten)) if ten else NONE,
    }
