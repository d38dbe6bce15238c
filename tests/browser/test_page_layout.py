"""What is cut off shows it, and what matters is seen first."""

from __future__ import annotations

import pytest

import calattn
from calattn.report.page import build_document, page_html, write_page
from tests.browser.test_page import exhibit, made, plain, settled, slide

LONG = ("runs/resnet110_cifar100.focal-3/seed_0", "runs/resnet110_cifar100.calattn-3/seed_0")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    a = made(boost=1.0, c=40)
    b = a.replace(logits=a.logits / 2)
    differences = {1: calattn.compare(a, b, num_bootstrap=100)}
    document = build_document([exhibit(a, LONG[0]), exhibit(b, LONG[1])], comparisons=differences)
    return write_page(page_html(document), tmp_path_factory.mktemp("layout") / "two.html")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return write_page(
        page_html(build_document([exhibit(made(c=40, boost=0.5))])), tmp_path_factory.mktemp("layout") / "one.html"
    )


def unfolded(page):
    """The page with the tables of the comparison open."""
    page.locator("details.tables > summary").click()
    return page


def frame(page, table: str):
    settled(page)
    return page.locator(f".scroll-frame:has([data-table={table}])").first


def edges(page, table: str) -> set[str]:
    names = frame(page, table).get_attribute("class").split()
    return {name.removeprefix("more-") for name in names if name.startswith("more-")}


def scroll(page, table: str, top: int, left: int = 0) -> None:
    frame(page, table).locator(".scroller").evaluate("(box, to) => box.scrollTo(...to)", [left, top])
    settled(page)


@pytest.mark.parametrize("table", ["errors", "classes"])
@pytest.mark.parametrize("width", [1280, 700])
def test_a_tall_table_ends_in_the_middle_of_a_row(opened, one, table, width):
    page = opened(one, width=width)
    box = frame(page, table).locator(".scroller").bounding_box()
    end = box["y"] + box["height"]
    rows = [line.bounding_box() for line in page.locator(f"[data-table={table}] tbody tr").all()]
    cut = [(end - row["y"]) / row["height"] for row in rows if row["y"] < end < row["y"] + row["height"]]
    assert len(cut) == 1
    assert 0.3 < cut[0] < 0.7
    assert 300 < box["height"] <= 34 * 16


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_cut_edges_fade_into_the_card(opened, one, scheme):
    page = opened(one, scheme=scheme)
    assert edges(page, "errors") == {"below"}
    fade = "(frame) => getComputedStyle(frame, '::before').backgroundImage"
    paper = page.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor")
    assert paper in frame(page, "errors").evaluate(fade)
    scroll(page, "errors", 50)
    assert edges(page, "errors") == {"above", "below"}
    scroll(page, "errors", 100_000)
    assert edges(page, "errors") == {"above"}
    assert frame(page, "errors").evaluate(fade) == "none"


def test_a_wide_table_fades_to_the_right_on_a_phone(opened, one):
    page = opened(one, width=390)
    assert edges(page, "classes") == {"below", "after"}
    scroll(page, "classes", 0, 40)
    assert edges(page, "classes") == {"below", "before", "after"}
    scroll(page, "classes", 0, 10_000)
    assert edges(page, "classes") == {"below", "before"}


def test_filtering_leaves_no_fade_over_the_few_that_are_left(opened, one):
    page = opened(one)
    assert "below" in edges(page, "classes")
    page.locator("[data-control=class-filter]").fill("39")
    settled(page)
    assert edges(page, "classes") == set()


def test_the_metrics_are_never_cut(page_of):
    document = plain()
    document["subjects"][0]["metrics"] *= 3
    page = page_of(document, height=500)
    assert edges(page, "metrics") == set()
    box = page.locator(".panel-metrics .scroller").first
    assert box.evaluate("(box) => box.scrollHeight - box.clientHeight") == 0
    assert box.bounding_box()["height"] > 34 * 16


def test_paper_has_neither_cuts_nor_fades(opened, one):
    page = opened(one)
    assert "below" in edges(page, "errors")
    page.emulate_media(media="print")
    box = frame(page, "errors")
    box.evaluate("(frame) => frame.classList.add('more-below')")  # a printer need not wait for the observer
    assert box.evaluate("(frame) => getComputedStyle(frame, '::before').content") == "none"
    assert box.locator(".scroller").evaluate("(box) => box.scrollHeight - box.clientHeight") <= 0


def test_the_classes_fit_side_by_side(opened, two):
    page = opened(two, width=1280)
    assert edges(page, "classes") == {"below"}
    heads = page.locator("[data-subject=s0] [data-table=classes] thead th").all_inner_texts()
    assert "Samples" in heads
    assert "Predicted" not in heads


def test_a_phone_shows_metric_difference_and_effect_first(opened, two):
    page = unfolded(opened(two, width=390))
    heads = page.locator("[data-table=comparison] thead th")
    assert [text.split(",")[0] for text in heads.all_inner_texts()[:3]] == ["Metric", "Difference", "Effect"]
    assert not page.locator("[data-table=comparison] .words").first.is_visible()
    frame_box = frame(page, "comparison").bounding_box()
    for effect in page.locator("[data-table=comparison] .effect").all():
        box = effect.bounding_box()
        assert box["x"] + box["width"] <= frame_box["x"] + frame_box["width"]
    assert unfolded(opened(two, width=1000)).locator("[data-table=comparison] td.words").first.is_visible()


@pytest.mark.parametrize("place", [1, -2])
def test_the_label_of_the_best_temperature_stays_in_its_chart(page_of, place):
    document = plain()
    found = document["subjects"][0]["temperature"]
    found["best"] = {"value": found["grid"][place], "fitted_on": "validation"}
    page = page_of(document)
    for at in (60, 0, len(found["grid"]) - 1):
        slide(page, at)
        for name in ("ece", "nll"):
            chart = page.locator(f"[data-chart={name}-temperature]").bounding_box()
            label = page.locator(f"[data-chart={name}-temperature] .note.star").bounding_box()
            assert chart["x"] <= label["x"]
            assert label["x"] + label["width"] <= chart["x"] + chart["width"]
