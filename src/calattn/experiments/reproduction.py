"""REPRODUCTION.md: what was run, what became of the paper's claims, and everything needed to check it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from calattn.atomic import PathArg, atomic_write
from calattn.experiments import claims, paper
from calattn.experiments.cells import SCALES, Cell, ScaleName
from calattn.experiments.claim_report import (
    NONE,
    checkpoint_row,
    claim_section,
    markdown_table,
    metric_value,
    outcome_table,
    rules_text,
    verdict_table,
)
from calattn.experiments.comparisons import CIFAR
from calattn.experiments.evidence import ACCURACY_PRICE, Arm, Comparison, Results, outcomes_of
from calattn.experiments.order import ordered_cells
from calattn.experiments.own_protocol import own_protocol
from calattn.experiments.results import CellResult, Hole, Phase, ResultStore
from calattn.report.style import number

LISTED_ODDITIES = ("claim", "impossible", "disagreement", "swapped", "copied", "digits", "identity")
"""The kinds given row by row; of the others the number is enough, and the file has the rows."""
RIVALS = (("ce", "none"), ("ce_brier", "none"), ("ce_brier", "calattn"))

_DIFFERENCES: dict[ScaleName, tuple[str, ...]] = {
    "smoke": (
        "Nothing here is evidence: tiny networks, the embedded digits in the place of every data set, two epochs. This scale "
        "shows that every step works.",
    ),
    "reduced": (
        "Images stay at their native resolution (patches of 4 px; Swin with windows of 4) instead of being resized to 224 px.",
        "ViT-S stands for the paper's ViT-B; DeiT-S and Swin-S are the paper's, in their versions for small images.",
        "Fewer epochs than the paper's 350, AdamW with one cosine for transformers. The paper's main text says SGD with two "
        "steps for all; its appendix says AdamW with a cosine for transformers.",
        "The three-seed table and the Dirichlet head are run on DeiT-S, the paper's on ViT-B.",
        "λ is swept over part of the paper's values. Tiny ImageNet, ImageNet-1K and most CNN rows are not run.",
    ),
    "paper": (
        "The paper's main text and appendix differ on the optimiser of transformers; the main text's SGD is used.",
    ),
}
_ALWAYS = (
    "Both checkpoints are judged: the last epoch, and the epoch with the lowest validation ECE. The latter is what the authors' "
    "published log points to; the paper does not say.",
    "The validation images (5 % of the training set, fixed by a seed) get test-time transforms.",
    "smECE is the reference definition (Błasiok and Nakkiran) at bandwidth 0.05, not the formula the paper prints; ClassECE is "
    "over all class probabilities; HCFP@0.90 is not defined in the paper and given in two readings.",
    "MMCE is the published formula (Kumar et al. 2018) with weight 2. Code in circulation divides the sums by their numbers of "
    "pairs a second time, which leaves next to nothing of the term; which of the two the paper used is not known. As published, "
    "the term weighs heavily here: compare the accuracy of these rows.",
    "CIFAR-10-C is made by this package's own corruptions at severity 5.",
    "SATS reads logits only, is fitted on the validation images, and stops on validation ECE.",
    "Swin has no CLS token: its pooled representation is used.",
    "The head's first layer has a bias, which the paper's formula for its parameters counts and its equation leaves out.",
)


def write_report(store: ResultStore, path: PathArg, *, planned: Iterable[Cell] | None = None) -> None:
    """Writes the report. `planned`: the cells that should be there; without it, those of the scale."""
    with atomic_write(path) as partial:
        partial.write_text(report_text(store, planned=planned), encoding="utf-8")


def report_text(store: ResultStore, *, planned: Iterable[Cell] | None = None) -> str:
    """The report; equal results give equal text."""
    results = Results(store)
    stored = list(results.stored())
    wanted = list(dict.fromkeys(ordered_cells(store.scale) if planned is None else planned))
    found = claims.verdicts(results)
    sections = [
        _head(store.scale, stored, wanted),
        f"## What was run\n\n{_run_kinds(stored)}\n{_differences(store.scale)}",
        f"## Claims and verdicts\n\n{_warning(store.scale)}{verdict_table(found)}\n{_legend()}",
        f"## How a verdict comes about\n\n{rules_text()}",
        "## The claims one by one\n\n"
        + "\n".join(claim_section(c, found[n], results) for n, c in claims.CLAIMS.items()),
        f"## The checkpoint rule\n\n{_checkpoints(stored)}",
        f"## The recipe that the paper leaves out\n\n{_rival(results)}",
        f"## The paper's own protocol, as far as it was run\n\n{own_protocol(store)}",
        f"## Oddities of the paper's own numbers\n\n{_oddities()}",
        f"## What was not run, and why\n\n{_not_run(wanted, results)}",
        f"## The runs\n\n{_runs(stored)}",
        f"## How to make this again\n\n{_commands(store.scale)}",
    ]
    return "\n".join(sections)


def _head(scale: ScaleName, stored: Sequence[CellResult], wanted: Sequence[Cell]) -> str:
    done = {result.cell for result in stored}
    return (
        "# Reproduction of the paper's claims\n\n"
        "Written by `calattn reproduce report` from the result files; no number is typed in by hand. Per cent and points of per "
        "cent, NLL in nats, unless said otherwise.\n\n"
        f"Scale: `{scale}` ({SCALES[scale].title}). {len(stored)} networks have results; "
        f"{sum(cell in done for cell in wanted)} of the {len(wanted)} planned.\n"
    )


def _run_kinds(stored: Sequence[CellResult]) -> str:
    """The settings that were trained, read from the specs."""
    kinds = Counter(_kind(result) for result in stored)
    header = ["data set", "backbone", "recipe", "image px", "epochs", "optimiser", "networks"]
    rows = [[*kind, str(count)] for kind, count in sorted(kinds.items())]
    return markdown_table(header, rows) if rows else "Nothing yet.\n"


def _kind(result: CellResult) -> tuple[str, ...]:
    spec = result.run["spec"]
    size = spec["data"]["size"]
    px = "native" if size is None else str(size)
    backbone, optimiser = spec["model"]["backbone"], spec["optimizer"]["name"]
    return spec["data"]["name"], backbone, result.cell.recipe, px, str(result.run["epochs"]), optimiser


def _differences(scale: ScaleName) -> str:
    lines = "\n".join(f"- {line}" for line in (*_DIFFERENCES[scale], *_ALWAYS))
    return f"Where this differs from the paper, or had to decide what the paper leaves open:\n\n{lines}\n"


def _warning(scale: ScaleName) -> str:
    return "**At this scale a verdict says nothing about the paper.**\n\n" if scale == "smoke" else ""


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
    return f"Accuracy and NLL stand beside every ECE.{_early(stored)}\n\n{markdown_table(header, rows)}"


def _early(stored: Sequence[CellResult]) -> str:
    """What the paper's rule does to the networks: how early it stops, and what that costs in accuracy."""
    changes, early = [], 0
    for result in stored:
        last, best = (result.metric("accuracy", rule=rule) for rule in claims.RULES)
        if last is not None and best is not None:
            changes.append(best.value - last.value)
            early += 2 * result.rules["best-ece"]["epoch"] <= result.run["epochs"]
    if not changes:
        return ""
    dear = sum(change < -ACCURACY_PRICE for change in changes)
    mean = number("accuracy", statistics.fmean(changes), signed=True)
    return (
        f" Of {len(changes)} networks, {early} have their lowest validation ECE in the first half of training. From `last` to "
        f"`best-ece`, accuracy changes by {mean} points in the mean; {dear} networks lose more than "
        f"{number('accuracy', ACCURACY_PRICE)} point."
    )


