"""Each example runs as a user starts it, offline, and its head lowers the NLL of the test images; the demo runs too."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from calattn.cli.app import COMMANDS
from examples.demo import STORY
from tests.forking import Forked

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ["plain_loop", "lightning_module", "huggingface_trainer", "timm_train"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


# As `python FILE` does: imports are looked for beside the file first.
SCRIPT = """
import runpy, sys
from huggingface_hub import constants
constants.HF_HUB_OFFLINE = True
sys.argv[:1] = []
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def ran(name: str, *arguments: object) -> str:
    process = Forked(SCRIPT, EXAMPLES / f"{name}.py", *arguments, environment=OFFLINE)
    out, err = process.communicate()
    assert process.returncode == 0, err[-3000:]
    return out


def ran_afresh(name: str) -> str:
    line, environment = [sys.executable, EXAMPLES / f"{name}.py"], {**os.environ, **OFFLINE}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def numbers(shown: str, name: str) -> dict[str, float]:
    (line,) = re.findall(rf"^{name}: (.*)$", shown, re.MULTILINE)
    return {metric: float(value) for metric, value in (part.split() for part in line.split(", "))}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name, tmp_path, monkeypatch):
    """One in a new interpreter; the others in copies of this one, where calattn comes before timm and torchvision anyway."""
    monkeypatch.chdir(tmp_path)
    shown = ran_afresh(name) if name == "plain_loop" else ran(name)
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60
    imported = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    assert next(each for each in imported if each not in sys.stdlib_module_names) == "calattn"
    before, after = numbers(shown, "as trained"), numbers(shown, "calattn")
    assert before["accuracy"] > 0.6  # of ten classes: it has learned
    assert after["nll"] < before["nll"]
    assert after["accuracy"] > before["accuracy"] - 0.03
    if name == "lightning_module":
        assert numbers(shown, "by log_dict")["nll"] == after["nll"]  # Lightning logs what `evaluate` says


@pytest.mark.parametrize("line", dict.fromkeys(command for _, *commands in STORY for command in commands))
def test_the_demo_types_commands_that_exist(line):
    """Parsed and not run: a flag that is renamed must not be found by whoever tries `make demo` first."""
    name, *arguments = shlex.split(line.format(out="runs/demo"))
    next(each for each in COMMANDS if each.name == name).load().make_context(name, arguments)


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    ran("demo", "--epochs", "1", "--out", tmp_path / "demo")
    assert (tmp_path / "demo" / "page.html").stat().st_size > 100_000
    assert (tmp_path / "demo" / "reliability.png").stat().st_size > 10_000


def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    for key, value in OFFLINE.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the notebook draws in itself
    notebook = nbformat.read(EXAMPLES / "calattn.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without outputs
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = "".join(output.text for output in outputs if "text" in output)
    (verdict,) = re.findall(r"^NLL .*$", shown, re.MULTILINE)
    assert verdict.endswith("more than chance")
    assert float(verdict.split("→")[0].split()[-1]) > float(verdict.split("→ ")[1].split(":")[0])
    one, ours = map(float, re.findall(r"'(?:one temperature|calattn)': ([0-9.]+)", shown))
    assert ours < one  # on noisy images
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
