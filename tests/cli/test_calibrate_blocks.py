"""`calattn calibrate --apply` on files too large for memory: the same results in blocks, and nothing half-written."""

from __future__ import annotations

import gzip
import resource
import signal
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

import calattn
from calattn.cli import subjects
from calattn.files import probabilities
from calattn.files.rows import RowFile
from calattn.posthoc import CALIBRATORS
from calattn.readers import stream, tables
from calattn.types import Fingerprint
from tests.cli_runner import invoke, predictions, ran, refused
from tests.forking import Forked

LOGITS = predictions(sharpness=2.0).logits.numpy()
LABELS = predictions().labels.numpy()
INDEX = np.arange(600)[::-1].copy()
ROWS = 70  # of a block: 600 samples are nine of them, the last one shorter


@pytest.fixture
def in_blocks(monkeypatch):
    """Every file is large, and a block holds 70 rows."""
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1)
    monkeypatch.setattr(stream, "_VALUES_PER_BLOCK", 10 * ROWS)
    monkeypatch.setattr(probabilities, "_GROUP_BYTES", 3 * ROWS * (10 * 4 + 2 * 8))


def fitted(method="vector", **fields):
    return CALIBRATORS[method]().fit(predictions(7, sharpness=2.0, **fields))


@pytest.fixture
def saved(tmp_path):
    (tmp_path / "fit").mkdir()
    fitted().save(tmp_path / "fit" / "calibrator.safetensors")
    return tmp_path / "fit"


