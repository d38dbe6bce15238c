"""The site builds without a warning, and holds every page, the API, the demo's page and the pictures."""

from __future__ import annotations

import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from PIL import Image

import calattn
from docs import pictures
from tests.test_imports import ALLOWED, COMPOSERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DEMO = "<!doctype html><title>stands in for the demo's page</title>"


def build(out: Path, demo: Path) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-W", "--keep-going", "-j", "1", "-b", "html", "-d", out / "trees"]
    line = [sys.executable, "-m", "sphinx", *options, DOCS, out / "site"]
    environment = {**os.environ, "CALATTN_DEMO_PAGE": str(demo), "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, line)), env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "page.html").write_text(DEMO)
    done = build(folder, folder / "page.html")
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "site"


def found(what: str, page: Path) -> list[str]:
    """Every value of an attribute on a page, such as `href|src`."""
    return [html.unescape(value) for value in re.findall(rf'\s(?:{what})="([^"]*)"', page.read_text())]


def test_every_page_is_there_and_in_the_contents(site):
    contents = set(re.findall(r'href="([a-z-]+\.html)"', (site / "index.html").read_text()))
    for page in DOCS.glob("*.md"):
        assert (site / f"{page.stem}.html").is_file()
        assert page.stem == "index" or f"{page.stem}.html" in contents, f"docs/index.md has no link to {page.name}"


def test_every_link_leads_somewhere(site):
    pages = {page: found("href|src", page) for page in site.rglob("*.html") if "_static" not in page.parts}
    ids = {page: {"", *found("id", page)} for page in pages}
    for page, targets in pages.items():
        for target in targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            goal = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert goal.exists(), f"{page.name} links to {target}"
            assert unquote(parts.fragment) in ids.get(goal, parts.fragment), f"{page.name} links to {target}"


def test_the_demo_is_embedded(site):
    assert (site / "_static" / "demo.html").read_text() == DEMO
    assert "_static/demo.html" in found("href|src", site / "demo.html")


def test_a_missing_demo_is_named_with_the_remedy(tmp_path):
    done = build(tmp_path, tmp_path / "nothing.html")
    assert done.returncode != 0
    assert "run `make demo`" in done.stderr


def test_the_api_has_every_public_name_with_a_docstring(site):
    ids = set(found("id", site / "api" / "calattn.html"))
    functions = [name for name in calattn.__all__ if not inspect.ismodule(getattr(calattn, name))]
    assert {f"calattn.{name}" for name in functions} <= ids
    shown = (site / "api" / "calattn.heads.html").read_text()
    text = re.sub(r"<[^>]+>", "", shown)
    assert "log s = level − low · σ(−v) + high · σ(v)" in text  # a formula, as it stands in the docstring
    assert "&gt;&gt;&gt; head = Taught(8, 3)" in text


def test_the_architecture_picture_shows_the_rooms_there_are():
    """Its boxes are the rooms of the import table, and the committed file is what the script draws."""
    assert (DOCS / "images" / "architecture.svg").read_text() == pictures.architecture(), "run python docs/pictures.py"
    drawn = {room for title, steps in pictures.LANES if title != "beside it" for rooms in steps for room in rooms}
    rooms = {name for name in ALLOWED.keys() | COMPOSERS if not name.startswith("_")}
    assert {room for room in drawn if ":" not in room} == rooms, "add the room to LANES of docs/pictures.py, and run it"


def test_the_gallery_is_what_the_script_draws(tmp_path):
    pictures.main(tmp_path)
    made = {path.name: path for path in (tmp_path / "gallery").iterdir()}
    committed = {path.name: path for path in (DOCS / "images" / "gallery").iterdir()}
    shown = set(re.findall(r"images/gallery/(\w+\.png)", (DOCS / "gallery.md").read_text()))
    assert made.keys() == committed.keys() == shown
    for name, path in made.items():
        assert hasattr(calattn.report, name.removesuffix(".png"))
        new, old = (np.asarray(Image.open(each).convert("L"), dtype=float) for each in (path, committed[name]))
        # Fonts differ between machines by a pixel; another figure differs by far more.
        assert abs(new.shape[0] - old.shape[0]) <= 8
        assert abs(new.mean() - old.mean()) < 4, f"{name} looks different: run python docs/pictures.py"
