"""`calattn doctor` finds what is there and what is not, and fails where something required is broken."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess

import pytest
import torch

from calattn.cli import doctor
from tests.cli_runner import invoke


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Without the half-precision trial, which starts another torch; it has a test of its own."""
    monkeypatch.setattr(doctor, "_half_precision", lambda: iter(()))
    monkeypatch.setenv("CALATTN_DATA", str(tmp_path / "data"))


def findings(result):
    return {finding["name"]: finding for finding in result.json["findings"]}


def test_versions_are_those_installed(capsys):
    result = invoke(capsys, "doctor", "--json")
    assert (result.code, result.json["ok"]) == (0, True)
    found = findings(result)
    for name in ("torch", "timm", "lightning-fabric", "typer", "pydantic", "matplotlib"):
        assert (found[name]["state"], found[name]["text"]) == ("ok", importlib.metadata.version(name))
    assert "pytest" not in found  # an extra, not a requirement


def test_an_old_or_missing_package_is_broken_with_the_remedy(capsys, monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "timm":
            return "0.6.0"
        if name == "pyarrow":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = invoke(capsys, "doctor", "--json")
    assert (result.code, result.json["ok"]) == (1, False)
    found = findings(result)
    assert found["timm"]["text"].startswith("0.6.0, but calattn needs >=1")
    assert found["pyarrow"]["text"].startswith("not installed")
    assert found["pyarrow"]["remedy"].startswith("pip install 'pyarrow")
    shown = invoke(capsys, "doctor")
    assert shown.code == 1
    assert "2 required things are broken" in shown.out


def test_copied_files_that_nobody_installed_are_broken(capsys, monkeypatch, tmp_path):
    def nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    monkeypatch.setattr(doctor.distribution, "ROOT", tmp_path)
    found = findings(invoke(capsys, "doctor", "--json"))["calattn"]
    assert (found["state"], found["remedy"]) == ("broken", "install it by pip")


def test_data_sets(capsys, tmp_path):
    found = findings(invoke(capsys, "doctor", "--json"))
    assert found["digits"]["text"] == "built in"
    assert found["cifar10"]["state"] == "missing"
    assert found["cifar10"]["remedy"] == "get it with: calattn data get cifar10"
    assert str(tmp_path / "data") in found["data"]["text"]
    elsewhere = findings(invoke(capsys, "doctor", "--json", "--data-root", tmp_path / "elsewhere"))
    assert "elsewhere" in elsewhere["data"]["text"]


def test_optional_programs(capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "npm" else f"/usr/bin/{name}")
    found = findings(invoke(capsys, "doctor", "--json"))
    assert (found["npm"]["state"], found["npm"]["remedy"]) == ("missing", "install Node.js")
    assert found["git"]["state"] == "ok"


def test_cuda_build_without_a_driver(capsys, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = findings(invoke(capsys, "doctor", "--json"))
    assert found["cuda"]["state"] == "warning"
    assert "nvidia-smi" in found["cuda"]["remedy"]


def test_little_disk(capsys, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    found = findings(invoke(capsys, "doctor", "--json"))
    assert found["data"]["state"] == "warning"
    assert "CALATTN_DATA" in found["data"]["remedy"]


@pytest.mark.parametrize(
    ("code", "state", "text"),
    [(0, "ok", "works"), (-4, "warning", "kills the process"), (1, "warning", "does not work")],
)
def test_bf16_is_tried_in_another_process(monkeypatch, code, state, text):
    monkeypatch.undo()
    started = []

    def run(command, **_):
        started.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (finding,) = doctor._half_precision()
    assert (finding.state, finding.text) == (state, text)
    assert "-P" in started[0][:-2], "a torch.py in the current folder would be run"
    assert "bfloat16" in started[0][-1]
    assert (finding.remedy is None) == (code == 0)
