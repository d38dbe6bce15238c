"""Every registered data set reads its true on-disk format, written here byte by byte, and agrees with torchvision's readers."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from PIL import Image

from calattn import data
from calattn.data import DATASETS

Written = dict[str, tuple[np.ndarray, np.ndarray]]  # split: pixels [n, c, h, w], labels [n]


def some(rng: np.random.Generator, n: int, shape: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(256, size=(n, *shape), dtype=np.uint8), rng.integers(classes, size=n)


def write_digits(folder: Path, rng: np.random.Generator) -> Written:  # noqa: ARG001
    """Embedded: scikit-learn's own arrays are the reference; the order is told by matching images."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * 255 / 16 + 1e-9).astype(np.uint8)[:, None]
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).numpy()
    train, test = order[:1168], order[1168:]
    return {"train": (pixels[train], bunch.target[train]), "test": (pixels[test], bunch.target[test])}


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, rng: np.random.Generator, *, compressed: bool = True) -> Written:
    folder.mkdir(parents=True)
    found = {}
    for split, stem, n in (("train", "train", 7), ("test", "t10k", 4)):
        pixels, labels = some(rng, n, (1, 28, 28), 10)
        for name, array in ((f"{stem}-images-idx3-ubyte", pixels[:, 0]), (f"{stem}-labels-idx1-ubyte", labels)):
            content = idx_bytes(array)
            path = folder / (name + ".gz" * compressed)
            path.write_bytes(gzip.compress(content) if compressed else content)
        found[split] = (pixels, labels)
    return found


def cifar_members(rng: np.random.Generator, num_classes: int) -> tuple[dict[str, bytes], Written]:
    files = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    top = "cifar-10-batches-bin"
    if num_classes == 100:
        files, top = {"train": ["train.bin"], "test": ["test.bin"]}, "cifar-100-binary"
    members, found = {}, {}
    for split, names in files.items():
        parts = [some(rng, 3, (3, 32, 32), num_classes) for _ in names]
        for name, (pixels, labels) in zip(names, parts, strict=True):
            content = b""
            for image, label in zip(pixels, labels, strict=True):
                coarse = bytes((int(label) // 5,)) if num_classes == 100 else b""
                content += coarse + bytes((int(label),)) + image.tobytes()
            members[f"{top}/{name}"] = content
        found[split] = (np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts]))
    return members, found


