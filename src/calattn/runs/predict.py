"""Predictions of a run: its own splits, or any other data set, under any of its checkpoints."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from calattn import data, losses
from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.data.decoding import LazyImages
from calattn.data.loading import EvalLoader, input_size
from calattn.data.sources.cifar10_c import parse_split
from calattn.data.splits import load_splits
from calattn.engine.predict import predict
from calattn.engine.step import TrainStep
from calattn.files.atomic import PathArg, check_writable
from calattn.files.predictions import has_features, save_predictions
from calattn.rules import RULES
from calattn.runs import build
from calattn.runs.environment import naming_plugins
from calattn.runs.folder import RunFolder, RunFolderError
from calattn.runs.interface import Classes, Interface, check_same_classes, read_interface, relabelled
from calattn.runs.load import trained_network
from calattn.runs.runtime import Runtime
from calattn.runs.spec import RunSpec
from calattn.types import Predictions

_LONGEST_NAME = 200  # bytes; file systems take 255, and split and rule are added


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSet:
    """What is predicted: images, which of their rows (None: all), and the name of the predictions."""

    name: str
    images: data.Images
    rows: torch.Tensor | None = None
    labelled: bool = True

    @property
    def count(self) -> int:
        return len(self.images) if self.rows is None else len(self.rows)


def own_images(found: build.RunData) -> list[ImageSet]:
    validation = ImageSet(name="validation", images=found.validation, rows=found.validation_rows)
    return [validation, *([] if found.test is None else [ImageSet(name="test", images=found.test)])]


def foreign_images(
    name: str, split: str, *, spec: RunSpec, interface: Interface, root: Path | None, ood: bool
) -> ImageSet:
    """Images of another data set, read as the run's own are, their labels those of the run's classes.

    With `ood`, whose labels mean nothing to the model, the predictions have none.
    """
    options = build.LoadOptions(size=interface.size, interpolation=spec.data.interpolation, root=root)
    images = build.load_split(name, split, options)
    if ood:
        images = dataclasses.replace(images, labels=torch.zeros_like(images.labels), soft_labels=None)
    else:
        images = relabelled(images, name, Classes(dataset=spec.data.name, names=interface.class_names))
    return ImageSet(name=f"{_file_name(name)}-{split}", images=images, labelled=not ood)


def corrupted_images(test: data.Images | None, corruption: str) -> ImageSet:
    """The run's test images under a corruption ("fog-5"), or under all fifteen, one after another ("all-5")."""
    if test is None:
        raise data.DataError("the run has no test images to corrupt; add a test folder (or files) to its data")
    name, severity = parse_split(corruption)
    names = tuple(CORRUPTIONS) if name == "all" else (name,)
    if not isinstance(test, data.ArrayImages) or len(names) * test.array.numel() > build.IN_MEMORY_BYTES:
        raise data.DataError(
            f"the test images are too large to corrupt in memory; name one corruption instead of {corruption}, or use small "
            "images (the strengths are made for 32 px)"
        )
    made = [corrupt(test.array, each, severity, generator=torch.Generator().manual_seed(0)) for each in names]
    soft = None if test.soft_labels is None else test.soft_labels.repeat(len(names), 1)
    labels = test.labels.repeat(len(names))
    images = dataclasses.replace(test, array=torch.cat(made), labels=labels, soft_labels=soft)
    return ImageSet(name=f"test-{corruption}", images=images)