def by_hand(logits=LOGITS):
    """softmax(w ⊙ z + b) in numpy, z the logarithm of the probabilities that one temperature and a share of 1/C give."""
    it = fitted()
    gaps = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    tempered = np.exp(np.maximum(gaps, -it.limit_) / it.temperature_)
    probs = (1 - it.share_) * tempered / tempered.sum(axis=1, keepdims=True) + it.share_ / logits.shape[1]
    z = np.log(probs) * it.weight_.numpy() + it.bias_.numpy()
    exp = np.exp(z - z.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def columns(logits=LOGITS):
    return pa.table({"id": INDEX, "label": LABELS} | {f"logit_{k}": logits[:, k] for k in range(logits.shape[1])})


def write(path, logits=LOGITS):
    """The same samples in any format that is read."""
    if path.suffix == ".npz":
        np.savez_compressed(path, logits=logits, labels=LABELS, index=INDEX)
    elif path.suffix in (".safetensors", ".pt"):
        arrays = {"logits": logits, "labels": LABELS, "ids": INDEX}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        (save_file if path.suffix == ".safetensors" else torch.save)(tensors, path)
    elif path.suffix == ".parquet":
        pa.parquet.write_table(columns(logits), path, row_group_size=250)
    elif path.suffix in (".csv", ".gz"):
        with pa.CompressedOutputStream(str(path), "gzip") if path.suffix == ".gz" else open(path, "wb") as file:
            pa.csv.write_csv(columns(logits), file)
    else:
        more = {"labels": torch.from_numpy(LABELS), "indices": torch.from_numpy(INDEX)}
        calattn.save_predictions(calattn.Predictions(logits=torch.from_numpy(logits), **more), path)
    return path


def read(path):
    """Probabilities, labels and indices, by the formats' own readers."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            return found["probs"], found["labels"], found["index"]
    table = pa.csv.read_csv(path) if path.suffix == ".csv" else pa.parquet.read_table(path)
    return (
        np.stack([table[f"p_{k}"] for k in range(10)], axis=1),
        np.asarray(table["label"]),
        np.asarray(table["index"]),
    )


def left(folder):
    return sorted(place.name for place in folder.iterdir())


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("out", [".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("given", ["a.npz", "a.safetensors", "a.pt", "a.parquet", "a.csv", "a.csv.gz", "folder"])
def test_every_format_against_numpy(capsys, saved, tmp_path, given, out):
    source, target = write(tmp_path / given), tmp_path / f"probs{out}"
    result = invoke(capsys, "calibrate", source, "--apply", saved, "--write", target, "--json")
    assert (result.code, result.json["samples"], result.json["classes"]) == (0, 600, 10)
    probs, labels, index = read(target)
    np.testing.assert_allclose(probs, by_hand(), atol=1e-6)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(index, INDEX)
    assert left(tmp_path) == sorted([given, "fit", f"probs{out}"])


@pytest.mark.parametrize("method", list(CALIBRATORS))
def test_every_calibrator_says_the_same_in_blocks(capsys, tmp_path, monkeypatch, method):
    features = torch.randn(600, 5, generator=torch.Generator().manual_seed(1))
    classes = 2 if method == "venn_abers" else 10
    p = predictions(7, sharpness=2.0, features=features)
    p = p.replace(logits=p.logits[:, :classes], labels=p.labels % classes, class_names=None)
    CALIBRATORS[method]().fit(p).save(tmp_path / "it.safetensors")
    np.savez(tmp_path / "a.npz", logits=LOGITS[:, :classes], labels=LABELS % classes, features=features.numpy())
    base = ("calibrate", tmp_path / "a.npz", "--apply", tmp_path / "it.safetensors", "--write")
    ran(capsys, *base, tmp_path / "whole.npz")
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1)
    monkeypatch.setattr(stream, "_VALUES_PER_BLOCK", 15 * ROWS)
    ran(capsys, *base, tmp_path / "blocks.npz")
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "blocks.npz") as blocks:
        assert set(whole) == set(blocks)
        np.testing.assert_allclose(blocks["probs"], whole["probs"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("method", "same"), [("temperature", True), ("isotonic", False)])
def test_rounded_text_is_normalised_block_by_block(capsys, tmp_path, monkeypatch, method, same):
    """A known difference: one row that sums to 1.0006 has the whole file normalised, or the rows of its block alone."""
    probs = predictions(sharpness=2.0).probs.double().numpy().round(5)
    probs[4, 3] += 6e-4
    lines = [",".join(f"prob_{k}" for k in range(10)), *(",".join(f"{p:.5f}" for p in row) for row in probs)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    fitted(method).save(tmp_path / "it.safetensors")
    base = ("calibrate", tmp_path / "a.csv", "--apply", tmp_path / "it.safetensors", "--write")
    ran(capsys, *base, tmp_path / "whole.npz")
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1)
    monkeypatch.setattr(stream, "_VALUES_PER_BLOCK", 10 * ROWS)
    ran(capsys, *base, tmp_path / "blocks.npz")
    with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "blocks.npz") as blocks:
        furthest = np.abs(whole["probs"] - blocks["probs"]).max(axis=1)
    assert furthest[:ROWS].max() < 1e-15  # the block of that row
    assert furthest.max() == 0 if same else 1e-6 < furthest.max() < 2e-3


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_blocks_give_the_files_that_whole_tables_give(tmp_path, suffix):
    """Against numpy's and Arrow's own writers, to the byte where the format has no dates and no choices."""
    rng = np.random.default_rng(0)
    names = tuple(f"class {k}" for k in range(10))
    whole = calattn.Predictions(logits=torch.from_numpy(LOGITS), labels=torch.from_numpy(LABELS), class_names=names)
    path = tmp_path / f"a{suffix}"
    cuts = np.sort(rng.integers(1, 600, size=4))
    parts = [whole.select(torch.from_numpy(part)) for part in np.split(np.arange(600), cuts) if len(part)]
    probabilities.write_probabilities(parts, path)
    probs = whole.logits.softmax(dim=1).numpy()
    table = pa.table({"label": np.array(names)[LABELS]} | {f"p_{name}": probs[:, k] for k, name in enumerate(names)})
    if suffix == ".npz":
        np.savez(tmp_path / "b.npz", probs=probs, class_names=np.array(names), labels=LABELS)
        with zipfile.ZipFile(path) as a, zipfile.ZipFile(tmp_path / "b.npz") as b:
            assert [a.read(each) for each in a.namelist()] == [b.read(each) for each in b.namelist()]
            assert a.namelist() == b.namelist()
    elif suffix == ".csv":
        pa.csv.write_csv(table, tmp_path / "b.csv")
        assert path.read_bytes() == (tmp_path / "b.csv").read_bytes()
    else:
        assert pa.parquet.read_table(path).equals(table)


def test_a_row_group_holds_several_blocks(capsys, saved, tmp_path, in_blocks):  # noqa: ARG001
    target = tmp_path / "probs.parquet"
    ran(capsys, "calibrate", write(tmp_path / "a.npz"), "--apply", saved, "--write", target)
    found = pa.parquet.ParquetFile(target).metadata
    assert [found.row_group(k).num_rows for k in range(found.num_row_groups)] == [210, 210, 180]


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("given", ["a.npz", "a.csv", "folder"])
def test_out_is_what_save_predictions_writes(capsys, tmp_path, given):
    """The same bytes: temperature scaling has no sums whose order blocks could change."""
    it = fitted("temperature")
    it.save(tmp_path / "it.safetensors")
    source = write(tmp_path / given)
    ran(capsys, "calibrate", source, "--apply", tmp_path / "it.safetensors", "--out", tmp_path / "out")
    calattn.save_predictions(it(calattn.read_predictions(source)), tmp_path / "want")
    for place in (tmp_path / "want").iterdir():
        assert (tmp_path / "out" / "predictions" / place.name).read_bytes() == place.read_bytes()
    assert left(tmp_path / "out" / "predictions") == left(tmp_path / "want")


@pytest.mark.parametrize(
    "types", [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.float16, torch.bfloat16)]
)
def test_a_row_file_is_a_safetensors_file(tmp_path, types):
    tensors = {
        "scale": torch.rand(23).to(types[0]),
        "logits": torch.randn(23, 3).to(types[1]),
        "labels": torch.arange(23),
        "indices": torch.arange(23) + 5,
    }
    with RowFile(tmp_path / "rows", tensors, rows=23) as file:
        for part in torch.arange(23).split(7):
            file.add({name: tensor[part] for name, tensor in tensors.items()})
        file.finish()
    save_file(tensors, tmp_path / "whole")
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "whole").read_bytes()
    assert torch.equal(load_file(tmp_path / "rows")["logits"], tensors["logits"])


@pytest.mark.parametrize(
    ("rows", "message"), [(600, "more rows than the 600"), (640, "620 rows where it should have 640")]
)
def test_rows_that_are_not_as_many_as_announced(tmp_path, rows, message):
    whole = predictions()
    blocks = [whole.select(part) for part in torch.arange(600).split(100)] + [whole.select(torch.arange(20))]
    good = calattn.files.predictions.save_blocks(blocks, tmp_path / "good", rows=620)
    assert len(calattn.load_predictions(good)) == 620
    with pytest.raises(ValueError, match=message):
        calattn.files.predictions.save_blocks(blocks, tmp_path / "bad", rows=rows)
    with pytest.raises(ValueError, match="blocks is empty"):
        calattn.files.predictions.save_blocks([], tmp_path / "bad", rows=0)
    assert left(tmp_path) == ["good"]


@pytest.mark.usefixtures("in_blocks")
def test_rows_that_are_left_out(capsys, saved, tmp_path):
    """How many stay is known after a pass; the archive's header wants it before."""
    labels = np.where(np.arange(600) % 7 == 0, -100, LABELS)
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=labels)
    outputs = ("--write", tmp_path / "p.npz", "--out", tmp_path / "out", "--json")
    result = invoke(capsys, "calibrate", tmp_path / "a.npz", "--ignore-label", "-100", "--apply", saved, *outputs)
    assert (result.code, result.json["samples"]) == (0, 514)
    assert result.err.count("86 of 600 rows left out") == 1
    with np.load(tmp_path / "p.npz") as found:
        np.testing.assert_allclose(found["probs"], by_hand(LOGITS[labels >= 0]), atol=1e-6)
        np.testing.assert_array_equal(found["labels"], labels[labels >= 0])
    assert len(calattn.load_predictions(tmp_path / "out" / "predictions")) == 514


