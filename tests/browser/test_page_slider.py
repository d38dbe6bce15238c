"""What follows the slider, what a link keeps of it, and comparisons as pictures."""

from __future__ import annotations

import re

import pytest

import calattn
from calattn import distribution
from calattn.posthoc import contest
from calattn.report.contest import contest_document
from calattn.report.page import build_document, page_html, write_page
from calattn.report.page.document import contest_entry
from calattn.report.verdict import verdict_of
from tests.browser.test_page import exhibit, made, settled, shown, slide

LONG = "runs/resnet110_cifar100.focal-3_with_a_very_long_name_that_goes_on_and_on/seed_0.npz"


@pytest.fixture(scope="module")
def p() -> calattn.Predictions:
    return made(2000, boost=1.0)


@pytest.fixture(scope="module")
def one(p, tmp_path_factory):
    return write_page(page_html(build_document([exhibit(p)])), tmp_path_factory.mktemp("slider") / "one.html")


@pytest.fixture(scope="module")
def differences(p):
    return {k: calattn.compare(p, scaled(p, t), num_bootstrap=100) for k, t in enumerate((2.0, 8.0), start=1)}


@pytest.fixture(scope="module")
def three(p, differences, tmp_path_factory):
    exhibits = [exhibit(p, LONG), exhibit(scaled(p, 2.0), "warm"), exhibit(scaled(p, 8.0), "hot")]
    document = build_document(exhibits, comparisons=differences) | {"remark": "one training each: <b>not</b> another"}
    return write_page(page_html(document), tmp_path_factory.mktemp("slider") / "three.html")


def scaled(p: calattn.Predictions, temperature: float) -> calattn.Predictions:
    return p.replace(logits=p.logits / temperature)


@pytest.mark.parametrize("place", [20, 75, 110])
def test_the_headline_and_the_cards_are_those_of_python_at_that_temperature(opened, one, p, place):
    page = opened(one)
    headline = page.locator("[data-live=headline]")
    before = headline.text_content()
    assert before == verdict_of(p)["headline"]
    now = scaled(p, slide(page, place))
    temperature = page.locator("[data-live=temperature]").inner_text()
    wanted = verdict_of(now)
    assert headline.text_content() == f"At T = {temperature}, {wanted['headline']}"
    assert page.locator(f"[data-verdict={wanted['kind']}]").count() == 1
    assert page.locator("[data-live=detail]").inner_text().startswith(f"At T = 1, {before}.")
    values = calattn.evaluate(now, metrics=["accuracy", "ece", "nll", "brier"], num_bootstrap=0)
    own = calattn.evaluate(p, metrics=["ece"], num_bootstrap=30)["ece"]
    for name, row in values.items():
        card = page.locator(f"[data-live=card-{name}]")
        assert float(card.get_attribute("data-value")) == pytest.approx(row.value, abs=2e-5), name
        text = f"{row.value:.3f} nats" if name == "nll" else f"{100 * row.value:.2f} %"
        assert card.inner_text() == text
    assert page.locator("[data-card=ece] .card-now").inner_text().startswith(f"at T = 1: {100 * own.value:.2f} % [")
    page.locator("button[data-reset]").click()
    settled(page)
    assert headline.text_content() == before


def test_the_temperature_is_dragged_along_the_curve(opened, one):
    page = opened(one)
    chart = page.locator("[data-chart=nll-temperature]")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    across = [box["x"] + share * box["width"] for share in (0.5, 0.6, 0.75)]
    page.mouse.move(across[0], box["y"] + 60)
    page.mouse.down()
    seen = []
    for x in across[1:]:
        page.mouse.move(x, box["y"] + 60)
        settled(page)
        seen.append(shown(page, "temperature"))
    page.mouse.up()
    page.mouse.move(across[0], box["y"] + 60)
    settled(page)
    assert 1 < seen[0] < seen[1] == shown(page, "temperature")


def test_a_link_keeps_the_temperature_and_the_bins(opened, one):
    page = opened(one)
    temperature = slide(page, 80)
    page.locator("[data-control=bins]").select_option("30")
    page.locator("[data-control=binning]").select_option("count")
    settled(page)
    address = page.url.partition("#")[2]
    assert address == f"T={temperature:.5g}&bins=30&binning=count"
    ece = shown(page, "ece")
    again = opened(one)
    again.goto(page.url)
    again.reload()
    assert (shown(again, "temperature"), shown(again, "ece")) == (temperature, ece)
    assert again.locator("[data-control=bins]").input_value() == "30"
    again.locator("button[data-reset]").click()
    again.locator("[data-control=bins]").select_option("15")
    again.locator("[data-control=binning]").select_option("width")
    settled(again)
    assert "#" not in again.url
    for wrong in ("T=-3", "T=x&bins=7", "binning=<script>", "threshold=2", "method-ece"):
        again.goto(f"{one.as_uri()}#{wrong}")
        again.reload()
        assert shown(again, "temperature") == 1
        assert again.locator("[data-control=bins]").input_value() == "15"


