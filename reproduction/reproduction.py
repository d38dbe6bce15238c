"""REPRODUCTION.md: what was run, what became of the paper's claims, and everything needed to check it."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calattn.files.atomic import PathArg, atomic_write
from calattn.report.style import number
from reproduction import claims, paper
from reproduction.catalogue import EXPERIMENTS
from reproduction.cells import SCALES, Cell, ScaleName
from reproduction.claim_report import (
    NONE,
    checkpoint_row,
    claim_section,
    commit_text,
    markdown_table,
    rules_text,
    verdict_table,
)
from reproduction.disclosures import ALWAYS, AMENDMENTS, BEFOREHAND, DIFFERENCES
from reproduction.evidence import ACCURACY_PRICE, Results
from reproduction.grid import ordered_cells
from reproduction.head_report import learned
from reproduction.own_protocol import epochs_text, own_protocol
from reproduction.results import NOT_RUN, CellResult, Hole, ResultStore
from reproduction.retrained_report import retrained
from reproduction.rival_report import rival
from reproduction.robustness import variants
from reproduction.robustness_report import other_rules
from reproduction.summary import BY_HEART, known_by_heart, summary
from reproduction.verdicts import Verdict

Verdicts = Mapping[str, Verdict]
LISTED_ODDITIES = ("claim", "text", "impossible", "disagreement", "swapped", "copied", "digits", "identity")
"""The kinds given row by row; of the others the number is enough, and the file has the rows."""
_NOT_REACHED = (
    "Networks are trained in one order (`calattn reproduce all --plan`), as GPU time comes; what was not run is what it has not "
    "reached, or not finished, yet.\n\n"
)


def write_report(store: ResultStore, path: PathArg, *, tables: PathArg | None = None) -> None:
    """Writes the report. `tables`: the folder of the tables and figures, for links."""
    folder = None if tables is None else Path(os.path.relpath(tables, Path(path).parent)).as_posix()
    with atomic_write(path) as partial:
        partial.write_text(report_text(store, folder=folder), encoding="utf-8")


def report_text(store: ResultStore, *, planned: Iterable[Cell] | None = None, folder: str | None = None) -> str:
    """The report; equal results give equal text. `planned`: the cells that should be there; without it, those of the scale.
    `folder`: of the tables and figures, as seen from the report."""
    results = Results(store)
    stored = list(results.stored())
    wanted = list(dict.fromkeys(ordered_cells(store.scale) if planned is None else planned))
    found, by_rules = claims.verdicts(results), variants(results)
    sections = [
        _head(store.scale, stored, wanted) + _links(folder) + summary(found, results, by_rules),
        f"## What was run\n\n{_run_kinds(stored)}\n{_differences(store.scale)}{_by_heart(stored)}",
        f"## Claims and verdicts\n\n{_warning(store.scale, stored, wanted, found)}{verdict_table(found)}\n{_legend()}",
        f"## How a verdict comes about\n\n{BEFOREHAND.get(store.scale, '')}{rules_text()}{_amendments(store.scale)}",
        f"## Would other rules have said otherwise?\n\n{other_rules(by_rules)}",
        "## The claims one by one\n\n"
        + "\n".join(claim_section(c, found[n], results, by_rules.get(n, {})) for n, c in claims.CLAIMS.items()),
        f"## The checkpoint rule\n\n{_checkpoints(stored)}",
        f"## Networks trained twice\n\n{retrained(results)}",
        f"## What the head learned\n\n{learned(stored, results)}",
        f"## A recipe that memorises less\n\n{rival(results)}",
        f"## The paper's own protocol, as far as it was run\n\n{own_protocol(results)}",
        f"## Oddities of the paper's own numbers\n\n{_oddities(stored)}",
        f"## What was not run, and why\n\n{_not_run(wanted, results)}",
        f"## The runs\n\n{_runs(stored, _beside(results))}",
        f"## How to make this again\n\n{_commands(store.scale)}",
    ]
    return "\n".join(sections)


def _head(scale: ScaleName, stored: Sequence[CellResult], wanted: Sequence[Cell]) -> str:
    done = {result.cell for result in stored}
    return (
        "# Reproduction of the paper's claims\n\n"
        "Written by `calattn reproduce report` from the result files; no number of a table or verdict is typed in by hand. Per "
        "cent and points of per cent, NLL in nats, unless said otherwise.\n\n"
        f"Scale: `{scale}` ({SCALES[scale].title}). {sum(cell in done for cell in wanted)} of the {len(wanted)} planned "
        f"networks have results{f', and {more} more' if (more := len(done - set(wanted))) else ''}.\n"
    )


def _run_kinds(stored: Sequence[CellResult]) -> str:
    """The settings that were trained, read from the specs."""
    kinds = Counter(_kind(result) for result in stored)
    header = [
        "data set",
        "backbone",
        "augmentation",
        "image px",
        "epochs",
        "optimiser",
        "batch",
        "precision",
        "networks",
    ]
    rows = [[*kind, str(count)] for kind, count in sorted(kinds.items())]
    return markdown_table(header, rows) if rows else "Nothing yet.\n"


def _by_heart(stored: Sequence[CellResult]) -> str:
    """How well the networks know what they were trained on: most of the claims are about over-confidence."""
    known = known_by_heart(stored)
    if known is None:
        return ""
    others, easy = (
        ", ".join(f"`{name}` {number('accuracy', accuracy)}" for accuracy, name in group)
        for group in (known.others, known.easy)
    )
    alike = f"; less than a point above that of validation images, which are as easy: {easy}" if easy else ""
    return (
        "\nTraining accuracy, of the augmented images as the last epoch meets them, is "
        f"{number('accuracy', BY_HEART)} or more, and a point or more above that of the validation images, in {known.often} of "
        f"{known.networks} networks without mixup. Lower: {others or 'none'}{alike}. With mixup it is of mixed images, and not "
        "counted.\n"
    )


def _kind(result: CellResult) -> tuple[str, ...]:
    spec = result.run["spec"]
    size = spec["data"]["size"]
    px = "native" if size is None else str(size)
    settings, train = spec["optimizer"], spec["train"]
    schedule = f"{spec['schedule']['name']} from {settings['lr']:g} after {spec['schedule']['warmup_epochs']:g} epochs of warm-up"
    optimiser = f"{settings['name']}, {schedule}, decay {settings['weight_decay']:g}"
    optimiser += "" if settings["clip_norm"] is None else f", clipped at {settings['clip_norm']:g}"
    shown = (
        spec["data"]["name"],
        spec["model"]["backbone"],
        _augmentation(spec),
        px,
        str(result.run["epochs"]),
        optimiser,
    )
    return *shown, str(train["batch_size"]), train["precision"]


def _augmentation(spec: dict[str, Any]) -> str:
    """What is done to training images, and drop-path, which is meant for the same."""
    settings = spec["augment"] | {"drop_path": spec["model"]["drop_path"]}
    shown = [f"crop {settings['crop']}"] if settings["crop"] else []
    shown += ["flip"] if settings["flip"] else []
    names = ("randaugment_ops", "erasing", "mixup", "cutmix", "drop_path")
    shown += [f"{name.replace('_', '-')} {settings[name]:g}" for name in names if settings[name]]
    return ", ".join(shown) or "none"


def _differences(scale: ScaleName) -> str:
    lines = "\n".join(f"- {line}" for line in (*DIFFERENCES[scale], *ALWAYS))
    return f"Where this differs from the paper, or had to decide what the paper leaves open:\n\n{lines}\n"


def _amendments(scale: ScaleName) -> str:
    lines = "\n".join(f"- {line}" for line in AMENDMENTS.get(scale, ()))
    return f"\nWhat was changed after the first results had been seen:\n\n{lines}\n" if lines else ""


def _warning(scale: ScaleName, stored: Sequence[CellResult], wanted: Sequence[Cell], found: Verdicts) -> str:
    if scale == "smoke":
        return "**At this scale a verdict says nothing about the paper.**\n\n"
    left = len(set(wanted) - {result.cell for result in stored})
    if not left:
        return ""
    titles = [f"“{claims.CLAIMS[name].title}”" for name, verdict in found.items() if verdict.missing]
    families = (
        f" Families still missing belong to {', '.join(titles)}." if titles else " No family of any claim is missing."
    )
    has = "has" if left == 1 else "have"
    return f"**So far:** {left} of {len(wanted)} planned networks {has} no result.{families}\n\n"


def _links(folder: str | None) -> str:
    if folder is None:
        return ""
    links = []
    for experiment in EXPERIMENTS.values():
        names = experiment.files("md" if experiment.kind == "table" else "png")
        links += [f"[{Path(name).stem}]({folder}/{name})" for name in names]
    return f"\nTables and figures: {', '.join(links)}.\n"


def _legend() -> str:
    return (
        "Effects are the tested setting minus the reference: negative is good for errors and losses, positive for accuracy "
        "and AUROC. What the counts mean is in the next section.\n"
    )


def _checkpoints(stored: Sequence[CellResult]) -> str:
    header = ["network"]
    for rule in claims.RULES:
        header += [f"{rule}: epoch", "accuracy", "ECE", "NLL", "ECE + TS", "NLL + TS", "mean s"]
    rows = []
    for result in stored:
        both = [cell for rule in claims.RULES for cell in checkpoint_row(result, rule)]
        rows.append([f"`{result.cell.name}`", *both])
    if not rows:
        return "No results.\n"
    return f"Accuracy and NLL stand beside every ECE of this table.{_early(stored)}\n\n{markdown_table(header, rows)}"


def _early(stored: Sequence[CellResult]) -> str:
    """What `best-ece` does to the networks: how early it stops, and what that costs in accuracy."""
    judged = [result for result in stored if result.price is not None]
    changes = [result.price for result in judged if result.price is not None]
    early = sum(2 * result.rules["best-ece"]["epoch"] <= result.run["epochs"] for result in judged)
    if not changes:
        return ""
    dear = sum(change < -ACCURACY_PRICE for change in changes)
    mean = number("accuracy", statistics.fmean(changes), signed=True)
    return (
        f" Of {len(changes)} networks, {early} have their lowest validation ECE in the first half of training. From `last` to "
        f"`best-ece`, accuracy changes by {mean} points in the mean; {dear} networks lose more than "
        f"{number('accuracy', ACCURACY_PRICE)} point."
    )


def _oddities(stored: Sequence[CellResult]) -> str:
    rows = paper.oddities()
    counts = Counter(row["kind"] for row in rows)
    kinds = markdown_table(
        ["kind", "what it means", "found"],
        [[kind, meaning, str(counts[kind])] for kind, meaning in paper.ODDITIES.items()],
    )
    listed = [
        [row[key] for key in ("kind", "table", "where", "what", "values")]
        for row in rows
        if row["kind"] in LISTED_ODDITIES
    ]
    table = markdown_table(["kind", "tables", "where", "what", "values"], listed)
    return (
        "Found by comparing the paper's tables with each other and with its text; all of them are in "
        f"`calattn/experiments/paper/oddities.csv`, and a test finds each in the tables again, but for "
        f"those of the text alone. {_raised(stored)}\n\n{kinds}\n"
        f"Of the kinds {', '.join(LISTED_ODDITIES)}, one by one:\n\n{table}"
    )


def _raised(stored: Sequence[CellResult]) -> str:
    """How often temperature scaling raises the ECE here, which is counted among the paper's oddities."""
    raised = scaled = cases = 0
    for result in stored:
        for rule in claims.RULES:
            before, after = (result.metric("ece", rule=rule, phase=phase) for phase in ("pre", "post"))
            if before is None or after is None:
                continue
            cases += 1
            if result.temperature(rule=rule) != 1.0:
                scaled += 1
                raised += after.value > before.value
    return (
        f"Of the kind “worse” there are some here too: of {cases} cases ({len(stored)} networks, {len(claims.RULES)} "
        f"checkpoints) {scaled} have T* ≠ 1, and in {raised} of these ECE rises."
        if raised
        else ""
    )


