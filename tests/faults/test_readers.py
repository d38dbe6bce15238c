"""Damaged, hostile and contended files: refused with a clear error, in time and memory that fit the file."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import struct
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

from calattn.errors import InputError
from calattn.files import atomic
from calattn.files.atomic import atomic_folder, atomic_write
from calattn.files.predictions import load_predictions, save_predictions
from calattn.files.probabilities import write_probabilities
from calattn.readers import read_predictions, stream_predictions
from calattn.types import Predictions
from tests.faults.mutations import mutated
from tests.faults.tally import count, times

ROWS, CLASSES = 40, 3
SECONDS = 20  # of a processor, for one file
BYTES = 600 << 20  # beside what the process has: torch and Arrow themselves take some at their first use

Worker = Callable[[], object]
Values = tuple[list[list[float]], list[int]]


def forked(work: Worker, *, limits: dict[int, int] | None = None) -> object:
    """What `work` returns in a copy of this process that has limits; a crash is an AssertionError."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            for name, limit in (limits or {}).items():
                resource.setrlimit(name, (limit, limit))
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(work(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the process ended with {status}"
    return pickle.loads(said)


def limited(work: Worker, *, seconds: int = SECONDS, extra: int = BYTES) -> object:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return forked(work, limits={resource.RLIMIT_CPU: seconds, resource.RLIMIT_AS: used + extra})


def outcome(path: Path, **options: object) -> str | Values:
    """The values, or the words of the error; anything but an InputError is a fault."""
    try:
        found = read_predictions(path, **options)
    except InputError as error:
        return str(error)
    return found.logits.double().tolist(), found.labels.tolist()


# --- mutations

LOGITS = np.random.default_rng(0).normal(size=(ROWS, CLASSES)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(CLASSES, size=ROWS)
TABLE = {f"logit_{k}": LOGITS[:, k] for k in range(CLASSES)} | {"label": LABELS}


def csv_text() -> bytes:
    rows = zip(*TABLE.values(), strict=True)
    return "\n".join([",".join(TABLE), *(",".join(map(str, row)) for row in rows), ""]).encode()


def write_parquet(path: Path) -> None:
    pa.parquet.write_table(pa.table(TABLE), path, write_page_checksum=True)


TENSORS = {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}
WRITERS: dict[str, Callable[[Path], object]] = {
    "a.npz": lambda path: np.savez_compressed(path, logits=LOGITS, labels=LABELS),
    "a.csv": lambda path: path.write_bytes(csv_text()),
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(csv_text())),
    "a.parquet": write_parquet,
    "a.safetensors": lambda path: save_file(TENSORS, path),
    "a.pt": lambda path: torch.save(TENSORS, path),
    "folder": lambda path: save_predictions(Predictions(**TENSORS), path),
}
# Formats whose checksums cover all values: what was changed is refused or reads as before.
CHECKED = ("a.npz", "a.csv.gz", "a.parquet", "a.pt", "folder")


def plausible(name: str, found: Values, want: Values) -> bool:
    """Whether values that read well are those of the file, but for the few bytes that were changed."""
    if name in CHECKED:
        return found == want
    # Formats without checksums hold what they hold: all rows are as they were but those where bytes changed.
    known = set(map(tuple, want[0]))
    return len(found[0]) <= 2 * ROWS and sum(tuple(row) not in known for row in found[0]) <= ROWS


@pytest.mark.parametrize("name", WRITERS)
def test_mutations_are_refused_or_read_right(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    whole = {file: file.read_bytes() for file in files}
    want, total = outcome(path), times(40, 2000)
    assert not isinstance(want, str)

    def work(first: int, many: int) -> list[str]:
        lost = []
        for seed in range(first, first + many):
            chance = random.Random(f"{name} {seed}")
            file = chance.choice(files)
            file.write_bytes(mutated(whole[file], chance))
            try:
                found = outcome(path)
                if not isinstance(found, str) and not plausible(name, found, want):
                    lost.append(f"{seed}: other values")
            except BaseException as error:  # each of them is a fault
                lost.append(f"{seed}: {type(error).__name__}: {error}")
            file.write_bytes(whole[file])
        return lost

    lost: list[str] = []
    many = min(total, 250)
    for first in range(0, total, many):
        try:
            found = limited(functools.partial(work, first, many), seconds=120)
            assert isinstance(found, list)
            lost += found
        except AssertionError as error:  # a crash, an endless loop: which one, is for a second look
            lost.append(f"{first}…: {error}")
    count("mutated bytes", name, injected=total, lost=len(lost))
    assert not lost


# --- bombs and claims


def npy(descr: str, shape: tuple[int, ...], data: bytes = b"", *, fortran: bool = False) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + data


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def with_names(path: Path, size: int) -> Path:
    members = {
        "logits": npy("<f4", LOGITS.shape, LOGITS.tobytes()),
        "labels": npy("<i8", LABELS.shape, LABELS.tobytes()),
    }
    return archive(path, **members, class_names=npy(f"<U{size // 4}", (1,), bytes(size)))


def long_text(path: Path, start: bytes, size: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(size >> 20):
            file.write(b"1" * (1 << 20))
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


CLAIM = json.dumps({"logits": {"dtype": "F32", "shape": [1 << 40, 3], "data_offsets": [0, 3 << 42]}}).encode()
LABEL_ROWS = npy("<i8", (1000,), bytes(8000))
BOMBS: dict[str, Callable[[Path], Path]] = {
    "class names of 400 MB each": lambda f: with_names(f / "a.npz", 400 << 20),
    "labels of 100 kB each": lambda f: archive(
        f / "a.npz", logits=npy("<f4", (400, 2), bytes(3200)), labels=npy("<U25000", (400,), bytes(40_000_000))
    ),
    "a Fortran array of 400 MB": lambda f: archive(
        f / "a.npz", logits=npy("<f4", (1000, 100_000), bytes(400_000_000), fortran=True), labels=LABEL_ROWS
    ),
    "an .npy header of terabytes": lambda f: written(f / "a.npy", npy("<f4", (1 << 40, 3))),
    "an .npz header of terabytes": lambda f: archive(f / "a.npz", logits=npy("<f4", (1 << 40, 3)), labels=LABEL_ROWS),
    "safetensors of terabytes": lambda f: written(f / "a.safetensors", struct.pack("<Q", len(CLAIM)) + CLAIM),
    "a safetensors header of petabytes": lambda f: written(f / "a.safetensors", struct.pack("<Q", 1 << 50) + b"{}"),
    "a first line of 300 MB": lambda f: long_text(f / "a.csv.gz", b"logit_0,", 300 << 20),
    "a second line of 300 MB": lambda f: long_text(f / "a.csv.gz", b"logit_0,logit_1,label\n0.5,", 300 << 20),
    "a line of 50 MB": lambda f: written(f / "a.csv", b"logit_0,logit_1,label\n1,2,0\n" + b"1" * (50 << 20)),
    "a column name of 200,000 characters": lambda f: written(
        f / "a.csv", b"logit_0," + b"x" * 200_000 + b",label\n1,2,0\n"
    ),
    "a quote without an end": lambda f: written(f / "a.csv", b'logit_0,"logit_1,label\n' + b"1,2,0\n" * 100_000),
    "100,000 columns of one name": lambda f: written(f / "a.csv", b",".join([b"logit_0"] * 100_000) + b"\n"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    path = BOMBS[name](tmp_path)
    found = limited(
        lambda: outcome(path, kind="logits", labels=np.zeros(1, int) if path.suffix == ".npy" else None),
        extra=350 << 20,
    )
    count("bombs and claims", "readers", injected=1, lost=int(not isinstance(found, str)))
    assert isinstance(found, str), name
    assert str(path) in found


def test_very_many_columns_end_in_seconds(tmp_path: Path) -> None:
    classes = times(20_000, 100_000)
    row = ",".join(["1"] * classes)
    names = ",".join(f"logit_{k}" for k in range(classes))
    path = written(tmp_path / "a.csv", f"{names},label\n{row},3\n{row},4\n".encode())
    found = limited(lambda: read_predictions(path).logits.shape, extra=2 << 30, seconds=60)
    assert found == (2, classes)


def test_a_parquet_file_just_below_the_threshold_takes_little_more_than_its_values(tmp_path: Path) -> None:
    """Its rows are joined as they come: beside them and the probabilities that they state, blocks."""
    rows, classes = 200_000, 100
    table = {f"prob_{k}": np.full(rows, 1 / classes, np.float32) for k in range(classes)} | {
        "label": np.zeros(rows, int)
    }
    pa.parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    values = 2 * 4 * rows * classes
    warm = Predictions.from_probs(torch.full((10, 3), 1 / 3), torch.zeros(10, dtype=torch.int64))
    write_probabilities(warm, tmp_path / "warm.parquet")
    read_predictions(tmp_path / "warm.parquet")  # what Arrow and torch need themselves
    assert limited(lambda: len(read_predictions(tmp_path / "a.parquet")), extra=values + (250 << 20)) == rows


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["a.pt", "old.pt", "a.npz", "a.npy", "a.pkl", "a.csv"])
def test_pickle_payloads_never_run(tmp_path: Path, name: str) -> None:
    payload, path = Payload(tmp_path / "ran"), tmp_path / name
    if name.endswith(".pt"):
        torch.save({"logits": payload}, path, _use_new_zipfile_serialization=name == "a.pt")
    elif name == "a.npz":
        np.savez(path, logits=np.array([payload], dtype=object), labels=np.zeros(1, int))
    elif name == "a.npy":
        np.save(path, np.array([payload], dtype=object))
    else:
        path.write_bytes(pickle.dumps(payload))
    found = outcome(path, kind="logits", labels=np.zeros(1, int))
    ran = (tmp_path / "ran").exists()
    count("pickle payloads", "readers", injected=1, lost=int(ran))
    assert isinstance(found, str)
    assert not ran


def test_commands_to_a_terminal_in_names_stay_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", b"logit_\x1b[2Ja,logit_b,label\n1,2,zebra\n")
    found = outcome(path)
    assert isinstance(found, str)
    assert "\\x1b[2Ja" in found
    assert "\x1b" not in found


@pytest.mark.parametrize("label", ["inf", "-inf", "1e400", "nan"])
def test_a_label_that_is_no_number_is_named_with_its_file_and_row(tmp_path: Path, label: str) -> None:
    path = written(tmp_path / "a.csv", f"logit_0,logit_1,label\n1,2,0\n1,2,{label}\n".encode())
    found = outcome(path)
    assert isinstance(found, str)
    assert str(path) in found
    assert "labels[1]" in found


# --- writers and readers at the same time, kills, full disks


def version(number: int, rows: int = 2000) -> Predictions:
    logits = torch.full((rows, 4), float(number))
    return Predictions(logits=logits, labels=torch.zeros(rows, dtype=torch.int64), features=logits)


def replace_for_ever(folder: Path) -> None:
    for number in itertools.count():
        save_predictions(version(number), folder, overwrite=True)


def started(work: Callable[..., object], *arguments: object) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def begun(process: multiprocessing.Process, file: Path) -> None:
    """Waits until the process has replaced a file for the first time: how long that takes is the machine's affair."""
    before = file.stat().st_ino
    while process.is_alive():
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_ino != before:
                return
        time.sleep(0.002)


def ended(process: multiprocessing.Process) -> None:
    process.kill()
    process.join()


def test_a_reader_sees_one_version_whole_while_it_is_replaced(tmp_path: Path) -> None:
    folder = save_predictions(version(0), tmp_path / "p")
    process, seen, lost = started(replace_for_ever, folder), set(), []
    total = times(60, 600)
    begun(process, folder / "manifest.json")
    try:
        for attempt in range(total):
            try:
                if attempt % 2:
                    blocks = [load_predictions(folder)]
                else:
                    stream = stream_predictions(folder, rows_per_block=500)
                    blocks = [*stream, *stream]
                found = {float(value) for block in blocks for value in (block.logits[0, 0], block.features[-1, -1])}
                seen |= found
                if len(found) > 1:
                    lost.append(str(found))
            except InputError as error:
                lost.append(str(error))
    finally:
        ended(process)
    count("replaced while read", "predictions folder", injected=total, lost=len(lost))
    assert not lost
    assert seen - {0.0}


def append_all(folder: Path, name: int, many: int) -> None:
    for number in range(many):
        with atomic_write(folder / f"{name}-{number}.txt") as partial:
            partial.write_text(f"{name} {number}")
        save_predictions(version(name, rows=20), folder / "shared", overwrite=True)


def test_ten_writers_on_one_folder_lose_nothing(tmp_path: Path) -> None:
    many = times(3, 30)
    processes = [started(append_all, tmp_path, name, many) for name in range(10)]
    for process in processes:
        process.join()
    kept = sum((tmp_path / f"{name}-{number}.txt").exists() for name in range(10) for number in range(many))
    shared = load_predictions(tmp_path / "shared")
    lost = 10 * many - kept + sum(process.exitcode != 0 for process in processes)
    count("ten writers", "one folder", injected=10 * many, lost=lost)
    assert lost == 0
    assert len(set(shared.logits.flatten().tolist())) == 1
    assert not list(tmp_path.rglob(".part-*"))


def replace_folder(folder: Path, exchange: bool) -> None:
    if not exchange:
        atomic._exchanged = lambda *_: False
    for number in itertools.count(1):
        with atomic_folder(folder) as partial:
            for name in "abc":
                (partial / name).write_text(str(number))


@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_leaves_the_old_folder_or_the_new_one(tmp_path: Path, exchange: bool) -> None:
    folder, chance = tmp_path / "out", random.Random(0)
    folder.mkdir()
    for name in "abc":
        (folder / name).write_text("0")
    lost, total = 0, times(8, 60)
    for _ in range(total):
        process = started(replace_folder, folder, exchange)
        begun(process, folder / "a")
        process.join(chance.random() / 10)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if not exchange:
            atomic._tidied.discard(tmp_path)
            atomic.tidy(tmp_path)  # where folders cannot be exchanged, the next start takes back what was set aside
        texts = [(folder / name).read_text() for name in "abc"] if folder.is_dir() else []
        lost += len(texts) != 3 or len(set(texts)) != 1
    count("SIGKILL", "replacing a folder", injected=total, lost=lost)
    assert lost == 0
    atomic._tidied.discard(tmp_path)
    with atomic_write(tmp_path / "next.txt") as partial:
        partial.write_text("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["next.txt", "out"]


def test_a_kill_while_predictions_are_saved_leaves_a_whole_version(tmp_path: Path) -> None:
    folder, chance = save_predictions(version(0), tmp_path / "p"), random.Random(0)
    lost, seen, total = 0, set(), times(8, 60)
    for _ in range(total):
        process = started(replace_for_ever, folder)
        begun(process, folder / "manifest.json")
        process.join(chance.random() / 5)
        ended(process)
        found = load_predictions(folder)
        values = {*found.logits.flatten().tolist(), *found.features.flatten().tolist()}
        lost, seen = lost + (len(values) != 1), seen | values
    count("SIGKILL", "saving predictions", injected=total, lost=lost)
    assert lost == 0
    assert seen - {0.0}
    save_predictions(version(1), folder, overwrite=True)
    assert len(list(folder.iterdir())) == 3  # the manifest and two tensor files: what the dead left is gone


def test_files_have_the_mode_of_the_umask_whoever_makes_them(tmp_path: Path) -> None:
    def work() -> set[int]:
        os.umask(0o027)
        with atomic_write(tmp_path / "a.safetensors") as partial:
            save_file(TENSORS, partial)
        with atomic_folder(tmp_path / "out") as partial:
            save_file(TENSORS, partial / "b.safetensors")
            (partial / "c.txt").write_text("")
        save_predictions(version(1), tmp_path / "out" / "p")
        return {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}

    assert forked(work) == {0o640}


def test_a_full_disk_keeps_the_old_folder(tmp_path: Path) -> None:
    folder = save_predictions(version(1), tmp_path / "p")
    larger = Predictions(logits=torch.randn(5000, 4), labels=torch.zeros(5000, dtype=torch.int64))

    def work() -> list[str]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        said = []
        for write in (
            lambda: save_predictions(larger, folder, overwrite=True),
            lambda: write_probabilities(larger, tmp_path / "a.parquet"),
            lambda: write_probabilities(larger, tmp_path / "a.npz"),
            lambda: write_probabilities(larger, tmp_path / "a.csv"),
        ):
            try:
                write()
            except OSError as error:
                said.append(str(error.filename))
        return said

    found = forked(work, limits={resource.RLIMIT_FSIZE: 4096})
    assert found == [str(folder), *(str(tmp_path / f"a.{suffix}") for suffix in ("parquet", "npz", "csv"))]
    assert float(load_predictions(folder).logits[0, 0]) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    count("full disk", "writing predictions", injected=4)


def test_2_gb_of_memory_are_enough_for_a_larger_file(tmp_path: Path) -> None:
    rows, classes = 300_000, 2000  # 2.4 GB of zeros, compressed
    if not times(0, 1):
        rows = 90_000  # far more than a long-lived process has in its heap, freed and not given back
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("logits.npy", "w", force_zip64=True) as member:
            member.write(npy("<f4", (rows, classes)))
            for _ in range(rows // 1000):
                member.write(bytes(4000 * classes))
        file.writestr("labels.npy", npy("<i8", (rows,), bytes(8 * rows)))
    extra = (2 << 30) if times(0, 1) else 300 << 20
    assert limited(lambda: sum(map(len, stream_predictions(tmp_path / "a.npz"))), extra=extra, seconds=200) == rows
    found = limited(lambda: outcome(tmp_path / "a.npz"), extra=extra, seconds=200)
    assert isinstance(found, str)
    assert "stream_predictions" in found
