"""Which of a run's classes those of another data set are."""

from __future__ import annotations

import pytest
import torch

from calattn import data
from calattn.runs.interface import Classes, check_same_classes, relabelled

TEN = tuple(map(str, range(10)))
PETS = Classes(dataset="imagefolder:pets", names=("cat", "dog", "owl"))


def images(names: tuple[str, ...], labels: list[int], soft: list[list[float]] | None = None) -> data.ArrayImages:
    return data.ArrayImages(
        array=torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8),
        labels=torch.tensor(labels),
        class_names=names,
        soft_labels=None if soft is None else torch.tensor(soft),
    )


@pytest.mark.parametrize(
    ("own", "other", "places"),
    [
        (PETS, Classes(dataset="imagefolder:b", names=("owl", "dog")), [2, 1]),
        (PETS, Classes(dataset="imagefolder:b", names=("0", "1", "2")), [None] * 3),
        # Digits are called the same everywhere; a folder need not have all of them, nor sort them as numbers.
        (Classes(dataset="mnist", names=TEN), Classes(dataset="svhn", names=TEN), list(range(10))),
        (Classes(dataset="digits", names=TEN), Classes(dataset="imagefolder:b", names=("3", "7")), [3, 7]),
        (Classes(dataset="cifar10", names=("bird", "cat")), Classes(dataset="svhn", names=("0", "1")), [None, None]),
        # Two classes of one name.
        (Classes(dataset="parquet:a", names=("x", "x")), Classes(dataset="parquet:b", names=("x", "x")), [0, 1]),
        # CIFAR-10-C has CIFAR-10's names.
        (Classes(dataset="cifar10", names=("a", "b")), Classes(dataset="cifar10_c", names=("a", "b")), [0, 1]),
        # ImageNet once with the synsets' numbers, once with words.
        (Classes(dataset="imagenet1k", names=("n01", "n02")), Classes(dataset="imagenet1k", names=("x", "y")), [0, 1]),
        # Tables without names: by position, unless a folder's classes are called by the very numbers.
        (PETS, Classes(dataset="parquet:b", names=("0", "1", "2", "3")), [0, 1, 2, None]),
        (Classes(dataset="parquet:a", names=("0", "1")), Classes(dataset="imagefolder:b", names=("no", "yes")), [0, 1]),
        (Classes(dataset="imagefolder:a", names=("0", "10", "2")), Classes(dataset="parquet:b", names=("0",)), [0]),
        (
            Classes(dataset="imagefolder:a", names=tuple(sorted(map(str, range(12))))),
            Classes(dataset="parquet:b", names=tuple(map(str, range(12)))),
            [0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 2, 3],
        ),
    ],
)
def test_places(own, other, places):
    assert own.places(other) == places


def test_labels_become_the_runs():
    found = relabelled(images(("owl", "cat"), [0, 0, 1]), "imagefolder:b", PETS)
    assert found.labels.tolist() == [2, 2, 0]
    assert found.class_names == PETS.names


def test_soft_labels_become_the_runs():
    found = relabelled(
        images(("owl", "fox", "cat"), [0, 2], [[0.75, 0.0, 0.25], [0.5, 0.0, 0.5]]), "imagefolder:b", PETS
    )
    assert found.soft_labels.tolist() == [[0.25, 0.0, 0.75], [0.5, 0.0, 0.5]]
    assert found.labels.tolist() == [2, 0]


@pytest.mark.parametrize("soft", [None, [[0.9, 0.1]]])
def test_only_classes_that_occur_must_be_known(soft):
    other = images(("owl", "fox"), [0], soft)
    if soft is None:
        assert relabelled(other, "imagefolder:b", PETS).labels.tolist() == [2]
        return
    with pytest.raises(data.DataError, match=r"imagefolder:b has classes that the run does not know: fox;"):
        relabelled(other, "imagefolder:b", PETS)


def test_many_unknown_classes_are_counted():
    with pytest.raises(data.DataError, match=r"does not know: 0, 1, 2, 3, 4, … \(10\); it knows cat, dog, owl\."):
        relabelled(images(TEN, list(range(10))), "svhn", PETS)


def test_the_same_classes():
    check_same_classes(PETS.dataset, PETS.names, PETS)
    for names in (("cat", "dog"), ("cat", "dog", "owls"), ("cat", "dog", "owl", "rat")):
        with pytest.raises(data.DataError, match="the run was trained on cat, dog, owl: name them as they were"):
            check_same_classes(PETS.dataset, names, PETS)
