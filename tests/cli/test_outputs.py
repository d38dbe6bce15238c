"""`--out` names a folder in every command, `--write` a file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from calattn.cli import app
from tests.cli_runner import document_in, predictions, ran, refused, write_npz


def commands():
    for entry in app.COMMANDS:
        command = entry.load()
        yield from getattr(command, "commands", {entry.name: command}).items()


def test_out_is_a_folder_and_write_a_file_in_every_command():
    said = {}
    for name, command in commands():
        for each in command.params:
            for flag in {"--out", "--write"} & set(each.opts):
                said[name, flag] = each.help
    assert {name for name, flag in said if flag == "--out"} == {"train", "sweep", "teach", "calibrate", "report"}
    assert all("folder" in text.lower() for (_, flag), text in said.items() if flag == "--out")
    files = {"predict", "export", "show", "evaluate", "compare", "calibrate", "sweep"}
    assert {name for name, flag in said if flag == "--write"} == files


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_a_page_replaces_a_page_of_ours_and_no_other_file_unasked(capsys, tmp_path, command):
    files = [write_npz(tmp_path / name, predictions(n=60)) for name in ("a.npz", "b.npz")][: 1 + (command == "compare")]
    page = tmp_path / "page.html"
    page.write_text("<p>mine</p>")
    line = [command, *files, "--bootstrap", 20, "--metrics", "ece", "--html", page]
    assert "calattn did not write" in refused(capsys, *line)
    assert page.read_text() == "<p>mine</p>"
    for more in (["--overwrite"], []):
        ran(capsys, *line, *more)
        assert len(document_in(page)["subjects"]) == len(files)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_go_nowhere(closed):
    """What a closed stream was to get must not end up in another one, nor in the next file that is opened."""
    line = f"{shlex.quote(sys.executable)} -m calattn list nothing-like-it {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert ("Traceback" in done.stderr, "calattn: error" in done.stderr) == (False, "2>&-" not in closed)
    line = f"{shlex.quote(sys.executable)} -m calattn list {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("backbones" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_user_without_a_home_folder(capsys, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "CALATTN_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # the system does not know the user
    listed = ran(capsys, "data", "list", "--json")
    assert listed.json["root"] == str(Path(tempfile.gettempdir()) / f"calattn-{os.getuid()}" / "data")
