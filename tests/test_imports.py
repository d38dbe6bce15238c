"""The straight line of the architecture, kept by reading every import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import calattn

ROOT = Path(calattn.__file__).parent

# A part may import the parts named here, itself, and `errors`, which imports nothing of ours. `metrics` stands left of
# `posthoc`: temperature scaling minimises an ECE, and there is only one binning.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_torchvision": set(),
    "distribution": set(),
    "registry": set(),
    "plugins": set(),
    "rules": set(),
    "seeds": set(),
    "checks": set(),
    "types": {"checks"},
    "files": {"types", "checks", "distribution"},
    "backbones": {"registry", "types", "checks", "_torchvision"},
    "heads": {"registry", "types", "checks"},
    "losses": {"registry", "types", "checks"},
    "readers": {"types", "checks", "files", "registry"},
    "data": {"types", "registry", "checks", "files", "seeds"},
    "models": {"registry", "types", "checks", "seeds", "heads", "losses", "data"},
    "lightning": {"models", "heads"},
    "metrics": {"types", "checks", "registry"},
    "engine": {"types", "checks", "registry", "files", "seeds", "data", "models", "losses", "heads", "metrics"},
    "posthoc": {"types", "checks", "registry", "files", "metrics", "heads"},
    "sklearn": {"types", "posthoc"},
    "comparison": {"types", "checks", "files", "metrics", "posthoc"},
    "report": {"distribution", "types", "checks", "files", "registry", "metrics", "posthoc", "comparison"},
}
COMPOSERS = {"__init__", "__main__", "runs", "sweeps", "cli"}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "calattn" else [f"calattn.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("calattn.")}
    return found


def test_no_part_imports_what_stands_right_of_it():
    for path in ROOT.rglob("*.py"):
        part = part_of(path)
        if part not in COMPOSERS:
            extra = imported_parts(path) - ALLOWED[part] - {part, "errors"}
            assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


def test_import_is_light():
    """Neither timm nor torchvision nor scikit-learn: a user with a logits file waits for torch alone."""
    heavy = [
        "timm",
        "torchvision",
        "sklearn",
        "torchmetrics",
        "pydantic",
        "typer",
        "lightning_fabric",
        "matplotlib",
        "PIL",
    ]
    of_images = ("teach", "load", "from_pretrained")
    use = f"[getattr(calattn, name) for name in calattn.__all__ if name not in {of_images}]"
    code = f"import sys, calattn; assert 'torch' not in sys.modules; {use}; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "code",
    [
        "import torch, calattn, timm",
        "import calattn.losses, torchmetrics.image, timm",
        "import calattn, importlib.util; importlib.util.find_spec('torchvision'); import torchvision, importlib; "
        "importlib.reload(calattn); importlib.reload(torchvision)",
    ],
)
def test_torchvision_imports_beside_this_torch(code):
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr


def test_public_names_exist():
    for name in calattn.__all__:
        assert hasattr(calattn, name)
        assert name in dir(calattn)
    assert "resnet50_cifar" in calattn.backbones.BACKBONES  # a part that nobody imported
    with pytest.raises(AttributeError, match="has no attribute 'atach'"):
        calattn.atach  # noqa: B018
