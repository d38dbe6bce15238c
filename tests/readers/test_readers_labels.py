"""Labels of other people's files: which field they are, which rows have none, one-hot ones, and predictions in their place."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import calattn
from calattn.cli import subjects
from calattn.readers import read_predictions, stream_predictions
from calattn.readers.names import AUXILIARY, CLASS_NAMES, FEATURES, GENERIC, INDICES, LABELS, NAMES, SCALE
from tests.cli_runner import invoke
from tests.readers import test_readers as shared
from tests.readers.test_readers import EVERY_FORMAT, LOGITS, PROBS, WRITERS, C, N, fails, write_csv, write_npz

TRUE = shared.LABELS

ANIMALS = np.array(["cat", "dog", "bird", "cow"])


def animals(path: Path, rows: int = 300, **others: np.ndarray) -> Path:
    """A table as people write it: file names, the truth, what the model said, one column per class."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(C), size=rows)
    truth = np.array([rng.choice(C, p=row) for row in probs])
    said = probs.argmax(axis=1)
    columns = {"file": np.array([f"{i}.png" for i in range(rows)]), "true": ANIMALS[truth], "pred": ANIMALS[said]}
    return write_csv(path, **columns | others, **{name: probs[:, k] for k, name in enumerate(ANIMALS)})


def test_no_label_name_has_another_role():
    others = SCALE | FEATURES | INDICES | CLASS_NAMES | AUXILIARY | GENERIC | NAMES["logits"] | NAMES["probs"]
    assert not LABELS & others


@pytest.mark.parametrize("name", ["true", "truth", "Actual", "ground_truth", "gt", "label_ids", "true_label", "class"])
def test_names_of_true_labels(tmp_path, name):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS, pred=LOGITS.argmax(1), **{name: TRUE})
    np.testing.assert_array_equal(read_predictions(path).labels.numpy(), TRUE)
    fails("could both be the labels", write_npz(path, logits=LOGITS, labels=TRUE, **{name: TRUE}))


@pytest.mark.parametrize(
    "name", ["pred", "y_pred", "prediction", "predicted", "argmax", "top1", "Top-1", "y_hat", "model_prediction"]
)
def test_predictions_are_never_suggested_as_labels(tmp_path, name):
    fails('pass labels="…"', write_csv(tmp_path / "p.csv", logits=LOGITS, **{name: TRUE}))
    fails('pass labels="…"', write_npz(tmp_path / "p.npz", logits=LOGITS, **{name: TRUE}))
    fails('pass labels="zed"', write_npz(tmp_path / "p.npz", logits=LOGITS, zed=TRUE, **{name: TRUE}))


def test_a_table_of_names_is_read_with_what_its_errors_say(tmp_path):
    """Columns of words are neither classes nor logits, and the labels are the true ones."""
    path = animals(tmp_path / "names.csv")
    fails(r'nothing is named like logits.*pass columns=\["cat", "dog", "bird", "cow"\] and kind=', path)
    read = read_predictions(path, columns="*", kind="probs")
    assert read.class_names == tuple(ANIMALS)
    assert 0.3 < float((read.logits.argmax(1) == read.labels).double().mean()) < 0.9


