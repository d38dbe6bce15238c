"""The environment of a run: versions, commit, hardware and plugins; neither host name nor command line."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shlex
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from calattn import distribution, plugins
from calattn.registry import UnknownName
from calattn.runs.folder import RunFolder, RunFolderError, read_json

T = TypeVar("T")

_PACKAGES = ("torch", "timm", "numpy", "lightning", "lightning-fabric", "torchvision", "safetensors")
# What a probe of the machine may meet: no such file, program, setting or device. Anything else is a defect of ours.
_ABSENT = (
    OSError,
    ValueError,
    RuntimeError,
    AssertionError,
    subprocess.SubprocessError,
    torch.cuda.DeferredCudaCallError,
)


def describe_environment() -> dict[str, Any]:
    """What a run ran on, ready for JSON; what cannot be found out is None.

    It asks CUDA for its devices, so call it in the process that trains, not before that is launched.
    """
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "calattn": distribution.version(),
        "commit": _or_none(lambda: commit(Path(__file__).parents[3])),
        "python": platform.python_version(),
        "plugins": plugins.described(),
        "packages": {name: distribution.version_of(name) for name in _PACKAGES},
        "platform": _or_none(platform.platform),
        "cpu": {"model": _or_none(_cpu_model), "cores": os.cpu_count(), "usable_cores": _or_none(_usable_cores)},
        "memory_bytes": _or_none(_memory),
        "devices": _or_none(_devices),
        "cuda": torch.version.cuda,
        "cudnn": _or_none(torch.backends.cudnn.version),
    }


def commit(root: Path) -> dict[str, Any] | None:
    """The commit of a source tree, and whether tracked files differ from it; None where `root` is no checkout of calattn.

    `CALATTN_COMMIT` states it where the code was copied without its repository: nobody can then say whether files differ.
    """
    if stated := os.environ.get("CALATTN_COMMIT"):
        return {"hash": stated, "dirty": None}
    if not (root / ".git").exists() or not (root / "src" / "calattn").is_dir():
        return None
    return {
        "hash": _git(root, "rev-parse", "HEAD"),
        "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no")),
    }


@contextlib.contextmanager
def naming_plugins(folder: RunFolder) -> Iterator[None]:
    """A name that is unknown in the block becomes an error that says which plugins the run had.

    They are not imported: a run folder may come from anybody, and importing is running their code.
    """
    try:
        yield
    except UnknownName as error:
        here = {used["name"] for used in plugins.described()}
        missing = [name for name in _known_plugins(folder) if name not in here]
        if not missing:
            raise
        flags = " ".join(f"--plugin {shlex.quote(name)}" for name in missing)
        remedy = f"{folder.path} was trained with {flags}: pass that, if you trust the file, from the same folder"
        raise UnknownName.of(error, remedy=remedy) from None


def warn_of_changed_plugins(folder: RunFolder) -> None:
    """The code of a loss is not in the spec's hash: a run that goes on with other code than it began with says so."""
    known, now = _known_plugins(folder), {str(used["name"]): used["sha256"] for used in plugins.described()}
    changed = [name for name, digest in now.items() if known.get(name, digest) != digest]
    if changed:
        warnings.warn(
            f"{', '.join(changed)} has changed since the run in {folder.path} began; --overwrite starts it again",
            stacklevel=3,
        )


def _known_plugins(folder: RunFolder) -> dict[str, str | None]:
    """Name → SHA-256, as the folder has it; empty where it has none, or cannot be read."""
    try:
        found = read_json(folder.environment_path)
        return {str(each["name"]): each["sha256"] for each in found["plugins"]}
    except (RunFolderError, OSError, AttributeError, KeyError, TypeError):
        return {}


def _git(root: Path, *arguments: str) -> str:
    # Inside a hook, GIT_DIR and its kin point at somebody else's repository.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=clean)
    return done.stdout.strip()


def _or_none(probe: Callable[[], T]) -> T | None:
    try:
        return probe()
    except _ABSENT:
        return None


def _cpu_model() -> str | None:
    if platform.system() == "Darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _memory() -> int | None:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None


def _devices() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append({"type": "cuda", "name": properties.name, "memory_bytes": properties.total_memory})
    if torch.backends.mps.is_available():
        found.append({"type": "mps", "name": _or_none(_cpu_model), "memory_bytes": _or_none(_memory)})
    return found
