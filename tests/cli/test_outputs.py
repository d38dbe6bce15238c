"""`--out` names a folder in every command, `--write` a file."""

from __future__ import annotations

import numpy as np
import pytest

from calattn.cli import app
from tests.cli_runner import invoke


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
    assert {name for name, flag in said if flag == "--out"} == {"train", "teach", "calibrate", "report"}
    assert all("folder" in text.lower() for (_, flag), text in said.items() if flag == "--out")
    assert {name for name, flag in said if flag == "--write"} >= {"predict", "export", "show", "evaluate", "compare"}


@pytest.mark.parametrize("flag", ["--write", "--out"])
def test_older_lines_with_out_and_a_file_are_understood(capsys, tmp_path, flag):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", logits=rng.normal(size=(50, 3)), labels=rng.integers(0, 3, 50))
    table = tmp_path / "t.csv"
    assert invoke(capsys, "evaluate", tmp_path / "a.npz", "--bootstrap", 0, flag, table).code == 0
    assert "nll" in table.read_text().lower()
    shown = invoke(capsys, "evaluate", "--help").out
    assert "--write" in shown
    assert "--out" not in shown
    assert invoke(capsys, "data", "show", "digits", f"{flag}={tmp_path / 'sheet.png'}").code == 0
    assert (tmp_path / "sheet.png").is_file()
