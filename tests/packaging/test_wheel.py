"""What users install: a wheel with everything in it, and a source tree that was not installed."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch

import calattn

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built offline, from a copy: setuptools leaves its own folders beside the sources."""
    here = tmp_path_factory.mktemp("wheel")
    skipped = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", here / "tree" / "src", ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, here / "tree")
    line = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", here, "."]
    done = subprocess.run(line, cwd=here / "tree", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = here.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """All installed packages but calattn: an environment where nobody installed it."""
    folder = tmp_path_factory.mktemp("packages")
    for entry in Path(torch.__file__).parents[1].iterdir():
        if "calattn" not in entry.name.lower() and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def python(*arguments: object, path: tuple[Path, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a Python that sees these folders alone (`-S`: without the site's own)."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CALATTN"))}
    environment = {**clean, "PYTHONPATH": os.pathsep.join(map(str, path)), "CALATTN_DATA": str(folder / "data")}
    line = [sys.executable, "-S", *map(str, arguments)]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_every_file_and_states_what_pyproject_states(wheel):
    package = ROOT / "src" / "calattn"
    wanted = {
        f"calattn/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted
    suffixes = {Path(name).suffix for name in held}
    assert suffixes >= {".py", ".typed", ".toml", ".yaml", ".mplstyle", ".html", ".css", ".js"}
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA"))
    stated = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    assert (stated["Name"], stated["Version"]) == ("calattn", DECLARED["version"])
    assert stated["License-Expression"] == "Apache-2.0"
    plain = [line for line in stated.get_all("Requires-Dist") if "extra ==" not in line]
    assert len(plain) == len(DECLARED["dependencies"])


def test_the_wheel_works_where_there_is_no_source(wheel, packages, tmp_path):
    """As `pip install --target`: unpacked beside its dependencies, far from the checkout."""
    target = tmp_path / "target"
    zipfile.ZipFile(wheel).extractall(target)
    path = (target, packages)
    code = "import calattn; print(calattn.__file__, calattn.__version__)"
    done = python("-c", code, path=path, folder=tmp_path)
    assert done.stdout.split() == [str(target / "calattn" / "__init__.py"), DECLARED["version"]], done.stderr
    shown = python("-m", "calattn", "--help", path=path, folder=tmp_path)
    assert (shown.returncode, "calibrate" in shown.stdout) == (0, True), shown.stderr
    listed = python("-m", "calattn", "list", "recipes", "--json", path=path, folder=tmp_path)
    assert "digits" in [each["name"] for each in json.loads(listed.stdout)["items"]]  # files of the package
    (tmp_path / "p.csv").write_text("label,p_0,p_1\n" + "0,0.8,0.2\n1,0.3,0.7\n1,0.6,0.4\n" * 20)
    line = ("evaluate", "p.csv", "--html", "page.html", "--diagram", "d.png", "--bootstrap", "0")
    page = python("-m", "calattn", *line, path=path, folder=tmp_path)
    assert page.returncode == 0, page.stderr
    assert "<script" in (tmp_path / "page.html").read_text()  # styles, scripts and the template


def test_doctor_in_a_source_tree_that_was_not_installed(packages, tmp_path):
    tree = tmp_path / "tree"  # a copy: `pip install -e` leaves calattn.egg-info in the checkout's src
    shutil.copytree(ROOT / "src" / "calattn", tree / "src" / "calattn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    found = python("-m", "calattn", "doctor", "--json", path=(tree / "src", packages), folder=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = {each["name"]: each for each in json.loads(found.stdout)["findings"]}
    assert lines["calattn"]["state"] == "warning"
    assert lines["calattn"]["text"].startswith(f"{DECLARED['version']}+source, run from {tree}")
    assert lines["calattn"]["remedy"].startswith("pip install -e ")
    assert lines["timm"]["state"] == "ok"  # the requirements are read, too
    shown = python("-m", "calattn", "--version", path=(tree / "src", packages), folder=tmp_path)
    assert shown.stdout == f"calattn {DECLARED['version']}+source\n"


def test_the_version_is_stated_once():
    assert calattn.__version__.removesuffix("+source") == DECLARED["version"]
    written = [path for path in ROOT.joinpath("src").rglob("*.py") if f'"{DECLARED["version"]}"' in path.read_text()]
    assert written == []
