"""Readers of other people's files: every format by a foreign writer, every fault by its message."""

from __future__ import annotations

import csv
import gzip
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from calattn import Predictions, evaluate
from calattn.errors import Args
from calattn.files.predictions import load_predictions, save_predictions
from calattn.readers import PredictionFileError, read_predictions, stream_predictions
from calattn.readers.labels import LabelParser

N, C = 23, 4
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(N, C)).astype(np.float32)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
LABELS = RNG.integers(C, size=N)


def as_tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    (np.savez_compressed if "deflated" in path.name else np.savez)(path, **arrays)
    return path


def write_tensors(path: Path, **arrays: np.ndarray) -> Path:
    if path.suffix == ".safetensors":
        save_file(as_tensors(arrays), path)
    else:
        torch.save(as_tensors(arrays), path, _use_new_zipfile_serialization="old" not in path.name)
    return path


def columns_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One column a class: logits [n, c] becomes logit_0 … ."""
    flat = {}
    for name, array in arrays.items():
        if array.ndim == 2:
            flat |= {f"{name.removesuffix('s')}_{i}": array[:, i] for i in range(array.shape[1])}
        else:
            flat[name] = array
    return flat


def write_csv(path: Path, **arrays: np.ndarray) -> Path:
    columns = columns_of(arrays)
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return path


def write_parquet(path: Path, **arrays: np.ndarray) -> Path:
    pq.write_table(pa.table(columns_of(arrays)), path, row_group_size=10)
    return path


def as_list_column(array: np.ndarray, *, fixed: bool) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array)
    kind = pa.list_(pa.float32(), array.shape[1]) if fixed else pa.list_(pa.float32())
    return pa.array(list(array), type=kind)


def write_parquet_lists(path: Path, **arrays: np.ndarray) -> Path:
    columns = {name: as_list_column(array, fixed="fixed" in path.name) for name, array in arrays.items()}
    pq.write_table(pa.table(columns), path, row_group_size=10)
    return path


WRITERS = {
    "stored.npz": write_npz,
    "deflated.npz": write_npz,
    "p.safetensors": write_tensors,
    "p.pt": write_tensors,
    "old.pth": write_tensors,
    "p.csv": write_csv,
    "p.tsv": write_csv,
    "p.csv.gz": write_csv,
    "wide.parquet": write_parquet,
    "lists.parquet": write_parquet_lists,
    "fixed.pq": write_parquet_lists,
}
EVERY_FORMAT = pytest.mark.parametrize("name", WRITERS)


_EITHER = 'pass kind="logits" or kind="probs"'
_NOT_A_PROBABILITY = r'not in \[0, 1\]; pass kind="logits"'


def written(folder: Path, content: str | dict[str, np.ndarray]) -> Path:
    """Text as a .csv file, arrays as an .npz file."""
    if isinstance(content, dict):
        return write_npz(folder / "p.npz", **content)
    (folder / "p.csv").write_text(content, encoding="utf-8")
    return folder / "p.csv"


def fails(message: str, path: Path, **options: object) -> None:
    """Reading must fail with this message, and the message must name the file."""
    with pytest.raises(PredictionFileError, match=message) as caught:
        read_predictions(path, **options)  # type: ignore[arg-type]
    assert str(path) in str(caught.value)


@EVERY_FORMAT
def test_logits_labels_and_the_rest_come_back(tmp_path, name):
    scale = np.linspace(0.5, 2.0, N, dtype=np.float32)
    path = WRITERS[name](tmp_path / name, logits=LOGITS, labels=LABELS, scale=scale, indices=np.arange(N)[::-1].copy())
    read = read_predictions(path)
    np.testing.assert_array_equal(read.logits.numpy(), LOGITS)
    np.testing.assert_array_equal(read.labels.numpy(), LABELS)
    assert read.scale is not None
    np.testing.assert_array_equal(read.scale.numpy(), scale)
    assert read.indices is not None
    assert read.indices.tolist() == list(range(N))[::-1]


@EVERY_FORMAT
def test_probabilities_become_log_probabilities(tmp_path, name):
    read = read_predictions(WRITERS[name](tmp_path / name, probs=PROBS, y_true=LABELS))
    np.testing.assert_allclose(read.logits.numpy(), np.log(PROBS), rtol=1e-6)


@EVERY_FORMAT
@pytest.mark.parametrize("rows", [1, 7, N, 1000])
def test_blocks_of_any_size_are_the_file(tmp_path, name, rows):
    path = WRITERS[name](tmp_path / name, logits=LOGITS, labels=LABELS)
    stream = stream_predictions(path, rows_per_block=rows)
    assert stream.num_classes == C
    assert stream.num_rows in ((None,) if ".csv" in name or ".tsv" in name else (N,))
    for _ in range(2):  # a stream can be walked again
        blocks = list(stream)
        assert [len(block) for block in blocks] == [min(rows, N - start) for start in range(0, N, rows)]
        np.testing.assert_array_equal(torch.cat([block.logits for block in blocks]).numpy(), LOGITS)
        np.testing.assert_array_equal(torch.cat([block.labels for block in blocks]).numpy(), LABELS)


@EVERY_FORMAT
@pytest.mark.parametrize("rows", [5, 1000])
def test_errors_name_the_row_of_the_file_not_of_the_block(tmp_path, name, rows):
    def first_error(**arrays: np.ndarray) -> str:
        path = WRITERS[name](tmp_path / name, **arrays)
        with pytest.raises(PredictionFileError) as caught:
            list(stream_predictions(path, rows_per_block=rows))
        return str(caught.value)

    bad_logits, bad_probs, bad_labels = LOGITS.copy(), PROBS.copy(), LABELS.copy()
    bad_logits[17, 2] = np.nan
    assert "logits[17, 2] is nan" in first_error(logits=bad_logits, labels=LABELS)
    bad_logits[17, 2] = np.inf
    assert "logits[17, 2] is inf" in first_error(logits=bad_logits, labels=LABELS)
    bad_probs[18] *= 2
    assert "probs[18] sums to 2, not 1" in first_error(probs=bad_probs, labels=LABELS)
    bad_probs[18, 0] = -1
    assert "probs[18, 0] is -1, negative" in first_error(probs=bad_probs, labels=LABELS)
    bad_labels[19] = C + 3
    assert "labels[19] is 7 and is outside [0, 3]" in first_error(logits=LOGITS, labels=bad_labels)
    scale = np.ones(N, np.float32)
    scale[20] = 0
    assert "scale[20] is 0.0" in first_error(logits=LOGITS, labels=LABELS, scale=scale)


@EVERY_FORMAT
def test_both_kinds_at_once_are_not_guessed(tmp_path, name):
    other = np.full_like(PROBS, 1 / C)
    path = WRITERS[name](tmp_path / name, logits=LOGITS, probs=other, labels=LABELS)
    fails('both logits and probabilities.*pass kind="logits" or kind="probs"', path)
    np.testing.assert_array_equal(read_predictions(path, kind="logits").logits.numpy(), LOGITS)
    np.testing.assert_allclose(read_predictions(path, kind="probs").probs.numpy(), other, rtol=1e-6)


@EVERY_FORMAT
def test_labels_that_are_missing_or_start_at_one(tmp_path, name):
    fails(
        r"nothing named like labels; pass labels=.*It has: logit",
        WRITERS[name](tmp_path / name, logits=LOGITS),
    )
    path = WRITERS[name](tmp_path / f"one_{name}", logits=LOGITS, labels=LABELS + 1)
    fails("labels look 1-based: pass label_offset=1", path)
    np.testing.assert_array_equal(read_predictions(path, label_offset=1).labels.numpy(), LABELS)
    fails("labels look 0-based", WRITERS[name](tmp_path / name, logits=LOGITS, labels=LABELS), label_offset=1)


@EVERY_FORMAT
def test_labels_can_come_from_elsewhere(tmp_path, name):
    path = WRITERS[name](tmp_path / name, logits=LOGITS)
    np.save(tmp_path / "labels.npy", LABELS)
    for labels in (LABELS, torch.from_numpy(LABELS), LABELS.tolist(), tmp_path / "labels.npy"):
        np.testing.assert_array_equal(read_predictions(path, labels=labels).labels.numpy(), LABELS)
        blocks = stream_predictions(path, labels=labels, rows_per_block=5)
        np.testing.assert_array_equal(torch.cat([block.labels for block in blocks]).numpy(), LABELS)
    fails(f"has {N} rows but labels has {N + 1} entries", path, labels=np.append(LABELS, 0))
    fails(f"labels has {N - 1} entries", path, labels=LABELS[:-1])
    fails("labels has 0 entries", path, labels=LABELS[:0])


@EVERY_FORMAT
def test_a_truncated_file_says_so(tmp_path, name):
    path = WRITERS[name](tmp_path / name, logits=np.tile(LOGITS, (50, 1)), labels=np.tile(LABELS, 50))
    size = path.stat().st_size
    if name in ("p.csv", "p.tsv"):
        path.write_bytes(path.read_bytes().rstrip()[:-3])  # cut inside the last line, so that a field is missing
        if name == "p.csv":
            fails(r"line 1151: 4 fields where the header has 5", path)
        return
    for keep in (size - 1, size // 2, 20):
        os.truncate(path, keep)
        fails("copy|save it again|ends early", path)
    path.write_bytes(b"")
    fails("is empty", path)


@EVERY_FORMAT
def test_no_rows_at_all(tmp_path, name):
    fails("no rows", WRITERS[name](tmp_path / name, logits=LOGITS[:0], labels=LABELS[:0]))


@pytest.mark.parametrize("name", ["stored.npz", "deflated.npz"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "<f2"])
def test_npz_of_any_byte_order_precision_and_layout(tmp_path, name, dtype):
    logits = LOGITS.astype(dtype)
    for order, label_type in (("C", ">i2"), ("F", "u1")):
        path = write_npz(tmp_path / name, logits=np.asarray(logits, order=order), labels=LABELS.astype(label_type))
        blocks = list(stream_predictions(path, rows_per_block=5))
        np.testing.assert_array_equal(torch.cat([b.logits for b in blocks]).numpy(), logits.astype(np.float64))
        np.testing.assert_array_equal(torch.cat([b.labels for b in blocks]).numpy(), LABELS)


def test_half_precision_probabilities_get_half_precision_tolerance(tmp_path):
    probs = np.full((3, 1000), np.float16(1 / 1000))
    assert abs(float(probs.astype(np.float64).sum(1)[0]) - 1) > 1e-4
    read = read_predictions(write_npz(tmp_path / "p.npz", probs=probs, labels=np.zeros(3, int)))
    assert read.logits.dtype == torch.float32
    np.testing.assert_allclose(read.logits.numpy(), np.log(np.float32(probs)), rtol=1e-6)


def test_exact_zeros_stay_zeros_unless_floored(tmp_path):
    path = write_npz(tmp_path / "p.npz", probs=np.array([[0.0, 1.0]]), labels=np.array([0]))
    assert float(read_predictions(path).logits[0, 0]) == -np.inf
    floored = read_predictions(path, floor=1e-6)
    assert float(floored.logits[0, 0]) == pytest.approx(np.log(1e-6))
    assert evaluate(floored, metrics="nll", num_bootstrap=0)["nll"].value == pytest.approx(-np.log(1e-6), rel=1e-6)


def test_sums_far_from_one_are_mentioned(tmp_path):
    sigmoids = np.array([[0.9, 0.8, 0.48], [0.3, 0.5, 0.2], [0.1, 0.6, 0.4]])
    path = write_npz(tmp_path / "p.npz", probs=sigmoids, labels=np.array([0, 1, 2]))
    with pytest.warns(UserWarning, match=r"divided by its sum, which is as far from 1 as 2\.18; if these are sigmoids"):
        read = read_predictions(path, sum_tolerance=5.0)
    np.testing.assert_allclose(read.probs[0].numpy(), sigmoids[0] / 2.18)
    stream = stream_predictions(path, sum_tolerance=5.0, rows_per_block=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            assert sum(len(block) for block in stream) == 3
    assert len(said) == 1, "a second pass has nothing new to say"
    rounded = write_npz(tmp_path / "q.npz", probs=np.array([[0.33, 0.33, 0.33]]), labels=np.array([0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_predictions(rounded, sum_tolerance=0.02)


def test_rough_rounding_far_into_the_file(tmp_path, monkeypatch):
    """Blocks before it hold probabilities as the metrics take them, this one does not: then none are taken so."""
    monkeypatch.setattr("calattn.readers.stream._VALUES_PER_BLOCK", 4)
    rows = ["0.25,0.75,1"] * 4 + ["0.2497,0.7498,0"]
    (tmp_path / "p.csv").write_text("\n".join(["prob_0,prob_1,label", *rows]))
    read = read_predictions(tmp_path / "p.csv")
    assert read.stated_probs is None
    np.testing.assert_allclose(read.probs[[0, -1], 0].numpy(), [0.25, 0.2497 / 0.9995])


def test_npz_objects_are_never_unpickled(tmp_path):
    ragged = np.array([[1.0, 2.0], [3.0]], dtype=object)
    fails(r"'logits' is object \[2\]", write_npz(tmp_path / "p.npz", logits=ragged, labels=LABELS[:2]))
    names = np.array(["a", "b", "c", "d"], dtype=object)
    path = write_npz(tmp_path / "n.npz", logits=LOGITS, labels=LABELS, class_names=names)
    fails("'class_names' holds Python objects.*never unpickled", path)
    assert read_predictions(path, ignore=["class_names"]).class_names is None
    path = write_npz(tmp_path / "l.npz", logits=LOGITS, labels=LABELS.astype(object))
    fails("'labels' holds Python objects.*never unpickled", path)


def test_two_columns_of_identifiers_are_no_indices(tmp_path):
    """Which of them numbers the samples, the file does not say; pairing by the wrong one would go unnoticed."""
    both = {"index": np.arange(N), "id": np.arange(N)[::-1].copy()}
    path = write_npz(tmp_path / "p.npz", logits=LOGITS, labels=LABELS, **both)
    assert read_predictions(path).indices is None
    assert read_predictions(path, ignore=["id"]).indices.tolist() == list(range(N))


def test_labels_that_began_at_zero_do_not_look_one_based_later():
    reader = LabelParser(3, None, 0)
    assert reader(np.array([0, 2])).tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"labels\[1\] is 3 and is outside \[0, 2\]") as caught:
        reader(np.array([1, 3]))
    assert "1-based" not in str(caught.value)


def test_a_temperature_beside_probabilities_is_not_applied_twice(tmp_path):
    path = write_npz(tmp_path / "p.npz", probs=PROBS, temperature=np.float64(2.0), labels=LABELS)
    fails(r'may be in them already; pass ignore=\["temperature"\]', path)
    assert read_predictions(path, ignore=["temperature"]).scale is None


def test_one_temperature_for_the_whole_file(tmp_path):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS, temperature=np.float64(2.0), labels=LABELS)
    read = torch.cat([block.calibrated_logits for block in stream_predictions(path, rows_per_block=9)])
    np.testing.assert_allclose(read.numpy(), LOGITS / 2)


@pytest.mark.parametrize("name", ["stored.npz", "p.safetensors"])
def test_features_are_read_unless_declined(tmp_path, name):
    features = RNG.normal(size=(N, 5)).astype(np.float32)
    path = WRITERS[name](tmp_path / name, logits=LOGITS, y=LABELS, embeddings=features)
    read = read_predictions(path)
    assert read.features is not None
    np.testing.assert_array_equal(read.features.numpy(), features)
    assert read_predictions(path, features=False).features is None
    fails("there are no features", WRITERS[name](path, logits=LOGITS, y=LABELS), features=True)


def test_one_value_a_row_is_binary_only_if_told(tmp_path):
    p, y = np.array([0.25, 1.0, 0.0]), np.array([0, 1, 0])
    for path in (write_npz(tmp_path / "p.npz", probs=p, y=y), write_csv(tmp_path / "p.csv", prob=p, y=y)):
        fails('one value per row.*kind="probs"', path)
        np.testing.assert_allclose(read_predictions(path, kind="probs").probs[:, 1].numpy(), p)
    path = write_csv(tmp_path / "s.csv", score=p, y=y)
    fails('pass kind="logits" or kind="probs"', path)
    np.testing.assert_allclose(read_predictions(path, kind="probs").probs[:, 1].numpy(), p)
    z = np.array([3.0, -2.0, 0.0])
    path = write_npz(tmp_path / "z.npz", logits=z[:, None], y=y)
    np.testing.assert_allclose(read_predictions(path, kind="logits").probs[:, 1].numpy(), 1 / (1 + np.exp(-z)))
    fails(r"probs\[0\] is 3.0, not in \[0, 1\]", path, columns="logits", kind="probs")


def test_scikit_learn_through_the_csv_module(tmp_path):
    x, y = load_iris(return_X_y=True)
    names = load_iris().target_names
    model = LogisticRegression(max_iter=1000).fit(x, names[y])
    with (tmp_path / "iris.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(f"proba_{name}" for name in model.classes_), "label"])
        for i, (row, label) in enumerate(zip(model.predict_proba(x), names[y], strict=True)):
            writer.writerow([f"flower-{i}", *row, label])
    read = read_predictions(tmp_path / "iris.csv")
    assert read.class_names == tuple(model.classes_)
    assert read.indices is None  # "flower-0" is a name, not an index
    accuracy = (read.logits.argmax(1) == read.labels).double().mean()
    assert float(accuracy) == pytest.approx(model.score(x, names[y]))


def test_class_columns_are_sorted_by_number_not_by_name_or_place(tmp_path):
    order = ["10", "2", "0", "1", "3", "4", "5", "6", "7", "8", "9"]
    (tmp_path / "p.csv").write_text(
        ",".join(f"logit_{i}" for i in order) + ",y\n" + ",".join(order) + ",10\n", encoding="utf-8"
    )
    assert read_predictions(tmp_path / "p.csv").logits[0].tolist() == list(range(11))
    assert read_predictions(tmp_path / "p.csv", columns="logit_*").logits[0].tolist() == list(range(11))
    chosen = read_predictions(tmp_path / "p.csv", columns=["logit_2", "logit_0"], labels=[1])
    assert chosen.logits[0].tolist() == [2, 0]


# Content (the text of a .csv file, or the arrays of an .npz file), message, options if any.
FAULTS: dict[str, tuple] = {
    "no header": ("0.1,0.9,1\n0.2,0.8,0\n", r"has no header: its first line is 0\.1.*header="),
    "two marks": ("prob_0;prob|1;label\n0,5;0,5;1\n", 'pass delimiter=";"'),
    "sep line": ("sep=;\nprob_0;prob_1;label\n0,5;0,5;1\n", "first line is not column names but 'sep=.*remove"),
    "headerless semicolons": (
        "0,25;0,75;1\n",
        r"'25;0' is not a number; if columns are separated by ';', pass delimiter=\";\"",
        {"header": ["prob_0", "prob_1", "label"]},
    ),
    "thousands or decimals": (
        "logit_0;logit_1;label\n1,234;2,345;1\n",
        "'1,234' is not a number; it has a decimal comma",
    ),
    "points and commas": ("prob_0;prob_1;label\n0.5;0,5;1\n", "'0,5' is not a number; it has a decimal comma"),
    "a late point": (
        "prob_0;prob_1;label\n" + "0,5;0,5;1\n" * 60 + "0.5;0,5;1\n",
        "line 62, column 'prob_0': '0.5' has a decimal point, and numbers in lines above have decimal commas",
    ),
    "repeated": ("prob_0,prob_0,label\n0.5,0.5,1\n", "several columns named 'prob_0'"),
    "gap": ("prob_0,prob_2,label\n0.5,0.5,1\n", "not numbered 0…1: 1 is missing"),
    "from one": ("prob_1,prob_2,label\n0.5,0.5,1\n", "numbered 1…2; pass label_offset=1"),
    "stranger": ("prob_0,prob_1,prob_max,label\n0.5,0.5,0.5,1\n", "'prob_max' is among numbered"),
    "plain numbers": ("0,1,label\n0.5,0.5,1\n", _EITHER),
    "both kinds": (
        "logit_0,prob_1,label\n0.5,0.5,1\n",
        f"does not say .*{_EITHER}",
        {"columns": ["logit_0", "prob_1"]},
    ),
    "too many fields": ("prob_0,prob_1,label\n0.5,0.5,1\n0.5,0.5,1,9\n", "line 3: 4 fields where the header has 3"),
    "not a number": ("prob_0,prob_1,label\n0.5,0.5,1\n0.5,oops,1\n", "line 3, column 'prob_1': 'oops' is not a number"),
    "empty cell": ("prob_0,prob_1,label\n0.5,,1\n", r"probs\[0, 1\] is nan"),
    "empty label": ("prob_0,prob_1,label\n0.5,0.5,\n", r"labels\[0\] is missing"),
    "unknown name": ("prob_a,prob_b,label\n0.5,0.5,c\n", r"labels\[0\] is c and is not among the class names \(a, b\)"),
    "names unknown": ("prob_0,prob_1,label\n0.5,0.5,cow\n", "labels are text such as 'cow'; pass class_names"),
    "half label": ("prob_0,prob_1,label\n0.5,0.5,0.5\n", r"labels\[0\] is 0.5 and is not a whole number"),
    "negative label": ("prob_0,prob_1,label\n0.5,0.5,-1\n", r"labels\[0\] is -1 and is outside \[0, 1\]"),
    "logits as probs": (
        "a,b,label\n2,-1,0\n",
        r"probs\[0, 1\] is -1, negative; pass kind",
        {"columns": ["a", "b"], "kind": "probs"},
    ),
    "header only": ("prob_0,prob_1,label\n", "column names but no rows"),
    "names of columns": (",zed,label\n0,0.5,1\n", r"It has: '', zed, label$"),
    "rounded": ("prob_a,prob_b,prob_c,label\n0.332,0.332,0.332,a\n", "sums to 0.996, not 1;.*larger sum_tolerance"),
    "three rows can count": (
        "nr,cat,dog,label\n0,1,0,cat\n1,0,1,dog\n2,1,0,cat\n",
        r"'nr' counts the rows \(0, 1, 2, …\)",
        {"columns": "*", "kind": "logits"},
    ),
    "rounded per cent": (
        "prob_0,prob_1,prob_2,y\n33.3,33.3,33.3,0\n",
        r"sums to 99.9, not 1; these look like per cent",
    ),
    "per cent": (
        {"probs": PROBS * 100, "y": LABELS},
        r"probs\[0\] sums to 100, not 1; these look like per cent: divide by 100$",
    ),
    "90 is not 100": ({"probs": PROBS * 90, "y": LABELS}, r'sums to 90, not 1; pass kind="logits"'),
    "binary per cent": (
        {"probs": np.array([0.5, 97.5]), "y": np.array([0, 1])},
        r"probs\[1\] is 97.5, not in \[0, 1\]; divide by 100 if it is per cent, or pass kind",
        {"kind": "probs"},
    ),
    "above per cent": ({"probs": np.array([0.5, 101.0]), "y": np.array([0, 1])}, _NOT_A_PROBABILITY, {"kind": "probs"}),
    "below per cent": ({"probs": np.array([97.5, -1.0]), "y": np.array([0, 1])}, _NOT_A_PROBABILITY, {"kind": "probs"}),
    "no column for a label": (
        {"logits": RNG.normal(size=(10, 9)), "y": np.arange(10)},
        r"labels\[9\] is 9 and is outside \[0, 8\]; there are 9 class columns but a label 9: is a column missing\?",
    ),
    "no classes": ({"logits": LOGITS[:, :0], "y": LABELS}, "'logits' has 0 classes; save one column per class"),
    "multi-label": (
        {"probs": np.array([[0.9, 0.8, 0.48]]), "labels": np.array([[1, 1, 0]])},
        "multi-label files are not read",
    ),
    "fewer labels": ({"logits": LOGITS, "labels": LABELS[:-1]}, "'labels' has 22 rows but 'logits' has 23"),
    "three axes": ({"logits": LOGITS[None], "y": LABELS}, r"must be numbers of shape \[n, c\]"),
    "three names": ({"logits": LOGITS, "y": LABELS}, "3 class names for 4 classes", {"class_names": ["a", "b", "c"]}),
    "near name": (
        {"logits": LOGITS, "y": LABELS},
        r"did you mean 'logits'\? It has: logits",
        {"columns": "logit", "kind": "logits"},
    ),
    "two logits": (
        {"test_logits": LOGITS, "val_logits": LOGITS, "y": LABELS},
        "several fields could be the logits: 'test_logits' or 'val_logits'; pass columns",
    ),
    "two labels": ({"logits": LOGITS, "y": LABELS, "target": LABELS}, "'y' and 'target' could both be the labels"),
    "unknown names": ({"zed": LOGITS, "y": LABELS}, r"nothing is named like.*It has: zed \(float32 \[23, 4\]\), y"),
    "unknown kind": ({"zed": LOGITS, "y": LABELS}, "'zed' does not say what it is; pass kind=", {"columns": "zed"}),
    "unknown labels": (
        {"zed": LOGITS, "y": LABELS},
        "labels names 'true'",
        {"columns": "zed", "kind": "logits", "labels": "true"},
    ),
    **{key: ({key: LOGITS, "labels": LABELS}, _EITHER) for key in ("outputs", "scores", "arr_0", "y_pred")},
    "top classes alone": (
        "file,temperature,top1,top1_probability\na.png,1.5,cat,0.75\n",
        "only the likeliest classes of new images .*no labels; save all probabilities",
        {"columns": "*", "kind": "probs"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path, fault):
    content, message, *options = FAULTS[fault]
    fails(message, written(tmp_path, content), **dict(*options))


# Content, the probabilities and labels that come back, and the options that read it.
READ: dict[str, tuple] = {
    "tiny": ("prob_0,prob_1,label\n1e-60,1,0\n", [[1e-60, 1]], [0]),
    "three digits": ("prob_a,prob_b,label\n0.333,0.6665,a\n", [[0.333 / 0.9995, 0.6665 / 0.9995]], [0]),
    "two digits": ("prob_a,prob_b,prob_c,label\n0.33,0.33,0.33,a\n", [[1 / 3] * 3], [0], {"sum_tolerance": 0.02}),
    "numbered labels": ("0,1,2\n0.25,0.75,1\n", [[0.25, 0.75]], [1], {"kind": "probs", "labels": "2"}),
    "hard": ("cat,dog,label\n1,0,cat\n0,1,dog\n", [[1, 0], [0, 1]], [0, 1], {"columns": "*", "kind": "probs"}),
    "no header": ("0.1,0.9,1\n", [[0.1, 0.9]], [1], {"header": ["prob_0", "prob_1", "label"]}),
    "delimiter": ("prob_1;prob_2;label\n0.1;0.9;2\n", [[0.1, 0.9]], [1], {"delimiter": ";", "label_offset": 1}),
    "whole floats": ("0,1,label\n0.1,0.9,1.0\n", [[0.1, 0.9]], [1], {"kind": "probs"}),
    "byte order mark": (
        "\ufeffout_cat,out_dog,label\r\n0.1,0.9,dog\r\n",
        [[0.1, 0.9]],
        [1],
        {"columns": "out_*", "kind": "probs"},
    ),
    "as from_probs": ({"probs": np.array([[0.5, 0.50009]]), "y": np.array([0])}, [[0.5, 0.50009]], [0]),
    "two labels": (
        {"probs": PROBS[:2], "y": np.array([1, 2]), "target": np.array([0, 0])},
        PROBS[:2],
        [1, 2],
        {"labels": "y"},
    ),
    "two probs": (
        {"test_probs": PROBS[:1], "p": PROBS[1:2], "y": LABELS[:1]},
        PROBS[1:2],
        LABELS[:1],
        {"columns": "p"},
    ),
    "unknown names": ({"zed": PROBS, "q": LABELS}, PROBS, LABELS, {"columns": "zed", "kind": "probs", "labels": "q"}),
    "generic": ({"scores": PROBS, "y": LABELS}, PROBS, LABELS, {"kind": "probs"}),
}


@pytest.mark.parametrize("case", READ)
def test_remedies_work(tmp_path, case):
    content, probs, labels, *options = READ[case]
    read = read_predictions(written(tmp_path, content), **dict(*options))
    np.testing.assert_allclose(read.probs.numpy(), probs, rtol=1e-6)
    assert read.labels.tolist() == list(labels)


def test_npy_needs_a_kind_and_labels(tmp_path):
    path = tmp_path / "p.npy"
    np.save(path, LOGITS)
    fails(f"may be logits or probabilities; {_EITHER}", path, labels=LABELS)
    fails("nothing named like labels", path, kind="logits")
    np.testing.assert_array_equal(read_predictions(path, kind="logits", labels=LABELS).logits.numpy(), LOGITS)
    path.write_bytes(path.read_bytes() + b"more")
    fails("bytes where its header promises", path, kind="logits", labels=LABELS)


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("five", r"'five' is not a number; if 'guess' holds no scores, pass ignore=\[\"guess\"\]"),
        ('"0,5"', r"'0,5' is not a number; it has a decimal comma: save the file with decimal points \(0\.5\)"),
        ("12.3%", "'12.3%' is not a number; it is per cent: save fractions between 0 and 1"),
    ],
)
def test_cells_that_are_no_numbers_say_what_they_may_be(tmp_path, cell, hint):
    path = written(tmp_path, f"id,guess,cat,dog,label\n1,1,0.25,0.75,dog\n2,{cell},0.25,0.75,dog\n")
    fails(f"line 3, column 'guess': {hint}", path, columns="*", kind="probs")
    assert read_predictions(path, columns="*", kind="probs", ignore=["guess"]).num_classes == 2


def test_pandas_indices_and_text_columns_in_parquet_are_no_class(tmp_path):
    table = {"cat": [0.25, 1.0], "dog": [0.75, 0.0], "label": ["dog", "cat"], "place": ["here", "there"]}
    pq.write_table(pa.table(table | {"__index_level_0__": [7, 3]}), tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet", columns="*", kind="probs").class_names == ("cat", "dog")
    options = {"columns": ["place", "cat"], "kind": "logits", "class_names": ["dog", "cat"]}
    fails(r"'place' holds text, numbers are needed; pass ignore=\[\"place\"\]", tmp_path / "p.parquet", **options)
    pq.write_table(pa.table({"logits": [[], []], "label": [0, 1]}), tmp_path / "p.parquet")
    fails("'logits' ", tmp_path / "p.parquet")


def test_damage_to_names_and_headers_is_refused(tmp_path):
    pq.write_table(pa.table({"label": [0, 1], "logit_0": [1.0, 2.0], "logit_1": [2.0, 1.0]}), tmp_path / "p.parquet")
    data = (tmp_path / "p.parquet").read_bytes()
    (tmp_path / "p.parquet").write_bytes(data.replace(b"logit_0", b"logit\xdf0"))
    fails("is not a whole Parquet file .*copy or save it again", tmp_path / "p.parquet")
    np.save(tmp_path / "p.npy", np.eye(3))
    data = (tmp_path / "p.npy").read_bytes()
    (tmp_path / "p.npy").write_bytes(data.replace(b"(3, 3)", b"(3, 3i", 1))
    fails("is not a whole .npy array .*save it again", tmp_path / "p.npy", kind="logits", labels=[0, 1, 2])


def test_a_torch_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"logits": torch.eye(3), "labels": torch.arange(3)}, tmp_path / "p.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(read_predictions(tmp_path / "p.pt").logits, torch.eye(3))


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.tsv"])
def test_semicolons_and_decimal_commas_are_recognised(tmp_path, mark, decimal, name):
    if name == "p.tsv" and mark != "\t":
        mark = "\t"
    lines = ["logit_0;logit_1;label", *(f"{a:.4f};{b:.3e};{k}".replace(".", decimal) for a, b, k in WRITTEN)]
    text = "\ufeff\r\n" + "\r\n".join(lines).replace(";", mark) + "\r\n"
    data = text.encode("utf-8")
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    read = read_predictions(tmp_path / name)
    assert read.logits.tolist() == [pytest.approx([a, b]) for a, b, _ in WRITTEN]
    assert read.labels.tolist() == [k for *_, k in WRITTEN]


WRITTEN = [(1.2345, -0.002, 1), (-12.5, 3.25, 0), (0.0, 1234.0, 1)]


def test_csv_line_numbers_are_right_far_into_the_file(tmp_path):
    lines = ["prob_0,prob_1,label"] + ["0.25,0.75,1"] * 200_000
    lines[150_000] += ",extra"
    (tmp_path / "p.csv").write_text("\n".join(lines))
    fails("line 150001: 4 fields", tmp_path / "p.csv")


def test_blocks_are_even_however_the_text_was_cut(tmp_path):
    (tmp_path / "p.csv").write_text("prob_0,prob_1,label\n" + "0.25,0.75,1\n" * 250_000)
    sizes = [len(block) for block in stream_predictions(tmp_path / "p.csv", rows_per_block=60_000)]
    assert sizes == [60_000] * 4 + [10_000]


def test_ragged_lists_name_the_row(tmp_path):
    rows = [[0.0, 1.0]] * 30
    rows[21] = [0.0, 1.0, 2.0]
    pq.write_table(pa.table({"logits": rows, "label": [0] * 30}), tmp_path / "p.parquet", row_group_size=8)
    fails("'logits' has 3 values in row 21, the first row has 2", tmp_path / "p.parquet")
    with pytest.raises(PredictionFileError, match="in row 21"):
        list(stream_predictions(tmp_path / "p.parquet", rows_per_block=4))
    rows[21] = None
    pq.write_table(pa.table({"logits": rows, "label": [0] * 30}), tmp_path / "p.parquet")
    fails("'logits' is missing in row 21", tmp_path / "p.parquet")


def test_parquet_text_labels_dictionaries_and_nulls(tmp_path):
    labels = pa.array(["dog", "cat", "dog"]).dictionary_encode()
    table = {"prob_cat": [0.5, 1.0, 0.25], "prob_dog": [0.5, 0.0, 0.75]}
    pq.write_table(pa.table(table | {"label": labels}), tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet").labels.tolist() == [1, 0, 1]
    pq.write_table(pa.table(table | {"label": pa.array([1, None, 0])}), tmp_path / "p.parquet")
    fails(r"labels\[1\] is missing; fill it in", tmp_path / "p.parquet")
    pq.write_table(pa.table({"prob_0": [1, 0], "prob_1": [0, 1], "label": [True, False]}), tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet").labels.tolist() == [1, 0]


def test_torch_files_hold_tensors_or_are_refused(tmp_path):
    path = tmp_path / "p.pt"
    torch.save((torch.from_numpy(LOGITS), torch.from_numpy(LABELS)), path)
    read = read_predictions(path, columns="0", labels="1", kind="logits")
    np.testing.assert_array_equal(read.labels.numpy(), LABELS)
    torch.save(
        {"logits": torch.from_numpy(LOGITS).bfloat16(), "y": LABELS.tolist(), "class_names": list("abcd")},
        path,
    )
    assert read_predictions(path).class_names == ("a", "b", "c", "d")
    torch.save({"logits": LOGITS, "labels": Path("evil")}, path)
    fails("pickled objects are never loaded; save plain tensors", path)


def test_a_tuple_of_tensors_is_read_by_position(tmp_path):
    path, logits, labels = tmp_path / "tup.pt", torch.from_numpy(LOGITS), torch.from_numpy(LABELS)
    torch.save((logits, labels), path)
    fails('\'0\' may be logits or probabilities; pass kind="logits" or kind="probs", and labels="1"', path)
    fails('pass labels="1"', path, kind="logits")
    read = read_predictions(path, kind="logits", labels="1")
    assert torch.equal(read.logits, logits)
    assert torch.equal(read.labels, labels)
    torch.save([labels, logits], path)
    assert torch.equal(read_predictions(path, kind="logits", labels="0").logits, logits)
    torch.save((logits[:, 0], labels % 2), path)
    assert torch.equal(read_predictions(path, kind="logits", labels="1").logits[:, 1], logits[:, 0].double())


def test_a_lone_class_column_is_class_one_if_it_says_so(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("prob_1,label\n0.25,0\n1,1\n")
    fails('only class column; if it is the score of class 1 in a binary problem, pass kind="probs"', path)
    read = read_predictions(path, kind="probs")
    np.testing.assert_allclose(read.probs.numpy(), [[0.75, 0.25], [0, 1]])
    path.write_text("score,prob_1,label\n-9,0.25,0\n")
    assert float(read_predictions(path, kind="probs").probs[0, 1]) == pytest.approx(0.25)
    for name in ("prob_0", "prob_dog"):  # may be P(class 0)
        path.write_text(f"{name},label\n0.25,0\n")
        for options in ({}, {"kind": "probs"}):
            fails(f'pass columns="{name}" and kind="probs"', path, **options)
        assert float(read_predictions(path, kind="probs", columns=name).probs[0, 1]) == pytest.approx(0.25)


def test_labels_in_a_file_need_a_path(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS)
    np.save(tmp_path / "y.npy", LABELS)
    monkeypatch.chdir(tmp_path)
    fails(r'labels names \'y\.npy\'; if that is a file, pass labels=Path\("y\.npy"\)', path, labels="y.npy")
    assert read_predictions(path, labels=Path("y.npy")).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04", r"is not text: it looks like a zip archive \(\.npz"),
        (b"PAR1", "is not text: it looks like Parquet"),
        ("prob_0,prob_1,label\n".encode("utf-16"), "UTF-16 text; .*save it as UTF-8"),
        (b"prob_0,prob_1,label\n\0\0\0", "is not text: it looks like binary data"),
    ],
)
@pytest.mark.parametrize("header", [None, ["prob_0", "prob_1", "label"]])
def test_a_csv_that_is_no_text(tmp_path, content, message, header):
    (tmp_path / "p.csv").write_bytes(content)
    fails(message, tmp_path / "p.csv", header=header)
    with gzip.open(tmp_path / "p.csv.gz", "wb") as file:
        file.write(content)
    fails(message, tmp_path / "p.csv.gz", header=header)


@pytest.mark.filterwarnings("error")
def test_arrays_and_pickles_in_torch_files(tmp_path):
    path = tmp_path / "p.pt"
    torch.save({"logits": LOGITS, "labels": LABELS}, path)
    fails(r'save plain tensors: torch\.save\(\{"logits": torch\.from_numpy\(logits\)', path)
    for protocol in (2, 4):
        path.write_bytes(pickle.dumps({"logits": LOGITS, "labels": LABELS}, protocol=protocol))
        fails("never loaded; save plain tensors", path)


def test_a_folder_of_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    fails(r"is a folder without predictions, and without a file that is read \(\.npz", tmp_path)
    with pytest.raises(PredictionFileError, match="is a folder without predictions; read files with"):
        load_predictions(tmp_path)
    for number in range(10):
        write_npz(tmp_path / f"{number}.npz", logits=LOGITS, labels=LABELS)
    fails(r"name a file in it \(.*\): 0\.npz, .*, 7\.npz and 2 more$", tmp_path)


def test_bfloat16_safetensors_are_widened(tmp_path):
    logits = torch.from_numpy(LOGITS).bfloat16()
    save_file({"logits": logits, "labels": torch.from_numpy(LABELS).to(torch.uint8)}, tmp_path / "p.safetensors")
    assert torch.equal(read_predictions(tmp_path / "p.safetensors").logits, logits.float())


def test_our_own_folder_reads_and_streams(tmp_path):
    original = Predictions(
        logits=torch.from_numpy(LOGITS),
        labels=torch.from_numpy(LABELS),
        features=torch.ones(N, 2),
        class_names=("a", "b", "c", "d"),
        split="test",
        spec_hash="h",
    )
    folder = save_predictions(original, tmp_path / "test")
    read = read_predictions(folder)
    assert (read.class_names, read.split, read.spec_hash) == (original.class_names, "test", "h")
    assert torch.equal(torch.cat([b.logits for b in stream_predictions(folder, rows_per_block=4)]), original.logits)
    next(folder.glob("features-*")).unlink()
    fails("missing; copy the folder again", folder)


def test_paths_that_are_no_prediction_files(tmp_path):
    write_npz(tmp_path / "test.npz", logits=LOGITS, labels=LABELS)
    fails(r"does not exist; near it: test\.npz", tmp_path / "tset.npz")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        read_predictions(tmp_path / "nowhere" / "test.npz")
    fails(r"is a folder without predictions; name a file in it: test\.npz$", tmp_path)
    for name, message in (("p.pkl", "unpickling runs"), ("p.h5", r"known: \.npz"), ("README", "suffix")):
        (tmp_path / name).write_bytes(b"x")
        fails(message, tmp_path / name)
    (tmp_path / "p.parquet").write_bytes(b"PAR1 not really PAR1")
    fails("is not a whole Parquet file", tmp_path / "p.parquet")
    (tmp_path / "p.safetensors").write_bytes(b"\xff" * 64)
    fails("is not a whole safetensors file", tmp_path / "p.safetensors")


def test_arguments_are_checked(tmp_path):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS, labels=LABELS)
    with pytest.raises(ValueError, match="rows_per_block must be a positive integer"):
        stream_predictions(path, rows_per_block=0)
    with pytest.raises(ValueError, match="delimiter and header are for text files"):
        read_predictions(path, delimiter=";")


WALK = """
import re, sys
from pathlib import Path
from calattn.readers import stream_predictions
def peak():  # not ru_maxrss: a child inherits its parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
for path in sys.argv[1:3]:  # a small file first, so that imports and pools are not counted
    before = peak()
    rows = sum(len(block) for block in stream_predictions(path))
