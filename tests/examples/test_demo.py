"""The examples: the demo's commands are commands, and it runs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from calattn.cli.app import COMMANDS
from examples.demo import STORY

LINES = [command for _, *commands in STORY for command in commands]


@pytest.mark.parametrize("line", dict.fromkeys(LINES))
def test_the_demo_types_commands_that_exist(line):
    """Parsed and not run: a flag that is renamed must not be found by whoever tries `make demo` first."""
    name, *arguments = shlex.split(line.format(out="runs/demo"))
    command = next(each for each in COMMANDS if each.name == name).load()
    command.make_context(name, arguments)


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    demo = Path(__file__).parents[2] / "examples" / "demo.py"
    done = subprocess.run(
        [sys.executable, demo, "--epochs", "1", "--out", tmp_path / "demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "demo" / "page.html").stat().st_size > 100_000
    assert (tmp_path / "demo" / "reliability.png").stat().st_size > 10_000
