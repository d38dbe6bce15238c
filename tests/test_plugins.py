"""Plugins: loaded from the command line, handed on to child processes, written down in a run, never imported for its sake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calattn import losses, plugins
from calattn.heads import HEADS
from calattn.registry import Registry
from calattn.runs.load import load
from reproduction.cells import GridCell
from reproduction.results import ResultStore
from reproduction.runner import Work
from tests.cli_runner import invoke, refused
from tests.forking import Forked
from tests.small_runs import CPU, SMALL

LOSS = """
from calattn import losses

@losses.LOSSES.register("{name}")
def {name}():
    return lambda logits, labels: 2 * losses.ce(logits, labels)
"""
HEAD = """
import torch
from calattn.heads import HEADS, Head, NoHead

@HEADS.register("{name}")
def {name}(*, num_features, num_classes, hidden, bias):
    return NoHead()
"""
FLAGS = [part for change in SMALL for part in ("--set", change)]
ONE_EPOCH = [*FLAGS, "--set", "train.epochs=1", "--set", "schedule.warmup_epochs=0", "--accelerator", "cpu"]


@pytest.fixture(autouse=True)
def as_before(monkeypatch, tmp_path):
    """Registries, modules and the variable are those of before again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    for registry in (losses.LOSSES, HEADS):
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("own_"):
            del sys.modules[name]


def forget() -> None:
    """As in a new process: nothing of the plugins is known."""
    plugins._loaded.clear()
    os.environ[plugins.VARIABLE] = ""
    for registry in (losses.LOSSES, HEADS):
        for name in [name for name in registry if name.startswith("own_")]:
            del registry._items[name]
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def plugin(name: str, text: str = LOSS) -> Path:
    path = Path(f"{name}.py")
    path.write_text(text.format(name=name))
    return path


@pytest.mark.parametrize(
    "line",
    [
        "--plugin own_a.py --plugin own_b.py list losses own",
        "--plugin=own_a.py list losses own --plugin ./own_b.py",
        "--plugin own_a.py,own_b.py list losses own --plugin own_a.py",
        "--plugin with,comma/own_a.py --plugin own_b.py list losses own",
    ],
)
def test_what_a_plugin_registers_is_known_to_the_command(capsys, line):
    paths = [plugin("own_a"), plugin("own_b")]
    if "comma" in line:
        Path("with,comma").mkdir()
        paths[0] = paths[0].rename("with,comma/own_a.py")
    for _ in range(2):  # the second time as a child does, from the variable alone
        result = invoke(capsys, *line.split())
        assert result.code == 0, result.err
        assert "own_a" in result.out
        assert "own_b" in result.out
        assert os.environ[plugins.VARIABLE].splitlines() == [str(path.resolve()) for path in paths]
        line, named = "list losses own", os.environ[plugins.VARIABLE]
        forget()
        os.environ[plugins.VARIABLE] = named


