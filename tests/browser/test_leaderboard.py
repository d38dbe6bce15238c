"""The leaderboard in a real Chromium."""

from __future__ import annotations

import pytest

from calattn.report.page.html import leaderboard_html, write_page
from tests.browser import chromium

pytestmark = pytest.mark.skipif(chromium.missing() is not None, reason=f"browser: {chromium.missing()}")

METRICS = [
    {"name": "accuracy", "title": "accuracy", "factor": 100, "places": 2, "unit": "%", "better": "high"},
    {"name": "ece", "title": "ECE", "factor": 100, "places": 2, "unit": "%", "better": "low"},
]


def row(title: str, accuracy: float | None, ece: float | None, head: str, **more: object) -> dict:
    values = {
        "accuracy": {"value": accuracy, "low": None, "high": None},
        "ece": {"value": ece, "low": 0.01, "high": 0.09},
    }
    return {
        "title": title,
        "href": None,
        "values": values if ece is not None else {},
        "facts": {"head": head},
        "note": None,
    } | more


@pytest.fixture
def board(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.html").write_text("<title>page of a</title>", encoding="utf-8")
    rows = [
        row("a", 0.8, 0.05, "none", href="pages/a.html"),
        row("b", 0.9, 0.07, "calattn"),
        row("<img src=x onerror=alert(1)>", 0.7, 0.02, "calattn"),
        row("unfinished", None, None, "calattn", note="no predictions yet"),
    ]
    document = {"schema": 1, "version": "0", "made": "2026-01-01T00:00:00+00:00", "title": "Runs", "note": "test split"}
    return write_page(leaderboard_html(document | {"metrics": METRICS, "rows": rows}), tmp_path / "index.html")


def titles(page) -> list[str]:
    lines = page.locator("[data-table=leaderboard] tbody tr:not([hidden]) [data-column=title]").all_inner_texts()
    return [line.split("\n")[0] for line in lines]


def test_it_sorts_filters_and_links(opened, board):
    page = opened(board)
    assert titles(page) == ["<img src=x onerror=alert(1)>", "a", "b", "unfinished"]  # by ECE, holes last
    page.locator("thead [data-column=metric-accuracy] button").click()
    first = titles(page)
    page.locator("thead [data-column=metric-accuracy] button").click()
    second = titles(page)
    assert sorted([first[:3], second[:3]]) == sorted(
        [["b", "a", "<img src=x onerror=alert(1)>"], ["<img src=x onerror=alert(1)>", "a", "b"]]
    )
    assert first[3] == second[3] == "unfinished"
    assert "no predictions yet" in page.locator("[data-table=leaderboard]").inner_text()
    page.locator("[data-control=filter]").fill("b")
    assert titles(page) == ["b"]
    page.locator("[data-control=filter]").fill("")
    page.locator("[data-fact=head]").select_option(label="calattn")
    assert set(titles(page)) == {"b", "<img src=x onerror=alert(1)>", "unfinished"}
    assert page.locator("td.best[data-column=metric-accuracy]").inner_text().startswith("90.00")
    page.locator("[data-fact=head]").select_option(label="any")
    page.get_by_role("link", name="a", exact=True).click()
    assert page.title() == "page of a"


def test_it_says_which_predictions_it_judges(opened, board):
    assert "test split" in opened(board).locator("body").inner_text()


def test_a_phone_needs_no_sideways_scrolling(opened, board):
    assert opened(board, width=390).evaluate("document.documentElement.scrollWidth") <= 390
