"""Truncated, corrupt, foreign: each file is named, with the command that fetches it again."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pytest
import scipy.io
from PIL import Image

from calattn import data
from calattn.runs import build
from tests.data.conftest import image_folder
from tests.data.test_formats import (
    cifar_members,
    idx_bytes,
    tiny_members,
    write_cifar10,
    write_idx,
    write_imagenet,
    write_svhn,
    write_tar,
    write_tiny,
)
from tests.small_runs import small_spec


def refused(name, root, match, split="train"):
    with pytest.raises(data.DataError, match=match) as caught:
        data.load(name, split, root=root)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, data.DataMissing)
    assert str(caught.value).endswith(f"calattn data get {name} --data-root {root} --force")


def test_idx_damage(tmp_path, rng):
    write_idx(tmp_path / "mnist", rng)
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    good, good_labels = images.read_bytes(), labels.read_bytes()
    content = gzip.decompress(good)
    for cut in (0, 1, 9, 20, len(good) // 2, len(good) - 1):
        images.write_bytes(good[:cut])
        refused("mnist", tmp_path, r"train-images-idx3-ubyte\.gz")
    images.write_bytes(gzip.compress(content[:-1]))
    refused("mnist", tmp_path, "5487 bytes of data where its header states 5488")
    images.write_bytes(gzip.compress(content + b"x"))
    refused("mnist", tmp_path, "5489 bytes")
    images.write_bytes(gzip.compress(b"\x00\x00\x0d\x03" + content[4:]))  # float32
    refused("mnist", tmp_path, "it begins with '00 00 0d 03'")
    images.write_bytes(gzip.compress(idx_bytes(rng.integers(256, size=(7, 20, 20)))))
    refused("mnist", tmp_path, r"\(20, 20\), but those of mnist are \(28, 28\)")
    images.write_bytes(good)
    labels.write_bytes(gzip.compress(idx_bytes(np.arange(6))))
    refused("mnist", tmp_path, "7 images but train-labels-idx1-ubyte.gz has 6 labels")
    labels.write_bytes(gzip.compress(idx_bytes(np.array([0, 1, 10, 1, 1, 1, 1]))))
    refused("mnist", tmp_path, "label 2 is 10")
    labels.write_bytes(good_labels)
    assert len(data.load("mnist", "train", root=tmp_path)) == 7


def test_cifar_archive_damage(tmp_path, rng):
    write_cifar10(tmp_path / "cifar10", rng)
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    good = path.read_bytes()
    for cut in (0, 5, 100, len(good) // 3, len(good) // 2, len(good) - len(good) // 5):
        path.write_bytes(good[:cut])
        refused("cifar10", tmp_path, r"cifar-10-binary\.tar\.gz")
    path.write_bytes(b"<html>404</html>")
    refused("cifar10", tmp_path, "not a whole tar.gz")
    members, _ = cifar_members(rng, 100)
    write_tar(path, members)
    refused("cifar10", tmp_path, r"holds no data_batch_1\.bin")


def test_cifar_bin_damage(tmp_path, rng):
    members, _ = cifar_members(rng, 10)
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, content in members.items():
        (tmp_path / "cifar10" / name).write_bytes(content)
    one = folder / "data_batch_3.bin"
    good = one.read_bytes()
    one.write_bytes(good[:-1])
    refused("cifar10", tmp_path, r"data_batch_3\.bin has 9218 bytes, not a multiple of 3073")
    one.write_bytes(good[:3073] + bytes((10,)) + good[3074:])
    refused("cifar10", tmp_path, r"data_batch_3\.bin: label 1 is 10, outside \[0, 9\]")
    one.unlink()
    refused("cifar10", tmp_path, r"data_batch_3\.bin is missing")


def test_pickled_cifar_is_not_read(tmp_path):
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "batches.meta").write_bytes(b"")
    with pytest.raises(data.DataMissing, match="are pickles, which are not read"):
        data.load("cifar10", "train", root=tmp_path)


def test_svhn_damage(tmp_path, rng):
    write_svhn(tmp_path / "svhn", rng)
    path = tmp_path / "svhn" / "train_32x32.mat"
    good = path.read_bytes()
    for cut in (0, 60, 200, len(good) // 2):
        path.write_bytes(good[:cut])
        refused("svhn", tmp_path, r"train_32x32\.mat")
    path.write_bytes(good[:5000] + b"garbage garbage" + good[5015:])
    refused("svhn", tmp_path, r"train_32x32\.mat")
    pixels = rng.integers(256, size=(32, 32, 3, 4), dtype=np.uint8)
    for content, match in (
        ({"X": pixels}, "no variable 'y'"),
        ({"X": pixels.astype(float), "y": np.ones((4, 1))}, "X is float64"),
        ({"X": pixels, "y": np.ones((3, 1))}, "for each of 4 images"),
        ({"X": pixels, "y": np.full((4, 1), 11)}, r"label of 1…10"),
    ):
        scipy.io.savemat(path, content)
        refused("svhn", tmp_path, match)


def test_tiny_imagenet_damage(tmp_path, rng):
    write_tiny(tmp_path / "tiny_imagenet", rng)
    base = tmp_path / "tiny_imagenet" / "tiny-imagenet-200"
    lines = (base / "val" / "val_annotations.txt").read_text()
    (base / "val" / "val_annotations.txt").write_text(lines + "val_9.JPEG\n")
    refused("tiny_imagenet", tmp_path, "line 4 of val/val_annotations.txt", "test")
    (base / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn1\t0\n")
    refused("tiny_imagenet", tmp_path, "n1, which wnids.txt does not name", "test")
    (base / "words.txt").unlink()
    refused("tiny_imagenet", tmp_path, r"words\.txt is missing")


def test_tiny_imagenet_zip_damage(tmp_path, rng):
    members, _ = tiny_members(rng)
    path = tmp_path / "tiny_imagenet" / "tiny-imagenet-200.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"tiny-imagenet-200/{name}", content)
    good = path.read_bytes()
    for cut in (0, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        refused("tiny_imagenet", tmp_path, r"tiny-imagenet-200\.zip")
    middle = good.index(b"\xff\xd8") + 200
    path.write_bytes(good[:middle] + b"xxxx" + good[middle + 4 :])
    refused("tiny_imagenet", tmp_path, "Bad CRC-32")


def test_imagenet_layout(tmp_path, rng):
    folder = tmp_path / "imagenet1k"
    write_imagenet(folder, rng)
    stray = folder / "val" / "ILSVRC2012_val_00000001.JPEG"
    stray.write_bytes(b"")
    with pytest.raises(data.DataError, match="is not in a class folder"):
        data.load("imagenet1k", "test", root=tmp_path)
    stray.unlink()
    (folder / "LOC_synset_mapping.txt").write_text("n00000000 tench, Tinca\nn00000001 crane\nn00000002 crane\n")
    names = data.load("imagenet1k", "test", root=tmp_path).class_names
    assert names[:4] == ("tench", "crane (n00000001)", "crane (n00000002)", "n00000003")
    (folder / "train" / "n99999999").mkdir()
    with pytest.raises(data.DataError, match="1001 class folders where ImageNet-1k has 1000"):
        data.load("imagenet1k", "train", root=tmp_path)


def test_image_folder_layout(tmp_path):
    with pytest.raises(data.DataError, match="is not a folder"):
        data.load(f"imagefolder:{tmp_path / 'none'}", "train")
    with pytest.raises(data.DataError, match="neither a train nor a test or val folder, but no folder at all"):
        data.describe(f"imagefolder:{tmp_path}")
    with pytest.raises(data.DataError, match=f"no data set's name; of your own images write imagefolder:{tmp_path}"):
        data.describe(str(tmp_path))
    with pytest.raises(data.DataError, match="the path of your images is missing; write imagefolder:PATH"):
        data.describe("imagefolder")
    (tmp_path / "train").mkdir()
    with pytest.raises(data.DataError, match="no class folders"):
        data.describe(f"imagefolder:{tmp_path}")
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "train" / "a" / "x.png")
    name = f"imagefolder:{tmp_path}"
    with pytest.raises(data.DataError, match=r"train/b holds no image"):
        data.load(name, "train")
    Image.new("I;16", (4, 4)).save(tmp_path / "train" / "b" / "x.png")
    assert data.describe(name).channels == data.load(name, "train").channels == 1
    with pytest.raises(data.DataError, match="has no split 'test'; it has train"):
        data.load(name, "test")
    (tmp_path / "val" / "c").mkdir(parents=True)
    assert data.describe(name).splits == ("train", "validation")
    with pytest.raises(data.DataError, match=r"val/c is a class that the training images do not have"):
        data.load(name, "validation")
    (tmp_path / "val" / "c").rename(tmp_path / "val" / "a")
    with pytest.raises(data.DataError, match=r"no images in .*val"):
        data.load(name, "validation")


def test_one_class_can_be_read_but_not_trained_on(tmp_path):
    """The images of one class are a fair question to a trained network."""
    name = image_folder(tmp_path, "train/only/x.png", "test/only/x.png")
    assert data.load(name, "test").class_names == ("only",)
    with pytest.raises(data.DataError, match=r"only one class \(only\)"):
        build.load_data(small_spec(f"data.name={name}", "data.size=8"))


@pytest.mark.parametrize(
    "name", ["../test_batch.bin", "a/../../test_batch.bin", "/test_batch.bin", "link/test_batch.bin"]
)
def test_members_that_lead_elsewhere_are_refused(tmp_path, name):
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    write_tar(path, {name: bytes(3073)}, links=name.startswith("link"))
    refused("cifar10", tmp_path, "is not a plain file of at most 256 MiB", split="test")
