"""The page in a real Chromium: what the slider shows is what numpy computes, and text from files stays text."""

from __future__ import annotations

import copy
import functools
import io
import itertools

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from PIL import Image

import calattn
from calattn.report.page import Exhibit, build_document, page_html, write_page

NASTY = "<script>alert(1)</script>"
CLASSES = (NASTY, "cat", "</script>", "dog & co", '"quoted"', "émoji 🐦")


def made(n: int = 900, *, c: int = 6, boost: float = 1.5, seed: int = 0, **fields: object) -> calattn.Predictions:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(c, (n,), generator=generator)
    logits = 3 * torch.randn(n, c, generator=generator)
    logits[torch.arange(n), labels] += boost * 3
    return calattn.Predictions(logits=logits, labels=labels, **fields)


def exhibit(p: calattn.Predictions, title: str = "mine", **fields: object) -> Exhibit:
    return Exhibit(title=title, predictions=p, evaluation=calattn.evaluate(p, num_bootstrap=30), **fields)


@functools.cache
def _document(factor: float, boost: float, n: int) -> dict:
    p = made(n, boost=boost)
    return build_document([exhibit(p.replace(logits=factor * p.logits))])


def plain(factor: float = 1.0, *, boost: float = 1.5, n: int = 900) -> dict:
    """The document of predictions that `made` makes, their logits times `factor`: computed once, and free to be changed."""
    return copy.deepcopy(_document(factor, boost, n))


@pytest.fixture(scope="module")
def predictions() -> calattn.Predictions:
    scale = 0.5 + torch.rand(900, generator=torch.Generator().manual_seed(5))
    return made(scale=scale, class_names=CLASSES)


@pytest.fixture(scope="module")
def single(predictions, tmp_path_factory):
    log = [
        {
            "epoch": e,
            "train": {"loss": 2 / e},
            "validation": {
                "nll": 2.2 / e,
                "accuracy": 1 - 0.5 / e,
                "ece": 0.1 / e,
                "inverse_scale": {"mean": 1 + e / 9},
            },
        }
        for e in range(1, 9)
    ]
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, format="PNG")
    shown = exhibit(
        predictions,
        NASTY,
        images=lambda rows: dict.fromkeys(rows, file.getvalue()),
        log=log,
        marks={"best-ece": 3},
        provenance=[("commit", NASTY)],
        spec="name: <b>bold</b>",
    )
    return write_page(page_html(build_document([shown])), tmp_path_factory.mktemp("page") / "single.html")