def test_a_predicted_class_is_no_probability_of_class_one(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("true,pred,cat,dog\n0,0,0.9,0.1\n1,0,0.6,0.4\n")
    fails(r"'pred' may be logits or .*; if other columns are one per class, columns=\[\"cat\", \"dog\"\] too", path)
    fails(
        r"'pred' is one value per row, a predicted class perhaps; pass columns=\[\"cat\", \"dog\"\]", path, kind="probs"
    )
    assert read_predictions(path, kind="probs", columns="pred").probs[1].tolist() == [1, 0]
    assert read_predictions(path, kind="probs", columns="*").probs[1].tolist() == pytest.approx([0.6, 0.4])


def test_true_beside_false_is_a_class(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("true,false,unknown,label\n0.7,0.2,0.1,true\n0.1,0.8,0.1,false\n")
    read = read_predictions(path, columns="*", kind="probs")
    assert read.class_names == ("true", "false", "unknown")
    assert read.labels.tolist() == [0, 1]


def test_words_are_told_from_numbers_that_are_written_oddly(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('place,cat,dog,label\nhere,"0,5","0,5",cat\n')
    fails("'0,5' is not a number; it has a decimal comma", path, columns="*", kind="probs")
    path.write_text("place,cat,dog,label\nhere,,0.5,cat\nthere,0.5,0.5,cat\n")
    fails(r"probs\[0, 0\] is nan", path, columns="*", kind="probs")
    path.write_text("here,0.5,0.5,cat\n")
    read = read_predictions(path, columns="*", kind="probs", header=["place", "cat", "dog", "label"])
    assert read.class_names == ("cat", "dog")


@pytest.mark.parametrize("rows_per_block", [None, 50])
def test_predictions_in_place_of_labels_are_warned_of(tmp_path, rows_per_block):
    path = animals(tmp_path / "p.csv")
    options = {"columns": "*", "kind": "probs", "rows_per_block": rows_per_block}
    with pytest.warns(UserWarning, match=r"'pred' equals the class with the highest score in all 300 rows.*labels="):
        list(stream_predictions(path, labels="pred", **options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(stream_predictions(path, **options))
        few = animals(tmp_path / "few.csv", rows=100)
        list(stream_predictions(few, labels="pred", **options))
        sure = write_npz(tmp_path / "sure.npz", logits=20 * np.eye(C)[np.arange(300) % C], labels=np.arange(300) % C)
        list(stream_predictions(sure))


def with_ignored(*marks: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which every third is one of the marks, and which rows are left."""
    labels = np.arange(N) % C
    labels[::3] = np.resize(marks, len(labels[::3]))
    return labels, np.flatnonzero(~np.isin(labels, marks))


@EVERY_FORMAT
@pytest.mark.parametrize("rows", [1, 7, None])
def test_rows_with_an_ignored_label_are_left_out(tmp_path, name, rows):
    labels, left = with_ignored(-100, 255)
    logits = LOGITS.copy()
    logits[0] = np.nan  # of a row that is left out nothing is asked
    path = WRITERS[name](tmp_path / name, logits=logits, labels=labels, indices=np.arange(N))
    stream = stream_predictions(path, ignore_index=[-100, 255], rows_per_block=rows)
    for _ in range(2):
        blocks = list(stream)
        np.testing.assert_array_equal(torch.cat([block.logits for block in blocks]).numpy(), LOGITS[left])
        np.testing.assert_array_equal(torch.cat([block.labels for block in blocks]).numpy(), (np.arange(N) % C)[left])
        assert torch.cat([block.indices for block in blocks]).tolist() == left.tolist()
        assert (stream.num_rows, stream.num_ignored) == (None, N - len(left))
    np.testing.assert_array_equal(
        read_predictions(path, labels=labels, ignore_index=(-100, 255)).labels.numpy(), (np.arange(N) % C)[left]
    )


def test_ignoring_counts_rows_of_the_file_and_may_leave_none(tmp_path):
    labels, left = with_ignored(-1)
    labels[left[-1]] = C
    path = write_npz(tmp_path / "p.npz", logits=LOGITS, labels=labels)
    for rows in (5, N):
        with pytest.raises(ValueError, match=rf"labels\[{left[-1]}\] is {C} and is outside"):
            list(stream_predictions(path, ignore_index=-1, rows_per_block=rows))
    fails(r"all of its 23 labels are left out by ignore_index=\[3\]", path, labels=np.full(N, 3), ignore_index=3)
    with pytest.raises(ValueError, match="ignore_index must be whole numbers, got True"):
        read_predictions(path, ignore_index=[True])


@pytest.mark.parametrize("mark", [-100, -1, 255])
def test_a_lone_mark_of_no_label_is_named(tmp_path, mark):
    path = write_npz(tmp_path / "p.npz", logits=LOGITS, labels=with_ignored(mark)[0])
    fails(rf"is outside \[0, 3\]; pass ignore_index={mark} to leave out rows that have no label$", path)
    assert len(read_predictions(path, ignore_index=mark)) == len(with_ignored(mark)[1])
    fails("is outside .*pass class_names", write_npz(path, logits=LOGITS, labels=with_ignored(mark, -7)[0]))


def test_the_flag_leaves_out_the_same_rows_streamed_or_not(capsys, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(400, C)), rng.integers(C, size=400)
    labels[::4], labels[1::40] = -100, 255
    path = write_npz(tmp_path / "p.npz", logits=logits, labels=labels)
    kept = labels == np.clip(labels, 0, C - 1)
    want = calattn.evaluate(
        calattn.Predictions(logits=torch.from_numpy(logits[kept]), labels=torch.from_numpy(labels[kept]))
    )
    for flags in (["--ignore-label", "-100,255"], ["--ignore-label", "-100", "--ignore-label", "255"]):
        for size in (subjects.STREAM_BYTES, 0):
            monkeypatch.setattr(subjects, "STREAM_BYTES", size)
            result = invoke(capsys, "evaluate", path, "--json", *flags)
            assert result.code == 0, result.err
            assert result.json["results"][0]["samples"] == kept.sum()
            found = result.json["results"][0]["metrics"]["ece"]["value"]
            assert found == pytest.approx(want["ece"].value, abs=1e-12)
            assert result.err.count(f"p.npz: {400 - kept.sum()} of 400 rows left out: their label is -100 or 255") == 1
    monkeypatch.undo()
    for command in (["calibrate", path], ["compare", path, path]):
        result = invoke(capsys, *command, "--ignore-label", "-100,255", "--bootstrap", 50, "--json")
        assert (result.code, result.json["samples"]) == (0, kept.sum())
    assert (
        "--ignore-label must be whole numbers, got 'x'" in invoke(capsys, "evaluate", path, "--ignore-label", "x").err
    )


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float32, np.uint8])
@pytest.mark.parametrize("rows", [5, None])
def test_one_hot_labels_are_class_numbers(tmp_path, dtype, rows):
    path = write_npz(tmp_path / "p.npz", probs=PROBS, labels=np.eye(C, dtype=dtype)[TRUE])
    labels = torch.cat([block.labels for block in stream_predictions(path, rows_per_block=rows)])
    np.testing.assert_array_equal(labels.numpy(), TRUE)
    given = read_predictions(path, labels=np.eye(C, dtype=dtype)[TRUE])
    np.testing.assert_array_equal(given.labels.numpy(), TRUE)


def test_other_matrices_of_labels_are_not_called_one_hot(tmp_path):
    path, one_hot = tmp_path / "p.npz", np.eye(C)[TRUE]
    for ones in (0, 2):
        several = one_hot.copy()
        several[17] = np.arange(C) < ones
        fails(
            r"labels\[17\] does not have exactly one 1: multi-label files are not read, because",
            write_npz(path, logits=LOGITS, labels=several),
        )
    soft = one_hot.copy()
    soft[18] = 1 / C
    fails(
        r"labels\[18\] has entries other than 0 and 1; shares of classes \(soft labels\)",
        write_npz(path, logits=LOGITS, labels=soft),
    )
    fails("nor one-hot with 4 classes; save the class", write_npz(path, logits=LOGITS, labels=np.eye(6)[TRUE]))


def test_maps_of_logits_say_how_to_flatten_them(tmp_path):
    rng = np.random.default_rng(0)
    maps, mask = rng.normal(size=(2, C, 5, 6)), rng.integers(C, size=(2, 5, 6))
    for logits in (maps, np.moveaxis(maps, 1, -1)):
        path = write_npz(tmp_path / "p.npz", logits=logits, labels=mask)
        with pytest.raises(ValueError, match="one row per label: ") as caught:
            read_predictions(path)
        names = {"np": np, "logits": logits, "labels": mask}
        exec(str(caught.value).partition("one row per label: ")[2].partition(". It has")[0], names)
        read = read_predictions(write_npz(tmp_path / "flat.npz", logits=names["logits"], labels=names["labels"]))
        np.testing.assert_array_equal(read.logits[-1].numpy(), maps[1, :, 4, 5])
        assert int(read.labels[-1]) == mask[1, 4, 5]
    with pytest.raises(ValueError, match="must be numbers") as caught:  # not maps: a batch too many
        read_predictions(write_npz(tmp_path / "p.npz", logits=LOGITS[None], labels=TRUE))
    assert "reshape" not in str(caught.value)


@pytest.mark.parametrize("form", ["lines.jsonl", "records.json", "columns.json"])
def test_the_remedy_for_json_makes_a_file_that_is_read(tmp_path, form):
    path = tmp_path / form
    records = [{"logits": row.tolist(), "label": int(label)} for row, label in zip(LOGITS, TRUE, strict=True)]
    contents = {
        "lines.jsonl": "\n".join(map(json.dumps, records)),
        "records.json": json.dumps(records),
        "columns.json": json.dumps({"logits": LOGITS.tolist(), "label": TRUE.tolist()}),
    }
    path.write_text(contents[form])
    with pytest.raises(ValueError, match="is JSON, which is not read; convert it once: python -c") as caught:
        read_predictions(path)
    code = shlex.split(str(caught.value).partition("once: ")[2])
    subprocess.run([sys.executable, *code[1:]], check=True)
    read = read_predictions(path.with_suffix(".parquet"))
    np.testing.assert_allclose(read.logits.numpy(), LOGITS, rtol=1e-6)
    np.testing.assert_array_equal(read.labels.numpy(), TRUE)
