"""What the golden tests pin: JSON documents of the commands, of one page and of short runs, ready to be compared."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import platform
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calattn.cli.app import run
from calattn.runs.folder import RunFolder
from tests.cli_runner import document_in
from tests.small_runs import SMALL, TAUGHT, final_weights

EXPECTED = Path(__file__).parent / "expected"
PROBLEMS = ("three", "ten", "binary")
RUNS = {"calattn": (), "none": ("model.head=none",), "taught": TAUGHT}
NAMES = (
    *(f"{command}-{problem}" for command in ("evaluate", "compare", "calibrate") for problem in PROBLEMS),
    "page-ten",
    *(f"run-{head}" for head in RUNS),
)

# Another time, another release: never compared.
_VOLATILE = {"seconds", "images_per_second", "made", "version"}
# Last bits decide these.
_BITS = {"sha256", "fitted_on_", "iterations_", "histogram", "measured"}
# Small networks, whose training makes a difference in the last bit a difference in the second digit of their ECE.
_TRAINED = {"sats", "frozen_calattn"}


def made(name: str, folder: Path) -> Any:
    """The document of a name. `folder` is empty, and gets the files that it is made of."""
    command, _, subject = name.partition("-")
    if command == "run":
        document = _trained(RUNS[subject], folder / "run")
    else:
        first, second = _prediction_files(subject, folder)
        if command == "page":
            _printed("evaluate", first, "--html", folder / "page.html")
            document = document_in(folder / "page.html")
        else:
            more = {"evaluate": (), "compare": (second,), "calibrate": ("--method", "all", "--bootstrap", 200)}
            document = json.loads(_printed(command, first, *more[command], "--json"))
    text = re.sub(r" \([\d,]+ × faster\)", "", json.dumps(document, ensure_ascii=False))
    return _normal(json.loads(text.replace(str(folder), "FOLDER")))


def machine() -> dict[str, str]:
    """What decides the last bits of a number."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().split("\n\n")[0].splitlines() if about.exists() else [platform.processor()]
    kept = [line for line in lines if line.split("\t")[0] in ("model name", "cpu family", "model", "stepping", "flags")]
    return {
        "cpu": next((line.partition(": ")[2] for line in kept if line.startswith("model name")), platform.machine()),
        "cpu_features": hashlib.sha256("\n".join(kept or lines).encode()).hexdigest()[:16],
        "kernels": torch.backends.cpu.get_cpu_capability(),
        **{package: version(package) for package in ("torch", "numpy", "scipy", "scikit-learn", "timm")},
    }


def portable(value: Any) -> Any:
    """The part of a document that another CPU, or another torch, must give as well."""
    if isinstance(value, list):
        return [portable(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("method") in _TRAINED:
        return {key: item if key == "method" else None for key, item in value.items()}
    return {key: portable(item) for key, item in value.items() if key not in _BITS}


def differences(expected: Any, found: Any, *, rel: float, where: str = "") -> Iterator[str]:
    """Where two documents differ. Keys, text and whole numbers must be equal, other numbers within `rel`."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() != found.keys():
            yield f"{where} has the keys {list(found)}, expected {list(expected)}"
        for key in (key for key in expected if key in found):
            yield from differences(expected[key], found[key], rel=rel, where=f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{where} has {len(found)} items, expected {len(expected)}"
        for place, pair in enumerate(zip(expected, found, strict=False)):
            yield from differences(*pair, rel=rel, where=f"{where}[{place}]")
    elif type(expected) is float and type(found) is float:
        # Differences of nearly equal numbers have no relative precision left, hence the floor.
        if not abs(found - expected) <= rel * max(abs(expected), 0.01):
            yield f"{where} is {found!r}, expected {expected!r}"
    elif type(expected) is not type(found) or expected != found:
        yield f"{where} is {found!r}, expected {expected!r}"


def _prediction_files(problem: str, folder: Path) -> tuple[Path, Path]:
    """Predictions of two models for the same samples, from uniform numbers by +, × and ÷ alone: the same bits everywhere."""
    samples, classes = {"three": (300, 3), "ten": (400, 10), "binary": (250, 2)}[problem]
    drawn = np.random.default_rng(classes)
    labels = drawn.integers(classes, size=samples)

    def noise(*shape: int) -> np.ndarray:
        return drawn.random((4, *shape)).sum(0) - 2

    logits = 3 * noise(samples, classes)
    logits[np.arange(samples), labels] += 4 * drawn.random(samples)
    if problem == "binary":  # probabilities as text
        gap = logits[:, 1] - logits[:, 0]
        sure = 0.5 + 0.5 * gap / (1 + np.abs(gap))
        paths = folder / "binary.csv", folder / "binary-other.csv"
        for path, p in zip(paths, (sure, 0.8 * sure + 0.15 * drawn.random(samples)), strict=True):
            rows = "".join(f"{1 - x:.6f},{x:.6f},{label}\n" for x, label in zip(p.round(6), labels, strict=True))
            path.write_text(f"prob_0,prob_1,label\n{rows}")
    else:
        paths = folder / f"{problem}.npz", folder / f"{problem}-other.npz"
        # The ten classes also have what some calibrators need, and compare matches rows by: features and indices.
        more = {} if problem == "three" else {"features": noise(samples, 6), "indices": drawn.permutation(samples)}
        np.savez(paths[0], logits=logits.astype("float32"), labels=labels, **more)
        order = np.argsort(more["indices"]) if more else np.arange(samples)
        other = (0.6 * logits + noise(samples, classes)).astype("float32")
        np.savez(paths[1], logits=other[order], labels=labels[order], **{name: more[name][order] for name in more})
    return paths


def _trained(changes: tuple[str, ...], path: Path) -> dict[str, Any]:
    """A short run on the digits: its spec's hash, what it logged and measured, and its weights."""
    settings = [part for change in (*SMALL, *changes) for part in ("--set", change)]
    _printed("train", "digits", *settings, "--accelerator", "cpu", "--threads", 1, "--out", path)
    folder, weights = RunFolder.open(path), final_weights(path)
    summary = json.loads(folder.summary_path.read_text(encoding="utf-8"))
    return {
        "spec_hash": folder.spec().hash,
        "log": [json.loads(line) for line in folder.log_path.read_text(encoding="utf-8").splitlines()],
        **{key: summary[key] for key in ("epochs", "updates", "parameters")},
        "measured": summary["results"],
        "weights": {name: _pinned(tensor.numpy()) for name, tensor in sorted(weights.items())},
    }


def _printed(*arguments: object) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run([str(argument) for argument in arguments])
    assert code == 0, err.getvalue()
    return out.getvalue()


def _normal(value: Any) -> Any:
    """Without what never repeats, and with long arrays (float32 in base64) as a few of their sums."""
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, str) and len(value) > 200 and " " not in value:
        return _pinned(np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4"))
    return value


def _pinned(array: np.ndarray) -> dict[str, Any]:
    squares = np.square(array.ravel().astype("float64"))
    return {
        "shape": list(array.shape),
        "norm": float(np.sqrt(squares.sum())),
        "norm_by_place": float(np.sqrt((squares * np.arange(squares.size)).mean())),  # notices another order
        "sha256": hashlib.sha256(array.tobytes()).hexdigest()[:16],
    }
