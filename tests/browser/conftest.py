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


@pytest.fixture(scope="package")
def idle() -> list:
    """Pages of earlier tests, as good as new: each in a context of its own, which takes longer to start than a page to draw."""
    return []


@pytest.fixture
def opened(browser, idle) -> Iterator[Callable]:
    """opened(path, width=…, scheme=…) gives a page; at the end of the test, none may have complained or asked for anything."""
    pages, complaints = [], []
    listeners = {
        "console": lambda message: complaints.append(f"console {message.type}: {message.text}"),
        "pageerror": lambda error: complaints.append(f"error: {error}"),
        "dialog": lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        "request": lambda request: note(request.url),
    }

    def open_page(path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light"):
        page = idle.pop() if idle else browser.new_context().new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        for event, listener in listeners.items():
            page.on(event, listener)
        page.goto(path.as_uri())
        return page

    def note(url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            complaints.append(f"request: {url}")

    yield open_page
    for page in pages:
        page.evaluate("localStorage.clear()")
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.goto("about:blank")
        page.emulate_media(media="null")
        page.context.clear_permissions()
        idle.append(page)
    assert complaints == []


@pytest.fixture
def page_of(opened, tmp_path) -> Callable:
    """page_of(document, width=…, scheme=…) gives the page of a document."""

    def open_page(document: dict, **options: object):
        return opened(write_page(page_html(document), tmp_path / "p.html"), **options)

    return open_page
