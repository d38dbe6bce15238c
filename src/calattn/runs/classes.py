"""Classes of a data set in the order of a run's: by name, where both have names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from calattn import data
from calattn.data.sources.datasets import DATASETS


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
            "or pass --ood if only the confidence matters (labels are then set to 0)"
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


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", … ({len(names)})" if len(names) > 5 else "")


def _occurring(images: data.Images) -> list[int]:
    """The classes that some image has, for certain or in part."""
    present = images.labels.unique()
    if images.soft_labels is not None:
        present = torch.cat([present, (images.soft_labels > 0).any(dim=0).nonzero().squeeze(1)]).unique()
    return [int(label) for label in present]