def _not_run(wanted: Sequence[Cell], results: Results) -> str:
    reasons: dict[str, list[str]] = {}
    for cell in wanted:
        found = results.get(cell)
        if isinstance(found, Hole):
            reasons.setdefault(found.reason, []).append(cell.name)
    rows = [[reason, str(len(names)), ", ".join(f"`{name}`" for name in names)] for reason, names in reasons.items()]
    planned = (
        markdown_table(["reason", "number", "planned cells"], rows) if rows else "Every planned cell has a result.\n"
    )
    if results.scale != "reduced":
        return planned
    return (
        f"{planned}\n{_NOT_REACHED if NOT_RUN in reasons else ''}Not planned at this scale, because of its cost on a GPU: Tiny "
        "ImageNet and ImageNet-1K; CNNs other than ResNet-50; ViT and Swin with losses other than CE and CE+BS; the inputs of "
        "the head for networks other than DeiT-S. CSM is not run at any scale: it trains on images mixed by a diffusion model.\n"
    )


def _runs(stored: Sequence[CellResult], own: Sequence[CellResult]) -> str:
    header = ["network", "spec", "as run", "seed", "epochs", "training s", "images/s", "device", "commit", "started"]
    if not (stored or own):
        return "No results.\n"
    text = (
        "*spec* is the hash of the cell's spec, as in the tables and their CSV files; *as run*, that of the spec with what the "
        "machine settled (precision, compilation) written into it. Commits are as told to machines that had no repository to "
        "compare their files with. *images/s* is the median over epochs; *training s* has validation in it, and starting. "
        "*shared by* counts the networks that one command trained side by side; commands that ran beside each other do not know "
        "of each other, so that a network may have had less of its device than its line says.\n\n"
    )
    tables = [markdown_table(header, [_run(result, str(result.run["epochs"])) for result in stored])] if stored else []
    if own:
        rows = [_run(result, epochs_text(result)) for result in own]
        tables.append(f"By the paper's own protocol:\n\n{markdown_table(header, rows)}")
    return text + "\n".join([*tables, _software([*stored, *own])])