def at(p: calattn.Predictions, temperature: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Confidence, whether right, and NLL, by scipy."""
    logits = p.calibrated_logits.double().numpy() / temperature
    probs = scipy.special.softmax(logits, axis=1)
    labels = p.labels.numpy()
    nll = -scipy.special.log_softmax(logits, axis=1)[np.arange(len(p)), labels].mean()
    return probs.max(axis=1), probs.argmax(axis=1) == labels, nll


def ece(confidence: np.ndarray, right: np.ndarray, bins: int, *, equal_count: bool = False) -> float:
    if equal_count:
        parts = np.array_split(confidence.argsort(), bins)
        gaps = [abs((confidence[part] - right[part]).sum()) for part in parts]
    else:
        index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        gaps = np.abs(np.bincount(index, confidence - right, minlength=bins))
    return float(np.sum(gaps) / len(confidence))


def shown(page, name: str, subject: str = "s0") -> float:
    return float(page.locator(f"[data-subject={subject}] [data-live={name}]").first.get_attribute("data-value"))


def settled(page) -> None:
    """Waits until the page has redrawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def slide(page, place: int) -> float:
    """Moves the slider to a place of its grid; gives the temperature that the page then shows."""
    page.locator("[data-control=temperature]").evaluate(
        "(input, place) => { input.value = place; input.dispatchEvent(new Event('input', {bubbles: true})); }", place
    )
    settled(page)
    return shown(page, "temperature")


def choose(page, control: str, value: str) -> None:
    page.locator(f"[data-control={control}]").first.select_option(value)
    settled(page)


def test_the_slider_moves_the_numbers_to_what_python_computes(opened, single, predictions):
    page = opened(single)
    seen = set()
    for place in (0, 25, 60, 80, 110):
        temperature = slide(page, place)
        seen.add(temperature)
        confidence, right, nll = at(predictions, temperature)
        assert shown(page, "ece") == pytest.approx(ece(confidence, right, 15), abs=2e-5)
        assert shown(page, "nll") == pytest.approx(nll, rel=1e-4)
        assert shown(page, "confidence") == pytest.approx(confidence.mean(), abs=1e-5)
        text = page.locator("[data-subject=s0] [data-live=ece]").first.inner_text()
        assert text == f"{100 * shown(page, 'ece'):.2f} %"
    assert len(seen) == 5


def test_bins_and_binning_recompute_the_error(opened, single, predictions):
    page = opened(single)
    temperature = slide(page, 85)
    confidence, right, _ = at(predictions, temperature)
    for bins in (5, 10, 20, 30):
        choose(page, "bins", str(bins))
        assert shown(page, "ece") == pytest.approx(ece(confidence, right, bins), abs=2e-5)
    choose(page, "binning", "count")
    assert shown(page, "ece") == pytest.approx(ece(confidence, right, 30, equal_count=True), abs=2e-5)


def test_the_best_temperature_is_a_button_away_and_says_where_it_was_fitted(opened, single, predictions):
    page = opened(single)
    page.locator("button[data-own=NLL]").first.click()
    settled(page)
    best = calattn.posthoc.TemperatureScaling().fit(predictions).temperature_
    assert shown(page, "temperature") == pytest.approx(best, rel=1e-9)
    assert "chosen on the very data it is shown on" in page.locator("[data-panel=temperature]").inner_text()
    page.locator("button[data-reset]").click()
    settled(page)
    assert shown(page, "temperature") == 1.0


def test_the_keyboard_moves_the_slider(opened, single):
    page = opened(single)
    page.locator("[data-control=temperature]").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    first = shown(page, "temperature")
    page.keyboard.press("ArrowRight")
    settled(page)
    assert 1 < first < shown(page, "temperature") < 1.2


def test_acting_above_a_confidence_counts_the_samples(opened, single, predictions):
    page = opened(single)
    slide(page, 60)
    slider = page.locator("[data-control=threshold]").first
    for threshold in (0.5, 0.75, 0.9, 0.99):
        slider.evaluate(
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', {bubbles: true})); }",
            threshold,
        )
        settled(page)
        confidence, right, _ = at(predictions, shown(page, "temperature"))
        above = confidence > threshold
        sentence = page.locator("[data-live=acting]").first
        assert float(sentence.get_attribute("data-coverage")) == pytest.approx(above.mean(), abs=1e-9)
        assert float(sentence.get_attribute("data-accuracy")) == pytest.approx(right[above].mean(), abs=1e-9)
        assert f"{100 * above.mean():.1f} % of the samples" in sentence.inner_text()


def column(page, key: str) -> list[str]:
    return page.locator(f"[data-table=classes] tbody tr:not([hidden]) [data-column={key}]").all_inner_texts()


@pytest.mark.parametrize("key", ["count", "recall", "gap", "ece"])
def test_sorting_sorts(opened, single, key):
    page = opened(single)
    head = page.locator(f"[data-table=classes] thead [data-column={key}]")
    orders = []
    for press in ("click", "Enter"):
        button = head.locator("button")
        button.click() if press == "click" else button.press("Enter")
        values = [float(text.replace("−", "-").replace(",", "")) for text in column(page, key)]
        orders.append(head.get_attribute("aria-sort"))
        assert values == sorted(values, reverse=orders[-1] == "descending")
    assert set(orders) == {"ascending", "descending"}


def test_classes_are_filtered(opened, single):
    page = opened(single)
    page.locator("[data-control=class-filter]").fill("SCRIPT")
    assert sorted(column(page, "name")) == sorted([NASTY, "</script>"])


def test_a_label_named_script_stays_text(opened, single):
    page = opened(single)
    assert NASTY in column(page, "name")
    assert page.locator("h1").inner_text() == NASTY
    assert page.title().startswith(NASTY)
    assert page.evaluate("document.scripts.length") == 2
    assert page.locator("b").count() == 0  # of the spec's <b>


def background(page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_theme_switches(opened, single):
    page = opened(single)
    light = background(page)
    page.locator("#theme").select_option("dark")
    dark = background(page)
    assert light != dark
    assert sum(map(int, dark[4:-1].split(","))) < 200 < sum(map(int, light[4:-1].split(",")))
    assert background(opened(single, scheme="dark")) == dark, "the system's choice is followed"
    page.reload()
    assert background(page) == dark, "the choice is kept"


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_needs_no_sideways_scrolling(opened, single, width):
    page = opened(single, width=width, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_panel_of_a_calattn_run_is_there(opened, single):
    page = opened(single)
    panels = {element.get_attribute("data-panel") for element in page.locator("[data-panel]").all()}
    assert panels >= {"reliability", "temperature", "acting", "risk", "metrics", "classes", "errors", "provenance"}
    assert panels >= {"scale", "dynamics"}
    assert page.locator("[data-panel=errors] img").count() == 24
    for chart in page.locator("svg[role=img]").all():
        assert len(chart.get_attribute("aria-label")) > 20


def test_binomial_quantiles_are_scipys(opened, single):
    page = opened(single)
    for n in (1, 2, 7, 60, 900, 20_000):
        for p in (0.001, 0.03, 0.4, 0.5, 0.87, 0.999):
            for q in (0.025, 0.975):
                found = page.evaluate("([q, n, p]) => window.calattn.binomialQuantile(q, n, p)", [q, n, p])
                expected = scipy.stats.binom.ppf(q, n, p)
                assert abs(found - expected) <= (0 if n * p * (1 - p) <= 25 else 1), (n, p, q)


def test_several_stand_side_by_side_with_their_differences(page_of):
    a, b = made(boost=1.0), made(boost=1.0, seed=0)
    b = b.replace(logits=b.logits / 2)
    differences = {1: calattn.compare(a, b, num_bootstrap=100)}
    document = build_document([exhibit(a, "A"), exhibit(b, "B")], comparisons=differences)
    page = page_of(document)
    boxes = [page.locator(f"[data-subject={name}]").bounding_box() for name in ("s0", "s1")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1
    row = page.locator("[data-table=comparison] [data-metric=nll]").text_content()
    assert "better" in row
    assert f"{differences[1]['nll'].difference:+.3f}".replace("-", "−") in row
    page.locator("button[data-own=NLL]").click()
    settled(page)
    first, second = (shown(page, "temperature", name) for name in ("s0", "s1"))
    assert first == pytest.approx(2 * second, rel=1e-6)
    phone = page_of(document, width=390)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = [phone.locator(f"[data-subject={name}]").bounding_box() for name in ("s0", "s1")]
    assert boxes[1]["x"] == pytest.approx(boxes[0]["x"], abs=1)


def test_a_stated_probability_of_zero_does_not_break_the_page(page_of):
    p = calattn.Predictions.from_probs(torch.tensor([[1.0, 0.0]] * 20), torch.tensor([0] * 19 + [1]))
    page = page_of(build_document([exhibit(p)]))
    assert "∞" in page.locator("[data-metric=nll]").first.inner_text()


def test_headings_do_not_skip_a_level(opened, single):
    levels = opened(single).evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map((e) => Number(e.getAttribute('aria-level') || e.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
