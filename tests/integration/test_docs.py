"""What README and docs show runs: every Python block, page by page in an empty folder; the README's commands, as one block."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from calattn.backbones import BACKBONES
from calattn.cli.app import COMMANDS, run
from calattn.data import DATASETS
from calattn.heads import HEADS
from calattn.losses import LOSSES
from calattn.metrics import METRICS
from calattn.posthoc import CALIBRATORS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND_LINE = PAGES[0].read_text().partition("## From the command line\n\n```sh\n")[2].partition("```")[0]
LINES = [shlex.split(line, comments=True)[1:] for line in COMMAND_LINE.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
@pytest.mark.usefixtures("untyped")
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for registry in (BACKBONES, DATASETS, HEADS, LOSSES, METRICS, CALIBRATORS):  # what a page registers is forgotten
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    text = page.read_text()
    names: dict[str, object] = {"__name__": "__docs__"}
    for block in PYTHON.finditer(text):
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


def test_small_networks_have_names_of_their_own():
    """Not that of a network for 224 pixels, with its sizes overwritten."""
    assert not [page.name for page in PAGES if re.search(r"patch16_224[^\n]*img_size=(?!224)", page.read_text())]


def test_the_readme_has_commands():
    assert len(LINES) >= 10


@pytest.mark.parametrize("line", LINES, ids=[" ".join(line) for line in LINES])
def test_a_line_is_a_command_and_its_inputs_were_made_by_the_lines_above(line):
    name, *arguments = line
    command = next(each for each in COMMANDS if each.name == name).load()
    given = command.make_context(name, list(arguments)).params
    above = [word for earlier in LINES[: LINES.index(line)] for word in earlier]
    inputs = given.get("paths") or [given.get("path") or given.get("run") or given.get("source")]
    for path in map(str, inputs):
        assert path in {"None", "digits", "runs", *above}, f"nothing above has made {path}"


@pytest.mark.slow
def test_the_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        short = ["--epochs", "1"] if line[0] == "train" else []
        short += ["--threads", "1"] if line[0] in ("train", "teach", "predict") else []
        assert run([*line, *short]) == 0, line
    assert Path("predictions.csv").stat().st_size > 1000
    assert Path("report/index.html").is_file()
