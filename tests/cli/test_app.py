"""The application: help without waiting, versions, completion, exit codes, signals."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calattn import cli
from calattn.cli import app, errors
from calattn.posthoc import TemperatureScaling
from tests.cli_runner import invoke, predictions, ran, refused, write_npz
from tests.forking import Forked

COMMANDS = [entry.name for entry in app.COMMANDS]


def test_version(capsys):
    result = invoke(capsys, "--version")
    assert (result.code, result.out) == (0, f"calattn {importlib.metadata.version('calattn')}\n")


def test_the_console_command_is_installed():
    points = importlib.metadata.distribution("calattn").entry_points
    (script,) = [point for point in points if point.group == "console_scripts"]
    assert script.name == "calattn"
    assert script.load() is cli.main


def test_interrupted_while_importing(capsys, monkeypatch):
    """Python raises KeyboardInterrupt wherever it is: here in the first line of the application."""

    class Interrupts:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "calattn.cli.app", Interrupts())
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 130
    assert capsys.readouterr().err == "calattn: interrupted\n"


def test_help_lists_every_command_with_its_line(capsys):
    result = ran(capsys, "--help")
    for entry in app.COMMANDS:
        assert entry.name in result.out
        assert entry.help.split()[0] in result.out
    assert "Exit codes" in result.out
    assert str(errors.BROKEN_PIPE) in result.out


@pytest.mark.parametrize("name", [*COMMANDS, "data list", "data get", "data show"])
def test_every_command_helps_with_examples(capsys, name):
    result = ran(capsys, *name.split(), "--help")
    assert f"Usage: calattn {name}" in result.out
    if name != "data":  # a group: its commands have the examples
        assert f"calattn {name}" in result.out.partition("Examples")[2]


def test_every_flag_of_work_with_runs_and_files_is_in_a_panel_and_shared_ones_say_the_same():
    texts: dict[str, set[str]] = {}
    for name in ("train", "teach", "predict", "evaluate", "compare", "calibrate", "report"):
        (command,) = [entry.load() for entry in app.COMMANDS if entry.name == name]
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert parameter.rich_help_panel, (name, parameter.opts)
                assert len(parameter.help) >= 10, (name, parameter.opts)
                texts.setdefault(parameter.opts[0], set()).add(parameter.help)
    own = {
        "--out",
        "--write",
        "--checkpoint",
        "--split",
        "--data",
        "--seed",
        "--overwrite",
        "--validation",
        "--features",
        "--group",
    }
    assert {flag for flag, said in texts.items() if len(said) > 1} == own, "these mean something else in each command"


@pytest.mark.parametrize("words", [(), ("data",)])
def test_no_command_shows_the_help_and_nothing_else(capsys, words):
    result = invoke(capsys, *words)
    assert (result.code, result.err) == (2, "")
    helps = [invoke(capsys, *words, flag).out.rstrip() for flag in ("-h", "--help")]
    assert helps == 2 * [result.out.rstrip()]


def test_help_shows_no_python_types(capsys):
    for words in ((), ("evaluate",), ("data", "get"), ("train",)):
        shown = invoke(capsys, *words, "-h").out
        assert "bool" not in shown
        assert "list[" not in shown


def test_help_imports_no_command_and_nothing_heavy():
    code = (
        "import sys\n"
        "from calattn.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "commands = [name for name in sys.modules if name.startswith('calattn.cli.')]\n"
        "heavy = {'numpy', 'torch', 'timm', 'torchvision', 'sklearn', 'scipy', 'matplotlib', 'pydantic', 'pyarrow'}\n"
        "print(sorted(commands), sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stderr.strip()
        == "['calattn.cli.app', 'calattn.cli.console', 'calattn.cli.errors', 'calattn.cli.plain'] []"
    )


def test_completion_knows_commands_and_options(capsys, monkeypatch):
    """As bash asks for it."""
    monkeypatch.setenv("_CALATTN_COMPLETE", "complete_bash")

    def complete(words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        return invoke(capsys).out.split()

    assert complete("calattn ev") == ["evaluate"]
    assert "--metrics" in complete("calattn evaluate --met")
    assert complete("calattn train dig") == ["digits"]
    assert complete("calattn evaluate a.npz -m accuracy,debi") == ["accuracy,debiased_ece"]
    assert complete("calattn calibrate a.npz --method temperature_") == ["temperature_ece"]
    assert complete("calattn data get svh") == ["svhn"]
    assert complete("calattn predict runs/a --checkpoint best-a") == ["best-accuracy"]


@pytest.mark.parametrize("word", ["evalute", "--vresion"])
def test_typos_get_a_suggestion(capsys, word):
    result = refused(capsys, word)
    assert "evaluate" in result or "--version" in result


def test_interrupt_is_130(capsys, monkeypatch, tmp_path):
    path = write_npz(tmp_path / "a.npz", predictions())

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("calattn.evaluate", stop)
    result = invoke(capsys, "evaluate", path)
    assert (result.code, result.err) == (130, "calattn: interrupted\n")


def test_a_bug_is_70_and_asks_for_debug(capsys, monkeypatch, tmp_path):
    path = write_npz(tmp_path / "a.npz", predictions())

    def broken(*_, **__):
        raise TypeError("that was not expected")

    monkeypatch.setattr("calattn.evaluate", broken)
    result = invoke(capsys, "evaluate", path)
    assert result.code == 70
    assert "rerun with --debug" in result.err
    assert len(result.err.splitlines()) == 1
    with pytest.raises(TypeError, match="that was not expected"):
        invoke(capsys, "evaluate", path, "--debug")
    monkeypatch.setenv("CALATTN_DEBUG", "1")
    with pytest.raises(TypeError, match="that was not expected"):
        invoke(capsys, "evaluate", path)


def test_errors_as_json(capsys):
    result = invoke(capsys, "evaluate", "nowhere.npz", "--json")
    assert (result.code, result.out) == (2, "")
    assert json.loads(result.err)["exit_code"] == 2
    assert "nowhere.npz does not exist" in json.loads(result.err)["error"]


@pytest.mark.parametrize("arguments", ["--help", "--version", "list losses --json", "nonsense 2>&1"])
def test_a_reader_that_leaves_early_is_no_error(arguments):
    """Tables and help are Rich's, the version is click's, JSON is ours: each meets the closed pipe in its own way."""
    gone = f"{sys.executable} -m calattn {arguments} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", gone], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("141\n", "")


def forked(module: str, *arguments: object, **more: Any) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of `python -m MODULE`; torch is imported already."""
    code = f"import runpy, sys\nsys.modules.pop('{module}.__main__', None)\nrunpy.run_module('{module}', run_name='__main__')"
    process = Forked(code, *arguments, environment={}, **more)
    said = process.communicate()
    return process.returncode, *said


