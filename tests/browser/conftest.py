"""A browser for a test session, and pages that must neither complain nor reach for the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calattn.report.page import page_html, write_page
from tests.browser import chromium


@pytest.fixture(scope="package")
def browser() -> Iterator:
    if reason := chromium.missing():
        pytest.skip(f"browser: {reason}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=chromium.executable(), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser) -> Iterator[Callable]:
    """opened(path, width=…, scheme=…) gives a page; at the end of the test, none may have complained or asked for anything."""
    contexts, complaints = [], []

    def open_page(path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: note(request.url))
        page.goto(path.as_uri())
        return page

    def note(url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            complaints.append(f"request: {url}")

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page_of(opened, tmp_path) -> Callable:
    """page_of(document, width=…, scheme=…) gives the page of a document."""

    def open_page(document: dict, **options: object):
        return opened(write_page(page_html(document), tmp_path / "p.html"), **options)

    return open_page