def _rival_cells() -> list[tuple[Cell, Cell]]:
    """(the paper's recipe, the rival's) of the same cell."""
    pairs = []
    for dataset in CIFAR:
        for loss, head in RIVALS:
            arms = [Cell(dataset=dataset, model="deit", loss=loss, head=head, recipe=r) for r in ("paper", "mixup")]
            pairs.append((arms[0], arms[1]))
    return pairs


def _rival(results: Results) -> str:
    """The rival recipe's numbers, and plain cross-entropy with it against CalAttn with the paper's recipe."""
    header = ["network", "rule", "accuracy", "ECE", "ECE + TS", "NLL", "NLL + TS", "Brier + TS"]
    columns: list[tuple[str, Phase]] = [("accuracy", "pre"), ("ece", "pre"), ("ece", "post")]
    columns += [("nll", "pre"), ("nll", "post"), ("brier", "post")]
    rows = []
    for cell in (cell for pair in _rival_cells() for cell in pair):
        found = results.get(cell)
        for rule in claims.RULES if isinstance(found, CellResult) else ():
            assert isinstance(found, CellResult)
            rows.append(
                [f"`{cell.name}`", rule, *(metric_value(found, metric, rule, phase) for metric, phase in columns)]
            )
    text = (
        "Mixup and drop-path are known means against memorising the training set. The paper compares CalAttn with no recipe of "
        "this kind; here the same cells are trained with it.\n\n"
    )
    if not any(
        cell.recipe == "mixup" and isinstance(results.get(cell), CellResult) for p in _rival_cells() for cell in p
    ):
        return f"{text}Not run.\n"
    text += markdown_table(header, rows)
    outcomes = [(rule, each) for rule in claims.RULES for each in outcomes_of(_duel(), rule=rule, results=results)]
    judged = outcome_table(outcomes) if outcomes else "No pair has both sides.\n"
    title = "Plain cross-entropy with the rival recipe (tested) against CalAttn with the paper's recipe (reference):"
    return f"{text}\n{title}\n\n{judged}"


