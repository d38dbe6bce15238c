"""CIFAR-10-C from files as they are published, written here in small, and made from CIFAR-10 where there are none."""

from __future__ import annotations

import pickle
import tarfile

import numpy as np
import pytest
import torch

from calattn.data.corruptions import CORRUPTIONS, corrupt
from calattn.data.images import ArrayImages, DamagedFile, DataError, DataMissing, FilesMissing
from calattn.data.sources import cifar10_c
from calattn.data.sources.datasets import DATASETS

N = 4


def pixels_of(name: str) -> np.ndarray:
    """5 severities × N images, different for every corruption."""
    seed = list(CORRUPTIONS).index(name)
    return np.random.default_rng(seed).integers(0, 256, (5 * N, 32, 32, 3), dtype=np.uint8)


LABELS = np.tile(np.array([3, 8, 8, 0], dtype=np.uint8), 5)


def write_files(folder):
    folder.mkdir(parents=True)
    for name in CORRUPTIONS:
        np.save(folder / f"{name}.npy", pixels_of(name))
    np.save(folder / "labels.npy", LABELS)


@pytest.fixture(params=["subfolder", "folder", "tar"])
def official(request, tmp_path):
    """The data set's folder with the archive unpacked, unpacked without its own folder, or as it is."""
    folder = tmp_path / "cifar10_c"
    inside = folder if request.param == "folder" else folder / "CIFAR-10-C"
    write_files(inside)
    if request.param == "tar":
        with tarfile.open(folder / "CIFAR-10-C.tar", "w") as archive:
            archive.add(inside, arcname="CIFAR-10-C")
        for path in inside.iterdir():
            path.unlink()
        inside.rmdir()
    return folder


@pytest.fixture
def clean(monkeypatch):
    """A CIFAR-10 of six images; `asked` collects what was loaded."""
    array = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    images = ArrayImages(
        array=array, labels=torch.tensor([9, 0, 1, 2, 3, 3]), class_names=DATASETS["cifar10"].class_names
    )
    asked = []

    def load(name, split, *, root=None):
        asked.append((name, split, root))
        return images

    monkeypatch.setattr("calattn.data.load", load)
    return images, asked


def test_official_files(official):
    for name, severity in (("fog", 1), ("fog", 5), ("jpeg_compression", 3), ("gaussian_noise", 2)):
        images = cifar10_c.read(official, f"{name}-{severity}")
        rows = slice((severity - 1) * N, severity * N)
        assert images.origin == "official"
        assert np.array_equal(images.array.permute(0, 2, 3, 1).numpy(), pixels_of(name)[rows])
        assert images.labels.tolist() == [3, 8, 8, 0]
        assert images.class_names[3] == "cat"


def test_all_is_the_fifteen_in_order(official):
    images = cifar10_c.read(official, "all-4")
    assert len(images) == 15 * N
    assert torch.equal(images.array, torch.cat([cifar10_c.read(official, f"{name}-4").array for name in CORRUPTIONS]))
    assert images.labels.tolist() == [3, 8, 8, 0] * 15


def test_made_from_cifar10(tmp_path, clean):
    images = cifar10_c.read(tmp_path / "cifar10_c", "snow-2")
    expected = corrupt(clean[0].array, "snow", 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(images.array, expected)
    assert torch.equal(images.labels, clean[0].labels)
    assert clean[1] == [("cifar10", "test", tmp_path)]
    assert images.origin == "made"


def test_all_made(tmp_path, clean):
    images = cifar10_c.read(tmp_path / "cifar10_c", "all-5")
    assert len(images) == 15 * 6
    fog = list(CORRUPTIONS).index("fog") * 6
    assert torch.equal(images.array[fog : fog + 6], cifar10_c.read(tmp_path / "cifar10_c", "fog-5").array)
    assert torch.equal(images.labels, clean[0].labels.repeat(15))


def test_selection_keeps_the_origin(tmp_path, clean):
    images = cifar10_c.read(tmp_path / "cifar10_c", "fog-1")
    some = images.select(torch.tensor([4, 1]))
    assert (some.origin, some.labels.tolist()) == ("made", [3, 0])
    assert torch.equal(some.decode(1), images.decode(1))
    assert (some.channels, some.size, len(some)) == (3, (32, 32), 2)
    assert len(clean[1]) == 1


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (DataMissing, FilesMissing, r"neither CIFAR-10-C's files in .* nor CIFAR-10's .*calattn data get cifar10"),
        (DataError, DataError, "cifar10 test is cut short"),  # damaged, and not called missing
    ],
)
def test_cifar10_that_cannot_be_read(tmp_path, monkeypatch, error, raised, message):
    def load(name, split, *, root=None):  # noqa: ARG001
        raise error(f"{name} {split} is cut short")

    monkeypatch.setattr("calattn.data.load", load)
    with pytest.raises(raised, match=message):
        cifar10_c.read(tmp_path / "cifar10_c", "fog-1")


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def objects(path):
    np.save(path, np.array([{}, 1], dtype=object), allow_pickle=True)


