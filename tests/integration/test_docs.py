"""Every Python block of the README and the docs runs, page by page, top to bottom, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calattn.backbones import BACKBONES
from calattn.data import DATASETS
from calattn.heads import HEADS
from calattn.losses import LOSSES
from calattn.metrics.state import METRICS
from calattn.posthoc.catalogue import CALIBRATORS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
@pytest.mark.usefixtures("untyped")
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for registry in (BACKBONES, DATASETS, HEADS, LOSSES, METRICS, CALIBRATORS):  # what a page adds is gone after it
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    text = page.read_text()
    names: dict[str, object] = {"__name__": "__docs__"}
    for block in BLOCK.finditer(text):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(page), "exec"), names)  # errors then show the page's own line


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        prose = CODE.sub("", page.read_text())
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
