"""What is said to be here is what the readers find."""

from __future__ import annotations

import gzip

import pytest

from calattn import data
from calattn.data import DATASETS
from calattn.data.corruptions import CORRUPTIONS
from calattn.data.sources import download
from tests.data.test_download import mnist_members, replaced

IDX = [f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")]
TINY = ("wnids.txt", "words.txt", "val/val_annotations.txt", "train/a.JPEG", "val/images/b.JPEG")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "cifar10",
            [f"cifar-10-batches-bin/{f}.bin" for f in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")],
        ),
        ("cifar100", ["train.bin", "test.bin"]),
        ("tiny_imagenet", [f"tiny-imagenet-200/{file}" for file in TINY]),
        ("cifar10_c", [f"CIFAR-10-C/{name}.npy" for name in (*CORRUPTIONS, "labels")]),
        ("fashion_mnist", IDX),
    ],
)
def test_what_somebody_unpacked_is_here_when_all_of_it_is(tmp_path, name, files):
    for file in files:
        assert not download.is_here(name, root=tmp_path)
        (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).touch()
    assert download.is_here(name, root=tmp_path)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("mnist", [f"MNIST/raw/{file}" for file in IDX]),
        ("tiny_imagenet", ["a/tiny-imagenet-200/wnids.txt"]),
        ("cifar10_c", [f"a/CIFAR-10-C/{name}.npy" for name in (*CORRUPTIONS, "labels")]),
        ("svhn", ["deep/er/down/train-0.parquet", "deep/er/down/test-0.parquet"]),
        ("imagenet1k", ["train/n01440764/a.JPEG"]),
    ],
)
def test_what_the_reader_does_not_find_is_not_here(tmp_path, name, files):
    for file in files:
        (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).touch()
    assert not download.is_here(name, root=tmp_path)
    with pytest.raises(data.DataError):
        data.load(name, DATASETS[name].splits[0], root=tmp_path)


def test_files_gzipped_and_not_are_read_together_and_here_together(tmp_path, monkeypatch):
    for place, (name, content) in enumerate(mnist_members().items()):
        file, content = (f"{name}.gz", gzip.compress(content)) if place % 2 else (name, content)
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / file).write_bytes(content)
    replaced(monkeypatch, "mnist", remotes=())
    assert len(data.load("mnist", "train", root=tmp_path)) == 5
    assert download.is_here("mnist", root=tmp_path)


def test_a_publishers_file_of_another_size_is_not_here(tmp_path):
    (tmp_path / "mnist").mkdir()
    for name in IDX:
        (tmp_path / "mnist" / name).touch()
    assert download.is_here("mnist", root=tmp_path)
    (tmp_path / "mnist" / f"{IDX[0]}.gz").touch()  # read first
    assert not download.is_here("mnist", root=tmp_path)