def _duel() -> list[Comparison]:
    found = []
    phases: tuple[tuple[str, Phase], ...] = (("ece", "pre"), ("ece", "post"), ("nll", "post"))
    for dataset in CIFAR:
        for metric, phase in phases:
            ours = Arm(cell=Cell(dataset=dataset, model="deit", head="calattn"), phase=phase)
            rival = Arm(cell=Cell(dataset=dataset, model="deit", loss="ce", recipe="mixup"), phase=phase)
            family = f"{dataset}{' + TS' if phase == 'post' else ''}: cross-entropy with mixup against CalAttn"
            found.append(Comparison(family=family, metric=metric, a=ours, b=rival))
    return found


def _oddities() -> str:
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
        f"`calattn/experiments/paper/oddities.csv`, and a test finds each again.\n\n{kinds}\n{table}"
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
        f"{planned}\nNot planned at this scale, because of its cost on a GPU: Tiny ImageNet and ImageNet-1K; CNNs other than "
        "ResNet-50; ViT and Swin with losses other than CE and CE+BS; the inputs of the head on CIFAR-10, and for networks other "
        "than DeiT-S. CSM is not run at any scale: it trains on images mixed by a diffusion model.\n"
    )


def _runs(stored: Sequence[CellResult]) -> str:
    header = ["network", "spec", "seed", "epochs", "training s", "images/s", "device", "commit", "started"]
    return markdown_table(header, [_run(result) for result in stored]) if stored else "No results.\n"


def _run(result: CellResult) -> list[str]:
    run = result.run
    environment = run["environment"]
    rate = run.get("images_per_second")
    return [
        f"`{result.cell.name}`",
        f"`{run['spec_hash']}`",
        str(result.cell.seed),
        str(run["epochs"]),
        f"{run['training_seconds']:.0f}",
        NONE if rate is None else f"{rate:,.0f}",
        result.device + (f" (shared by {shared})" if (shared := run.get("side_by_side", 1)) > 1 else ""),
        _commit(environment.get("commit")),
        str(environment.get("started") or NONE),
    ]


def _commit(commit: dict[str, Any] | None) -> str:
    if not commit:
        return NONE
    changed = " with changes" if commit.get("dirty") else ""
    return f"`{str(commit['hash'])[:10]}`{changed}"


def _commands(scale: ScaleName) -> str:
    return (
        f"```sh\ncalattn reproduce all --scale {scale} --plan   # what would run, and about how long\n"
        f"calattn reproduce all --scale {scale}          # trains what is missing, writes tables and figures\n"
        f"calattn reproduce report --scale {scale}       # writes this file from the results\n```\n\n"
        "A cell is found again by the hash of its spec: a changed protocol is run anew, never mixed with old results.\n"
    )
