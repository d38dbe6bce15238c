"""The page of one class in a browser: every word is about P(class), and the numbers follow the slider."""

from __future__ import annotations

import pytest

import calattn
from calattn.report.page import Exhibit, build_document
from tests.browser.test_page import slide
from tests.report.test_page_offset import binary


def about(p: calattn.Predictions, target: int | str) -> dict:
    evaluation = calattn.evaluate(p, target=target, num_bootstrap=0)
    return build_document([Exhibit(title="it", predictions=p, evaluation=evaluation)])


@pytest.mark.parametrize("width", [1280, 390])
def test_the_words_are_about_the_class(page_of, width):
    p = binary(lambda true: true + 1.2, n=4000, class_names=("fine", "fraud"))
    page = page_of(about(p, "fraud"), width=width)
    panels = page.locator("[data-panel]").evaluate_all("all => all.map((one) => one.dataset.panel)")
    assert panels == ["summary", "reliability", "temperature", "acting", "metrics", "provenance"]
    assert "P(fraud) against “the label is fraud”" in page.locator("#meta").inner_text()
    assert page.locator("[data-panel=reliability] h3").inner_text() == "Does P(fraud) match the share of class fraud?"
    text = page.locator("#content .subjects").inner_text()
    assert "P(fraud), %" in text.splitlines()
    assert "share of class fraud, %" in text.splitlines()
    assert "share of class fraud per bin" in text
    assert "P(fraud) above share of class fraud" in text
    assert "are class fraud." in text
    for word in ("confidence", "correct", "accuracy"):
        assert word not in text.lower().split(), word
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing hangs over the edge"


def test_the_slider_moves_the_ece_of_the_class(page_of):
    p = binary(lambda true: true + 1, mean=0.0, n=4000)
    page = page_of(about(p, 1))
    slide(page, 30)
    shown = {
        name: float(page.locator(f"[data-live={name}]").get_attribute("data-value"))
        for name in ("temperature", "ece", "nll")
    }
    scaled = p.replace(logits=p.logits / shown["temperature"])
    want = calattn.evaluate(scaled, target=1, metrics=["ece", "nll"], num_bootstrap=0)
    assert shown["temperature"] != 1
    assert shown["ece"] == pytest.approx(want["ece"].value, abs=1e-3)
    assert shown["nll"] == pytest.approx(want["nll"].value, abs=1e-5)
    assert want["ece"].value != pytest.approx(
        calattn.evaluate(scaled, metrics="ece", num_bootstrap=0)["ece"].value, abs=5e-3
    )


def test_acting_on_the_class(page_of):
    p = binary(lambda true: true, mean=0.0, n=4000)
    page = page_of(about(p, 1))
    above = p.probs[:, 1] > 0.5
    said = page.locator("[data-live=acting]")
    assert float(said.get_attribute("data-coverage")) == pytest.approx(float(above.double().mean()), abs=1e-3)
    assert float(said.get_attribute("data-accuracy")) == pytest.approx(float(p.labels[above].double().mean()), abs=1e-3)
    assert said.inner_text().startswith("If you act only where P(1) is above 0.50, you act on ")
