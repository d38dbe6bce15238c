"""Shards: the files of a glob, a folder or a URL are one stream; one that differs from the first is named."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from fsspec.registry import known_implementations

from calattn.files.predictions import PredictionFileError, save_predictions
from calattn.readers import read_predictions, stream_predictions
from calattn.readers.reading import read_column
from calattn.readers.shards import find_shards
from calattn.types import Predictions
from tests.readers.test_readers import write_csv, write_npz, write_parquet, write_tensors

ROWS, CLASSES = 23, 4
RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(ROWS, CLASSES)), RNG.integers(CLASSES, size=ROWS)
CUTS = ((0, 10), (10, 11), (11, 23))


def save(path: Path, rows: slice, *, names: str = "abcd", labels: str = "label") -> None:
    if path.suffix in (".parquet", ".csv", ".gz"):
        columns = {f"logit_{name}": LOGITS[rows, place] for place, name in enumerate(names)}
        (write_parquet if path.suffix == ".parquet" else write_csv)(path, **columns, **{labels: LABELS[rows]})
    else:
        (write_npz if path.suffix == ".npz" else write_tensors)(path, logits=LOGITS[rows], labels=LABELS[rows])


def shards(folder: Path, suffix: str) -> Path:
    for number, (start, stop) in enumerate(CUTS):
        save(folder / f"part-{number}{suffix}", slice(start, stop))
    return folder


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/bucket", recursive=True)


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".csv", ".csv.gz", ".safetensors", ".pt"])
def test_shards_are_one_stream(tmp_path, memory, suffix):
    folder = shards(tmp_path, suffix)
    memory.put(str(folder), "/bucket/test", recursive=True)
    places = [folder, f"{folder}/part-*{suffix}", sorted(folder.iterdir()), "memory://bucket/test"]
    for place in [*places, f"memory://bucket/test/*{suffix}", Path("memory://bucket/test")]:
        stream = stream_predictions(place, rows_per_block=4)
        blocks = list(stream)
        assert torch.cat([block.logits for block in blocks]).tolist() == LOGITS.tolist()
        assert torch.cat([block.labels for block in blocks]).tolist() == LABELS.tolist()
        assert max(map(len, blocks)) <= 4
        assert stream.block_rows == range(19, 23)
        assert stream.num_bytes >= ROWS * CLASSES * 4
        assert torch.equal(read_predictions(place).logits, torch.tensor(LOGITS))
    assert stream_predictions(folder).num_rows == (None if "csv" in suffix else ROWS)


def test_one_remote_file(tmp_path, memory):
    save(tmp_path / "all.parquet", slice(None))
    memory.put(str(tmp_path / "all.parquet"), "/bucket/all.parquet")
    assert find_shards("memory://bucket/all.parquet") == ("memory://bucket/all.parquet",)
    assert read_predictions("memory://bucket/all.parquet").labels.tolist() == LABELS.tolist()
    assert read_column("memory://bucket/*.parquet", "label").tolist() == LABELS.tolist()


def test_a_remote_file_is_copied_for_as_long_as_it_is_read(tmp_path, memory, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    memory.put(str(shards(tmp_path, ".npz")), "/bucket/test", recursive=True)
    for _ in (blocks := iter(stream_predictions("memory://bucket/test/*.npz"))):
        assert len(list((tmp_path / "temporary").iterdir())) == 1
    del blocks
    assert not list((tmp_path / "temporary").iterdir())


def test_predictions_folders_are_shards(tmp_path, memory):
    for number, (start, stop) in enumerate(CUTS):
        part = Predictions(
            logits=torch.tensor(LOGITS[start:stop]), labels=torch.tensor(LABELS[start:stop]), split="test"
        )
        save_predictions(part, tmp_path / f"part-{number}")
    memory.put(str(tmp_path), "/bucket/test", recursive=True)
    for place in (f"{tmp_path}/part-*", [f"memory://bucket/test/part-{number}" for number in range(3)]):
        found = read_predictions(place)
        assert found.labels.tolist() == LABELS.tolist()
        assert found.split == "test"


def test_a_temperature_of_each_shard_is_that_of_its_rows(tmp_path):
    for number, (start, stop) in enumerate(CUTS):
        rows = {"logits": LOGITS[start:stop], "labels": LABELS[start:stop]}
        np.savez(tmp_path / f"shard_{number}.npz", **rows, temperature=1.0 + number)
    assert read_predictions(tmp_path).scale.tolist() == [1.0] * 10 + [2.0] + [3.0] * 12


def test_empty_shards_are_passed_over(tmp_path):
    shards(tmp_path, ".parquet")
    save(tmp_path / "part-7.parquet", slice(0, 0))
    assert read_predictions(tmp_path).labels.tolist() == LABELS.tolist()
    for path in tmp_path.iterdir():
        save(path, slice(0, 0))
    with pytest.raises(PredictionFileError, match="has a row"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    "change",
    [{"names": "bacd"}, {"names": "abc"}, {"names": "abce"}, {"labels": "y"}],
)
def test_the_shard_that_differs_is_named(tmp_path, memory, suffix, change):
    shards(tmp_path, suffix)
    save(tmp_path / f"part-1{suffix}", slice(10, 11), **change)
    memory.put(str(tmp_path), "/bucket/test", recursive=True)
    for place in (tmp_path, "memory://bucket/test"):
        with pytest.raises(PredictionFileError) as raised:
            read_predictions(place)
        assert raised.value.subject.endswith(f"part-1{suffix}")
        assert "part-0" in str(raised.value)


def test_a_bad_row_is_named_by_its_place_in_its_shard(tmp_path):
    shards(tmp_path, ".npz")
    bad = LOGITS[11:].copy()
    bad[5, 2] = np.nan
    np.savez(tmp_path / "part-2.npz", logits=bad, labels=LABELS[11:])
    with pytest.raises(PredictionFileError) as raised:
        list(stream_predictions(tmp_path, rows_per_block=3))
    assert (Path(raised.value.subject).name, raised.value.row, raised.value.column) == ("part-2.npz", 5, 2)


def test_labels_beside_all_shards(tmp_path):
    for number, (start, stop) in enumerate(CUTS):
        np.savez(tmp_path / f"shard_{number}.npz", logits=LOGITS[start:stop])
    assert read_predictions(tmp_path, labels=LABELS).labels.tolist() == LABELS.tolist()
    with pytest.raises(PredictionFileError, match="22 entries"):
        read_predictions(tmp_path, labels=LABELS[1:])


def test_a_folder_of_several_things_is_not_shards(tmp_path):
    for name in ("seed-1.npz", "seed-2.npz"):
        save(tmp_path / name, slice(None))
    with pytest.raises(PredictionFileError, match=r"seed-1.npz, seed-2.npz"):
        read_predictions(tmp_path)
    with pytest.raises(PredictionFileError, match="nothing matches"):
        read_predictions(tmp_path / "*.csv")


def test_a_missing_driver_or_file_is_an_error_that_names_it(monkeypatch, memory):
    memory.touch("/bucket/a.npz")
    with pytest.raises(PredictionFileError, match=r"nowhere://a/b.npz"):
        read_predictions("nowhere://a/b.npz")
    with pytest.raises(PredictionFileError, match=r"memory://bucket/b.npz does not exist"):
        read_predictions("memory://bucket/b.npz")
    monkeypatch.setitem(known_implementations, "cloud", {"class": "no_such.Files", "err": "Install it"})
    with pytest.raises(PredictionFileError, match=r"Install it; .*calattn\[remote\]"):
        read_predictions("cloud://a/*.parquet")