DAMAGE = {
    "missing": ("fog", lambda path: path.unlink(), "but not its fog.npy"),
    "cut": ("fog", cut, "fog.npy cannot be read"),
    "empty": ("fog", lambda path: path.write_bytes(b""), "fog.npy cannot be read"),
    "text": ("fog", lambda path: path.write_text("<html>"), "fog.npy cannot be read"),
    "pickle": ("fog", lambda path: path.write_bytes(pickle.dumps([1])), "fog.npy cannot be read"),
    "objects": ("fog", objects, "fog.npy cannot be read"),
    "dtype": (
        "fog",
        lambda path: np.save(path, pixels_of("fog").astype(np.float32)),
        r"must be uint8 .* it is float32",
    ),
    "shape": ("fog", lambda path: np.save(path, pixels_of("fog")[:, :16]), r"it is uint8 \[20, 16, 32, 3\]"),
    "fifths": ("fog", lambda path: np.save(path, pixels_of("fog")[:19]), r"it is uint8 \[19, 32, 32, 3\]"),
    "no labels": ("labels", lambda path: path.unlink(), "but not its labels.npy"),
    "few labels": ("labels", lambda path: np.save(path, LABELS[:10]), r"must be 20 integers.* it is uint8 \[10\]"),
    "float labels": ("labels", lambda path: np.save(path, LABELS.astype(float)), "it is float64"),
    "large labels": ("labels", lambda path: np.save(path, LABELS + 2), r"label 1 is 10, outside"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(tmp_path, kind, packed):
    stem, damage, message = DAMAGE[kind]
    folder = tmp_path / "cifar10_c"
    write_files(folder / "CIFAR-10-C")
    damage(folder / "CIFAR-10-C" / f"{stem}.npy")
    if packed:
        with tarfile.open(tmp_path / "CIFAR-10-C.tar", "w") as archive:
            archive.add(folder / "CIFAR-10-C", arcname="CIFAR-10-C")
        folder = tmp_path / "packed"
        folder.mkdir()
        (tmp_path / "CIFAR-10-C.tar").rename(folder / "CIFAR-10-C.tar")
    with pytest.raises(DamagedFile, match=message):
        cifar10_c.read(folder, "fog-2")


def test_damaged_archive(tmp_path):
    path = tmp_path / "CIFAR-10-C.tar"
    path.write_bytes(b"not an archive" * 100)
    with pytest.raises(DamagedFile, match=r"CIFAR-10-C.tar/fog.npy cannot be read"):
        cifar10_c.read(tmp_path, "fog-2")


def test_an_archive_that_ends_in_the_middle(tmp_path):
    write_files(tmp_path / "CIFAR-10-C")
    archive = tmp_path / "packed" / "CIFAR-10-C.tar"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as file:
        file.add(tmp_path / "CIFAR-10-C" / "fog.npy", arcname="CIFAR-10-C/fog.npy")
    archive.write_bytes(archive.read_bytes()[:30_000])
    with pytest.raises(DamagedFile, match=r"fog.npy"):
        cifar10_c.read(archive.parent, "fog-5")


@pytest.mark.parametrize("split", ["test", "fog", "fog-0", "fog-6", "fgo-5", "all", "fog-5-5", ""])
def test_unknown_splits(tmp_path, split):
    with pytest.raises(DataError, match=rf"no corruption '{split}'; write CORRUPTION-SEVERITY"):
        cifar10_c.read(tmp_path, split)


def test_splits():
    assert len(DATASETS["cifar10_c"].splits) == 16 * 5
    assert {"fog-5", "all-1", "gaussian_noise-1"} <= set(DATASETS["cifar10_c"].splits)
