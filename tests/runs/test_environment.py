"""The environment: what it says is true by other means, and nothing missing makes it fail."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from calattn.runs.environment import commit, describe_environment


def test_it_says_what_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["calattn", "--secret-argument"])
    found = describe_environment()
    text = json.dumps(found)
    assert found["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["packages"]["numpy"] == numpy.__version__
    assert found["calattn"] == importlib.metadata.version("calattn")
    assert found["python"] == sys.version.split()[0]
    assert found["cpu"]["cores"] == os.cpu_count()
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(found["started"])
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=1)
    assert len(found["devices"]) == torch.cuda.device_count() + int(torch.backends.mps.is_available())
    assert "--secret-argument" not in text
    assert f'"{platform.node()}"' not in text
    if len(platform.node()) > 8:
        assert platform.node() not in text


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_memory_and_cpu_are_the_kernel_s() -> None:
    found = describe_environment()
    total = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024
    assert found["memory_bytes"] == pytest.approx(total, rel=0.01)
    model = found["cpu"]["model"]
    assert model is None or model in Path("/proc/cpuinfo").read_text() or model == platform.processor()


def test_devices_have_names_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, total_memory = "Some GPU", 80 * 2**30

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)  # noqa: ARG005
    expected = {"type": "cuda", "name": "Some GPU", "memory_bytes": 80 * 2**30}
    assert describe_environment()["devices"][:2] == [expected] * 2


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src" / "calattn" / "a.py"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    assert commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit(tmp_path) == {"hash": head, "dirty": False}
    (tmp_path / "untracked").write_text("x")
    assert commit(tmp_path) == {"hash": head, "dirty": False}
    source.write_text("two")
    assert commit(tmp_path) == {"hash": head, "dirty": True}


def test_nothing_missing_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise OSError("not here")

    def no_package(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    for target, name in [
        (subprocess, "run"),
        (os, "sysconf"),
        (os, "sched_getaffinity"),
        (Path, "read_text"),
        (torch.cuda, "device_count"),
        (torch.backends.cudnn, "version"),
    ]:
        monkeypatch.setattr(target, name, absent, raising=False)
    monkeypatch.setattr(importlib.metadata, "version", no_package)
    found = describe_environment()
    assert found["packages"]["torch"] is None
    assert found["calattn"] == "unknown"
    assert [found[key] for key in ("commit", "memory_bytes", "devices", "cudnn")] == [None] * 4
    assert found["cpu"]["usable_cores"] is None
    json.dumps(found)