def test_the_variable_names_plugins_and_modules_are_found_by_name(capsys, monkeypatch):
    plugin("own_c"), plugin("own_d")
    monkeypatch.syspath_prepend(".")
    monkeypatch.setenv(plugins.VARIABLE, "own_c, own_d.py")
    result = invoke(capsys, "list", "losses", "own", "--json")
    assert [item["name"] for item in result.json["items"]] == ["own_c", "own_d"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("own_e.py", None, "the plugin own_e.py does not exist; name a Python file"),
        ("own_module", None, "the plugin own_module cannot be imported: there is no such module; install it, or"),
        ("own_k", "", "did you mean the file own_k.py?"),
        ("own_f.py", "1 / 0", "ZeroDivisionError: division by zero (own_f.py, line 1); fix the plugin"),
        ("own_g.py", "def (", "SyntaxError: invalid syntax (own_g.py, line 1); fix"),
        ("own_h.py", "import nothing_such", "ModuleNotFoundError: No module named 'nothing_such' (own_h.py, line 1)"),
        ("own_i.py", "raise SystemExit(0)", "SystemExit: 0 (own_i.py, line 1)"),
        ("json.py", "", "the plugin json.py would be the module json, which is another one"),
        ("own_j.py", LOSS.format(name="ce"), "ValueError: loss 'ce' is registered twice; choose another name"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named_in_one_line(capsys, name, text, words):
    if text is not None:
        Path(name).with_suffix(".py").write_text(text)
    result = invoke(capsys, "--plugin", name, "list", "losses")
    assert result.code == 2
    assert words in result.err
    assert result.err.count("\n") == 1
    assert not result.out


def test_help_does_not_wait_for_plugins(capsys, monkeypatch):
    Path("own_l.py").write_text("1 / 0")
    monkeypatch.setenv(plugins.VARIABLE, "own_l.py")
    for line in (["--help"], ["train", "--help"], ["--version"]):
        assert invoke(capsys, *line).code == 0
    assert "--plugin" in invoke(capsys, "--help").out
    assert invoke(capsys, "list").code == 2
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert "--plugin needs a module or a .py file after it" in invoke(capsys, "list", "--plugin").err


@pytest.mark.parametrize("kind", ["loss", "head", "backbone", "data set", "metric", "calibrator"])
def test_an_unknown_name_says_how_to_load_a_plugin(kind):
    with pytest.raises(ValueError, match=f"unknown {kind} 'x'.*a {kind} of your own needs calattn --plugin FILE.py"):
        Registry(kind)["x"]


def test_a_run_remembers_its_plugins_and_never_imports_them_by_itself(capsys):
    plugin("own_loss"), plugin("own_head", HEAD)
    names = ["--set", "loss.name=own_loss", "--set", "model.head=own_head", "--set", "loss.options={}"]
    line = ["train", "digits", "--out", "run", *ONE_EPOCH, *names]
    given = ["--plugin", "own_loss.py", "--plugin", "own_head.py"]
    assert invoke(capsys, *given, *line).code == 0
    noted = json.loads(Path("run/environment.json").read_text())["plugins"]
    assert [each["name"] for each in noted] == ["own_loss.py", "own_head.py"]
    assert all(len(each["sha256"]) == 64 for each in noted)

    forget()
    message = refused(capsys, "predict", "run", "--accelerator", "cpu")
    assert "unknown head 'own_head'; run was trained with --plugin own_loss.py --plugin own_head.py: pass" in message
    assert not [name for name in sys.modules if name.startswith("own_")]
    with pytest.raises(ValueError, match=r"run was trained with --plugin own_loss\.py"):
        load("run")
    assert "run was trained with --plugin own_loss.py" in refused(capsys, *line, "--set", "train.epochs=2")
    # The loss is not needed to predict, and evaluate needs nothing.
    result = invoke(capsys, "--plugin", "own_head.py", "predict", "run", "--accelerator", "cpu")
    assert result.code == 0, result.err
    forget()
    assert invoke(capsys, "evaluate", "run", "--bootstrap", "0").code == 0

    plugin("own_loss", LOSS + "# other code\n")
    result = invoke(capsys, *given, *line)
    assert result.code == 0, result.err
    assert "own_loss.py has changed since the run in run began" in result.err

    forget()  # a record that somebody else wrote cannot break the message
    for given in ("not json", "[]", '{"plugins": 3}', '{"plugins": ["a"]}', '{"plugins": [{"name": 1}]}'):
        Path("run/environment.json").write_text(given)
        message = refused(capsys, "predict", "run", "--accelerator", "cpu")
        assert "unknown head 'own_head'; did you mean" in message or "unknown head 'own_head'; known" in message


def test_several_processes_have_the_plugin(tmp_path):
    """Fabric starts the second one with the same command line; the loss of either fails where it is not known."""
    plugin("own_loss")
    line = [sys.executable, "-m", "calattn", "train", "digits", "--out", "run", *ONE_EPOCH, "--devices", "2"]
    line += ["--set", "loss.name=own_loss", "--set", "loss.options={}", "--plugin", "own_loss.py"]
    clean = {key: value for key, value in os.environ.items() if key != plugins.VARIABLE}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=clean, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_process_that_is_started_by_another_finds_the_plugins_in_the_variable(capsys):
    plugin("own_loss")
    assert invoke(capsys, "--plugin", "own_loss.py", "list", "losses").code == 0
    code = "from calattn import losses, plugins; plugins.load(); print('own_loss' in losses.LOSSES)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "True\n"


def test_the_workers_of_a_grid_have_the_plugins(tmp_path, monkeypatch):
    Path("own_note.py").write_text("from pathlib import Path\nPath('noted').touch()\n")
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "own_note.py"))
    work = Work(store=ResultStore(tmp_path, "reduced"), runs=tmp_path, runtime=CPU)
    broken = GridCell(dataset="cifar10", model="deit", loss="no_such_loss")
    code = "import runpy; runpy.run_module('reproduction.runner', run_name='__main__', alter_sys=True)"
    worker = Forked(code, work.order(broken), environment={})
    _, said = worker.communicate()
    assert (worker.returncode, Path("noted").exists()) == (1, True), said
