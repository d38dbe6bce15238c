"""Bins that say too much and bins that say too little, in the reliability diagram."""

from __future__ import annotations

import numpy as np
import pytest

import calattn
from tests.browser.test_page import at, choose, made, plain

MORE, LESS = "confidence above accuracy", "confidence below accuracy"
BINS = 5


def bins_of(p: calattn.Predictions, binning: str, least: int = 1) -> list[tuple[float, float]]:
    """numpy's accuracy and mean confidence of each bin that has samples enough."""
    confidence, right, _ = at(p, 1.0)
    index = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    parts = [np.flatnonzero(index == k) for k in range(BINS)]
    if binning == "count":
        parts = np.array_split(confidence.argsort(), BINS)
    return [(right[part].mean(), confidence[part].mean()) for part in parts if len(part) >= least]


@pytest.fixture
def shown(page_of):
    """shown(factor) gives predictions with logits times `factor`, and their page."""

    def show(factor: float, *, binning: str = "width", **options: object):
        p = made(3000, boost=1.0)
        p = p.replace(logits=factor * p.logits)
        page = page_of(plain(factor, boost=1.0, n=3000), **options)
        choose(page, "bins", str(BINS))
        choose(page, "binning", binning)
        return p, page

    return show


def spans(page, kind: str) -> list[tuple[float, float]]:
    """The lower and upper end of each rectangle of a kind, as values of the axis."""
    chart = page.locator("[data-chart=reliability]")
    zero, one = (
        float(chart.locator("line.grid").nth(k).get_attribute("y1")) for k in (0, 4)
    )  # 0 and 100 % of the upper plot
    boxes = chart.locator(f"rect.{kind}").evaluate_all(
        "(all) => all.map((box) => [box.y.baseVal.value, box.height.baseVal.value])"
    )
    value = [(zero - y, zero - y - tall) for y, tall in boxes]
    return [(low / (zero - one), high / (zero - one)) for high, low in value]


@pytest.mark.parametrize("factor", [3.0, 0.2])
def test_bars_reach_the_smaller_and_hatches_the_larger_of_the_two(shown, factor):
    """So that solid blue up to the diagonal means calibrated, and nothing else does; a line marks the accuracy."""
    p, page = shown(factor)
    bins = bins_of(p, "width")
    under = [(right, said) for right, said in bins if right > said]
    over = [(right, said) for right, said in bins if right < said]
    assert len(under if factor < 1 else over) > 2
    assert spans(page, "fill-blue") == [
        pytest.approx((0, min(both)), abs=1e-3) for both in bins_of(p, "width", least=20)
    ]
    assert spans(page, "gap-over") == [pytest.approx((right, said), abs=1e-3) for right, said in over]
    assert spans(page, "gap-under") == [pytest.approx((said, right), abs=1e-3) for right, said in under]
    assert spans(page, "right-line") == [pytest.approx((right, right), abs=1e-3) for right, _ in bins]


def test_bins_weigh_as_much_as_their_samples(shown):
    p, page = shown(0.6)
    choose(page, "bins", "20")
    confidence, _, _ = at(p, 1.0)
    counts = np.bincount(np.clip(np.ceil(confidence * 20).astype(int) - 1, 0, 19), minlength=20)
    counts = counts[counts > 0]
    few = int((counts < 20).sum())
    assert few > 0
    bars = page.locator("[data-chart=reliability] rect.fill-blue")
    weights = [float(bar.get_attribute("opacity")) for bar in bars.all()]
    order = counts[counts >= 20].argsort()
    assert list(np.array(weights)[order]) == sorted(weights)
    assert max(weights) == pytest.approx(0.9)
    assert page.locator("[data-chart=reliability] rect.hollow:not(.right-line)").count() == few
    assert "fewer than 20 samples" in page.locator("[data-panel=reliability] .legend").inner_text()


@pytest.mark.parametrize("factor", [3.0, 0.5, 0.2])
@pytest.mark.parametrize("binning", ["width", "count"])
def test_legend_and_pointer_say_which(shown, factor, binning):
    p, page = shown(factor, binning=binning)
    sides = [MORE if said > right else LESS for right, said in bins_of(p, binning)]
    panel = page.locator("[data-panel=reliability]")
    assert {text for text in panel.locator(".legend li").all_inner_texts() if text in (MORE, LESS)} == set(sides)
    panel.locator("svg").focus()
    for side in sides:
        page.keyboard.press("ArrowRight")
        assert panel.locator(".readout").inner_text().endswith(f": {side}.")


def luminance(rgb: str) -> float:
    parts = [int(part) / 255 for part in rgb[4:-1].split(",")]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_stripes_are_seen_on_their_ground(shown, scheme):
    """A contrast of 3, which WCAG asks of graphics: green and orange on the card."""
    _, page = shown(0.2, scheme="dark" if scheme == "print" else scheme)
    if scheme == "print":
        page.emulate_media(media="print")

    def colour(selector: str, name: str) -> float:
        return luminance(page.locator(selector).first.evaluate(f"(one) => getComputedStyle(one).{name}"))

    def contrast(a: float, b: float) -> float:
        return (max(a, b) + 0.05) / (min(a, b) + 0.05)

    paper = colour("[data-panel=reliability]", "backgroundColor")
    for side in ("under", "over"):
        assert contrast(colour(f"[data-chart=reliability] .hatch-{side}", "stroke"), paper) >= 3
