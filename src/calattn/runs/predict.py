"""Predictions of a run: its own splits, or any other data set, under any of its checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from lightning_fabric import Fabric

from calattn import data, losses
from calattn.data.cifar10_c import parse_split
from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.data.decoding import LazyImages
from calattn.data.loading import EvalLoader, input_size
from calattn.data.resize import Interpolation
from calattn.data.splits import load_splits
from calattn.engine.predict import predict
from calattn.engine.step import TrainStep
from calattn.files.atomic import PathArg, check_writable
from calattn.files.predictions import has_features, save_predictions
from calattn.runs import build
from calattn.runs.classes import Classes, check_same_classes, relabelled
from calattn.runs.folder import RunFolder, RunFolderError
from calattn.runs.interface import (
    Interface,
    interface_of,
    known_classes,
    read_interface,
    run_interface,
    write_interface,
)
from calattn.runs.load import trained_network
from calattn.runs.runtime import Runtime
from calattn.runs.spec import Rule, RunSpec
from calattn.runs.trained_with import naming_plugins
from calattn.types import Predictions

_LONGEST_NAME = 200  # bytes; file systems take 255, and split and rule are added


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What is predicted: images, which of their rows (None: all), and the name of the predictions."""

    name: str
    images: data.Images
    rows: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.images) if self.rows is None else len(self.rows)


def own_subjects(found: build.RunData) -> list[Subject]:
    validation = Subject(name="validation", images=found.validation, rows=found.validation_rows)
    return [validation, Subject(name="test", images=found.test)]


def foreign_subject(
    name: str, split: str, *, root: Path | None, ood: bool, classes: Classes, size: int, interpolation: Interpolation
) -> Subject:
    """Images of another data set, read as the run's own are, their labels those of the run's `classes`.

    `ood` sets labels that mean nothing to the model to 0.
    """
    images = build.load_split(name, split, size=size, interpolation=interpolation, root=root)
    if ood:
        images = dataclasses.replace(images, labels=torch.zeros_like(images.labels), soft_labels=None)
    else:
        images = relabelled(images, name, classes)
    return Subject(name=f"{_file_name(name)}-{split}", images=images)


def corrupted_subject(test: data.Images, corruption: str) -> Subject:
    """The run's test images under a corruption ("fog-5"), or under all fifteen, one after another ("all-5")."""
    name, severity = parse_split(corruption)
    names = tuple(CORRUPTIONS) if name == "all" else (name,)
    if not isinstance(test, data.ArrayImages) or len(names) * test.array.numel() > build.IN_MEMORY_BYTES:
        raise data.DataError(
            f"the test images are too large to corrupt in memory; name one corruption instead of {corruption}, or use small "
            "images (the strengths are made for 32 px)"
        )
    made = [corrupt(test.array, each, severity, generator=torch.Generator().manual_seed(0)) for each in names]
    images = dataclasses.replace(
        test,
        array=torch.cat(made),
        labels=test.labels.repeat(len(names)),
        soft_labels=_repeated(test.soft_labels, names),
    )
    return Subject(name=f"test-{corruption}", images=images)


def _repeated(rows: torch.Tensor | None, names: Sequence[str]) -> torch.Tensor | None:
    return None if rows is None else rows.repeat(len(names), 1)


def _file_name(name: str) -> str:
    """A data set's name as a folder's: without separators, and of a path too long for a name only the end and a digest."""
    plain = name.replace(":", "-").replace("/", "-").replace(os.sep, "-")
    if len(os.fsencode(plain)) <= _LONGEST_NAME:
        return plain
    end = os.fsencode(plain)[-_LONGEST_NAME // 2 :].decode("utf-8", "ignore")
    return f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}-{end}"


