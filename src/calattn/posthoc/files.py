"""The calibrator file: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from calattn.files.atomic import atomic_write
from calattn.posthoc.base import CALIBRATORS, OTHERS, Calibrator, Fitted
from calattn.registry import UnknownName

FORMAT = 1
_KEY = "calattn.calibrator"


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
        save_file(tensors, partial, metadata={_KEY: text})


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
    header, tensors = _read(Path(path))
    try:
        if header["format"] > FORMAT:
            raise ValueError(f"{path} has format {header['format']}; this calattn reads up to {FORMAT}")
        options = {key: tuple(it) if isinstance(it, list) else it for key, it in header["options"].items()}
        calibrator = _registered(header["calibrator"], path)(**options)
        learned: dict[str, Any] = dict(header["learned"])
        for name, tensor in tensors.items():
            group, _, key = name.partition("/")
            if key:
                learned.setdefault(group, {})[key] = tensor
            else:
                learned[group] = tensor
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} has a damaged calibrator header: {error!r}") from None
    if set(learned) != set(calibrator.learned_names()):
        odd = sorted(set(learned) ^ set(calibrator.learned_names()))
        raise ValueError(f"{path} does not match {type(calibrator).__name__}: {', '.join(odd)} missing or unknown")
    for name, value in learned.items():
        setattr(calibrator, name, value)
    return calibrator


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"no calibrator file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        header = json.loads(text) if text is not None else None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is truncated, or no safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path} is a safetensors file, but not one a calibrator was saved to")
    return header, tensors


def _registered(name: str, path: str | Path) -> Callable[..., Fitted]:
    """The class of that name; the file of one that nobody has registered yet is not damaged."""
    try:
        return OTHERS.get(name) or CALIBRATORS[name]
    except UnknownName as error:
        raise ValueError(
            f"{path} needs the calibrator {name!r}, which nothing imported so far has registered: import the module with its "
            f"CALIBRATORS.register({name!r}) first (from a shell: calattn --plugin MODULE …); {error}"
        ) from None


def _registered_name(calibrator: Fitted) -> str:
    for name, factory in (*CALIBRATORS.items(), *OTHERS.items()):
        if factory is type(calibrator):
            return name
    kind = type(calibrator).__name__
    raise ValueError(f"{kind} is not registered; add it with CALIBRATORS.add(name, {kind})")
