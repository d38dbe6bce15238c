"""Groups and prediction sets on the page: the numbers of `--json`, as pictures."""

from __future__ import annotations

import pytest
import torch

import calattn
from calattn.posthoc import PredictionSets, contest, sets_after
from calattn.report.contest import sets_document
from calattn.report.page import Exhibit, build_document
from tests.browser.test_page import made

NIGHT = "night <b>camera</b>"


def dots(page, chart: str) -> list[dict]:
    """The dots of a forest plot from top to bottom, and the words beside them."""
    script = """(svg) => [...svg.querySelectorAll('.forest-dot')].map((dot, k) => (
        {x: Number(dot.getAttribute('cx')), kind: dot.getAttribute('class').split(' ')[2],
         word: svg.querySelectorAll('.forest-word')[k]?.textContent}))"""
    return page.locator(f"[data-chart={chart}]").evaluate(script)


@pytest.fixture(scope="module")
def grouped():
    """Three cameras of which one is blind at night, and 20 that are too small to tell."""
    p = made(1500)
    camera = [NIGHT if k < 200 else f"small {k % 20}" if k < 400 else "day" for k in range(1500)]
    logits = p.logits.clone()
    logits[:200] = -logits[:200]
    p = p.replace(logits=logits)
    return p, camera, calattn.evaluate(p, groups=camera, metrics=["accuracy", "nll", "ece", "brier"], num_bootstrap=100)


def test_the_group_page(page_of, grouped):
    p, _, evaluation = grouped
    document = build_document([Exhibit(title="p", predictions=p, evaluation=evaluation)])
    page = page_of(document)
    panel = page.locator("[data-panel=groups]")
    said = panel.locator(".sentence").inner_text()
    assert f"by more than chance: {NIGHT} (accuracy, NLL, " in said
    assert "small" not in said
    found = dots(page, "groups")
    assert len(found) == 4 * 15, "the 15 worst of 22 groups, four metrics"
    assert [found[15 * k]["word"] for k in range(4)] == ["worse"] * 4, "worst first"
    assert panel.locator(".forest-name title").first.text_content() == NIGHT
    assert "The 7 others are in the table" in panel.inner_text()
    panel.locator("summary").click()
    rows = panel.locator("tbody tr")
    assert rows.count() == 22
    for name, line in zip(evaluation.groups, rows.all(), strict=True):
        cells = {cell.get_attribute("data-column"): cell.inner_text() for cell in line.locator("th, td").all()}
        nll, apart = evaluation.groups[name].evaluation["nll"], evaluation.groups[name].differences["nll"]
        assert cells["group"] == name
        assert cells["nll"].startswith(f"{nll.value:.3f} [{nll.low:.3f}, {nll.high:.3f}]")
        assert float(cells["nll-from"].replace("−", "-")) == pytest.approx(apart.difference, abs=6e-4)
        assert cells["nll-p"] == ("< 0.001" if apart.p_value < 0.0005 else f"{apart.p_value:.2g}")
    phone = page_of(document, width=390)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


def test_groups_without_resamples_have_no_verdict(page_of, grouped):
    p, camera, _ = grouped
    shown = Exhibit(title="p", predictions=p, evaluation=calattn.evaluate(p, groups=camera, num_bootstrap=0))
    page = page_of(build_document([shown]))
    assert "no group can be told from chance" in page.locator("[data-panel=groups]").inner_text()
    assert {dot["kind"] for dot in dots(page, "groups")} == {"noise"}


def test_prediction_sets_of_three_scores(page_of, grouped):
    p, camera, _ = grouped
    p = p.replace(class_names=(*map("class {}".format, range(5)), "<script>"))
    row = contest(p, methods=["temperature"], num_bootstrap=0).rows[0]
    several = [PredictionSets(0.9, score=score) for score in ("raps", "aps", "lac")]
    reports = sets_after(row, None, several, groups=camera)
    first, *others = (sets_document("temperature", *each) for each in zip(several, reports, strict=True))
    document = build_document([Exhibit(title="p", predictions=p, evaluation=calattn.evaluate(p, num_bootstrap=0))])
    page = page_of(document | {"sets": first | {"others": others}})
    panel = page.locator("[data-panel=sets]")
    assert panel.locator(".sentence").text_content() == f"P{first['words'][1:]}."
    words = [dot["word"] for dot in dots(page, "sets")]
    assert words[3:] == [f"{100 * report.empty:.1f} % empty" for report in reports]
    assert words[:3] == ["too low" if r.coverage.high < 0.9 else f"{100 * r.coverage.value:.1f} %" for r in reports]
    places = [dot["x"] for dot in dots(page, "sets")[3:]]
    assert sorted(range(3), key=places.__getitem__) == sorted(range(3), key=lambda k: reports[k].size.value)
    page.locator("[data-chart=sets-size]").focus()
    for each in reports[0].by_size:
        page.keyboard.press("ArrowRight")
        text = panel.locator("figure:has([data-chart=sets-size]) .readout").inner_text()
        size = str(each.low) if each.low == each.high else f"{each.low}–{each.high}"
        assert text.startswith(f"{size} classes: {each.samples:,} samples, coverage {100 * each.coverage.value:.1f} %")
    for name, found in (("group", reports[0].by_group), ("class", reports[0].by_class)):
        rows = panel.locator(f"[data-table=sets-{name}] tbody tr")
        ordered = sorted(found, key=lambda key: found[key].value)
        names = [p.class_names[key] if name == "class" else key for key in ordered]
        assert [line.locator("td").first.text_content() for line in rows.all()] == names
        assert rows.first.locator("td").nth(1).text_content() == f"{100 * found[ordered[0]].value:.2f}"
    kinds = {line["kind"] for line in dots(page, "sets-group")}
    assert ("worse" in kinds) == any(each.high < 0.9 for each in reports[0].by_group.values())


def test_sizes_are_stated_one_by_one_and_then_together():
    from calattn.posthoc.sets import judged

    sizes = torch.tensor([0, 1, 1, 6, 10, 11, 25])
    sets = torch.arange(30).expand(7, 30) < sizes[:, None]
    found = judged(sets, torch.zeros(7, dtype=torch.int64)).by_size
    assert [(each.low, each.high, each.samples) for each in found] == [
        (0, 0, 1),
        (1, 1, 2),
        (6, 10, 2),
        (11, 20, 1),
        (21, 40, 1),
    ]
    assert [each.coverage.value for each in found] == [0, 1, 1, 1, 1]
