"""The words of the page: numbers that look the same everywhere, and notes that say what they are about."""

from __future__ import annotations

import pytest
import torch

import calattn
from calattn.report.page import build_document
from tests.browser.test_page import at, choose, ece, exhibit, made, plain, settled, shown, slide


def test_the_live_nll_looks_like_the_metric(page_of):
    document = plain()
    page = page_of(document)
    value = next(one["value"] for one in document["subjects"][0]["metrics"] if one["name"] == "nll")
    live = page.locator("[data-live=nll]")
    assert page.locator("[data-card=nll] .card-value").inner_text().split()[0] == live.inner_text() == f"{value:.3f}"
    slide(page, 30)
    assert page.locator("[data-card=nll] .card-value").inner_text() == f"{live.inner_text()} nats"


def test_what_does_not_follow_the_slider_says_so(page_of):
    page = page_of(plain())
    place = page.locator("[data-panel=errors] .at-one")
    assert not place.is_visible()
    assert place.bounding_box()["width"] > 20, "its place is kept, so that nothing jumps"
    slide(page, 30)
    assert place.is_visible()
    assert place.inner_text() == "at T = 1"
    page.locator("button[data-reset]").click()
    settled(page)
    assert not place.is_visible()


def test_an_offset_of_class_one_is_the_headline(page_of):
    generator = torch.Generator().manual_seed(0)
    base = -4 + torch.randn(4000, generator=generator)
    labels = (torch.rand(4000, generator=generator) < base.sigmoid()).long()
    p = calattn.Predictions(logits=torch.stack([torch.zeros(4000), base + 1.2], 1), labels=labels)
    page = page_of(build_document([exhibit(p)]))
    said = page.locator("[data-verdict=offset]")
    share = f"{100 * float(labels.double().mean()):.1f} %"
    assert said.locator(".headline").inner_text().startswith("P(1) is too high: averages ")
    assert f"class 1 is {share} of the samples" in said.locator(".headline").inner_text()
    assert "A temperature cannot fix an offset" in said.locator(".detail").inner_text()


def test_rows_are_counted_from_zero(page_of):
    p = made()
    probs = p.logits.softmax(dim=1)
    wrong = probs.argmax(dim=1) != p.labels
    surest = int(torch.where(wrong, probs.max(dim=1).values, -1.0).argmax())
    first = page_of(plain()).locator("[data-table=errors] tbody th").first
    assert first.inner_text() == f"row {surest} (from 0)"
    named = page_of(build_document([exhibit(p.replace(indices=torch.arange(len(p)) + 7))]))
    assert named.locator("[data-table=errors] tbody th").first.inner_text() == f"sample {surest + 7}"


def test_chances_are_printed_as_on_the_terminal(page_of):
    page = page_of(plain())
    for p in (1.0, 0.5, 0.19043, 0.0999, 0.03, 0.00312, 0.0005):
        assert page.evaluate("(p) => window.calattn.chanceText(p)", p) == f"{p:.2g}"
    assert page.evaluate("window.calattn.chanceText(0.00049)") == "< 0.001"
    assert page.evaluate("window.calattn.chanceText(null)") == "–"


def test_ties_are_rounded_as_in_python(page_of):
    """46.125 is 46.12 on the terminal, and JavaScript's own rounding makes it 46.13."""
    page = page_of(plain())
    values = [k / 4000 for k in range(-4000, 4000, 5)] + [1.005, 0.285, 1.5, 2.5]
    for places in (0, 1, 2, 3):
        found = page.evaluate("([all, n]) => all.map((v) => window.calattn.fixed(100 * v, n))", [values, places])
        assert [text.replace("−", "-") for text in found] == [f"{100 * value:.{places}f}" for value in values]