def predict_run(
    folder: RunFolder,
    spec: RunSpec,
    subjects: Iterable[Subject],
    rules: Iterable[str],
    *,
    fabric: Fabric,
    runtime: Runtime,
    interface: Interface,
    features: bool,
    on_batch: Callable[[int], None] | None = None,
) -> list[Path]:
    """Writes predictions/<name>[.<rule>] for every subject and rule; the network is built anew from the checkpoint.

    Normalisation, size and class names are the ones it was trained with: those of its `interface`.
    """
    written: list[Path] = []
    subjects = list(subjects)
    for rule in rules:
        model = run_model(folder, spec, rule, fabric=fabric, interface=interface)
        for subject in subjects:
            target = folder.predictions_path(subject.name, rule)
            made = predict_subject(
                model,
                subject,
                spec,
                fabric=fabric,
                runtime=runtime,
                interface=interface,
                features=features or has_features(target),  # what was kept on request is not lost by predicting again
                on_batch=on_batch,
            )
            if fabric.is_global_zero:
                save_predictions(made, target, overwrite=True)
            written.append(target)
    fabric.barrier()
    return written


def predict_folder(
    path: PathArg,
    *,
    rules: Sequence[str],
    data_name: str | None = None,
    splits: Sequence[str] | None = None,
    ood: bool = False,
    corruptions: Sequence[str] = (),
    features: bool = False,
    batch_size: int | None = None,
    runtime: Runtime | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> list[Path]:
    """`calattn predict`: its own splits, or those of another data set; for these the run's own need not be there.

    `corruptions`, such as "fog-5" or "all-5", are of its own test images, in place of the splits.
    """
    runtime = runtime or Runtime()
    folder = RunFolder.open(path)
    spec = folder.spec()
    for each in corruptions:
        parse_split(each)
    if corruptions and (data_name or splits):
        raise ValueError("--corrupt is about the run's own test images; leave out --data and --split")
    _check_wanted(folder, rules, data_name, ood=ood)
    if batch_size is not None:
        spec = spec.model_copy(update={"evaluation": spec.evaluation.model_copy(update={"batch_size": batch_size})})
    fabric = runtime.fabric(runtime.usable_precision(spec.train.precision))
    with naming_plugins(folder):
        if corruptions:
            found = _own_data(folder, spec, runtime.data_root)
            subjects = [corrupted_subject(found.test, each) for each in corruptions]
            interface = read_interface(folder) or interface_of(spec, found)
        else:
            subjects, interface = _subjects(folder, spec, data_name, splits, root=runtime.data_root, ood=ood)
        if fabric.is_global_zero and not folder.interface_path.exists():  # a run of a version that did not note it
            write_interface(folder, interface)
        return predict_run(
            folder,
            spec,
            subjects,
            rules,
            fabric=fabric,
            runtime=runtime,
            interface=interface,
            features=features,
            on_batch=on_batch,
        )


def _subjects(
    folder: RunFolder,
    spec: RunSpec,
    data_name: str | None,
    splits: Sequence[str] | None,
    *,
    root: Path | None,
    ood: bool,
) -> tuple[list[Subject], Interface]:
    """What is asked for, and what the network takes."""
    if data_name is None:
        found = _own_data(folder, spec, root)
        subjects = own_subjects(found)
        unknown = set(splits or ()) - {subject.name for subject in subjects}
        if unknown:
            raise ValueError(
                f"the run has no split {sorted(unknown)[0]!r}; it has validation and test; other images need --data"
            )
        wanted = [subject for subject in subjects if not splits or subject.name in splits]
        return wanted, read_interface(folder) or interface_of(spec, found)
    default = data.describe(data_name).splits[-1:]
    interface = run_interface(folder, spec)
    foreign = [
        foreign_subject(
            data_name,
            split,
            root=root,
            ood=ood,
            classes=Classes(dataset=spec.data.name, names=interface.class_names),
            size=interface.size,
            interpolation=spec.data.interpolation,
        )
        for split in splits or default
    ]
    return foreign, interface


def _own_data(folder: RunFolder, spec: RunSpec, root: Path | None) -> build.RunData:
    """What the run was trained on, checked; where it is not there, what to do about it."""
    try:
        found = build.load_data(spec, root=root)
    except data.DataError as error:
        kind, _, path = spec.data.name.partition(":")
        if not path or Path(path).expanduser().exists():
            raise
        place = f"put the images back as {path}"
        if not Path(path).expanduser().is_absolute():
            place = f"{path} is relative to where training ran: run the command there"
        raise data.DataError(f"{error}; {place}, or name images elsewhere with --data {kind}:PATH") from None
    check_same_split(folder, found)
    check_own_classes(folder, spec, found)
    return found


def _check_wanted(folder: RunFolder, rules: Sequence[str], data_name: str | None, *, ood: bool) -> None:
    """What can be refused before images are read."""
    unknown = [rule for rule in rules if rule not in get_args(Rule)]
    if unknown:
        raise ValueError(f"unknown checkpoint {unknown[0]!r}; known: {', '.join(get_args(Rule))}")
    if ood and data_name is None:
        raise ValueError("--ood is about another data set; name it with --data")
    if not any(folder.checkpoints_path.glob("state-*.safetensors")):
        if (process := folder.writer()) is not None:
            raise RunFolderError(
                f"{folder.path} has no checkpoint yet, and is being written by process {process}; wait for it"
            )
        command = shlex.join(["calattn", "train", str(folder.spec_path), "--out", str(folder.path)])
        raise RunFolderError(f"{folder.path} has no checkpoint yet; train it first: {command}")
    if not folder.splits_path.is_file():
        raise RunFolderError(f"{folder.splits_path} is missing, which names the validation images; put it back")
    check_writable(folder.all_predictions_path / "test")


def check_same_split(folder: RunFolder, found: build.RunData) -> None:
    """The validation images must be the ones that training did not see."""
    _, saved = load_splits(folder.splits_path, found.train.labels)
    if saved is None and found.validation is not found.train:
        return
    if saved is None or found.validation is not found.train or not torch.equal(saved, found.validation_rows):
        raise data.DataError(
            f"{folder.splits_path} holds out other images than the spec does; put the file back, or train again"
        )


def check_own_classes(folder: RunFolder, spec: RunSpec, found: build.RunData) -> None:
    """The classes must be the ones that the run was trained on, as far as the folder knows them."""
    known = known_classes(folder)
    if known is not None:
        check_same_classes(spec.data.name, found.class_names, Classes(dataset=spec.data.name, names=known))


def run_model(folder: RunFolder, spec: RunSpec, rule: str, *, fabric: Fabric, interface: Interface) -> Any:
    """The run's network with a checkpoint's weights, ready to predict: `model(images)` gives a `ModelOutput`."""
    model = trained_network(folder, spec, rule, interface)
    # Predictions need no loss: one of a plugin need not be there.
    return fabric.setup_module(TrainStep(model, losses.ce)).eval()


def predict_subject(
    model: Any,
    subject: Subject,
    spec: RunSpec,
    *,
    fabric: Fabric,
    runtime: Runtime,
    interface: Interface,
    features: bool,
    on_batch: Callable[[int], None] | None = None,
) -> Predictions:
    """What a `run_model` says about a subject, in memory."""
    images = _with_channels(subject.images, interface.channels)
    size_in = input_size(images, interface.size)
    loader = EvalLoader(
        images,
        subject.rows,
        interface.augment(size_in, interpolation=spec.data.interpolation, num_classes=images.num_classes),
        batch_size=spec.evaluation.batch_size,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        device=fabric.device,
        workers=runtime.num_workers,
    )
    fields = {"class_names": interface.class_names, "split": subject.name, "spec_hash": spec.hash}
    return predict(model, loader, fabric=fabric, features=features, on_batch=on_batch, **fields)


def _with_channels(images: data.Images, channels: int) -> data.Images:
    """Images as the network sees them: of grey ones a network for colour gets the one channel three times."""
    if images.channels == channels:
        return images
    if channels == 1:
        raise data.DataError(
            "the images have 3 channel(s), the network was trained on 1; save them as grey images, a folder for each class, and "
            "pass --data imagefolder:PATH"
        )
    if isinstance(images, data.ArrayImages):
        return dataclasses.replace(images, array=images.array.expand(-1, channels, -1, -1))
    assert isinstance(images, LazyImages)
    return dataclasses.replace(images, num_channels=channels)
