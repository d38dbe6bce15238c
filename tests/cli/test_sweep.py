"""`calattn sweep`: a grid of runs, its plan, its failures and its table."""

from __future__ import annotations

import csv
import json

import pytest

from calattn.runs.folder import RunFolder
from calattn.sweeps import jobs
from tests.cli_runner import invoke, ran, refused
from tests.sweeps.grids import NAMES, ON_CPU, write_grid
from tests.sweeps.workers import Forked


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    monkeypatch.setattr(jobs.subprocess, "Popen", Forked)


def test_a_grid_is_planned_trained_and_shown_and_then_only_shown(capsys, tmp_path):
    bad = 'runs: {bad: {data.name: "imagefolder:/nowhere"}}'
    line = ["sweep", write_grid(tmp_path, bad), "--out", tmp_path / "runs", "--only", "*[d0]", *ON_CPU]
    planned = ran(capsys, *line, "--plan")
    assert planned.out.split() == ["to", "do", "plain-seed0", "to", "do", "ours-seed0", "to", "do", "bad"]
    assert not (tmp_path / "runs").exists()

    first = invoke(capsys, *line, "--jobs", "2", "--json")
    assert first.code == 1, "one has failed"
    assert "runs to train: 3; finished before: 0" in first.err
    assert "failed: bad:" in first.err
    plain, ours, failed = first.json["runs"]
    assert [each["name"] for each in first.json["runs"]] == ["plain-seed0", "ours-seed0", "bad"]
    assert plain["settings"] == {"method": "plain", "seed": 0}
    assert (ours["epochs"], ours["split"], ours["reason"]) == (1, "test", None)
    assert failed["metrics"] == {}
    assert "/nowhere is not a folder" in failed["reason"]
    summary = RunFolder(tmp_path / "runs" / "ours-seed0").summary()
    assert ours["metrics"] == summary["results"]["last"]["test"]
    assert summary["name"] == "ours-seed0"

    again = ran(capsys, *line[:-4], "--only", "*seed0", *ON_CPU, "--write", tmp_path / "table.csv")
    assert "runs to train: 0; finished before: 2" in again.err
    assert f"{100 * ours['metrics']['ece']['value']:.2f}" in again.out
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(row["name"], row["method"], row["seed"]) for row in rows] == [
        ("plain-seed0", "plain", "0"),
        ("ours-seed0", "ours", "0"),
    ]
    assert float(rows[1]["ece"]) == ours["metrics"]["ece"]["value"]
    planned = invoke(capsys, *line, "--plan", "--json")
    assert [(run["name"], run["done"], run["epochs"]) for run in planned.json["runs"]] == [
        ("plain-seed0", True, 1),
        ("ours-seed0", True, 1),
        ("bad", False, 0),
    ]


def test_a_run_of_another_spec_is_not_touched(capsys, tmp_path):
    line = ["sweep", write_grid(tmp_path), "--out", tmp_path / "runs", "--only", "plain-seed0", *ON_CPU]
    ran(capsys, *line)
    before = (tmp_path / "runs" / "plain-seed0" / "spec.yaml").read_text()
    changed = invoke(capsys, *line, "--set", "optimizer.lr=0.5")
    assert changed.code == 1
    assert "holds a run of another spec: optimizer.lr" in changed.err
    assert (tmp_path / "runs" / "plain-seed0" / "spec.yaml").read_text() == before


def test_a_folder_whose_summary_is_damaged_is_a_hole_in_the_table(tmp_path):
    from calattn.runs.runtime import Runtime
    from calattn.sweeps.grid import read_grid
    from calattn.sweeps.sweep import Sweep, table_of

    runs = read_grid(write_grid(tmp_path))
    found = Sweep(runs=runs, folder=tmp_path, runtime=Runtime(accelerator="cpu"))
    for name, text in zip(
        NAMES, ["", "[]", "{}", '{"results": 3}', json.dumps({"results": {"last": {}}}), "{"], strict=True
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(text)
    assert [run.name for run in found.todo()] == NAMES
    results = found.results({})
    assert all(each["metrics"] == {} and each["reason"] for each in results)
    assert table_of(results).markdown().count("| – |") >= 6


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--only", "nothing"], "no run matches --only 'nothing'"),
        (["--gpus", "0.5"], "--gpus is of a Ray cluster"),
        (["--address", "auto"], "add --engine ray"),
        (["--engine", "ray", "--jobs", "2"], "--jobs is of this machine"),
        (["--write", "table.txt"], "must end in"),
        (["--set", "modle.head=none"], "did you mean 'model'"),
        (["--checkpoint", "best"], "--checkpoint must be one of last"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(capsys, tmp_path, more, said):
    assert said in refused(capsys, "sweep", write_grid(tmp_path), "--out", tmp_path / "runs", *more)
    assert not (tmp_path / "runs").exists()


def test_a_grid_that_is_no_file(capsys, tmp_path):
    (tmp_path / "nine.yaml").touch()
    assert "none.yaml does not exist; near it: nine.yaml" in refused(capsys, "sweep", tmp_path / "none.yaml")
    assert "is a folder; name a YAML file" in refused(capsys, "sweep", tmp_path)
    (tmp_path / "list.yaml").write_text("[1, 2]")
    assert "list.yaml" in refused(capsys, "sweep", tmp_path / "list.yaml")