def _file_name(name: str) -> str:
    """A data set's name as a folder's: without separators, and of a path too long for a name only the end and a digest."""
    plain = name.replace(":", "-").replace("/", "-").replace(os.sep, "-")
    if len(os.fsencode(plain)) <= _LONGEST_NAME:
        return plain
    end = os.fsencode(plain)[-_LONGEST_NAME // 2 :].decode("utf-8", "ignore")
    return f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}-{end}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictor:
    """A run's trained networks at work. Normalisation, size and class names are those of its `interface`."""

    folder: RunFolder
    spec: RunSpec
    interface: Interface
    fabric: Fabric
    runtime: Runtime
    on_batch: Callable[[int], None] | None = None

    def network(self, rule: str) -> Any:
        """The run's network with a checkpoint's weights, ready to predict: `network(images)` gives a `ModelOutput`."""
        model = trained_network(self.folder, self.spec, rule, self.interface)
        # Predictions need no loss: one of a plugin need not be there.
        return self.fabric.setup_module(TrainStep(model, losses.ce)).eval()

    def predict(self, network: Any, wanted: ImageSet, *, features: bool = False) -> Predictions:
        """What a `network` says about images, in memory."""
        taken, fabric = self.interface, self.fabric
        images = _with_channels(wanted.images, taken.channels)
        augment = taken.augment(input_size(images, taken.size), num_classes=images.num_classes)
        batch_size, place = self.spec.evaluation.batch_size, self.runtime.place(fabric)
        loader = EvalLoader(images, wanted.rows, augment, batch_size=batch_size, **place)
        fields = {"class_names": taken.class_names, "split": wanted.name, "spec_hash": self.spec.hash}
        found = predict(network, loader, fabric=fabric, features=features, on_batch=self.on_batch, **fields)
        return found if wanted.labelled else found.replace(labels=None)

    def write(self, sets: Iterable[ImageSet], rules: Iterable[str], *, features: bool) -> list[Path]:
        """Writes predictions/<name>[.<rule>] for every set and rule; the network is built anew from the checkpoint."""
        written: list[Path] = []
        sets = list(sets)
        for rule in rules:
            network = self.network(rule)
            for each in sets:
                target = self.folder.predictions_path(each.name, rule)
                # What was kept on request is not lost by predicting again.
                made = self.predict(network, each, features=features or has_features(target))
                if self.fabric.is_global_zero:
                    save_predictions(made, target, overwrite=True)
                written.append(target)
        self.fabric.barrier()
        return written


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What `calattn predict` may be asked for: by default the run's own splits under its last checkpoint.

    `data` and `splits` name other images, for which the run's own need not be there; with `ood` they have no labels.
    `corruptions`, such as "fog-5" or "all-5", are of the run's own test images, in place of the splits.
    """

    rules: Sequence[str] = ("last",)
    data: str | None = None
    splits: Sequence[str] = ()
    ood: bool = False
    corruptions: Sequence[str] = ()
    features: bool = False
    batch_size: int | None = None


def predict_folder(
    path: PathArg,
    options: PredictOptions | None = None,
    *,
    runtime: Runtime | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> list[Path]:
    """Writes predictions of a trained run into its folder, and says where."""
    options, runtime = options or PredictOptions(), runtime or Runtime()
    folder = RunFolder.open(path)
    spec = folder.spec()
    _check_wanted(folder, options)
    if options.batch_size is not None:
        evaluation = spec.evaluation.model_copy(update={"batch_size": options.batch_size})
        spec = spec.model_copy(update={"evaluation": evaluation})
    fabric = runtime.fabric(runtime.usable_precision(spec.train.precision))
    with naming_plugins(folder), folder.adding():
        interface = read_interface(folder)
        predictor = Predictor(
            folder=folder, spec=spec, interface=interface, fabric=fabric, runtime=runtime, on_batch=on_batch
        )
        sets = _image_sets(folder, spec, interface, options, root=runtime.data_root)
        return predictor.write(sets, options.rules, features=options.features)


def _image_sets(
    folder: RunFolder, spec: RunSpec, interface: Interface, options: PredictOptions, *, root: Path | None
) -> list[ImageSet]:
    if options.data is not None:
        splits = options.splits or data.describe(options.data).splits[-1:]
        foreign = functools.partial(
            foreign_images, options.data, spec=spec, interface=interface, root=root, ood=options.ood
        )
        return [foreign(split) for split in splits]
    found = _own_data(folder, spec, root)
    if options.corruptions:
        return [corrupted_images(found.test, each) for each in options.corruptions]
    sets = own_images(found)
    unknown = set(options.splits) - {each.name for each in sets}
    if unknown:
        raise ValueError(
            f"the run has no split {sorted(unknown)[0]!r}; it has {' and '.join(each.name for each in sets)}; other images "
            "need --data"
        )
    return [each for each in sets if not options.splits or each.name in options.splits]


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


def _check_wanted(folder: RunFolder, options: PredictOptions) -> None:
    """What can be refused before images are read."""
    for each in options.corruptions:
        parse_split(each)
    if options.corruptions and (options.data or options.splits):
        raise ValueError("--corrupt is about the run's own test images; leave out --data and --split")
    unknown = [rule for rule in options.rules if rule not in RULES]
    if unknown:
        raise ValueError(f"unknown checkpoint {unknown[0]!r}; known: {', '.join(RULES)}")
    if options.ood and options.data is None:
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
    """The classes must be the ones that the run was trained on: renamed, their labels would mean others."""
    own = Classes(dataset=spec.data.name, names=read_interface(folder).class_names)
    check_same_classes(spec.data.name, found.class_names, own)


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