def write_tar(path: Path, members: dict[str, bytes], *, links: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if links:
                info.type, info.linkname, content = tarfile.SYMTYPE, "/etc/passwd", b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def write_cifar10(folder: Path, rng: np.random.Generator) -> Written:
    members, found = cifar_members(rng, 10)
    write_tar(folder / "cifar-10-binary.tar.gz", members)
    return found


def write_cifar100(folder: Path, rng: np.random.Generator) -> Written:
    members, found = cifar_members(rng, 100)
    write_tar(folder / "cifar-100-binary.tar.gz", members)
    return found


def write_svhn(folder: Path, rng: np.random.Generator) -> Written:
    folder.mkdir(parents=True)
    found = {}
    for split, n in (("train", 12), ("test", 5)):
        pixels, labels = some(rng, n, (3, 32, 32), 10)
        labels[0] = 0  # on disk 10
        content = {"X": pixels.transpose(2, 3, 1, 0), "y": np.where(labels == 0, 10, labels)[:, None].astype(np.uint8)}
        scipy.io.savemat(folder / f"{split}_32x32.mat", content, do_compression=True)
        found[split] = (pixels, labels)
    return found


def jpeg(rng: np.random.Generator, size: tuple[int, int], mode: str = "RGB") -> tuple[bytes, np.ndarray]:
    """A JPEG and what Pillow makes of it."""
    shape = (*size, 3) if mode == "RGB" else size
    stream = io.BytesIO()
    Image.fromarray(rng.integers(256, size=shape, dtype=np.uint8)).save(stream, format="JPEG")
    decoded = np.asarray(Image.open(io.BytesIO(stream.getvalue())).convert("RGB"))
    return stream.getvalue(), decoded.transpose(2, 0, 1)


def tiny_members(rng: np.random.Generator) -> tuple[dict[str, bytes], Written]:
    wnids = [f"n{int(number):08d}" for number in rng.choice(10**8, size=200, replace=False)]
    by_label = sorted(wnids)
    words = "".join(f"{wnid}\tword {i}, other\n" for i, wnid in enumerate(wnids))
    members = {"wnids.txt": "\n".join(wnids).encode(), "words.txt": words.encode()}
    train = []
    for label in (0, 3, 199):
        for i in range(2):
            content, decoded = jpeg(rng, (64, 64), "RGB" if i == 0 else "L")
            members[f"train/{by_label[label]}/images/{by_label[label]}_{i}.JPEG"] = content
            train.append((decoded, label))
    lines, test = "", []
    for i, label in enumerate((7, 3, 150)):
        content, decoded = jpeg(rng, (64, 64))
        members[f"val/images/val_{i}.JPEG"] = content
        lines += f"val_{i}.JPEG\t{by_label[label]}\t0\t32\t44\t62\n"
        test.append((decoded, label))
    members["val/val_annotations.txt"] = lines.encode()
    members["test/images/test_0.JPEG"] = b"secret"
    found = {
        split: (np.stack([p for p, _ in rows]), np.array([y for _, y in rows]))
        for split, rows in (("train", train), ("test", test))
    }
    return members, found


def write_tiny(folder: Path, rng: np.random.Generator) -> Written:
    members, found = tiny_members(rng)
    for name, content in members.items():
        path = folder / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return found


def write_imagenet(folder: Path, rng: np.random.Generator) -> Written:
    found = {}
    image, decoded = jpeg(rng, (6, 5))
    for split, base in (("train", "train"), ("test", "val")):
        for label in range(1000):
            path = folder / base / f"n{label:08d}" / f"n{label:08d}_{base}_1.JPEG"
            path.parent.mkdir(parents=True)
            path.write_bytes(image)
        found[split] = (np.stack([decoded] * 1000), np.arange(1000))
    return found


def write_cifar10_c(folder: Path, rng: np.random.Generator) -> Written:
    from calattn.data.corruptions import CORRUPTIONS

    base = folder / "CIFAR-10-C"
    base.mkdir(parents=True)
    labels = np.tile(rng.integers(10, size=2), 5)
    np.save(base / "labels.npy", labels)
    stored = {}
    for name in CORRUPTIONS:
        stored[name] = rng.integers(256, size=(10, 32, 32, 3), dtype=np.uint8)
        np.save(base / f"{name}.npy", stored[name])
    return {
        "fog-2": (stored["fog"][2:4].transpose(0, 3, 1, 2), labels[2:4]),
        "all-5": (
            np.concatenate([s[8:] for s in stored.values()]).transpose(0, 3, 1, 2),
            np.tile(labels[8:], len(stored)),
        ),
    }


WRITERS: dict[str, Callable[[Path, np.random.Generator], Written]] = {
    "digits": write_digits,
    "mnist": write_idx,
    "fashion_mnist": write_idx,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "svhn": write_svhn,
    "tiny_imagenet": write_tiny,
    "imagenet1k": write_imagenet,
    "cifar10_c": write_cifar10_c,
}


def assert_same(images: data.Images, written: tuple[np.ndarray, np.ndarray]) -> None:
    pixels, labels = written
    assert images.labels.tolist() == labels.tolist()
    for index in range(len(images)):
        np.testing.assert_array_equal(images.decode(index).numpy(), pixels[index])


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_true_format_reads_back_exactly(name, tmp_path, rng):
    """A data set without a writer here fails: register everything, test everything registered."""
    assert name in WRITERS, f"write a fixture in the true format of {name}"
    written = WRITERS[name](tmp_path / name, rng)
    dataset = data.describe(name)
    for split, content in written.items():
        images = data.load(name, split, root=tmp_path)
        assert_same(images, content)
        assert images.num_classes == dataset.num_classes
        assert images.channels == dataset.channels
        assert len(set(images.class_names)) == images.num_classes


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_catalogue_entries_are_whole(name):
    dataset = DATASETS[name]
    assert dataset.name == name
    assert len(dataset.mean) == len(dataset.std) == dataset.channels
    assert all(0 < value < 1 for value in (*dataset.mean, *dataset.std))
    assert len(dataset.class_names) in (0, dataset.num_classes)
    assert dataset.title
    assert dataset.licence
    for remote in dataset.remotes:
        kind, _, digest = remote.checksum.partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[kind]
        assert remote.urls


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits", "cifar10_c"}))
def test_missing_says_the_command(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CALATTN_DATA", str(tmp_path))
    with pytest.raises(data.DataMissing) as caught:
        data.load(name, "train")
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(DATASETS[name].manual or f"calattn data get {name}")


def test_missing_command_carries_the_root(tmp_path):
    with pytest.raises(data.DataMissing, match=r"calattn data get mnist --data-root '.*a b'$"):
        data.load("mnist", "train", root=tmp_path / "a b")


def test_unknown_names_and_splits():
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        data.load("cifra10", "train")
    with pytest.raises(data.DataError, match="digits has no split 'valid'; it has train, test"):
        data.load("digits", "valid")
    with pytest.raises(data.DataError, match="the path of your images is missing"):
        data.load("imagefolder:", "train")


def test_digits_split_is_pinned():
    """The split is part of every number that is ever reported on digits."""
    import hashlib

    images = data.load("digits", "train")
    digest = hashlib.sha256(images.array.numpy().tobytes() + images.labels.numpy().tobytes()).hexdigest()
    assert digest == "1317c11acb0c6a5eb55937d8d2801f64e63192b2056174baee1229e7a0a10a53"
    assert images.array.max() == 255
    pixels = images.array.double() / 255
    assert DATASETS["digits"].mean == (round(float(pixels.mean()), 4),)
    assert DATASETS["digits"].std == (round(float(pixels.std()), 4),)


def test_idx_agrees_with_torchvision(tmp_path, rng):
    write_idx(tmp_path / "mnist", rng, compressed=False)
    images = data.load("mnist", "train", root=tmp_path)
    from torchvision.datasets import mnist

    theirs = mnist.read_image_file(str(tmp_path / "mnist" / "train-images-idx3-ubyte"))
    assert torch.equal(images.array[:, 0], theirs)
    assert torch.equal(images.labels, mnist.read_label_file(str(tmp_path / "mnist" / "train-labels-idx1-ubyte")))


def test_svhn_agrees_with_torchvision(tmp_path, rng, monkeypatch):
    write_svhn(tmp_path / "svhn", rng)
    monkeypatch.setattr(torchvision.datasets.SVHN, "_check_integrity", lambda _: True)
    theirs = torchvision.datasets.SVHN(tmp_path / "svhn", split="train")
    ours = data.load("svhn", "train", root=tmp_path)
    np.testing.assert_array_equal(ours.array.numpy(), theirs.data)
    assert ours.labels.tolist() == theirs.labels.tolist()


def test_cifar_binary_agrees_with_torchvision_on_the_python_version(tmp_path, rng, monkeypatch):
    """The same images in the publisher's two versions: ours read from one, torchvision's from the other."""
    members, _ = cifar_members(rng, 10)
    pickled = tmp_path / "py" / "cifar-10-batches-py"
    pickled.mkdir(parents=True)
    for name, content in members.items():
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
        entry = {"data": records[:, 1:], "labels": records[:, 0].tolist()}
        (pickled / Path(name).stem).write_bytes(pickle.dumps(entry))
        target = tmp_path / "cifar10" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (pickled / "batches.meta").write_bytes(pickle.dumps({"label_names": list(DATASETS["cifar10"].class_names)}))
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda _: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    for split in ("train", "test"):
        theirs = torchvision.datasets.CIFAR10(tmp_path / "py", train=split == "train")
        ours = data.load("cifar10", split, root=tmp_path)
        np.testing.assert_array_equal(ours.array.permute(0, 2, 3, 1).numpy(), theirs.data)
        assert ours.labels.tolist() == theirs.targets


def test_cifar_batches_come_in_the_order_of_their_numbers(tmp_path, rng):
    """An archive may hold them in any order, and validation splits are row numbers."""
    members, found = cifar_members(rng, 10)
    write_tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", dict(reversed(members.items())))
    for split, content in found.items():
        assert_same(data.load("cifar10", split, root=tmp_path), content)


def test_tiny_imagenet_zip_equals_folder(tmp_path, rng):
    members, found = tiny_members(rng)
    path = tmp_path / "tiny_imagenet" / "tiny-imagenet-200.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"tiny-imagenet-200/{name}", content)
    for split, content in found.items():
        assert_same(data.load("tiny_imagenet", split, root=tmp_path), content)


def test_imagefolder_agrees_with_torchvision(tmp_path, rng):
    for split in ("train", "val"):
        for name in ("dog", "cat", "Äpfel"):
            for i, (suffix, mode) in enumerate((("png", "RGB"), ("jpg", "RGB"), ("bmp", "L"), ("webp", "RGB"))):
                path = tmp_path / split / name / ("", "deep", "abyss", "")[i] / f"{i}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                shape = (9, 7 + i, 3) if mode == "RGB" else (9, 7 + i)
                Image.fromarray(rng.integers(256, size=shape, dtype=np.uint8)).save(path)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    for ours_split, theirs_split in (("train", "train"), ("validation", "val")):
        theirs = torchvision.datasets.ImageFolder(tmp_path / theirs_split)
        ours = data.load(f"imagefolder:{tmp_path}", ours_split)
        assert list(ours.class_names) == theirs.classes
        assert ours.labels.tolist() == theirs.targets
        for index, (image, _) in enumerate(theirs):
            np.testing.assert_array_equal(ours.decode(index).permute(1, 2, 0).numpy(), np.asarray(image))
    dataset = data.describe(f"imagefolder:{tmp_path}")
    assert (dataset.channels, dataset.num_classes, dataset.size, dataset.splits) == (
        3,
        3,
        None,
        ("train", "validation"),
    )
