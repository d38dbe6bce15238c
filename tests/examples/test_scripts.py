"""Each example runs as a user starts it, offline, and its head lowers the NLL of the test images."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = ["plain_loop", "lightning_module", "huggingface_trainer", "timm_train"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def ran(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=folder,
        env={**os.environ, **OFFLINE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(folder.iterdir()) == []  # it leaves nothing behind
    return done.stdout


def numbers(shown: str, name: str) -> dict[str, float]:
    (line,) = re.findall(rf"^{name}: (.*)$", shown, re.MULTILINE)
    return {metric: float(value) for metric, value in (part.split() for part in line.split(", "))}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name, tmp_path):
    shown = ran(name, tmp_path)
    before, after = numbers(shown, "as trained"), numbers(shown, "calattn")
    assert before["accuracy"] > 0.6  # of ten classes: it has learned
    assert after["nll"] < before["nll"]
    assert after["accuracy"] > before["accuracy"] - 0.03
    if name == "lightning_module":
        assert numbers(shown, "by log_dict")["nll"] == after["nll"]  # Lightning logs what `evaluate` says


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60


def test_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    for key, value in OFFLINE.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the notebook draws in itself
    notebook = nbformat.read(EXAMPLES / "calattn.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without outputs
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": tmp_path}}).execute()
    texts = [output.text for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
    shown = "".join(texts)
    (verdict,) = re.findall(r"^NLL .*$", shown, re.MULTILINE)
    assert verdict.endswith("more than chance")
    assert float(verdict.split("→")[0].split()[-1]) > float(verdict.split("→ ")[1].split(":")[0])
    one, ours = map(float, re.findall(r"'(?:one temperature|calattn)': ([0-9.]+)", shown))
    assert ours < one  # on noisy images
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2