def test_charts_are_copied_or_saved_as_svg_and_as_png(opened, one, tmp_path):
    page = opened(one)
    page.context.grant_permissions([])
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    figure = page.locator("figure:has([data-chart=reliability])")
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        figure.hover()
        with page.expect_download() as download:
            figure.locator(f"[data-copy={kind}]").click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.name == f"reliability.{kind.lower()}"
        assert path.read_bytes().startswith(start)
        if kind == "SVG":
            assert b"var(--" not in path.read_bytes(), "colours are written out"
            assert re.search(rb'<path class="line smooth"[^>]*style="[^"]*stroke: rgb', path.read_bytes())
    from PIL import Image

    with Image.open(path) as picture:
        assert min(picture.size) > 600
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50, "it is not empty"


def test_nothing_speaks_of_a_slider_on_paper(opened, one):
    page = opened(one)
    assert "slider" in page.locator("[data-panel=summary]").inner_text()
    assert page.locator(".controls").is_visible()
    page.emulate_media(media="print")
    assert "slider" not in page.locator("body").inner_text().lower()
    assert not page.locator(".controls").is_visible()
    assert page.locator("[data-panel=reliability] svg").is_visible()
    assert len(page.pdf()) > 20_000


def test_what_belongs_together_stays_on_one_sheet(opened, three):
    page = opened(three)
    page.emulate_media(media="print")
    for part in ("h2", "h3", ".panel-overlay", ".panel-overview", ".comparison", ".panel-forest > .chart"):
        assert page.locator(part).first.evaluate("(one) => getComputedStyle(one).breakInside") == "avoid", part
    assert not page.locator("#colophon").is_visible(), "one line would fill a sheet by itself"
    assert page.locator("#meta").inner_text().endswith(f"UTC by calattn {distribution.version()}")


def points(page, chart: str) -> list[dict]:
    """What the forest plot draws: where each dot is, in which group, and how it is coloured."""
    return page.locator(f"[data-chart={chart}] .forest-dot").evaluate_all(
        "(all) => all.map((dot) => ({x: dot.cx.baseVal.value, kind: dot.getAttribute('class').split(' ')[2]}))"
    )


def test_the_forest_plot_has_the_differences_where_they_are(opened, three, differences):
    page = opened(three)
    found = points(page, "forest")
    main = ("accuracy", "ece", "nll", "brier")
    rows = [differences[k][name] for name in ("accuracy", "nll", "brier", "ece") for k in (1, 2)]
    assert len(found) == 2 * len(main)
    for dot, row in zip(found, rows, strict=True):
        good = (row.difference < 0) == (row.name != "accuracy")
        assert dot["kind"] == ("noise" if not row.significant else "better" if good else "worse")
    zero = page.locator("[data-chart=forest] .line.zero").first.evaluate("(line) => line.x1.baseVal.value")
    assert found[0]["x"] == found[1]["x"] == pytest.approx(zero, abs=0.1), "a temperature changes no accuracy"
    nll = [dot["x"] - zeros for dot, zeros in zip(found[2:4], 2 * [zero_of(page, 1)], strict=True)]
    assert nll[0] / nll[1] == pytest.approx(
        differences[1]["nll"].difference / differences[2]["nll"].difference, rel=1e-3
    )
    arms = page.locator("[data-chart=forest] path.forest").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('d'))"
    )
    assert len(arms) == len(rows)
    unit = nll[0] / differences[1]["nll"].difference
    for arm, row in zip(arms[2:4], rows[2:4], strict=True):
        low, high = (float(part) - zero_of(page, 1) for part in re.match(r"M([-\d.]+) [\d.]+H([-\d.]+)", arm).groups())
        assert (low, high) == (pytest.approx(row.low * unit, abs=0.1), pytest.approx(row.high * unit, abs=0.1))
    assert page.locator("[data-chart=forest]").get_attribute("aria-label").count("against") == 2
    assert page.locator("[data-remark]").inner_text() == "Note: one training each: <b>not</b> another."


def zero_of(page, group: int) -> float:
    return page.locator("[data-chart=forest] .line.zero").nth(group).evaluate("(line) => line.x1.baseVal.value")


