"""The README's command block: every line parses, and as a whole it runs in an empty folder, from top to bottom."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from calattn.cli.app import COMMANDS, run

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCK = re.search(r"## From the command line\s+```sh\n(.*?)```", README, re.DOTALL)
LINES = [shlex.split(line, comments=True)[1:] for line in BLOCK[1].splitlines()] if BLOCK else []


@pytest.mark.parametrize("line", LINES, ids=[" ".join(line) for line in LINES])
def test_a_line_is_a_command_and_its_inputs_were_made_by_the_lines_above(line):
    name, *arguments = line
    command = next(each for each in COMMANDS if each.name == name).load()
    given = command.make_context(name, list(arguments)).params
    above = [word for earlier in LINES[: LINES.index(line)] for word in earlier]
    inputs = given.get("paths") or [given.get("path") or given.get("run") or given.get("source")]
    for path in map(str, inputs):
        assert path in {"None", "digits", "runs", *above}, f"nothing above has made {path}"


def test_small_networks_have_names_of_their_own():
    """Not that of a network for 224 pixels, with its sizes overwritten."""
    docs = Path(__file__).parents[2] / "docs"
    for page in (README, *(path.read_text() for path in docs.glob("*.md"))):
        assert not re.search(r"patch16_224[^\n]*img_size=(?!224)", page)


@pytest.mark.slow
def test_the_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in LINES:
        short = ["--epochs", "1"] if line[0] == "train" else []
        assert run([*line, *short, *(["--threads", "1"] if line[0] in ("train", "teach", "predict") else [])]) == 0, (
            line
        )
    assert Path("predictions.csv").stat().st_size > 1000
    assert Path("report/index.html").is_file()
