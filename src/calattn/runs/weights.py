"""Weights to start from: a state dict of the user's own, in whichever of the usual forms, put into a run's network."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from calattn.heads import Taught
from calattn.models.attach import CalibratedModel

_TORCH = (".pt", ".pth", ".bin", ".ckpt")
# What training scripts call the state dict in a checkpoint.
_HOLDERS = ("state_dict", "model", "model_state_dict", "weights")
_WRAPPERS = ("module.", "_orig_mod.", "model.")  # DDP, torch.compile, Lightning and the like
_SHOWN = 4


def load_weights(model: CalibratedModel, path: Path, *, backbone: str) -> None:
    """Puts a file's tensors into the network: of a plain network into the backbone, of an attached one into the head too.

    A head that the file does not hold starts as it is, one that the run does not have is left in the file; of the backbone every
    tensor has to be there, in its size. A head that the run teaches itself is not taken from a file.
    """
    own = model.backbone.state_dict()
    found = _unwrapped(_read(path), set(own))
    attached = any(name.startswith("backbone.") and name not in own for name in found)
    plain = _below(found, "backbone.") if attached else found
    _check(plain, own, path, backbone)
    model.backbone.load_state_dict(plain)
    head = _below(found, "head.") if attached else {}
    if head and model.head.state_dict() and not isinstance(model.head, Taught):
        _check(head, model.head.state_dict(), path, "the run's head (model.head, model.hidden, …)")
        model.head.load_state_dict(head)


def digest(path: Path) -> str:
    """The SHA-256 of a file: its path does not say which weights a run began with."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> Mapping[str, Any]:
    kind = path.suffix.lower()
    if not path.exists():
        raise FileNotFoundError(f"model.weights: there is no file {path}; check the path")
    if path.is_dir() or kind not in (".safetensors", *_TORCH):
        raise ValueError(f"model.weights={path} must be a file that ends in .safetensors or {' '.join(_TORCH)}")
    try:
        found = load_file(path) if kind == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} holds more than tensors, and unpickling runs whatever is in it; save the state dict alone: "
            "torch.save(model.state_dict(), PATH)"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged, or no file of weights ({_short(error)}); save or copy it again") from None
    if not isinstance(found, Mapping):
        raise ValueError(
            f"{path} holds a {type(found).__name__}; save a state dict: torch.save(model.state_dict(), PATH)"
        )
    return found


def _unwrapped(found: Mapping[str, Any], own: set[str]) -> dict[str, Tensor]:
    """The tensors by the network's own names."""
    for holder in _HOLDERS:
        if isinstance(found.get(holder), Mapping):
            found = found[holder]
    if state := _below(found, "weights/"):  # a checkpoint of calattn itself, which holds the optimiser's tensors too
        found = state
    for wrapper in _WRAPPERS * 2:
        if found and not own & set(found) and all(name.startswith(wrapper) for name in found):
            found = _below(found, wrapper)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _below(found: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def _check(found: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path, what: str) -> None:
    """All of the network's tensors and no others, each in its shape, or an error that names some."""
    if not set(found) & set(own):
        raise ValueError(
            f"{path} has no tensor of {what}: it has {_some(found) or 'none'}, and {_some(own)} are needed; "
            "is it the state dict of another network (model.backbone)?"
        )
    shapes = {name: (list(found[name].shape), list(own[name].shape)) for name in own if name in found}
    unlike = [f"{name} {a} instead of {b}" for name, (a, b) in shapes.items() if a != b]
    missing, unknown = [n for n in own if n not in found], [n for n in found if n not in own]
    problems = [_some(unlike)] * bool(unlike)
    problems += [f"without {_some(missing)}"] * bool(missing) + [f"unknown: {_some(unknown)}"] * bool(unknown)
    if problems:
        raise ValueError(
            f"{path} does not fit {what}: {'; '.join(problems)}; give weights of the same network, for as many classes as the "
            "data has"
        )


def _some(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else f"{text[:200]}…"
