"""The calibrator file: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calattn.errors import InputError
from calattn.files.atomic import atomic_write
from calattn.posthoc.base import CALIBRATORS, OTHERS, Calibrator, Fitted
from calattn.registry import UnknownName

FORMAT = 1
_KEY, _CHECKSUM = "calattn.calibrator", "calattn.sha256"


class UnknownCalibrator(InputError):
    """A file needs a calibrator's class that is not registered."""


def save(calibrator: Fitted, path: str | Path) -> None:
    """Write options, numbers (header) and tensors (body); an interrupted write leaves the old file whole."""
    numbers: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name in calibrator.learned_names():
        value = getattr(calibrator, name)
        if isinstance(value, Tensor):
            tensors[name] = value.detach().cpu().contiguous()
        elif isinstance(value, dict):
            tensors |= {f"{name}/{key}": item.detach().cpu().contiguous() for key, item in value.items()}
        else:
            numbers[name] = value
    header = {
        "format": FORMAT,
        "calibrator": _registered_name(calibrator),
        "options": calibrator.options(),
        "learned": numbers,
    }
    try:
        text = json.dumps(header)
    except TypeError as error:  # an option; what is learned was checked by `fit`
        raise ValueError(
            f"{type(calibrator).__name__} has an option that a file cannot hold ({error}); options are numbers, text, and "
            "tuples, lists and dicts of them"
        ) from None
    with atomic_write(path) as partial:
        save_file(tensors, partial, metadata={_KEY: text, _CHECKSUM: _checksum(text, tensors)})


def load(path: str | Path) -> Calibrator:
    """The calibrator in a file, of whichever class wrote it.

    >>> import tempfile, torch
    >>> from calattn import Predictions
    >>> from calattn.posthoc import TemperatureScaling, load
    >>> held_out = Predictions(logits=torch.tensor([[2.0, 0.0]] * 4), labels=torch.tensor([0, 0, 0, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TemperatureScaling().fit(held_out).save(f"{folder}/ts.safetensors")
    ...     round(load(f"{folder}/ts.safetensors").temperature_, 4)
    1.8205
    """
    found = load_any(path)
    if not isinstance(found, Calibrator):
        kind = type(found).__name__
        raise ValueError(f"{path} holds {kind}, which is no calibrator; read it with calattn.posthoc.{kind}.load(path)")
    return found


def load_any(path: str | Path) -> Fitted:
    """What a file holds, a calibrator or prediction sets."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no calibrator file at {path}")
    try:
        return _restored(Path(path))
    except (OSError, MemoryError):
        raise
    except UnknownCalibrator as error:
        raise InputError.of(error, subject=str(path)) from None
    except Exception as error:  # whatever damaged values lead to
        why = " ".join(str(error)[:200].split()) or "wrong values"
        raise InputError(
            f"is damaged, or no calibrator's file ({type(error).__name__}: {why})",
            subject=str(path),
            remedy="copy it again, or fit the calibrator again",
        ) from error


def _restored(path: Path) -> Fitted:
    with safe_open(path, framework="pt") as file:
        found = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if _KEY not in found:
        raise ValueError("a safetensors file of something else")
    if found.get(_CHECKSUM) != _checksum(found[_KEY], tensors):
        raise ValueError("its content does not match its checksum")
    header = json.loads(found[_KEY])
    if header["format"] > FORMAT:
        raise ValueError(f"it has format {header['format']}, and this calattn reads up to {FORMAT}")
    options = {key: tuple(it) if isinstance(it, list) else it for key, it in header["options"].items()}
    learned: dict[str, Any] = dict(header["learned"])
    for name, tensor in tensors.items():
        group, _, key = name.partition("/")
        if key:
            learned.setdefault(group, {})[key] = tensor
        else:
            learned[group] = tensor
    fitted = _registered(header["calibrator"])(**options)
    fitted.restore(learned)
    return fitted


def _checksum(header: str, tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256(header.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _registered(name: str) -> Callable[..., Fitted]:
    """The class of that name; the file of one that nobody has registered yet is not damaged."""
    try:
        return OTHERS.get(name) or CALIBRATORS[name]
    except UnknownName as error:
        raise UnknownCalibrator(
            f"needs the calibrator {name!r}, which nothing imported so far has registered: import the module with its "
            f"CALIBRATORS.register({name!r}) first (from a shell: calattn --plugin MODULE …); {error}"
        ) from None


def _registered_name(calibrator: Fitted) -> str:
    for name, factory in (*CALIBRATORS.items(), *OTHERS.items()):
        if factory is type(calibrator):
            return name
    kind = type(calibrator).__name__
    raise ValueError(f"{kind} is not registered; add it with CALIBRATORS.add(name, {kind})")
