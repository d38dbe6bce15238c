"""Specs of runs that only teach a head: the network of another run, or a backbone with its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calattn.data import describe
from calattn.data.sources.datasets import PREFIXES
from calattn.engine.checkpoint import CheckpointFolder
from calattn.runs.folder import RunFolder

# Nothing is trained: what says how is left at what any network takes.
_NO_TRAINING = {
    "train": {"epochs": 0},
    "schedule": {"name": "constant", "warmup_epochs": 0, "options": {}},
    "loss": {"name": "ce", "options": {}},
}


def run_values(path: Path, rule: str) -> dict[str, Any]:
    """The spec of a run that has trained, with its weights to start from, its images and their split."""
    folder = RunFolder.open(path)
    spec = folder.spec()
    file = CheckpointFolder(folder.checkpoints_path, spec.hash).file(rule)
    values = spec.model_dump(mode="json", exclude={"teach", "name"})
    values["model"] |= {"weights": str(file), "pretrained": False}
    return values | _NO_TRAINING | {"train": values["train"] | _NO_TRAINING["train"]}


def backbone_values(
    name: str, *, weights: Path | None, data: str | None, size: int | None, split_is_known: bool = False
) -> dict[str, Any]:
    """The spec of a backbone with a file of weights, and the images it was trained on.

    `split_is_known`: the caller says which of the training images it was not trained on, by data.validation and split_seed.
    """
    if weights is None or data is None:
        missing = "--weights FILE" if weights is None else "--data DATA"
        raise ValueError(f"{name} is no run folder; to teach a backbone of that name a head, give {missing}")
    if not split_is_known:
        _check_held_out(data)
    images = {"name": data} | ({} if size is None else {"size": size})
    values = {"data": images, "model": {"backbone": name, "weights": str(weights)}} | _NO_TRAINING
    return values | {"train": {"epochs": 0, "batch_size": 1}}


def _check_held_out(data: str) -> None:
    """Of somebody else's weights only the user knows which images they have not seen."""
    if "validation" in describe(data).splits:
        return
    if data.startswith(PREFIXES):
        where = "PATH/val/CLASS" if data.startswith("imagefolder:") else "PATH/validation-00000-of-00001.parquet"
        raise ValueError(
            f"{data} has no validation images beside train and test; put some that the network was not trained on into {where}"
        )
    raise ValueError(
        f"{data} has no validation images of its own, and a network that was trained on all of its training images knows those "
        "that would be held out; if yours was not, say which share it left out: --set data.validation=0.05 (and "
        "data.split_seed), or give the images as imagefolder:PATH with a val folder"
    )