@pytest.mark.parametrize("bins", ["15", "30"])
def test_the_lowest_ece_is_the_lowest_of_the_curve_that_is_shown(page_of, bins):
    p = made()
    page = page_of(plain())
    choose(page, "bins", bins)
    page.locator("button[data-own=ECE]").click()
    settled(page)
    found, at_lowest = shown(page, "ece"), shown(page, "temperature")
    grid = page.evaluate("window.calattn.view.profiles.get('s0').grid")
    curve = []
    for temperature in grid:
        confidence, right, _ = at(p, temperature)
        curve.append(ece(confidence, right, int(bins)))
    assert found == pytest.approx(min(curve), abs=2e-5)
    assert curve[grid.index(at_lowest)] == pytest.approx(min(curve), abs=2e-5)
    notes = page.locator("[data-panel=temperature]").inner_text()
    assert f"ECE is lowest at T = {at_lowest:#.3g} on this curve ({100 * found:.2f} %)." in notes
    by_nll = calattn.posthoc.TemperatureScaling().fit(p).temperature_
    assert f"T* = {by_nll:#.3g} has the lowest NLL" in notes
    assert page.locator("[data-chart=ece-temperature] .note.star").text_content() == f"lowest at {at_lowest:#.3g}"


def test_one_best_temperature_is_used_for_all(page_of):
    a, b = made(), made(seed=1, boost=0.7)
    page = page_of(build_document([exhibit(a, "A"), exhibit(b, "B")]))
    button = page.locator("[data-subject=s1] button[data-all=NLL]")
    assert button.inner_text() == "use for all"
    button.click()
    settled(page)
    best = calattn.posthoc.TemperatureScaling().fit(b).temperature_
    assert shown(page, "temperature", "s1") == pytest.approx(best, rel=1e-9)
    assert shown(page, "temperature", "s0") == pytest.approx(best, rel=0.03)  # the nearest of its own grid


def test_the_best_temperature_may_lie_beyond_the_slider(page_of):
    document = plain()
    found = document["subjects"][0]["temperature"]
    found["best"] = {"value": 10.84, "fitted_on": "validation"}
    text = page_of(document).locator("[data-panel=temperature]").inner_text()
    assert "The lowest NLL lies beyond the curve, at T = 10.8 (validation)." in text
    assert "No T* is marked" not in text
    found["best"] = None
    assert "No T* is marked" in page_of(document).locator("[data-panel=temperature]").inner_text()


@pytest.mark.parametrize("home", ["../index.html", "index.html"])
def test_a_page_links_to_its_leaderboard(page_of, home):
    link = page_of(plain() | {"home": home}).locator("header a[data-home]")
    assert link.inner_text() == "← all runs"
    assert link.get_attribute("href") == home


@pytest.mark.parametrize(
    "home",
    [None, 3, "javascript:alert(1)", " java\nscript:alert(1)", "\x01data:,x", "https://a.b", "//a.b", "/\t\\a.b"],
)
def test_only_what_lies_beside_it_is_linked(page_of, home):
    page = page_of(plain() | {"home": home})
    assert page.locator("h1").inner_text() == "mine"
    assert page.locator("header a").count() == 0


def test_a_verdict_that_tells_nothing_is_grey(page_of):
    document = plain()
    colours = {}
    for kind in ("none", "unclear", "calibrated"):
        document["subjects"][0]["verdict"]["kind"] = kind
        verdict = page_of(document).locator(".verdict")
        text = verdict.evaluate("(one) => getComputedStyle(one).borderLeftColor")
        colours[kind] = [int(part) for part in text[4:-1].split(",")]
    assert colours["none"] == colours["unclear"]
    assert max(colours["none"]) - min(colours["none"]) < 20 < max(colours["calibrated"]) - min(colours["calibrated"])


def test_a_warning_stands_above_everything_also_on_paper(page_of):
    a, b = made(), made(boost=2.0)
    differences = {1: calattn.compare(a, b, num_bootstrap=50)}
    text = "not the same data: A of imagefolder:/" + "x" * 200 + "; B of <i>y</i>."
    document = build_document([exhibit(a, "A"), exhibit(b, "B")], comparisons=differences, warnings=[text])
    for scheme in ("light", "dark"):
        page = page_of(document, width=390, scheme=scheme)
        said = page.locator("main > :first-child")
        assert said.inner_text() == f"Warning: {text}"
        assert said.bounding_box()["y"] < page.locator(".comparisons").bounding_box()["y"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.emulate_media(media="print")
    assert said.is_visible()
    assert page_of(plain()).locator("[data-warning]").count() == 0