OUTPUTS = [("--write", "probs.npz"), ("--write", "probs.csv"), ("--write", "probs.parquet"), ("--out", "out")]


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "logits[170, 4] is nan"), (-np.inf, "logits[170] has a −inf entry")]
)
@pytest.mark.parametrize("given", ["a.npz", "a.csv"])
def test_a_bad_row_in_the_third_block(capsys, saved, tmp_path, value, message, output, given):
    """The first is found by the reader, the second by the calibrator; both count rows from the file's first."""
    logits = LOGITS.copy()
    logits[170, 4] = value
    source = write(tmp_path / given, logits)
    flag, name = output
    if flag == "--write":
        (tmp_path / name).write_text("before")
    assert message in refused(capsys, "calibrate", source, "--apply", saved, flag, tmp_path / name)
    assert left(tmp_path) == sorted([given, "fit"] + [name] * (flag == "--write"))
    assert flag == "--out" or (tmp_path / name).read_text() == "before"


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("given", ["a.npz", "a.safetensors", "a.parquet", "a.csv", "a.csv.gz", "folder"])
def test_a_truncated_file(capsys, saved, tmp_path, given, output):
    source = write(tmp_path / given)
    place = next(source.glob("predictions-*")) if source.is_dir() else source
    place.write_bytes(place.read_bytes()[: place.stat().st_size * 2 // 3])
    assert given in refused(capsys, "calibrate", source, "--apply", saved, output[0], tmp_path / output[1])
    assert left(tmp_path) == sorted([given, "fit"])


def test_other_classes_are_refused_before_the_file_is_read(capsys, saved, tmp_path, in_blocks, monkeypatch):  # noqa: ARG001
    source = write(tmp_path / "five.csv", LOGITS[:, :5])
    monkeypatch.setattr(stream.PredictionStream, "__iter__", lambda _: pytest.fail("it was read"))
    result = invoke(capsys, "calibrate", source, "--apply", saved, "--write", tmp_path / "probs.npz")
    assert (result.code, left(tmp_path)) == (2, ["fit", "five.csv"])
    assert "VectorScaling was fitted on 10 classes, but predictions has 5" in result.err


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("gap", [False, True])
def test_identifiers_that_are_no_numbers_far_into_the_file(capsys, saved, tmp_path, output, gap):
    """Names in text, a hole in Parquet: read whole, they are dropped."""
    if gap:
        source, said = tmp_path / "a.parquet", "indices are not whole numbers in every row"
        table = columns().set_column(0, "id", [[None if k == 300 else k for k in range(600)]])
        pa.parquet.write_table(table, source)
    else:
        source, said = tmp_path / "a.csv", "later ones do not; leave them out with --ignore NAME"
        table = columns().set_column(0, "id", [[str(k) if k < 300 else f"x{k}" for k in range(600)]])
        pa.csv.write_csv(table, source)
    assert not gap or calattn.read_predictions(source).indices is None
    base = ("calibrate", source, "--apply", saved, output[0], tmp_path / output[1])
    assert said in refused(capsys, *base)
    assert left(tmp_path) == [source.name, "fit"]
    ran(capsys, *base, "--ignore", "id")


@pytest.mark.usefixtures("in_blocks")
def test_a_block_that_it_was_fitted_on_says_nothing_of_the_others(capsys, tmp_path):
    whole = calattn.read_predictions(write(tmp_path / "a.npz"))
    block = CALIBRATORS["vector"]().fit(whole.select(torch.arange(ROWS)))
    block.save(tmp_path / "block.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base = ("calibrate", tmp_path / "a.npz", "--apply", tmp_path / "block.safetensors")
        result = invoke(capsys, *base, "--write", tmp_path / "probs.npz")
    assert result.code == 0, result.err
    assert "fitted on" not in result.err


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.parametrize("given", ["a.npz", "a.csv"])
@pytest.mark.parametrize(
    "arguments", [("calibrate", "--apply", "fit", "--write", "it.npz"), ("evaluate", "--ts", "--validation", "a")]
)
def test_what_is_doubtful_in_a_file_that_is_read_several_times_is_said_once(capsys, saved, tmp_path, given, arguments):
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True) * np.linspace(0.9, 1.1, 600)[:, None]
    if given == "a.npz":
        np.savez(tmp_path / given, probs=probs, labels=LABELS)
    else:
        table = pa.table({"label": LABELS} | {f"p_{k}": probs[:, k] for k in range(10)})
        pa.csv.write_csv(table, tmp_path / given)
    places = {"a": tmp_path / given, "fit": saved, "it.npz": tmp_path / "it.npz"}
    command, *flags = (places.get(each, each) for each in arguments)
    found = ran(capsys, command, tmp_path / given, *flags, "--sum-tolerance", 0.2)
    assert found.err.count("each row of probabilities was divided by its sum") == 1


def with_rows_left_out(path, *, as_label):
    """Every third label is left out. Row 400 has a probability of zero, which vector scaling refuses, or its label has."""
    logits, labels = LOGITS.copy(), LABELS.copy()
    labels[::3], logits[400, 2] = -100, -np.inf
    labels[400] = 2 if as_label else 3
    if path.suffix == ".csv":
        pa.csv.write_csv(columns(logits).set_column(1, "label", [labels]), path)
    else:
        np.savez(path, logits=logits, labels=labels)
    return path


@pytest.mark.parametrize("given", ["a.npz", "a.csv"])
@pytest.mark.parametrize(
    ("large", "line"),
    [
        (1, "a --apply fit --write probs.npz"),
        (1 << 30, "a --apply fit --write probs.npz"),
        (1 << 30, "a --method vector"),
        (1 << 30, "a --method vector --fraction 0.5"),
        (1 << 30, "a --method vector --validation other.npz"),
        (1 << 30, "other.npz --method vector --validation a"),
    ],
)
def test_rows_are_those_of_the_file(capsys, saved, tmp_path, monkeypatch, given, large, line):
    monkeypatch.setattr(subjects, "STREAM_BYTES", large)
    monkeypatch.setattr(stream, "_VALUES_PER_BLOCK", 10 * ROWS)  # text is put together from blocks, too
    with_rows_left_out(tmp_path / given, as_label=False)
    write(tmp_path / "other.npz")
    files = {"a": tmp_path / given, "fit": saved} | {name: tmp_path / name for name in ("other.npz", "probs.npz")}
    assert "logits[400] has a −inf entry" in refused(
        capsys, "calibrate", *(files.get(each, each) for each in line.split()), "--ignore-label", "-100"
    )


@pytest.mark.parametrize("arguments", [("calibrate", "--method", "temperature"), ("evaluate", "--ts", "--validation")])
def test_a_label_without_probability_is_in_a_row_of_the_file(capsys, tmp_path, arguments):
    path = with_rows_left_out(tmp_path / "a.npz", as_label=True)
    command, *options = arguments
    given = [path] if command == "evaluate" else []
    assert "labels[400] has probability 0" in refused(capsys, command, path, *options, *given, "--ignore-label", "-100")


def test_a_random_part_keeps_the_rows_of_the_file(capsys, tmp_path):
    labels = LABELS.copy()
    labels[::3] = -100
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=labels)
    base = ("calibrate", tmp_path / "a.npz", "--ignore-label", "-100", "--fraction", "0.5")
    ran(capsys, *base, "--write", tmp_path / "probs.npz")
    with np.load(tmp_path / "probs.npz") as found:
        assert len(found["index"]) == 200
        assert np.array_equal(labels[found["index"]], found["labels"])


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.filterwarnings("default::calattn.posthoc.SameDataWarning")
@pytest.mark.parametrize("given", ["a.npz", "a.safetensors", "a.pt", "a.parquet", "a.csv", "folder"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_the_file_that_it_was_fitted_on_is_noticed(capsys, tmp_path, monkeypatch, given, output):
    """In the words of a file that is read whole, once; also of text in one pass, which does not say how many rows it has."""
    source = write(tmp_path / given)
    CALIBRATORS["vector"]().fit(calattn.read_predictions(source)).save(tmp_path / "it.safetensors")
    base = ("calibrate", source, "--apply", tmp_path / "it.safetensors", output[0])
    in_blocks = invoke(capsys, *base, tmp_path / output[1])
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1 << 30)
    whole = invoke(capsys, *base, tmp_path / f"whole.{output[1]}")
    assert (in_blocks.code, whole.code) == (0, 0)
    text = "VectorScaling is applied to the predictions it was fitted on; calibration error measured there is too good."
    assert (in_blocks.err.count(text), whole.err.count(text)) == (1, 1)


@pytest.mark.usefixtures("in_blocks")
@pytest.mark.filterwarnings("error::calattn.posthoc.SameDataWarning")
@pytest.mark.parametrize("rows", [300, 599, 600])
def test_text_that_begins_with_what_it_was_fitted_on_is_other_data(capsys, tmp_path, monkeypatch, rows):
    """And no more of it is held than the calibrator was fitted on, however long it is."""
    source = write(tmp_path / "a.csv")
    fitted = calattn.read_predictions(source)
    labels = fitted.labels.clone()
    labels[-1] = (labels[-1] + 1) % 10  # of as many rows, the last has another label
    fitted = fitted.select(torch.arange(rows)) if rows < 600 else fitted.replace(labels=labels)
    CALIBRATORS["vector"]().fit(fitted).save(tmp_path / "it.safetensors")
    kept = []
    add = Fingerprint.add

    def counting(self, block):
        kept.append(len(block))
        add(self, block)

    monkeypatch.setattr(Fingerprint, "add", counting)
    base = ("calibrate", source, "--apply", tmp_path / "it.safetensors")
    ran(capsys, *base, "--write", tmp_path / "probs.csv")
    assert 0 < sum(kept) <= rows


@pytest.mark.parametrize("scale", [None, 2.0])
@pytest.mark.parametrize(("rows", "block"), [(3, 1), (600, 70), (600, 600), (1000, 7), (1000, 256)])
def test_a_fingerprint_does_not_depend_on_the_blocks(rows, block, scale):
    p = predictions(n=rows)
    p = p if scale is None else p.replace(scale=torch.full((rows,), scale))
    of_all = Fingerprint(rows)
    for start in range(0, rows, block):
        of_all.add(p.select(torch.arange(start, min(rows, start + block))))
    assert of_all.text() == p.fingerprint()
    other = p.logits.clone()
    other[0, 0] += 1
    assert of_all.text() != p.replace(logits=other).fingerprint()


def test_what_is_large(tmp_path, monkeypatch):
    """A folder by its files, a compressed file by what comes out of it."""
    monkeypatch.setattr(subjects, "STREAM_BYTES", 20_000)  # 600 × 10 logits are 24,000
    np.savez_compressed(tmp_path / "zeros.npz", logits=np.zeros((600, 10), np.float32), labels=LABELS)
    assert (tmp_path / "zeros.npz").stat().st_size < 5000
    for path in (tmp_path / "zeros.npz", write(tmp_path / "folder"), write(tmp_path / "a.csv")):
        assert isinstance(subjects.opened(calattn.stream_predictions(path), "it"), subjects.Blocks)
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1 << 20)
    for path in (tmp_path / "zeros.npz", tmp_path / "folder", tmp_path / "a.csv"):
        assert isinstance(subjects.opened(calattn.stream_predictions(path), "it"), calattn.Predictions)


def test_a_compressed_file_is_as_large_as_what_comes_out_of_it(tmp_path, monkeypatch):
    """Text of one member, of several (the last says nothing of the others), with rows left out; and features count."""
    monkeypatch.setattr(subjects, "STREAM_BYTES", 20_000)
    text = write(tmp_path / "zeros.csv", np.full_like(LOGITS, 0.25)).read_bytes()
    assert len(text) > 20_000
    (tmp_path / "one.csv.gz").write_bytes(gzip.compress(text))
    parts = [gzip.compress(text[k : k + 5000]) for k in range(0, len(text), 5000)]
    (tmp_path / "several.csv.gz").write_bytes(b"".join(parts))
    (tmp_path / "half.csv.gz").write_bytes(gzip.compress(text[: text.index(b"\n", 10_000) + 1]))
    small = {"logits": np.zeros((600, 10), np.float32), "labels": LABELS}
    np.savez_compressed(tmp_path / "zeros.npz", **small)
    np.savez_compressed(
        tmp_path / "features.npz",
        **(small | {"logits": np.zeros((600, 2), np.float32)} | {"labels": LABELS % 2}),
        features=np.zeros((600, 8), np.float32),
    )

    def opened(name, **options):
        path = tmp_path / name
        assert path.stat().st_size < 20_000
        return subjects.opened(calattn.stream_predictions(path, **options), "it")

    for name in ("one.csv.gz", "several.csv.gz", "features.npz"):
        assert isinstance(opened(name), subjects.Blocks)
    assert isinstance(opened("zeros.npz", ignore_index=3), subjects.Blocks)
    assert isinstance(opened("half.csv.gz"), calattn.Predictions)


def test_what_a_gzip_file_says_and_how_its_start_expands_are_both_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_EXPANDED", 1000)
    start = b"logit_0,logit_1,label\n" + b"".join(b"%.12f,%.12f,1\n" % (k**0.5, k**0.3) for k in range(400))
    dense_first, dense_last = (
        start + 4000 * b"0,1,1\n",
        start.splitlines(keepends=True)[0] + 4000 * b"0,1,1\n" + start[22:],
    )
    for name, text in {"first": dense_first, "last": dense_last}.items():
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(text))
        (tmp_path / f"{name}.two.csv.gz").write_bytes(gzip.compress(text) + gzip.compress(b"0,1,1\n"))
    found = {path.name: calattn.stream_predictions(path).num_bytes for path in sorted(tmp_path.iterdir())}
    assert found["first.csv.gz"] == len(dense_first)
    assert found["last.two.csv.gz"] > len(dense_last)