def _beside(results: Results) -> list[CellResult]:
    """The networks of the paper's own protocol that are not among the results themselves."""
    return [each for each in results.of_own_protocol() if results.scale != "paper" or each.unfinished]


def _software(stored: Sequence[CellResult]) -> str:
    kinds = Counter(_versions(result.run["environment"]) for result in stored)
    return "".join(f"- {kind}: {count} networks.\n" for kind, count in sorted(kinds.items()))


def _versions(environment: dict[str, Any]) -> str:
    packages = environment.get("packages") or {}
    shown = [f"Python {environment['python']}"] if environment.get("python") else []
    shown += [f"{name} {packages[name]}" for name in ("torch", "timm", "numpy") if packages.get(name)]
    shown += [f"CUDA {environment['cuda']}"] if environment.get("cuda") else []
    return ", ".join(shown) or "versions not known"


def _run(result: CellResult, epochs: str) -> list[str]:
    run = result.run
    environment = run["environment"]
    rate = run.get("images_per_second")
    return [
        f"`{result.cell.name}`",
        f"`{result.cell_hash[:8]}`",
        f"`{run['spec_hash'][:8]}`",
        str(result.cell.seed),
        epochs,
        f"{run['training_seconds']:.0f}",
        NONE if rate is None else f"{rate:,.0f}",
        result.device + (f" (shared by up to {shared})" if (shared := run.get("side_by_side", 1)) > 1 else ""),
        commit_text(environment),
        str(environment.get("started") or NONE),
    ]


def _commands(scale: ScaleName) -> str:
    return (
        f"```sh\ncalattn reproduce all --scale {scale} --plan   # what would run, and about how long\n"
        f"calattn reproduce all --scale {scale}          # trains what is missing, writes tables and figures\n"
        f"calattn reproduce report --scale {scale}       # writes this file from the results\n```\n\n"
        "A cell is found again by the hash of its spec: a changed protocol is run anew, never mixed with old results. Code that "
        "changed while the grid was trained is named above.\n"
    )
