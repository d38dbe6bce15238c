"""REPRODUCTION.md: its numbers against the result files, read and computed anew."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from reproduction import claim_report, comparisons, paper
from reproduction.catalogue import EXPERIMENTS
from reproduction.cells import Cell
from reproduction.claims import CLAIMS, verdicts
from reproduction.evidence import DECISIONS, Results
from reproduction.grid import ordered_cells
from reproduction.layouts.parts import BACKBONES, DATASETS, LOSS_TITLES, MODELS
from reproduction.reproduction import report_text, write_report
from reproduction.results import CellResult, ResultStore
from reproduction.robustness import variants
from reproduction.verdicts import READINGS
from tests.reproduction.made_claims import AFTER, BASE, helps, made, nothing, on_disk, world
from tests.reproduction.made_results import made_result

RULES = ("last", "best-ece")
NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?")


def _uneven(cell: Cell, rule: str, phase: str, metric: str) -> float:
    """A world of many different numbers: families, rules and seeds differ in the size of what the head does."""
    size = 1 + 0.1 * (len(cell.name) % 7) + 0.05 * cell.seed - (0.3 if rule == "best-ece" else 0)
    return size * helps(cell, rule, phase, metric) + (0.011 * (rule == "best-ece") if metric == "nll" else 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultStore:
    cells = [cell for cell in ordered_cells("reduced") if not (cell.model == "swin" and cell.dataset == "mnist")]
    return on_disk(tmp_path_factory.mktemp("results"), world(_uneven, cells=cells))


@pytest.fixture(scope="module")
def text(store: ResultStore) -> str:
    return report_text(store)


def document(store: ResultStore, cell: Cell) -> dict | None:
    path = store.path(cell)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def rows_of(markdown: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def numbers(cell: str) -> list[float]:
    return [float(found.replace("−", "-").replace(",", "")) for found in NUMBER.findall(cell)]


# --- the table of verdicts ---------------------------------------------------------------------------------------------


def _paired_rows(store: ResultStore, rule: str, phase: str, metrics: tuple[str, ...], families: list) -> np.ndarray:
    """[family, (difference, low, high)] in per cent, over seeds: from the files, with numpy and scipy, nothing of ours."""
    found = []
    for dataset, model, loss in families:
        for metric in metrics:
            pairs = []
            for seed in (0, 1, 2):
                head = Cell(dataset=dataset, model=model, loss=loss, head="calattn", seed=seed)
                this, twin = document(store, head), document(store, head.twin)
                if this is not None and twin is not None:
                    pairs.append([this["pair"][rule][phase][metric][key] for key in ("difference", "low", "high")])
            if pairs:
                found.append(_over_seeds(np.array(pairs)))
    return 100 * np.array(found)


def _over_seeds(pairs: np.ndarray) -> np.ndarray:
    middle, low, high = pairs.mean(axis=0)
    spread = 0.0
    if len(pairs) > 1:
        spread = stats.ttest_1samp(pairs[:, 0], 0).confidence_interval(0.95).high - middle
    return np.array([middle, middle - np.hypot(middle - low, spread), middle + np.hypot(high - middle, spread)])


@pytest.mark.parametrize(
    ("claim", "phase", "metrics", "families"),
    [
        ("ece_falls", "pre", ("ece",), comparisons.pair_families("reduced")),
        ("accuracy_kept", "pre", ("accuracy",), comparisons.pair_families("reduced")),
        ("complementary_to_ts", "post", ("ece",), comparisons.pair_families("reduced")),
        ("high_confidence_errors", "post", ("high_confidence_error_share",), comparisons.confident_families("reduced")),
        ("ood_auroc", "pre", ("ood_svhn", "ood_cifar10_c"), comparisons.cifar10_families("reduced")),
    ],
)
def test_effects_are_those_of_the_files(
    store: ResultStore, text: str, claim: str, phase: str, metrics: tuple[str, ...], families: list
) -> None:
    row = next(r for r in rows_of(section(text, "Claims and verdicts")) if f"`{claim}`" in r[0])
    for place, rule in enumerate(RULES):
        rows = _paired_rows(store, rule, phase, metrics, families)
        expected = rows.mean(axis=0)
        if len(rows) >= 5:
            interval = stats.ttest_1samp(rows[:, 0], 0).confidence_interval(0.95)
            expected = np.array([expected[0], interval.low, interval.high])
        assert numbers(row[3 + place]) == pytest.approx(expected, abs=0.00501)
        told = text.split(f"### {CLAIMS[claim].title}: ")[1].split("\n### ")[0]
        counts = told.split(f"At `{rule}`: ")[1].split(" of ")[0].split("; ")[1]
        assert sum(numbers(counts)) == len(rows)
    assert numbers(row[5]) == [len(rows), len(families) * len(metrics)]


def test_an_unpaired_effect_is_that_of_the_files(store: ResultStore, text: str) -> None:
    row = next(r for r in rows_of(section(text, "Claims and verdicts")) if "`scalar_beats_dirichlet`" in r[0])
    for place, rule in enumerate(RULES):
        scalar, other = (
            document(store, Cell(dataset="cifar100", model="deit", head=head))["rules"][rule]["phases"]["pre"]["ece"]
            for head in ("calattn", "dirichlet")
        )
        difference = scalar["value"] - other["value"]
        reach = np.hypot(scalar["high"] - scalar["value"], other["high"] - other["value"])
        expected = 100 * np.array([difference, difference - reach, difference + reach])
        assert numbers(row[3 + place]) == pytest.approx(expected, abs=0.00501)


def test_every_number_of_the_verdict_table_is_accounted_for(store: ResultStore, text: str) -> None:
    """Effects, coverage and seeds: nothing else, and no claim without its row."""
    found = verdicts(store)
    rows = rows_of(section(text, "Claims and verdicts"))[1:]
    assert len(rows) == len(CLAIMS)
    for name, row in zip(CLAIMS, rows, strict=True):
        verdict = found[name]
        assert f"`{name}`" in row[0]
        assert row[1:3] == [verdict.full_title, verdict.reading]
        assert row[1].startswith(verdict.title)
        assert numbers(re.sub(r"0\.1 %", "", CLAIMS[name].title)) == []
        fewest = min(len(finding.outcomes) for finding in verdict.findings.values())
        assert numbers(row[5]) == [fewest, verdict.planned]
        assert set(numbers(row[6])) <= {1.0, 3.0}


def test_a_changed_result_changes_the_report(text: str, tmp_path: Path) -> None:
    changed = on_disk(tmp_path, world(lambda c, r, p, m: _uneven(c, r, p, m) - 0.01 * (m == "ece")))
    before, after = (rows_of(section(each, "Claims and verdicts")) for each in (text, report_text(changed)))
    assert before[1][3] != after[1][3]


def test_the_outcomes_of_a_claim_are_those_of_the_files(store: ResultStore, text: str) -> None:
    body = text.split("### ECE falls")[1].split("\n### ")[0]
    checked = 0
    for row in rows_of(body):
        if len(row) != 11 or row[1] not in RULES or row[8] != "0":
            continue
        dataset, model, loss = (
            next(key for key, title in titles.items() if title == word)
            for titles, word in zip((DATASETS, MODELS, LOSS_TITLES), row[0].split(), strict=True)
        )
        head = Cell(dataset=dataset, model=model, loss=loss, head="calattn")
        stored = document(store, head)["pair"][row[1]]["pre"]["ece"]
        expected = [100 * stored[key] for key in ("difference", "low", "high")]
        assert numbers(row[4]) == pytest.approx(expected, abs=0.00501)
        values = [document(store, c)["rules"][row[1]]["phases"]["pre"]["ece"]["value"] for c in (head.twin, head)]
        assert numbers(row[3]) == pytest.approx(100 * np.array(values), abs=0.00501)
        assert numbers(row[5]) == [pytest.approx(100 * stored["difference"] / values[0], abs=0.501)]
        assert row[9] in DECISIONS
        backbone = {"vit": "vit_base", "deit": "deit_small", "swin": "swin_small"}[model]
        where = {"dataset": dataset, "backbone": backbone, "loss": loss, "phase": "pre"}
        assert numbers(row[10]) == [paper.value("ece", head=h, **where) for h in ("none", "calattn")]
        checked += 1
    assert checked == 2 * (len(comparisons.pair_families("reduced")) - 3)  # two have three seeds, one was not run


# --- the other sections ------------------------------------------------------------------------------------------------


def test_accuracy_stands_beside_ece_for_both_rules(store: ResultStore, text: str) -> None:
    rows = [row for row in rows_of(section(text, "The checkpoint rule")) if row[0].startswith("`")]
    names = {path.stem for path in store.folder.glob("*.json")}
    assert {row[0].strip("`") for row in rows} == names
    for row in rows:
        rules = json.loads((store.folder / f"{row[0].strip('`')}.json").read_text(encoding="utf-8"))["rules"]
        for place, rule in enumerate(RULES):
            epoch, accuracy, ece, nll = row[1 + 7 * place : 5 + 7 * place]
            phases = rules[rule]["phases"]["pre"]
            assert int(epoch) == rules[rule]["epoch"]
            assert numbers(accuracy) == pytest.approx([100 * phases["accuracy"]["value"]], abs=0.00501)
            assert numbers(ece) == pytest.approx([100 * phases["ece"]["value"]], abs=0.00501)
            assert numbers(nll) == pytest.approx([phases["nll"]["value"]], abs=0.000501)


def test_the_price_of_the_papers_rule_is_said(tmp_path: Path) -> None:
    def effect(_cell: Cell, rule: str, _phase: str, metric: str) -> float:
        return -0.2 if metric == "accuracy" and rule == "best-ece" else 0.0

    cells = [Cell(dataset="cifar10", model="deit", head="calattn"), Cell(dataset="cifar100", model="deit")]
    told = section(report_text(on_disk(tmp_path, world(effect, cells=cells))), "The checkpoint rule")
    assert "Of 2 networks, 2 have their lowest validation ECE in the first half" in told  # epoch 21 of 60
    assert "by −10.00 points in the mean; 1 networks lose more than 1.00 point" in told


def test_a_claim_that_holds_under_the_papers_rule_only_tells_its_price(tmp_path: Path) -> None:
    def effect(cell: Cell, rule: str, phase: str, metric: str) -> float:
        if metric == "accuracy":
            return -0.008 if rule == "best-ece" else 0.0
        return helps(cell, rule, phase, metric) if rule == "best-ece" else 0.0

    told = report_text(on_disk(tmp_path, world(effect))).split("### ECE falls: holds only under `best-ece`")[1]
    # The head's networks, half of these, lose 0.8 points.
    assert "with and without the head, is −0.40 points from that at `last`" in told.split("\n### ")[0]


def test_the_papers_other_numbers_stand_beside_ours(text: str) -> None:
    told = text.split("### Other images are told apart better")[1].split("\n### ")[0]
    row = next(r for r in rows_of(told) if r[:3] == ["CIFAR-10 DeiT-S CE", "last", "AUROC against SVHN"])
    assert row[9] == "72.40 → 73.72"
    assert next(r for r in rows_of(told) if r[0] == "CIFAR-10 DeiT-S CE+BS")[9] == "–"  # not in that table
    told = text.split("### Fewer confident mistakes")[1].split("\n### ")[0]
    assert next(r for r in rows_of(told) if r[0] == "CIFAR-100 Swin-S CE+BS")[9] == "23.99 → 6.99"


def test_the_rival_recipe(store: ResultStore, text: str, tmp_path: Path) -> None:
    told = section(text, "A recipe that memorises less")
    for dataset in ("cifar10", "cifar100"):
        for name in ("deit-ce-mixup", "deit-ce_brier-mixup", "deit-ce_brier-calattn-mixup", "deit-ce"):
            assert f"`{dataset}-{name}`" in told
    assert "both with mixup" in told
    pair = next(
        row for row in rows_of(told) if row[0] == "CIFAR-100: CalAttn with mixup" and row[1:3] == ["last", "ECE"]
    )
    tested = document(store, Cell(dataset="cifar100", model="deit", head="calattn", recipe="mixup"))
    ends = tested["pair"]["last"]["pre"]["ece"]
    expected = [100 * ends[key] for key in ("difference", "low", "high")]
    assert numbers(pair[4]) == pytest.approx(expected, abs=0.00501)
    in_short = text.split("**In short.** ")[1].split("\n## ")[0]
    told_first = (
        f"which is meant to keep networks from memorising, it changes by {pair[4]} points (CIFAR-100: {pair[9]})"
    )
    assert told_first in in_short
    duel = next(row for row in rows_of(told) if row[0].startswith("CIFAR-10: cross-entropy") and row[2] == "NLL")
    assert duel[0].endswith("both + TS")
    cells = (
        Cell(dataset="cifar10", model="deit", head="calattn"),
        Cell(dataset="cifar10", model="deit", loss="ce", recipe="mixup"),
    )
    values = [document(store, c)["rules"]["last"]["phases"]["post"]["nll"]["value"] for c in cells]
    assert numbers(duel[3]) == pytest.approx(values, abs=0.000501)
    without = on_disk(tmp_path, world(helps, cells=[Cell(dataset="cifar10", model="deit")]))
    assert "Not run." in section(report_text(without), "A recipe that memorises less")


def test_the_papers_own_protocol_is_shown_as_far_as_it_was_run(text: str, tmp_path: Path) -> None:
    assert "Not run." in section(text, "The paper's own protocol, as far as it was run")
    cells = [Cell(dataset="cifar10", model="deit"), Cell(dataset="cifar10", model="deit", head="calattn")]
    full = ResultStore(tmp_path, "paper")
    whole, partly = (made_result(cell, "paper") for cell in cells)
    full.put(whole)
    full.put(dataclasses.replace(partly, run=partly.run | {"epochs": 40}))
    rows = rows_of(
        section(report_text(ResultStore(tmp_path, "reduced")), "The paper's own protocol, as far as it was run")
    )
    assert [row[:2] for row in rows[1::2]] == [
        ["`cifar10-deit-ce_brier`", "350 of 350"],
        ["`cifar10-deit-ce_brier-calattn`", "40 of 350"],
    ]
    last = rows[3]
    assert numbers(last[4]) == [pytest.approx(100 * partly.metric("ece").value, abs=0.006)]
    difference = partly.paired("ece")
    assert numbers(last[-2]) == pytest.approx(
        [100 * x for x in (difference.difference, difference.low, difference.high)], abs=0.006
    )
    runs = rows_of(section(report_text(ResultStore(tmp_path, "reduced")), "The runs"))
    assert [(row[0], row[1], row[4]) for row in runs[1:]] == [
        ("`cifar10-deit-ce_brier`", f"`{whole.cell_hash[:8]}`", "350 of 350"),
        ("`cifar10-deit-ce_brier-calattn`", f"`{partly.cell_hash[:8]}`", "40 of 350"),
    ]
    other = dataclasses.replace(cells[1], features="concat")
    full.put(made_result(other, "paper"))
    (row, _) = [row for row in rows_of(report_text(ResultStore(tmp_path, "reduced"))) if row[0] == f"`{other.name}`"][
        :2
    ]
    assert row[-1] == "–, –", "the paper's table has no network with this input of the head"
    keys = {"dataset": "cifar10", "backbone": "deit_small", "head": "calattn", "loss": "ce_brier"}
    assert numbers(last[-1]) == [paper.value("ece", phase=phase, **keys) for phase in ("pre", "post")]


def test_oddities_are_counted_and_the_grave_ones_listed(text: str) -> None:
    told = section(text, "Oddities of the paper's own numbers")
    rows = paper.oddities()
    for kind in paper.ODDITIES:
        row = next(r for r in rows_of(told) if r[0] == kind and len(r) == 3)
        assert int(row[2]) == sum(each["kind"] == kind for each in rows)
    for each in rows:
        if each["kind"] in ("claim", "impossible", "disagreement"):
            assert each["values"] in told


def test_what_was_not_run_is_named_with_its_reason(store: ResultStore, tmp_path: Path) -> None:
    few = on_disk(tmp_path, world(helps, cells=ordered_cells("reduced")[:4]))
    failed = Cell(dataset="mnist", model="swin")
    few.fail(failed, "CUDA out of memory:\n2 GiB | 1 GiB")
    told = rows_of(section(report_text(few), "What was not run, and why"))
    reasons = {row[0]: row for row in told[1:]}
    assert reasons[r"CUDA out of memory: 2 GiB \| 1 GiB"][1:] == ["1", f"`{failed.name}`"]
    assert int(reasons["not run"][1]) == len(ordered_cells("reduced")) - 5
    all_there = [Cell(dataset="cifar10", model="deit")]
    assert "Every planned cell" in section(report_text(store, planned=all_there), "What was not run, and why")


def test_every_run_has_its_hash_device_commit_and_time(store: ResultStore, text: str) -> None:
    rows = {row[0].strip("`"): row for row in rows_of(section(text, "The runs"))[1:]}
    for path in store.folder.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        row = rows.pop(path.stem)
        assert row[1:3] == [f"`{found['cell_hash'][:8]}`", f"`{found['run']['spec_hash'][:8]}`"]
        assert row[4:9] == ["60", "61", "27,000", "made-up device", "`0123456789`"]
    assert not rows


@pytest.mark.parametrize("scale", ["smoke", "reduced", "paper"])
def test_an_empty_store_gives_a_report_that_says_so(tmp_path: Path, scale: str) -> None:
    text = report_text(ResultStore(tmp_path, scale))
    rows = rows_of(section(text, "Claims and verdicts"))[1:]
    assert {row[1] for row in rows if "few_parameters" not in row[0]} == {"not tested"}
    assert f"--scale {scale}" in section(text, "How to make this again")


def test_tables_are_rectangular_and_nothing_leaks_through(text: str) -> None:
    width = None
    for line in text.splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.split(r"(?<!\\)\|", line)) - 2
        width = cells if width is None else width
        assert cells == width, line
    for leak in ("nan", "None", "inf]", "{", "/tmp", "/home"):
        assert leak not in text.replace("information", ""), leak


def test_parts_of_the_phases_are_counted(store: ResultStore, text: str) -> None:
    rows = rows_of(text.split("### Three phases of the scale s")[1].split("\n### ")[0])
    heads = [cell for cell in ordered_cells("reduced") if cell.head == "calattn" and document(store, cell)]
    assert {row[0].strip("`") for row in rows[1:-1]} == {cell.name for cell in heads}
    assert all(row[9:] == ["yes"] * 4 for row in rows[1:-1]), "the made-up logs have all phases"
    assert rows[-1][0] == f"**yes in, of {len(heads)}**"
    assert rows[-1][9:] == [str(len(heads))] * 4
    first = rows[1]
    log = document(store, next(cell for cell in heads if f"`{cell.name}`" == first[0]))["log"]
    assert numbers(first[1]) == [pytest.approx(log[0]["validation"]["scale"]["mean"], abs=0.000501)]
    assert numbers(first[5]) == [pytest.approx(log[0]["validation"]["scale"]["cv"], abs=0.000501)]


def test_other_rules_are_shown_beside_the_verdicts(store: ResultStore, text: str) -> None:
    rows = rows_of(section(text, "Would other rules have said otherwise?"))
    titles = {claim.title: name for name, claim in CLAIMS.items()}
    found = verdicts(store)
    for row in rows[1:]:
        shown = []
        for each in found[titles[row[0]]].findings.values():
            better, worse = (sum(o.decision == d for o in each.outcomes) for d in ("better", "worse"))
            shown.append(f"{'yes' if each.holds else 'no'} ({better} : {worse})")
        assert row[1] == ", ".join(shown)


def test_answers_that_hang_on_the_rules_are_named(tmp_path: Path) -> None:
    def one_worse(cell: Cell, rule: str, phase: str, metric: str) -> float:
        size = helps(cell, rule, phase, metric)
        return -size if cell.loss == "mmce" and (metric, phase) == ("ece", "pre") else size

    text = report_text(on_disk(tmp_path, world(one_worse)))
    told = section(text, "Would other rules have said otherwise?")
    flips = told.split("Other answers than by the rules as they were fixed: ")[1].split(". Other words")[0]
    assert flips in text.split("**In short.** ")[1].split("\n## ")[0]
    for rule in RULES:
        assert f"“ECE falls” holds at `{rule}` if “in every setting” is read as “in most” (*most for every*)" in flips
    same = section(report_text(ResultStore(tmp_path / "none", "reduced")), "Would other rules have said otherwise?")
    assert "as they were fixed: none." in same


def test_words_that_hang_on_the_rules_are_named(tmp_path: Path) -> None:
    """Worse in every family; but where there are several seeds, they are far apart."""

    def lucky(cell: Cell, _rule: str, _phase: str, metric: str) -> float:
        return (-0.03, 0.15, -0.21)[cell.seed] if metric.startswith("ood_") else 0.0

    text = report_text(on_disk(tmp_path, world(lucky)))
    assert verdicts(ResultStore(tmp_path, "reduced"))["ood_auroc"].manner == "contradicted"
    words = "“Other images are told apart better” is not confirmed rather than contradicted if families with one seed get the"
    assert words in section(text, "Would other rules have said otherwise?").split("Other words for how")[1]
    assert words in text.split("**In short.** ")[1].split("\n## ")[0]


def test_what_other_temperatures_change_is_told(tmp_path: Path) -> None:
    """The head helps after scaling by ECE and harms after scaling by NLL, but for one family."""

    def torn(cell: Cell, _rule: str, phase: str, metric: str) -> float:
        turned = phase == "post_nll" and cell.loss != "mmce"
        return 0.0 if metric != "ece" else 0.01 if turned else -0.01

    store = on_disk(tmp_path, world(torn))
    text, families = report_text(store), len(comparisons.pair_families("reduced"))
    often = sum(loss != "mmce" for _, _, loss in comparisons.pair_families("reduced"))
    told = text.split("### The gain remains after temperature scaling: ")[1].split("\n### ")[0]
    assert (
        f"better in {families - often}, worse in {often} of {families} at `last`, where {often} differences change"
        in told
    )
    assert (
        f"{often} of the {families} differences have the other sign"
        in text.split("**In short.** ")[1].split("\n## ")[0]
    )
    beside = rows_of(told.split("Not judged, with T of the lowest validation NLL")[1])[1:]
    assert len(beside) == 2 * families
    for row in beside:
        assert numbers(row[4])[0] == (-1.0 if "MMCE" in row[0] else 1.0)
        assert row[-1] == ("better" if "MMCE" in row[0] else "worse")
    for name in ("ece_falls", "ood_auroc", "accuracy_kept"):
        assert "*T by NLL*" not in text.split(f"### {CLAIMS[name].title}: ")[1].split("\n### ")[0], (
            "no temperature in it"
        )


def test_means_by_data_set_are_those_of_the_files(store: ResultStore, text: str) -> None:
    told = text.split("### ECE falls: ")[1].split("\n### ")[0].split("By data set, not judged: ")[1]
    at_last, early = told.split(" at `last`; ")[0], told.split(" at `last`; ")[1].split(" at `best-ece`")[0]
    for shown, rule in ((at_last, "last"), (early, "best-ece")):
        assert len(shown.split("), ")) == 3
        for part in shown.split("), "):
            name = next(name for name, title in DATASETS.items() if part.startswith(f"{title} "))
            families = [each for each in comparisons.pair_families("reduced") if each[0] == name]
            rows = _paired_rows(store, rule, "pre", ("ece",), families)
            expected = rows.mean(axis=0)
            assert ("the mean of their ends" in part) == (len(rows) < 5)
            if len(rows) >= 5:
                interval = stats.ttest_1samp(rows[:, 0], 0).confidence_interval(0.95)
                expected = np.array([expected[0], interval.low, interval.high])
            assert numbers(part.removeprefix(DATASETS[name])) == pytest.approx([*expected, len(rows)], abs=0.00501)
    assert f"At `last` that is {at_last}" in text.split("**In short.** ")[1].split("\n## ")[0]


def test_a_claim_that_a_fall_like_the_papers_could_not_confirm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "could not have been confirmed by"
    assert words not in report_text(on_disk(tmp_path / "much", world(nothing)))
    monkeypatch.setitem(BASE, "high_confidence_error_share", 0.04)
    store = on_disk(tmp_path / "little", world(nothing))
    text = report_text(store)
    told, told_of_ece = (
        text.split(f"### {t}: ")[1].split("\n### ")[0] for t in ("Fewer confident mistakes", "ECE falls")
    )
    shown = numbers(told.split("in proportion, would be ")[1].split(" points at `last`")[0].replace(", ", " "))
    pairs = {"deit": (11.99, 6.99), "swin": (23.99, 6.99), "vit": (21.99, 17.99)}  # tab:hc_err
    assert shown == pytest.approx([100 * 0.04 * AFTER["post"] * (1 - b / a) for a, b in pairs.values()], abs=0.00501)
    assert "and 1.00 is the least that counts: the claim could not" in told
    ece = told_of_ece.split("no fall of the 0.25 points that count in ")[1].split(" at `last`")
    falls = {
        each: 100
        * BASE["ece"]
        * (1 - paper.value("ece", **keys, head="calattn") / paper.value("ece", **keys, head="none"))
        for each in comparisons.pair_families("reduced")
        if (keys := {"dataset": each[0], "backbone": BACKBONES[each[1]], "loss": each[2], "phase": "pre"})
    }
    small = [each for each, fall in falls.items() if fall < 0.25]
    assert ece[0] == f"{len(small)} of {len(falls)} families"
    assert f"“Fewer confident mistakes” {words} a fall" in text.split("**In short.** ")[1].split("\n## ")[0]


def test_the_network_of_the_papers_figure_is_named_where_it_differs(tmp_path: Path) -> None:
    cells = ordered_cells("reduced")
    pictured = Cell(dataset="cifar10", model="vit", head="calattn")
    found = world(nothing, cells=cells, log=_log(rises=True))
    words = "but not in ViT on CIFAR-10, the setting of the paper's figure"
    assert words not in report_text(on_disk(tmp_path / "all", found))
    found.found[pictured] = made(pictured, nothing, log=_log(rises=False))
    told = report_text(on_disk(tmp_path / "one", found)).split("**In short.** ")[1].split("\n## ")[0]
    heads = sum(cell.head == "calattn" for cell in cells)
    assert f"seen in {heads - 1} of {heads} networks, {words}; there the mean does cross 1 (1.20 → 0.80)" in told


def _log(*, rises: bool) -> list[dict]:
    """Variation begins low, so that the first phases are not seen."""
    rows = []
    for epoch in range(1, 61):
        mean, cv = (1.2, 0.1) if epoch <= 30 else (0.8, 0.2 if rises else 0.1)
        scale = {"mean": mean, "std": cv * mean, "cv": 0.01 if epoch == 1 else cv}
        rows.append({"epoch": epoch, "train": {"loss": 1.0, "accuracy": 0.5}, "validation": {"scale": scale}})
    return rows


def test_what_is_missing_is_told_with_the_claims_it_belongs_to(text: str) -> None:
    told = section(text, "Claims and verdicts").split("**So far:** ")[1].split("\n")[0]
    assert "2 of 79 planned networks have no result" in told
    open_still = "“ECE falls”, “Accuracy is kept”, “The gain remains after temperature scaling”"
    assert told.endswith(f"Families still missing belong to {open_still}.")


def test_the_summary_says_what_the_sections_say(store: ResultStore, text: str) -> None:
    told = text.split("**In short.** ")[1].split("\n## ")[0]
    found = verdicts(store)
    for name, verdict in found.items():
        group = next(part for part in told.split("*")[2::2] if CLAIMS[name].title in part)
        label = told.split(group)[0].rsplit("*", 2)[-2]
        assert label.lower() == verdict.title.lower()
    tested = len(found["ece_falls"].findings["last"].outcomes)
    assert f"ECE falls ({tested} families)" in told
    single = sum(len(each.seeds) == 1 for each in found["ece_falls"].findings["last"].outcomes)
    assert 0 < single < tested
    assert f"{single} of the {tested} families have one seed" in told
    row = next(r for r in rows_of(section(text, "Claims and verdicts")) if "`ece_falls`" in r[0])
    assert f"ECE before temperature scaling changes by {row[3]} at `last`" in told
    assert "In short" not in report_text(ResultStore(Path("nowhere"), "reduced"))


def test_what_the_head_learned_is_read_from_the_logs(tmp_path: Path) -> None:
    head = Cell(dataset="cifar10", model="deit", loss="ce", head="calattn")
    lonely = dataclasses.replace(head, loss="brier")
    store = ResultStore(tmp_path, "reduced")
    documents = {cell: made_result(cell, "reduced") for cell in (head, head.twin, lonely)}
    for cell, temperature in ((head, 4.0), (head.twin, 2.25), (lonely, 3.0)):
        documents[cell].rules["last"]["temperature"]["nll"] = temperature
    documents[head].log[-1]["train"]["accuracy"] = 0.99123
    documents[head].log[-1]["validation"]["accuracy"] = 0.8
    documents[head].log[-1]["validation"]["scale"]["mean"] = 0.25
    documents[lonely].log[-1]["validation"]["scale"]["mean"] = 1.5
    for each in documents.values():
        store.put(each)
    told = section(report_text(store), "What the head learned")
    rows = {row[0].strip("`"): row[1:] for row in rows_of(told)[1:]}
    assert rows[head.name] == ["99.12", "80.00", "0.250", "4.00", "2.25"]
    assert rows[lonely.name][2:] == ["1.500", "3.00", "–"]
    assert "below 1 in 1 of 2 networks" in told
    assert "higher with the head than without it in 1 of 1 pairs" in told
    assert "No results" in section(report_text(ResultStore(tmp_path / "none", "reduced")), "What the head learned")


def test_links_lead_to_the_files_that_are_written(store: ResultStore, tmp_path: Path) -> None:
    written = {path.name for each in EXPERIMENTS.values() for path in each.write(store, tmp_path / "out")}
    write_report(store, tmp_path / "REPRODUCTION.md", tables=tmp_path / "out" / "reduced")
    text = (tmp_path / "REPRODUCTION.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((out/reduced/[^)]+)\)", text)
    assert len(links) == len(set(links)) >= len(EXPERIMENTS)
    assert all((tmp_path / link).is_file() for link in links)
    assert {Path(link).name for link in links} == {n for n in written if n.endswith(".png")} | {
        f"{each.name}.md" for each in EXPERIMENTS.values() if each.kind == "table"
    }


def test_what_is_unfinished_is_called_so(text: str, tmp_path: Path) -> None:
    assert "**So far:** 2 of 79 planned networks have no result" in section(text, "Claims and verdicts")
    whole = on_disk(tmp_path, world(helps))
    assert "So far" not in section(report_text(whole), "Claims and verdicts")


def test_the_file_is_the_text(store: ResultStore, text: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "REPRODUCTION.md"
    write_report(store, path)
    assert path.read_text(encoding="utf-8") == text == report_text(store)


def test_what_networks_know_by_heart_is_counted(store: ResultStore, text: str) -> None:
    cells = [cell for cell in ordered_cells("reduced") if document(store, cell)]
    heads = [cell for cell in cells if document(store, cell)["log"]]
    plain = [cell for cell in heads if cell.recipe != "mixup"]
    assert len(plain) < len(heads)
    told = f"images, in {len(plain)} of {len(plain)} networks without mixup. Lower: none. With mixup"
    assert told in section(text, "What was run")
    assert f"{len(plain)} of {len(plain)} trained without mixup end at a training accuracy of 95.00 or more" in text


def test_where_new_images_are_as_easy_nothing_was_learned_by_heart(tmp_path: Path) -> None:
    cells = [Cell(dataset="mnist", model=name) for name in ("deit", "swin", "vit")]
    accuracies = {"deit": (0.998, 0.9879), "swin": (0.998, 0.9881), "vit": (0.94, 0.5)}
    folder = ResultStore(tmp_path, "reduced")
    for cell in cells:
        train, validation = accuracies[cell.model]
        result = made(cell, nothing)
        row = {"epoch": 60, "train": {"accuracy": train}, "validation": {"accuracy": validation}}
        folder.put(dataclasses.replace(result, log=[row]))
    told = section(report_text(folder), "What was run")
    assert "in 1 of 3 networks without mixup. Lower: `mnist-vit-ce_brier` 94.00; less than a point above" in told
    assert "which are as easy: `mnist-swin-ce_brier` 99.80. With mixup" in told


def test_phases_that_have_begun_by_the_papers_protocol_are_told(tmp_path: Path) -> None:
    head = Cell(dataset="cifar10", model="deit", head="calattn")
    full, reduced = ResultStore(tmp_path, "paper"), ResultStore(tmp_path, "reduced")
    reduced.put(made(dataclasses.replace(head, model="vit"), nothing))
    moments = {1: (3.0, 0.5), 2: (4.0, 0.2), 3: (2.25, 0.4)}
    log = [
        {"epoch": e, "validation": {"scale": {"mean": m, "std": m * cv, "cv": cv}}} for e, (m, cv) in moments.items()
    ]
    for cell in (head, head.twin):
        begun = made_result(cell, "paper")
        full.put(dataclasses.replace(begun, run=begun.run | {"epochs": 3}, log=log))
    told = (
        "`cifar10-deit-ce_brier-calattn`, from epoch 1 to 3 of 350: mean 3.00 → 2.25, variation 0.500 → 0.400 (both fall, as the "
        "paper says of its first phase)."
    )
    assert told in claim_text(report_text(reduced), "three_phases")
    full.put(
        dataclasses.replace(
            begun, cell=head, cell_hash=made_result(head, "paper").cell_hash, log=[*log, log[2] | {"epoch": 31}]
        )
    )
    assert "both fall, as" not in claim_text(report_text(reduced), "three_phases"), "the first phase ends at epoch 30"
    rising = [*log[:2], {**log[2], "validation": {"scale": {"mean": 2.25, "std": 2.25, "cv": 1.0}}}]
    full.put(dataclasses.replace(made_result(head, "paper"), run=begun.run | {"epochs": 3}, log=rising))
    again = claim_text(report_text(reduced), "three_phases")
    assert "variation 0.500 → 1.000." in again
    assert "both fall, as" not in again


def claim_text(text: str, name: str) -> str:
    return text.split(f"### {CLAIMS[name].title}: ")[1].split("\n### ")[0]


def test_claims_that_do_not_hold_are_told_apart(tmp_path: Path) -> None:
    """Contradicted is not the same as not confirmed, and a reader of the first paragraph hears which."""

    def harm_before_scaling(_cell: Cell, rule: str, phase: str, metric: str) -> float:
        return 0.03 if (metric, phase, rule) == ("ece", "pre", "last") else 0.0

    text = report_text(on_disk(tmp_path, world(harm_before_scaling)))
    told = text.split("**In short.** ")[1].split("\n## ")[0]
    readings = {line.split(": ")[0].strip("- "): line for line in told.splitlines() if line.startswith("  - ")}
    assert "ECE falls (21 families)" in readings["contradicted at `last`"]
    undecided = readings["not confirmed, that is, the evidence does not decide"]
    assert "The gain remains after temperature scaling (21 families)" in undecided
    assert "### ECE falls: does not hold (contradicted at `last`)\n" in text
    assert "### The gain remains after temperature scaling: does not hold (not confirmed)\n" in text
    rules = section(text, "How a verdict comes about")
    assert all(f"*{word}*" in rules for word in READINGS)
    assert "Less than 0.1 % more parameters (6 networks)" in readings["contradicted"]


def test_what_could_not_have_been_confirmed_is_said(tmp_path: Path) -> None:
    """Where the reference is below the smallest effect, nothing can be better by it."""

    def floor(cell: Cell) -> CellResult:
        result = made(cell, nothing)
        for rule in RULES:
            result.rules[rule]["phases"]["post"]["high_confidence_error_share"]["value"] = 0.009
        return result

    cells = [c for c in ordered_cells("reduced") if c.dataset == "cifar100" and c.loss == "ce_brier"]
    low = ResultStore(tmp_path, "reduced")
    for cell in cells:
        low.put(floor(cell))
    text = report_text(low)
    told = claim_text(text, "high_confidence_errors")
    assert (
        "so that nothing could be better: 3 of 3 at `last`, 3 of 3 at `best-ece`. The claim could not have been" in told
    )
    assert (
        "“Fewer confident mistakes” could not have been confirmed" in text.split("**In short.** ")[1].split("\n## ")[0]
    )
    assert "nothing could be better" not in claim_text(text, "ece_falls")


def test_a_small_loss_of_accuracy_is_said_where_accuracy_is_kept(text: str, tmp_path: Path) -> None:
    def loses(_cell: Cell, _rule: str, _phase: str, metric: str) -> float:
        return -0.004 if metric == "accuracy" else 0.0

    store = on_disk(tmp_path, world(loses))
    told = claim_text(report_text(store), "accuracy_kept")
    assert told.startswith("holds\n")
    for rule in RULES:
        assert f"At `{rule}` the mean loss is less than the point that the rule grants, but beyond chance." in told
    assert "the mean loss" not in claim_text(text, "accuracy_kept")
    assert "epochs are compared rather than heads" not in told
    early = dataclasses.replace(Cell(dataset="cifar10", model="deit"), head="calattn")
    document = made(early, loses)
    document.rules["best-ece"]["epoch"] = 3
    store.put(document)
    told = claim_text(report_text(store), "accuracy_kept")
    assert "the networks of 1 of 21 pairs (seed 0) come from epochs 5 or more apart" in told


def test_networks_that_scaling_leaves_alone_are_compared_with_themselves(text: str, tmp_path: Path) -> None:
    store = ResultStore(tmp_path, "reduced")
    for cell in ordered_cells("reduced"):
        result = made(cell, nothing)
        result.rules["best-ece"]["temperature"]["ece"] = 1.0
        store.put(result)
    told = claim_text(report_text(store), "calattn_ts_best")
    assert (
        "Networks with T* = 1, whose numbers are those before scaling: 0 of 12 at `last`, 12 of 12 at `best-ece`."
        in told
    )
    assert "these are compared with themselves" in told
    assert "compared with themselves" not in claim_text(text, "complementary_to_ts")


def test_what_one_seed_decides_is_said(text: str, tmp_path: Path) -> None:
    """A gain in every family, whose size hangs on the seed: that of families with one seed may be luck."""

    def lucky(cell: Cell, rule: str, phase: str, metric: str) -> float:
        return helps(cell, rule, phase, metric) + (0.04 * (cell.seed - 1) if (metric, phase) == ("ece", "pre") else 0.0)

    made_up = on_disk(tmp_path, world(lucky))
    by_rules = variants(Results(made_up))["ece_falls"]
    fixed, other = (by_rules[name].findings["last"].counts for name in ("as fixed", "seeds for all"))
    assert fixed["better"] > other.get("better", 0), "else nothing hangs on it"
    told = report_text(made_up)
    families = sum(other.values())
    assert f"(*seeds for all*): better in {other.get('better', 0)}, worse in 0 of {families} at `last`" in claim_text(
        told, "ece_falls"
    )
    assert "*seeds for all*" not in claim_text(told, "calattn_ts_best"), "its families have three seeds"
    assert "*seeds for all*" not in claim_text(text, "ece_falls"), "there, nothing changes"


def test_two_readings_of_a_pair_are_not_two_pairs(text: str) -> None:
    assert "The 18 families are of 9 pairs of settings." in claim_text(text, "ood_auroc")
    assert "pairs of settings" not in claim_text(text, "ece_falls")


def test_parts_of_the_phases_are_in_the_result(text: str, store: ResultStore) -> None:
    heads = [cell for cell in ordered_cells("reduced") if cell.head == "calattn" and document(store, cell)]
    told = claim_text(text, "three_phases").split("**Result.** ")[1].split("\n")[0]
    assert (
        f"of all {len(heads)} networks with CalAttn: I: both fall in {len(heads)}; II: stays low in {len(heads)};"
        in told
    )


@pytest.mark.parametrize(
    ("p_value", "shown"),
    [(0.0004, "< 0.001"), (0.0501, "0.0501"), (0.04996, "0.0500"), (0.0561, "0.056"), (1.0, "1.000"), (None, "–")],
)
def test_a_p_value_shows_on_which_side_of_the_level_it_lies(p_value: float | None, shown: str) -> None:
    assert claim_report._p(p_value) == shown


def test_families_that_are_decided_are_named_where_they_are_not_judged(text: str) -> None:
    rows = rows_of(claim_text(text, "ece_falls"))
    row = next(r for r in rows if r[0] == "smECE" and r[1] == "last")
    assert row[4].startswith("better: CIFAR-10 DeiT-S BS, ")
    assert row[4].count("CIFAR-10") + row[4].count("MNIST") == numbers(row[3])[0]


def test_errors_that_scaling_raises_are_counted(tmp_path: Path) -> None:
    def worse_after(cell: Cell, rule: str, phase: str, metric: str) -> float:
        return 0.5 if (metric, phase, rule, cell.dataset) == ("ece", "post", "last", "mnist") else 0.0

    cells = [cell for cell in ordered_cells("reduced") if cell.model == "deit"]
    heads = sum(cell.dataset == "mnist" and cell.head != "none" for cell in cells)
    told = section(
        report_text(on_disk(tmp_path, world(worse_after, cells=cells))), "Oddities of the paper's own numbers"
    )
    count = 2 * len(cells)
    assert (
        f"of {count} cases ({len(cells)} networks, 2 checkpoints) {count} have T* ≠ 1, and in {heads} of these ECE"
        in told
    )
