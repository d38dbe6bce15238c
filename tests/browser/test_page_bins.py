"""The page starts at the metric's bins; other schemas; two scale charts."""

from __future__ import annotations

import re

import pytest

import calattn
from calattn.report.page import Exhibit, build_document, writing
from tests.browser.test_page import at, choose, ece, made, plain, shown


def document(p: calattn.Predictions, **options: object) -> dict:
    evaluation = calattn.evaluate(p, num_bootstrap=0, **options)
    log = [
        {"epoch": e, "validation": {"nll": 1 / e, "inverse_scale": {"mean": 1.0 * e}, "scale": {"cv": 0.1 * e}}}
        for e in (1, 2, 3)
    ]
    return build_document([Exhibit(title="mine", predictions=p, evaluation=evaluation, log=log)])


@pytest.mark.parametrize(("bins", "start"), [(15, 15), (20, 20), (25, 15)])
def test_the_page_starts_with_the_bins_of_the_metric(page_of, bins, start):
    p = made()
    page = page_of(document(p, num_bins=bins))
    confidence, right, _ = at(p, 1.0)
    assert page.locator("[data-control=bins]").input_value() == str(start)
    assert shown(page, "ece") == pytest.approx(ece(confidence, right, start), abs=2e-5)
    value, made_with, ghost = (page.locator(f"[data-card=ece] .card-{name}") for name in ("value", "range", "now"))
    own = text(p, bins)
    wanted = (own, "") if start == bins else (text(p, 15), f"at T = 1: {own}")
    assert (value.inner_text(), ghost.inner_text().strip()) == wanted
    choose(page, "bins", "10")
    assert (value.inner_text(), made_with.inner_text()) == (text(p, 10), "10 equal-width bins")
    assert ghost.inner_text().strip() == f"at T = 1: {own}"
    choose(page, "bins", str(start))
    choose(page, "binning", "count")
    assert made_with.inner_text() == f"{start} equal-count bins"


def text(p: calattn.Predictions, bins: int) -> str:
    confidence, right, _ = at(p, 1.0)
    return f"{100 * ece(confidence, right, bins):.2f} %"


def test_the_two_series_of_the_scale_have_a_chart_each(page_of):
    page = page_of(document(made()))
    for name, title in (("scale", "1/s, mean"), ("scale_cv", "s, coefficient of variation")):
        assert page.locator(f"[data-chart=dynamics-{name}] .plot-title").text_content() == title


def test_a_document_of_another_schema_is_refused_in_words(page_of):
    page = page_of(plain() | {"schema": 2})
    assert "got schema 2" in page.locator(".notice").first.inner_text()
    assert page.locator(".panel").count() == 0
    page.locator("#theme").select_option("dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_repeated_heads_print(page_of):
    """Chromium leaves buttons out of a head that it repeats: on paper they must be no boxes of their own."""
    page = page_of(plain())
    display = "getComputedStyle(document.querySelector('.sorter')).display"
    assert page.evaluate(display) != "contents"
    page.emulate_media(media="print")
    assert page.evaluate(display) == "contents"


def test_every_script_and_style_is_in_a_page_and_short():
    folder = writing.importlib.resources.files("calattn.report.page")
    for kind, used in (("scripts", {*writing._PAGE, *writing._LEADERBOARD}), ("styles", {*writing._STYLES})):
        files = {re.sub(r"\.\w+$", "", file.name): file for file in (folder / kind).iterdir()}
        assert files.keys() == used
        for file in files.values():
            assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