@pytest.mark.parametrize("line", ["calattn list optimizers", "reproduction --plan"])
def test_a_reader_that_leaves_before_torch_is_imported_is_no_error(line):
    def leave() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    assert forked(*line.split(), before=leave) == (141, "", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_sigterm_is_143_says_so_and_runs_the_cleaning_up(tmp_path, as_json):
    code = (
        "import pathlib, sys, time, calattn.cli.app as app\n"
        "def slow(arguments):\n"
        f"    with app.errors.reported(as_json={as_json}, debug=False) as outcome:\n"
        "        try:\n"
        "            print('ready', flush=True); time.sleep(60)\n"
        "        finally:\n"
        f"            pathlib.Path({str(tmp_path / 'cleaned')!r}).touch()\n"
        "    return outcome.code\n"
        "app.run = slow\n"
        "app.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 143
    assert said == ('{"error": "terminated", "exit_code": 143}\n' if as_json else "calattn: terminated\n")
    assert (tmp_path / "cleaned").exists()


def encoded(encoding: str) -> Callable[[], None]:
    return lambda: [stream.reconfigure(encoding=encoding) for stream in (sys.stdout, sys.stderr)]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_terminal_lacks_are_spelt_out(tmp_path, encoding):
    path = write_npz(tmp_path / "a.npz", predictions())
    few = ("-m", "high_confidence_error_rate", "--bootstrap", 0)
    code, out, err = forked("calattn", "evaluate", path, *few, before=encoded(encoding))
    assert (code, err) == (0, "")
    assert "error rate at p >= 0.9" in out


def test_json_stays_json_where_the_terminal_lacks_letters(tmp_path):
    path = write_npz(tmp_path / "−é😀.npz", predictions())
    line = [sys.executable, "-m", "calattn", "evaluate", path, "--json", "-m", "ece", "--bootstrap", "0"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout)["results"][0]["title"] == path.name
    _, _, err = forked("calattn", "evaluate", tmp_path / "−é.csv", "--json", before=encoded("ascii"))
    assert "−é.csv does not exist" in json.loads(err)["error"]


DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"


def test_every_command_is_in_the_documented_table():
    table = DOCUMENT.read_text(encoding="utf-8").partition("Results go to stdout")[0]
    assert [name for name in COMMANDS if f"[`{name}`]" not in table] == []


def documented_keys(command: str) -> set[str]:
    rows = DOCUMENT.read_text(encoding="utf-8").partition("## JSON")[2].splitlines()
    (row,) = [row for row in rows if row.startswith(f"| `{command}` |")]
    return {"schema", "command", *re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("command", "line", "parts"),
    [
        ("evaluate", "evaluate a.npz", ("results",)),
        ("compare", "compare a.npz a.npz", ("comparisons",)),
        ("calibrate", "calibrate a.npz --method temperature", ("methods",)),
        ("calibrate --apply", "calibrate a.npz --apply saved --write p.csv", ()),
        ("report", "report a.npz --out r", ("rows",)),
        ("train --dry-run", "train digits --dry-run --accelerator cpu --epochs 2", ()),
    ],
)
def test_every_json_key_is_documented(capsys, tmp_path, monkeypatch, command, line, parts):
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", predictions())
    TemperatureScaling().fit(predictions()).save(tmp_path / "saved")
    resamples = [] if "--apply" in line or "train" in line else ["--bootstrap", "50"]
    found = invoke(capsys, *line.split(), *resamples, "--json").json
    keys = {*found, *(key for part in parts for each in found[part] for key in each)}
    assert keys - documented_keys(command) == set()


def test_codes_are_the_documented_ones():
    assert (errors.OK, errors.FAILED, errors.WRONG_INPUT, errors.BUG) == (0, 1, 2, 70)
    assert (errors.INTERRUPTED, errors.TERMINATED) == (128 + signal.SIGINT, 128 + signal.SIGTERM)