def test_three_have_an_overview_that_follows_the_slider_and_the_rest_is_folded(opened, three, p):
    page = opened(three)
    assert page.evaluate("document.documentElement.scrollHeight") < 5500
    assert not page.locator("[data-table=comparison]").first.is_visible()
    assert page.locator("[data-table=overview] tbody svg.thumb").count() == 3
    assert page.locator("[data-chart=overlay] path.line:not(.overlay-rim)").count() == 3
    slide_to = page.locator("button[data-own=ECE]")
    slide_to.click()
    settled(page)
    lowest = [overview(page, name, "ece") for name in ("s0", "s1", "s2")]
    assert max(lowest) < 0.04, "each at the T that is best for it"
    page.locator("button[data-reset]").click()
    settled(page)
    for name, temperature in (("s0", 1.0), ("s1", 2.0), ("s2", 8.0)):
        want = calattn.evaluate(scaled(p, temperature), metrics=["ece", "nll", "brier"], num_bootstrap=0)
        for metric, row in want.items():
            assert overview(page, name, metric) == pytest.approx(row.value, abs=2e-5)
            text = page.locator(f"[data-overview={name}] [data-live={metric}]").inner_text()
            assert text == (f"{row.value:.3f}" if metric == "nll" else f"{100 * row.value:.2f} %")
        words = page.locator(f"[data-overview={name}] [data-live=verdict]").inner_text()
        assert verdict_of(scaled(p, temperature))["headline"].startswith(f"{words}: ")
    page.locator("[data-overview=s1] a").click()
    settled(page)
    assert page.locator("[data-subject=s1] [data-chart=reliability]").is_visible()
    assert not page.locator("[data-subject=s0] [data-chart=reliability]").is_visible()
    page.locator("details.tables > summary").click()
    assert page.locator("[data-table=comparison]").first.is_visible()


def overview(page, subject: str, name: str) -> float:
    return float(page.locator(f"[data-overview={subject}] [data-live={name}]").get_attribute("data-value"))


@pytest.mark.parametrize("width", [390, 320])
def test_long_names_wrap_on_a_phone(opened, three, width):
    page = opened(three, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1 wbr").count() > 10, "the title breaks where parts of a name end"
    for chart in ("forest", "overlay", "overlay-nll"):
        box = page.locator(f"[data-chart={chart}]").bounding_box()
        texts = page.locator(f"[data-chart={chart}] text").evaluate_all(
            "(all) => all.map((text) => { const box = text.getBoundingClientRect(); return [box.left, box.right]; })"
        )
        assert all(left >= 0 and right <= width for left, right in texts), chart
        assert box["width"] > width / 2


def test_curves_of_several_share_one_scale(page_of, p, differences):
    pair = build_document([exhibit(p, "a"), exhibit(scaled(p, 8.0), "b")], comparisons={1: differences[2]})
    page = page_of(pair)
    for name in ("ece", "nll"):
        ticks = [
            page.locator(f"[data-subject={subject}] [data-chart={name}-temperature] .tick").all_text_contents()
            for subject in ("s0", "s1")
        ]
        assert ticks[0] == ticks[1]
        assert ticks[0][0] == "0"


def test_gaps_of_classes_start_from_one_line_and_are_in_proportion(opened, one):
    page = opened(one)
    cells = page.locator("[data-table=classes] tbody [data-column=gap]")
    found = cells.evaluate_all(
        """(all) => all.map((cell) => {
          const bar = cell.querySelector(".gap-bar").getBoundingClientRect();
          const track = cell.querySelector(".gap-track").getBoundingClientRect();
          return [bar.left - track.left, bar.right - track.left, track.width, cell.textContent];
        })"""
    )
    middles = {round(left if not text.startswith("−") else right) for left, right, _, text in found}
    assert middles == {round(found[0][2] / 2)}
    gaps = [float(text.replace("−", "-")) for *_, text in found]
    largest = max(map(abs, gaps))
    for (left, right, wide, _), gap in zip(found, gaps, strict=True):
        assert right - left == pytest.approx(max(1, wide / 2 * abs(gap) / largest), abs=1.5)


def test_a_contest_is_a_page(page_of, p):
    found = contest(p, methods=["temperature", "histogram", "isotonic"], num_bootstrap=100)
    rows = [row for row in found.rows if row.method == found.ranking[0]]
    exhibits = [exhibit(p, "as it is"), *(exhibit(row.predictions, row.method) for row in rows)]
    document = build_document(exhibits, comparisons={1: rows[0].from_before})
    document["contest"] = contest_entry(contest_document(found), found.before.options)
    page = page_of(document)
    table = page.locator("[data-table=contest] tbody tr")
    assert [line.get_attribute("data-method") for line in table.all()] == ["(as it is)", *found.ranking]
    assert "leads" in table.nth(1).inner_text()
    assert f"{found.rows[0].evaluation['nll'].value:.3f}" in table.nth(1).inner_text()
    assert page.locator("[data-panel=forest]").count() == 0, "the contest says it"
    finite = [row for row in found.rows if abs(row.from_before["nll"].difference) < float("inf")]
    assert len(points(page, "contest")) == len(finite) + len(found.rows)
    assert page.locator("[data-panel=contest] .sentence").first.inner_text() == f"best by NLL{rest_of(found)}."


def rest_of(found) -> str:
    from calattn.report import contest_verdict

    return contest_verdict(found)[0].removeprefix("best by NLL")
