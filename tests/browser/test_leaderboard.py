"""The leaderboard in a real Chromium."""

from __future__ import annotations

import pytest

from calattn.report.page.writing import leaderboard_html, write_page

METRICS = [
    {"name": "accuracy", "title": "accuracy", "factor": 100, "places": 2, "unit": "%", "better": "high"},
    {"name": "ece", "title": "ECE", "factor": 100, "places": 2, "unit": "%", "better": "low"},
]


def row(title: str, accuracy: float | None, ece: float | None, head: str, **more: object) -> dict:

    def known(value: float | None) -> dict:
        return {"value": value, "low": value and value - 0.001, "high": value and value + 0.001}

    values = {"accuracy": known(accuracy), "ece": known(ece)}
    return {
        "title": title,
        "href": None,
        "values": values if ece is not None else {},
        "facts": {"head": head},
        "group": "test",
        "better_than": {},
        "note": None,
    } | more


def written(rows: list[dict], path, **more: object):
    document = {"schema": 1, "version": "0", "made": "2026-01-01T00:00:00+00:00", "title": "Runs", "note": "test split"}
    document |= {"warnings": [], "remark": None, "metrics": METRICS, "rows": rows}
    return write_page(leaderboard_html(document | more), path)


@pytest.fixture
def board(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.html").write_text("<title>page of a</title>", encoding="utf-8")
    rows = [
        row("a", 0.8, 0.05, "none", href="pages/a.html"),
        row("b", 0.9, 0.07, "calattn", better_than={"accuracy": [0, 2]}),
        row("<img src=x onerror=alert(1)>", 0.7, 0.02, "calattn"),
        row("unfinished", None, None, "calattn", note="no predictions yet"),
    ]
    return written(rows, tmp_path / "index.html")


def titles(page) -> list[str]:
    lines = page.locator("[data-table=leaderboard] tbody tr:not([hidden]) [data-column=title]").all_inner_texts()
    return [line.split("\n")[0] for line in lines]


def test_it_sorts_filters_and_links(opened, board):
    assert opened(board, width=390).evaluate("document.documentElement.scrollWidth") <= 390
    page = opened(board)
    assert page.locator("a.skip").text_content() == "Skip to the table"
    assert "test split" in page.locator("body").inner_text()
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


def best(page, metric: str) -> set[str]:
    lines = page.locator(f"[data-table=leaderboard] tbody tr:has(td.best[data-column=metric-{metric}])")
    return {line.split("\n")[0] for line in lines.locator("[data-column=title]").all_inner_texts()}


def test_only_runs_on_the_same_samples_compete(opened, tmp_path):
    rows = [
        row("a", 0.80, 0.05, "none", group="test", better_than={"ece": [1]}),
        row("b", 0.90, 0.07, "calattn", group="test", better_than={"accuracy": [0]}),
        row("c", 0.70, 0.02, "none", group="shifted", better_than={"ece": [3]}),
        row("d", 0.70, 0.03, "calattn", group="shifted"),
        row("alone", 0.99, 0.01, "calattn", group="other"),
        row("broken.npz", None, None, "none", note="broken.npz: no labels; " + "x" * 200, group="broken.npz"),
    ]
    page = opened(written(rows, tmp_path / "i.html"))
    assert best(page, "accuracy") == {"b"}, "c and d are equal"
    assert best(page, "ece") == {"a", "c"}
    marked = page.locator("td.best").first
    assert marked.get_attribute("title") == "best of the runs shown on the same samples, by more than chance"
    page.locator("[data-fact=head]").select_option(label="calattn")
    assert best(page, "ece") == set(), "one of each group is left"
    page.locator("[data-fact=head]").select_option(label="any")
    why = page.locator(".why")
    assert why.inner_text().startswith("broken.npz: no labels")
    cell = page.locator("tr:has(.why) [data-column=title]").bounding_box()
    box = why.bounding_box()
    assert box["x"] + box["width"] <= cell["x"] + cell["width"] + 1, "a long message stays in its cell"


@pytest.mark.parametrize(("beaten", "stars"), [([1, 2], {"a"}), ([1], set()), ([], set())])
def test_a_star_needs_a_paired_difference_from_each_other(opened, tmp_path, beaten, stars):
    """Whatever the intervals, which are of one run each."""
    rows = [row(name, 0.8, 0.05 + k / 100, "none", group="test") for k, name in enumerate("abc")]
    rows[0]["better_than"] = {"ece": beaten}
    page = opened(written(rows, tmp_path / "i.html"))
    assert best(page, "ece") == stars
    assert best(page, "accuracy") == set()
    page.locator("[data-control=filter]").fill("a")
    assert best(page, "ece") == set(), "alone it is no best"


@pytest.mark.parametrize(
    ("names", "key"), [(("ece", "nll"), "nll"), (("accuracy", "ece"), "ece"), (("accuracy",), "accuracy")]
)
def test_it_is_sorted_by_nll_first(opened, tmp_path, names, key):
    metrics = [{**METRICS[0], "name": name, "better": "high" if name == "accuracy" else "low"} for name in names]
    rows = [{**row(str(k), 0.5, 0.5, "none"), "values": {name: {"value": k} for name in names}} for k in (2, 1, 3)]
    page = opened(written(rows, tmp_path / "i.html", metrics=metrics))
    assert page.locator("thead [aria-sort]").get_attribute("data-column") == f"metric-{key}"
    assert titles(page) == (["3", "2", "1"] if key == "accuracy" else ["1", "2", "3"])


def test_a_warning_stands_above_the_table(opened, tmp_path):
    rows = [row("a", 0.8, 0.05, "none"), row("b", 0.9, 0.07, "none")]
    warnings = ["not the same data: a of <b>x</b>; b of y."]
    page = opened(written(rows, tmp_path / "i.html", warnings=warnings), width=390)
    said = page.locator("main > [data-warning]")
    assert said.inner_text() == "Warning: not the same data: a of <b>x</b>; b of y."
    assert said.bounding_box()["y"] < page.locator("[data-control=filter]").bounding_box()["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