print(rows, peak() - before)
"""


def write_one_row_group(path: Path, **arrays: np.ndarray) -> Path:
    pq.write_table(pa.table(columns_of(arrays)), path, row_group_size=len(arrays["labels"]), use_dictionary=False)
    return path


STREAMED = {
    "p.npz": write_npz,
    "deflated.npz": write_npz,
    "p.safetensors": write_tensors,
    "wide.parquet": write_one_row_group,
    "p.csv": lambda path, **arrays: pa.csv.write_csv(pa.table(columns_of(arrays)), path) or path,
}


def streamed_growth(tmp_path: Path, name: str, rows: int, classes: int) -> int:
    """Peak memory in MiB that walking a file of this size adds to walking a small one."""
    logits, labels = RNG.random((rows, classes), dtype=np.float32), RNG.integers(classes, size=rows)
    small = STREAMED[name](tmp_path / f"small_{name}", logits=logits[:60_000], labels=labels[:60_000])
    big = STREAMED[name](tmp_path / name, logits=logits, labels=labels)
    done = subprocess.run(
        [sys.executable, "-c", WALK, str(small), str(big)], capture_output=True, text=True, check=True
    )
    walked, growth = (int(word) for word in done.stdout.split())
    assert walked == rows
    return growth


LARGER = [pytest.param(name, 4_000_000, marks=pytest.mark.slow) for name in STREAMED]


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize(("name", "rows"), [("p.npz", 2_000_000), ("wide.parquet", 2_000_000), *LARGER])
def test_streaming_memory_does_not_grow_with_the_file(tmp_path, name, rows):
    # The values alone are 153 or 305 MiB. Arrow's page buffers and pools fill up to some 90 MiB, whatever the file.
    assert streamed_growth(tmp_path, name, rows, 20) < 110


def test_columns_named_after_their_classes(tmp_path):
    """The table that pandas writes of a scikit-learn model: the labels and one column per class."""
    path = tmp_path / "t.csv"
    path.write_text("id,label,cat,dog,bird\n7,dog,0.1,0.8,0.1\n8,cat,0.6,0.1,0.3\n", encoding="utf-8")
    with pytest.raises(PredictionFileError, match=r'columns=\["cat", "dog", "bird"\]'):
        read_predictions(path)
    found = read_predictions(path, columns="*", kind="probs")
    assert found.class_names == ("cat", "dog", "bird")
    assert found.labels.tolist() == [1, 0]
    assert found.stated_probs[1].tolist() == pytest.approx([0.6, 0.1, 0.3])
    wide = tmp_path / "w.csv"
    wide.write_text("label," + ",".join(f"class{chr(97 + k)}" for k in range(20)) + "\n", encoding="utf-8")
    with pytest.raises(PredictionFileError, match=r'columns="\*"'):
        read_predictions(wide)


@pytest.mark.parametrize("index", ["", "Unnamed: 0", "fold", "split", "sample_weight", "y_pred", "Confidence", "idx"])
def test_what_stands_beside_the_classes_is_no_class(tmp_path, index):
    path = tmp_path / "t.csv"
    path.write_text(f"{index},cat,dog,label\n1,0.1,0.9,dog\n0,0.6,0.4,cat\n0,0.5,0.5,cat\n", encoding="utf-8")
    for kind in ("probs", "logits"):
        assert read_predictions(path, columns="*", kind=kind).class_names == ("cat", "dog")
    named = read_predictions(path, columns=[index, "cat", "dog"], kind="logits")  # unless the caller says so
    assert named.num_classes == 3


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("first", [0, 1, 5000])
def test_a_column_that_counts_the_rows_is_no_class(tmp_path, suffix, first):
    table = pa.table({"nr": range(first, first + 4), "cat": [1.5, 2, 3, 5], "dog": [0, 1, 1, 0], "y": [0, 1, 0, 1]})
    path = tmp_path / f"p.{suffix}"
    (pa.csv.write_csv if suffix == "csv" else pq.write_table)(table, path)
    options = {"columns": "*", "kind": "logits"}
    message = (
        rf"'nr' counts the rows \({first}, {first + 1}, {first + 2}, …\), so it is not a class; pass ignore=\[\"nr\"\]"
    )
    fails(message, path, **options)
    assert read_predictions(path, ignore=["nr"], **options).class_names == ("cat", "dog")
    assert read_predictions(path, columns=["nr", "cat", "dog"], kind="logits").num_classes == 3


@pytest.mark.parametrize("labels", [[1, -1, 1], [1.0, -1.0, 1.0], ["1", "-1", "1"]])
def test_numbers_that_are_class_names(tmp_path, labels):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS[:3, :2], labels=np.array(labels))
    fails(r'labels\[1\] is -1.* outside \[0, 1\]; pass class_names=\["-1", "1"\] if the numbers are names', path)
    for rows in (1, 3):
        blocks = list(stream_predictions(path, class_names=["-1", "1"], rows_per_block=rows))
        assert torch.cat([block.labels for block in blocks]).tolist() == [1, 0, 1]
    assert read_predictions(path, class_names=["1", "-1"]).labels.tolist() == [0, 1, 0]


def test_numbers_are_indices_where_they_are_not_all_names_or_an_offset_is_given(tmp_path):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS[:3, :3], labels=np.array([1, 2, 0]))
    assert read_predictions(path, class_names=["1", "2", "3"]).labels.tolist() == [1, 2, 0]
    path = write_npz(tmp_path / "q.npz", logits=LOGITS[:2, :3], labels=np.array([1, 2]))
    assert read_predictions(path, class_names=["1", "2", "3"]).labels.tolist() == [0, 1]
    assert read_predictions(path, class_names=["1", "2", "3"], label_offset=0).labels.tolist() == [1, 2]


def labels_in_blocks(path, rows, **options):
    return torch.cat([block.labels for block in stream_predictions(path, rows_per_block=rows, **options)]).tolist()


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_all_labels_settle_what_numbers_are(tmp_path, rows):
    names = ["1", "2", "3"]
    for want in ([2, 1, 1, 0], [0, 1, 1, 2]):
        for labels in (np.array(want), np.array(want, dtype=float), np.array(want).astype(str)):
            path = write_npz(tmp_path / "p.npz", logits=LOGITS[:4, :3], labels=labels)
            assert labels_in_blocks(path, rows, class_names=names) == want
            assert labels_in_blocks(path, rows, class_names=names, labels=labels) == want
            path = write_npz(tmp_path / "p.npz", logits=LOGITS[:4, :3], labels=np.array(want) + 1)
            assert labels_in_blocks(path, rows, class_names=names) == want
    path = write_npz(tmp_path / "p.npz", logits=LOGITS[:4, :3], labels=np.array([2, 1, -100, 0]))
    assert labels_in_blocks(path, rows, class_names=names, ignore_index=-100) == [2, 1, 0]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("names", [("1", "2", "x"), ("x", "0", "1"), ("nan", "cat", "2.0")])
def test_names_of_which_some_are_numbers(tmp_path, names, rows):
    for want in ([0, 0, 1, 2], [2, 2, 1, 0], [1, 1, 1, 1]):
        labels = np.array(names)[want]
        own = write_npz(tmp_path / "p.npz", logits=LOGITS[:4, :3], labels=labels, class_names=np.array(names))
        assert labels_in_blocks(own, rows) == want
        assert labels_in_blocks(own, rows, labels=labels) == want
        columns = pa.table({name: LOGITS[:4, k] for k, name in enumerate(names)} | {"label": labels})
        pq.write_table(columns, tmp_path / "p.parquet")
        options = {"columns": list(names), "kind": "logits"}
        assert labels_in_blocks(tmp_path / "p.parquet", rows, **options) == want
        if "nan" not in names:  # which is a missing value in a text file
            pa.csv.write_csv(columns, tmp_path / "p.csv")
            assert labels_in_blocks(tmp_path / "p.csv", rows, **options) == want
    indices = write_npz(tmp_path / "i.npz", logits=LOGITS[:3, :3], labels=np.arange(3), class_names=np.array(names))
    assert labels_in_blocks(indices, rows) == [0, 1, 2]


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize(("labels", "bad"), [(["0", "1", "cat", "dog"], "0|2"), (["cat", "dog", "0", "1"], "2")])
def test_names_and_indices_are_not_mixed(tmp_path, labels, bad, rows):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS[:4, :2], labels=np.array(labels))
    with pytest.raises(PredictionFileError, match=rf"labels\[({bad})\] is \w+ and is (not among|not a number)"):
        labels_in_blocks(path, rows, class_names=["cat", "dog"])


def test_missing_labels_are_missing_in_every_block_size(tmp_path):
    for labels in (np.array([-1.0, 1.0, np.nan, 1.0]), np.array(["-1", "1", "", "1"])):
        path = write_npz(tmp_path / "p.npz", logits=LOGITS[:4, :2], labels=labels)
        for rows in (1, 2, 4):
            with pytest.raises(PredictionFileError, match=r"labels\[2\] is (nan and is )?missing"):
                labels_in_blocks(path, rows, class_names=["-1", "1"])


def test_class_names_never_change_the_labels_of_our_own_folder(tmp_path):
    ours = Predictions(logits=torch.zeros(2, 3), labels=torch.tensor([1, 2]), class_names=("1", "2", "3"))
    folder = save_predictions(ours, tmp_path / "test")
    assert read_predictions(folder).labels.tolist() == [1, 2]
    assert read_predictions(folder, class_names=["1", "2", "3"]).labels.tolist() == [1, 2]


def test_csv_that_is_not_utf8(tmp_path, capfd):
    path = tmp_path / "p.csv"
    path.write_bytes("prob_chat,prob_bébé,label\n0.5,0.5,0\n".encode("latin-1"))
    fails("a column name in its first line is not UTF-8 text; save the file as UTF-8", path)
    path.write_bytes("prob_0,prob_1,ort,label\n0.5,0.5,Köln,1\n0.5,Köln,0\n".encode("latin-1"))
    fails("line 3: 3 fields where the header has 4: '0.5,K\ufffdln,0'", path)
    path.write_bytes("prob_0,prob_1,ort,label\n0.5,0.5,Köln,1\n".encode("latin-1"))
    assert read_predictions(path).labels.tolist() == [1]  # what is not read may be anything
    path.write_bytes("prob_0,prob_1,label\n0.5,0.5,Köln\n".encode("latin-1"))
    fails("line 2, column 'label': CSV conversion error to string: invalid UTF8 data; fix", path)
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", ["pt", "pth"])
def test_random_bytes_are_no_torch_file(tmp_path, suffix):
    path, rng = tmp_path / f"p.{suffix}", np.random.default_rng(0)
    contents = [rng.bytes(int(rng.integers(1, 300))) for _ in range(300)]
    # Opcodes of pickle, which torch's reader takes for instructions.
    opcodes = np.frombuffer(b"\x80\x02.0]}()tu\x85eabRcqrhjKMJXGB\x8a\x88NQ", np.uint8)
    contents += [b"\x80\x02" + rng.choice(opcodes, 12).tobytes() + b"." for _ in range(300)]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(PredictionFileError):
            read_predictions(path, kind="logits", labels=LABELS)


TIDY = "id,.pred_class,.row,.pred_setosa,.pred_virginica,Species,.config\n"


def test_tables_of_tidymodels_are_read_at_once(tmp_path):
    """`collect_predictions()` and `augment()`: the outcome keeps its own name."""
    rows = "Fold1,setosa,3,0.75,0.25,setosa,pre0\nFold1,setosa,5,0.5,0.5,virginica,pre0\n"
    read = read_predictions(written(tmp_path, TIDY + rows))
    assert (read.class_names, read.labels.tolist()) == (("setosa", "virginica"), [0, 1])
    assert read.probs[:, 0].tolist() == [0.75, 0.5]
    table = pa.csv.read_csv(tmp_path / "p.csv")
    pq.write_table(table.append_column("Petal.Width", pa.array([0.2, 1.8])), tmp_path / "p.parquet")
    assert read_predictions(tmp_path / "p.parquet").labels.tolist() == [0, 1]
    two = TIDY.replace(".config", "Teacher") + rows.replace("pre0", "setosa")
    fails(r"'Species' and 'Teacher' could both be the labels; pass labels=\"Species\"", written(tmp_path, two))
    assert read_predictions(tmp_path / "p.csv", labels="Species").labels.tolist() == [0, 1]
    fails("nothing named like labels", written(tmp_path, ".pred_class,.pred_a,.pred_b\na,0.75,0.25\n"))


# Files that cannot be read without a word more: what the error suggests is passed, and must do.
SUGGESTED = {
    "one column per class": "nr,cat,dog,label\na,0.75,0.25,cat\nb,0.25,0.75,dog\n",
    "many": "label," + ",".join(f"k{chr(97 + k)}" for k in range(20)) + "\nka," + ",".join(["0.05"] * 20) + "\n",
    "generic": "0,1,label\n0.5,0.5,1\n",
    "both kinds": "logit_0,logit_1,prob_0,prob_1,label\n0.5,0.5,0.5,0.5,1\n",
    "from one": "prob_1,prob_2,label\n0.5,0.5,2\n",
    "labels by another name": "prob_a,prob_b,species\n0.5,0.5,a\n",
    "no label by name": "cat,dog,kind\n0.5,0.5,dog\n",
    "two labels": "prob_0,prob_1,y,target\n0.5,0.5,1,0\n",
    "counting": "nr,cat,dog,label\n1,1.5,0,cat\n2,0,1,dog\n3,1,0,cat\n",
    "class one": "prob_1,label\n0.75,1\n0.5,0\n",
    "class of two": "prob_dog,label\n0.75,1\n0.5,0\n",
    "one-based labels": "prob_0,prob_1,label\n0.5,0.5,1\n0.5,0.5,2\n",
    "minus one": "prob_0,prob_1,label\n0.5,0.5,1\n0.5,0.5,-1\n",
    "no label": "prob_0,prob_1,label\n0.5,0.5,0\n0.5,0.5,1\n0.5,0.5,-100\n",
    "text": "cat,dog,note,label\n0.5,0.5,0.5,cat\n" * 1 + "0.5,0.5,x,cat\n",
    "tidymodels": TIDY.replace(".config", "Teacher") + "F,setosa,3,0.75,0.25,setosa,setosa\n",
}

OWN = {("no label by name", "labels"): "kind"}  # what only the reader of the message knows


@pytest.mark.parametrize("case", SUGGESTED)
def test_what_an_error_suggests_works(tmp_path, case):
    path, options, told = written(tmp_path, SUGGESTED[case]), {}, []
    for _ in range(3):
        try:
            read_predictions(path, **options)
            break
        except PredictionFileError as error:
            told.append(str(error))
            parts = [part.values for part in error.remedy if isinstance(part, Args)]
            named = {name for values in parts for name in values}
            for values in reversed(parts):  # of several ways the first
                values = {key: OWN.get((case, key), each) for key, each in values.items()}
                options |= {key: each for key, each in values.items() if each not in (None, ..., "…", [...])}
            assert named & set(options), told
    else:
        raise AssertionError(told)
    assert 0 < len(told) <= 2
