"""Builders: they unpack a `RunSpec` into data, model, loss and optimiser, which know nothing of specs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.optim import Optimizer

from calattn import backbones, data, losses
from calattn.data.augment.pipeline import Augment
from calattn.data.loading import input_size
from calattn.data.resize import Interpolation
from calattn.data.splits import validation_split
from calattn.engine.optim import OptimizerSettings, Schedule, ScheduleSettings, build_optimizer
from calattn.heads.lesson import Lesson
from calattn.heads.taught import KINDS
from calattn.models.attach import CalibratedModel, attach
from calattn.registry import UnknownName, nearest
from calattn.runs.spec import RunSpec
from calattn.runs.weights import load_weights
from calattn.seeds import seed_of

# Decoded images up to this many bytes are kept in memory (and on the GPU); beyond it worker processes decode them again.
IN_MEMORY_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The images of a run as read, and which rows of `train` and of `validation` are used; there may be no test images.

    `validation` is `train` itself, of which some rows are held out, unless the data set has validation images of its own.
    """

    dataset: data.Dataset
    train: data.Images
    validation: data.Images
    test: data.Images | None
    train_rows: Tensor
    validation_rows: Tensor

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names


def load_data(
    spec: RunSpec, *, root: Path | None = None, on_decode: Callable[[str, int, int], None] | None = None
) -> RunData:
    """Reads train and test, and the validation images where there are some; else it draws their rows from train."""
    dataset = data.describe(spec.data.name)
    names = [split for split in dataset.splits if split != "validation"][:2]
    if len(dataset.splits) < 2 or names == ["test"]:
        raise data.DataError(
            f"{spec.data.name} has only {' and '.join(dataset.splits)} images; a run trains on some and is judged by others: add "
            "a train and a test folder (or files)"
        )
    options = LoadOptions(
        size=spec.data.size,
        interpolation=spec.data.interpolation,
        root=root,
        limit=spec.data.limit,
        lazily=spec.augment.crop == "resized",
        on_decode=on_decode,
    )
    train, test = ([load_split(spec.data.name, split, options) for split in names] + [None])[:2]
    assert train is not None
    if train.num_classes < 2:
        raise data.DataError(
            f"{spec.data.name}: there is only one class ({some(train.class_names)}); a classifier needs two or more"
        )
    if test is not None and train.class_names != test.class_names:
        raise data.DataError(
            f"{spec.data.name}: train has the classes {some(train.class_names)}, test has {some(test.class_names)}; "
            "they must be the same: rename or remove what differs"
        )
    if "validation" in dataset.splits:
        validation = load_split(spec.data.name, "validation", options)
        rows, held_out = torch.arange(len(train)), torch.arange(len(validation))
    else:
        validation = train
        rows, held_out = validation_split(train.labels, fraction=spec.data.validation, seed=spec.data.split_seed)
    return RunData(
        dataset=dataset, train=train, validation=validation, test=test, train_rows=rows, validation_rows=held_out
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How images are read. `lazily` leaves them to be decoded when they are needed; `limit` takes only so many."""

    size: int | None
    interpolation: Interpolation
    root: Path | None = None
    limit: int | None = None
    lazily: bool = False
    on_decode: Callable[[str, int, int], None] | None = None


def load_split(name: str, split: str, options: LoadOptions) -> data.Images:
    """A split of any data set, decoded into memory where it is small enough; images of unlike sizes become `size` × `size`."""
    images, size = limited(data.load(name, split, root=options.root), options.limit), options.size
    if isinstance(images, data.ArrayImages):
        return images
    if size is None and images.size is None and isinstance(images, data.LazyImages):
        images = images.with_common_size()
    # Images of one size are kept as they are, and resized a batch at a time: after the crop, as those of any array.
    kept = images.size or (None if size is None else (size, size))
    if kept is None:
        raise data.DataError(f"{name}: images differ in size; say which the network should see, --size 224")
    if options.lazily or len(images) * images.channels * kept[0] * kept[1] > IN_MEMORY_BYTES:
        return images
    unlike = size if images.size is None else None
    return data.in_memory(images, size=unlike, interpolation=options.interpolation, progress=options.on_decode)


def some(names: Sequence[str]) -> str:
    """The first few names of classes, and how many there are."""
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")


def limited(images: data.Images, limit: int | None) -> data.Images:
    """The first `limit` images; where a class would be missing from them, as many of each class as possible instead.

    Image folders come class by class: their first images are all alike.
    """
    if limit is None or limit >= len(images):
        return images
    rows = torch.arange(limit)
    if len(images.labels[:limit].unique()) < len(images.labels.unique()):
        rows = _nth_of_its_class(images.labels).argsort(stable=True)[:limit].sort().values
    return images.select(rows)


def _nth_of_its_class(labels: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """How many of the same class come before each.

    >>> _nth_of_its_class(torch.tensor([7, 7, 4, 7])).tolist()
    [0, 1, 0, 2]
    """
    order = labels.argsort(stable=True)
    counts = labels.unique(return_counts=True)[1]
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(labels)) - starts
    return place


def network_size(spec: RunSpec, images: data.Images) -> int:
    """The side of the images that the network sees."""
    if spec.data.size is not None:
        return spec.data.size
    if images.size is None or images.size[0] != images.size[1]:
        why = (
            "images differ in size"
            if images.size is None
            else f"images are {images.size[0]} × {images.size[1]}, not square"
        )
        raise data.DataError(f"{spec.data.name}: {why}; set data.size (--size 224)")
    return images.size[0]


def normalisation(spec: RunSpec, dataset: data.Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of the pixels, by which images are normalised: the spec's, else the data set's."""
    mean, std = spec.data.mean or dataset.mean, spec.data.std or dataset.std
    if len(mean) != dataset.channels:
        raise ValueError(
            f"data.mean and data.std have {len(mean)} number(s), the images of {spec.data.name} have {dataset.channels} "
            "channel(s); give one per channel"
        )
    return mean, std


def with_pretrained_normalisation(spec: RunSpec, model: CalibratedModel, dataset: data.Dataset) -> RunSpec:
    """The spec with the mean and deviation that timm states for the pretrained weights in the model, unless it has its own.

    Images of another number of channels than timm's are normalised by the averages over timm's channels: for one channel it
    adds up the first layer's weights, and then does the same to a grey image as before to three equal channels, if these had
    one mean and deviation (nearly so if not).
    """
    stated = getattr(model, "pretrained_cfg", None) or {}
    if not spec.model.pretrained or spec.data.mean is not None or not (stated.get("mean") and stated.get("std")):
        return spec
    mean, std = (_for_channels(stated[key], dataset.channels) for key in ("mean", "std"))
    return spec.model_copy(update={"data": spec.data.model_copy(update={"mean": mean, "std": std})})


def _for_channels(numbers: Sequence[float], channels: int) -> tuple[float, ...]:
    """One a channel.

    >>> _for_channels([0.485, 0.456, 0.406], 1)
    (0.449,)
    """
    return tuple(map(float, numbers)) if len(numbers) == channels else (statistics.fmean(numbers),) * channels


def build_augment(spec: RunSpec, found: RunData) -> Augment:
    chosen, size = spec.augment, network_size(spec, found.train)
    mean, std = normalisation(spec, found.dataset)
    return Augment(
        channels=found.dataset.channels,
        size_in=input_size(found.train, size),
        size_out=size,
        interpolation=spec.data.interpolation,
        mean=mean,
        std=std,
        crop=chosen.crop,
        flip=found.dataset.flip if chosen.flip is None else chosen.flip,
        randaugment_ops=chosen.randaugment_ops,
        randaugment_magnitude=chosen.randaugment_magnitude,
        erasing=chosen.erasing,
        mixup=chosen.mixup,
        cutmix=chosen.cutmix,
        num_classes=found.train.num_classes,
    )


def build_model(spec: RunSpec, *, num_classes: int, channels: int, size: int) -> CalibratedModel:
    """Backbone and head, drawn from the run's seed; the backbone's weights do not depend on the head."""
    chosen = spec.model
    name, fitted = backbones.fitted(chosen.backbone, size)
    options: dict[str, Any] = {**fitted, **chosen.options}
    if chosen.drop_path:
        options["drop_path_rate"] = chosen.drop_path
    if chosen.dropout:
        options["drop_rate"] = chosen.dropout
    if chosen.pretrained:
        options["pretrained"] = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(spec.seed, "weights"))
        try:
            backbone = backbones.create(name, num_classes, in_chans=channels, **options)
        except UnknownName:
            near = nearest(name, backbones.FAMILIES, cutoff=0.8)
            if not near:
                raise
            remedy = f"did you mean {', '.join(near)}? `calattn list backbones` shows more"
            raise UnknownName(f"unknown backbone {name!r}", remedy=remedy) from None
        except OSError as error:
            if not chosen.pretrained:
                raise
            raise ConnectionError(
                f"cannot fetch the pretrained weights of {name} ({' '.join(str(error).split())}); check the network, or save "
                f"timm.create_model({name!r}, pretrained=True, num_classes={num_classes}, in_chans={channels}).state_dict() "
                "where there is one and set model.weights=FILE in place of model.pretrained=true, with data.mean and data.std "
                "from its pretrained_cfg"
            ) from None
        except TypeError as error:
            raise ValueError(
                f"{name} does not take these options: {error}; see model.options, drop_path, dropout"
            ) from error
        except (LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ValueError(
                f"the backbone {name!r} cannot be built ({told(error)}); see model.options, or fix its builder"
            ) from error
        _check_size(name, backbone, size)
        model = attach(backbone, chosen.features, chosen.hidden, chosen.bias, head=chosen.head)
    if chosen.weights is not None:
        load_weights(model, Path(chosen.weights), backbone=name)
    return model


def lesson(spec: RunSpec) -> Lesson:
    """How the run's head is taught."""
    assert spec.teach is not None
    return Lesson(kind=KINDS[spec.model.head], hidden=spec.model.hidden, **spec.teach.model_dump())


def told(error: BaseException) -> str:
    """An error's words on one line; before those of a KeyError and its like, which say little by themselves, its kind."""
    text = " ".join(str(error).split())
    plain = type(error) in (RuntimeError, ValueError, TypeError) and text
    return text if plain else f"{type(error).__name__}{': ' if text else ''}{text}"


def build_loss(spec: RunSpec) -> losses.LossFunction:
    """The spec's loss. One that is not ours is watched: its errors name it."""
    name, options = spec.loss.name, spec.loss.options
    factory = losses.LOSSES[name]
    try:
        made = factory(**options)
    except ValueError:
        raise
    except Exception as error:  # somebody else's code: whatever it raises is about the loss
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        raise losses.LossError(
            f"the loss {name!r} cannot be made with {given} ({told(error)}); see loss.options"
        ) from error
    if not callable(made):
        raise losses.LossError(
            f"the loss {name!r} gave {type(made).__name__} in place of a function of (logits, labels); register a function that "
            "takes the options and returns the loss"
        )
    return made if isinstance(made, losses.Loss) else losses.OwnLoss(name, made)


def optimizer_for(spec: RunSpec, model: nn.Module) -> Optimizer:
    chosen = spec.optimizer.model_dump(include={"name", "lr", "weight_decay", "decay_all", "options"})
    return build_optimizer(model, OptimizerSettings(fused=bool(spec.optimizer.fused), **chosen))


def schedule_for(spec: RunSpec) -> Callable[[Optimizer, int], Schedule]:
    chosen = ScheduleSettings(epochs=spec.train.epochs, **spec.schedule.model_dump())
    return lambda optimizer, updates_per_epoch: Schedule(optimizer, chosen, updates_per_epoch=updates_per_epoch)


def _check_size(name: str, backbone: nn.Module, size: int) -> None:
    """timm's transformers are built for one size, and say so only in the middle of a step."""
    wanted = getattr(getattr(backbone, "patch_embed", None), "img_size", None)
    if isinstance(wanted, tuple) and tuple(wanted) != (size, size) and not getattr(backbone, "dynamic_img_size", False):
        raise ValueError(
            f"{name} takes images of {wanted[0]} px, the data gives {size}; pass --size {wanted[0]}, or a family that fits "
            f"itself to the data ({', '.join(backbones.FAMILIES[:4])}, …)"
        )