# Every file is large and has blocks of 70 rows; each block that is calibrated says so, and takes its time.
SLOWLY = """
import os, time
from calattn.cli import app, subjects
from calattn.files import probabilities
from calattn.posthoc import VectorScaling
from calattn.readers import stream
subjects.STREAM_BYTES, stream._VALUES_PER_BLOCK, probabilities._GROUP_BYTES = 1, 700, 1
applied = VectorScaling._apply
def slow(self, predictions):
    print("block", flush=True)
    time.sleep(float(os.environ["PAUSE"]))
    return applied(self, predictions)
VectorScaling._apply = slow
app.main()
"""


def command(*arguments, pause, limit=None):
    def shrink():
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the kernel kills; a full disk only fails the write
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return Forked(SLOWLY, *arguments, environment={"PAUSE": str(pause)}, before=shrink)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_killed_half_way(saved, tmp_path, number):
    source = write(tmp_path / "a.npz")
    for flag, name in OUTPUTS:
        process = command("calibrate", source, "--apply", saved, flag, tmp_path / name, pause=0.3)
        for _ in range(3):
            assert process.stdout.readline() == "block\n"
        assert any(each.startswith(".part-") for each in left(tmp_path))  # it is being written
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == 128 + number, err
        assert left(tmp_path) == ["a.npz", "fit"], (flag, name)


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_full_disk(saved, tmp_path, output):
    """Simulated by a limit on the size of files: the write fails in the second block or so."""
    source = write(tmp_path / "a.npz")
    process = command("calibrate", source, "--apply", saved, output[0], tmp_path / output[1], pause=0, limit=5000)
    _, err = process.communicate()
    assert process.returncode == 1, err
    assert len(err.splitlines()) == 1
    assert "write elsewhere" in err or "free space and retry" in err
    assert str(tmp_path / output[1]) in err
    assert ".part-" not in err
    assert left(tmp_path) == ["a.npz", "fit"]
