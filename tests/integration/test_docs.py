"""Every Python block of the README and the docs runs, page by page, top to bottom, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calattn.backbones import BACKBONES
from calattn.data import DATASETS
from calattn.heads import HEADS
from calattn.losses import LOSSES
from calattn.metrics import METRICS
from calattn.posthoc import CALIBRATORS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
@pytest.mark.usefixtures("untyped")
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for registry in (
        BACKBONES,
        DATASETS,
        HEADS,
        LOSSES,
        METRICS,
        CALIBRATORS,
    ):  # what a page registers is forgotten after it
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    text = page.read_text()
    names: dict[str, object] = {"__name__": "__docs__"}
    for block in BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        source = "\n" * line + block.group(1)  # errors then show the page's own line
        exec(compile(source, str(page), "exec", dont_inherit=True), names)  # without this file's __future__


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        prose = CODE.sub("", page.read_text())
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_files_that_the_architecture_names_exist():
    named = re.findall(r"`([a-z_0-9]+(?:/[\w.]+)*/?(?:\.\w+)?)`", (ROOT / "docs/architecture.md").read_text())
    paths = [name for name in named if "/" in name or name.endswith(".py")]
    assert len(paths) > 40
    for name in paths:
        assert any((base / name).exists() for base in (ROOT, ROOT / "src/calattn", ROOT / "src/calattn/data")), name
