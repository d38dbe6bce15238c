"""The interface of a run's network: which images it takes and which classes it gives, kept in the run folder."""

from __future__ import annotations

import dataclasses

import pydantic
import torch

from calattn import data
from calattn.data.augment.pipeline import Augment
from calattn.data.loading import input_size
from calattn.data.resize import Interpolation
from calattn.data.sources.datasets import DATASETS
from calattn.runs import build
from calattn.runs.build import some
from calattn.runs.folder import RunFolder, RunFolderError, read_json
from calattn.runs.spec import RunSpec, first_problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interface:
    """Images of `size` px with `channels`, normalised by `mean` and `std`; logits in the order of `class_names`.

    Of an image that is not square the network sees the centre, or all of it, `stretched`: where all of its training images had
    one size and were resized as a whole.
    """

    class_names: tuple[str, ...]
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = "bilinear"
    stretched: bool = False

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def augment(self, size_in: tuple[int, int] | None = None, *, num_classes: int | None = None) -> Augment:
        """What is done to test images that come as `size_in`, of a data set with `num_classes`; by default those it takes."""
        return Augment(
            channels=self.channels,
            size_in=size_in or (self.size, self.size),
            size_out=self.size,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
            num_classes=num_classes or self.num_classes,
        )


def interface_of(spec: RunSpec, found: build.RunData) -> Interface:
    """That of a network trained on these images."""
    mean, std = build.normalisation(spec, found.dataset)
    height, width = input_size(found.train, size := build.network_size(spec, found.train))
    return Interface(
        class_names=found.class_names,
        channels=found.dataset.channels,
        size=size,
        mean=mean,
        std=std,
        interpolation=spec.data.interpolation,
        stretched=height != width,
    )


def read_interface(folder: RunFolder) -> Interface:
    """What training noted."""
    found = read_json(folder.interface_path)
    try:
        return pydantic.TypeAdapter(Interface).validate_python(found)
    except pydantic.ValidationError as error:
        raise RunFolderError(
            f"{folder.interface_path} does not say what the network takes ({first_problem(error)}); put it back, or "
            "train into a new folder"
        ) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classes:
    """The class names of a data set, and its name, which says whether they are more than numbers."""

    dataset: str
    names: tuple[str, ...]

    @property
    def unnamed(self) -> bool:
        """Tables that state no names: theirs are the numbers of the labels."""
        return self.dataset.startswith("parquet:") and self.names == tuple(map(str, range(len(self.names))))

    def places(self, other: Classes) -> list[int | None]:
        """Which of these classes each of the other's is; None for those that are not among them.

        A registered data set has its classes in one order, whatever they are called (synsets, words), so it is matched with
        itself by position; so is one that has no names, where its numbers are not the names of classes themselves.

        >>> Classes(dataset="imagefolder:a", names=("cat", "dog", "owl")).places(
        ...     Classes(dataset="imagefolder:b", names=("dog", "fox", "owl"))
        ... )
        [1, None, 2]
        """
        index = {name: place for place, name in enumerate(self.names)}
        by_name = [index.get(name) for name in other.names]
        by_position = [place if place < len(self.names) else None for place in range(len(other.names))]
        if self.names == other.names or (self.dataset == other.dataset and self.dataset in DATASETS):
            return by_position
        return by_position if None in by_name and (self.unnamed or other.unnamed) else by_name


def relabelled(images: data.Images, name: str, own: Classes) -> data.Images:
    """The images of the data set `name` with the labels of the run's classes; a class that the run does not know is named."""
    places = own.places(Classes(dataset=name, names=images.class_names))
    unknown = [images.class_names[label] for label in _occurring(images) if places[label] is None]
    if unknown:
        raise data.DataError(
            f"{name} has classes that the run does not know: {some(unknown)}; it knows {some(own.names)}. Rename or remove them, "
            "or pass --ood if only the confidence matters (there are then no labels)"
        )
    table = torch.tensor([-1 if place is None else place for place in places])
    soft = images.soft_labels
    if soft is not None:
        known = [label for label, place in enumerate(places) if place is not None]
        wide = soft.new_zeros(len(soft), len(own.names))
        wide[:, table[known]] = soft[:, known]
        soft = wide
    return dataclasses.replace(images, labels=table[images.labels], class_names=own.names, soft_labels=soft)


def check_same_classes(name: str, names: tuple[str, ...], own: Classes) -> None:
    """The run's own images must have its own classes: renamed, their labels would mean others."""
    if own.places(Classes(dataset=name, names=names)) == list(range(len(own.names))):
        return
    raise data.DataError(
        f"{name} now has the classes {some(names)}; the run was trained on {some(own.names)}: name them as they were, or train "
        "into a new folder"
    )


def _occurring(images: data.Images) -> list[int]:
    """The classes that some image has, for certain or in part."""
    present = images.labels.unique()
    if images.soft_labels is not None:
        present = torch.cat([present, (images.soft_labels > 0).any(dim=0).nonzero().squeeze(1)]).unique()
    return [int(label) for label in present]
