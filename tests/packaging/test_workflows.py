"""The workflow files: they run the project's own targets, and only the step that publishes may sign."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def steps(flow: str, job: str) -> list[str]:
    return [step["run"] for step in FLOWS[flow]["jobs"][job]["steps"] if "run" in step]


def test_they_call_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for flow, text in FLOWS.items() for job in text["jobs"] for line in steps(flow, job)
              for name in re.findall(r"^make ([a-z-]+)", line, re.MULTILINE)}  # fmt: skip
    assert called == {"test", "docs"}
    assert called <= targets
    assert "make test" in steps("ci", "test")
    assert "make test" in steps("release", "build")


def test_only_publishing_gets_a_token_and_only_after_the_build():
    jobs = FLOWS["release"]["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert (jobs["publish"]["needs"], jobs["publish"]["environment"]) == ("build", "pypi")
    assert "permissions" not in jobs["build"]
    assert all(flow["permissions"] == {"contents": "read"} for flow in FLOWS.values())
    assert "password" not in str(jobs)


@pytest.mark.parametrize(("tag", "code"), [(f"v{VERSION}", 0), (VERSION, 1), ("v99", 1)])
def test_a_tag_that_is_not_the_version_is_refused(tag, code):
    line = next(line for line in steps("release", "build") if "tomllib" in line)
    words = shlex.split(line.replace('"$GITHUB_REF_NAME"', tag))
    done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
