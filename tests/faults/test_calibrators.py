"""Damaged calibrator files, and a kill at any moment of `calattn calibrate --out --overwrite`."""

import json
import random
import signal
import struct
import sys

import pytest
import torch

import calattn
from calattn.cli.app import run
from calattn.errors import InputError
from calattn.files import atomic
from calattn.posthoc import CALIBRATORS, PredictionSets, files, load
from tests.cli_runner import predictions, write_npz
from tests.faults.mutations import OTHER_VALUES, mutated
from tests.faults.tally import count, times
from tests.forking import Forked

CLASSES, WIDTH = 4, 3


def made_up(n: int = 60, classes: int = CLASSES) -> calattn.Predictions:
    g = torch.Generator().manual_seed(n)
    labels = torch.arange(n) % classes
    logits = torch.randn(n, classes, generator=g) + 2 * torch.nn.functional.one_hot(labels, classes)
    return calattn.Predictions(logits=logits, labels=labels, features=torch.randn(n, WIDTH, generator=g))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every kind of file, and what it does to predictions."""
    folder, found = tmp_path_factory.mktemp("calibrators"), {}
    for name, make in (*CALIBRATORS.items(), ("sets", lambda: PredictionSets(per="class"))):
        classes = 2 if name == "venn_abers" else CLASSES
        fitted = make().fit(made_up(classes=classes))
        fitted.save(folder / name)
        found[name] = ((folder / name).read_bytes(), applied(fitted, classes))
    return found


def applied(fitted, classes):
    made = fitted(made_up(33, classes))
    return made if isinstance(made, torch.Tensor) else made.probs


def rewritten(data: bytes, draw: random.Random) -> bytes:
    """Values of the header or of a tensor changed by somebody who can compute checksums."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    text = json.loads(header["__metadata__"][files._KEY])
    place = draw.choice([part for part in (text, text["options"], text["learned"]) if part])
    key = draw.choice(list(place))
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice(OTHER_VALUES)
    written = json.dumps(text)
    if draw.random() < 0.1:
        written = draw.choice(("[" * 100_000, '{"a":' * 100_000, "null", "[]", written[:-1], ""))
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}[entry["dtype"]]
            raw = bytearray(data[8 + size + begin : 8 + size + end])
            tensors[name] = (torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)).view(
                entry["shape"]
            )
    if tensors and draw.random() < 0.5:
        name = draw.choice(list(tensors))
        changes = (
            lambda it: it.flatten()[:1],
            lambda it: it.unsqueeze(0),
            lambda it: it.repeat(2, *[1] * (it.ndim - 1)),
            lambda it: it.double() * torch.nan,
            lambda it: it.double() * torch.inf,
            lambda it: it.long(),
            lambda it: -it,
            lambda it: it[..., :0],
        )
        tensors[name] = draw.choice(changes)(tensors[name]).contiguous()
    metadata = {files._KEY: written, files._CHECKSUM: files._checksum(written, tensors)}
    from safetensors.torch import save

    return save(tensors, metadata=metadata)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("damage", [mutated, rewritten])
def test_a_damaged_file_is_refused_and_never_gives_other_numbers(saved, tmp_path, damage):
    names, draw, lost = list(saved), random.Random(damage.__name__), []
    how_many = times(60, 1500)
    for place in range(how_many):
        name = names[place % len(names)]
        data, wanted = saved[name]
        path = tmp_path / "damaged"
        path.write_bytes(damage(data, draw))
        read = PredictionSets.load if name == "sets" else load
        try:
            found = applied(read(path), wanted.shape[1])
        except ValueError as error:
            if not isinstance(error, InputError) or error.subject != str(path):
                lost.append((name, repr(error)[:300]))
        except Exception as error:
            lost.append((name, repr(error)[:300]))
        else:
            if damage is mutated and not torch.equal(found, wanted):
                lost.append((name, "other numbers"))
    count("mutation" if damage is mutated else "wrong value", "calibrator file", injected=how_many, lost=len(lost))
    assert lost == []


PROGRAM = """
import os, random, signal, sys, time
from calattn.cli.app import run
from calattn.files import atomic
atomic._tidied.clear()  # of the process that this one was forked from
source, out, method, moment = sys.argv[1:]
sys.stdout = sys.stderr = open(os.devnull, "w")
left = int(moment)
def watch(event, arguments):
    global left
    if event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "shutil.rmtree", "ctypes.dlsym"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.exit(run(["calibrate", source, "--method", method, "--bootstrap", "0", "--fraction", "0.5", "--out", out, "--overwrite"]))
"""
METHODS = {"structured_vector": "VectorScaling", "histogram": "HistogramBinning"}


def whole(out) -> str:
    """The calibrator's class; that the folder's parts are one result."""
    fitted, report = load(out / "calibrator.safetensors"), json.loads((out / "report.json").read_text())
    found = calattn.load_predictions(out / "predictions")
    assert report["fitted_on"] == fitted.num_samples_ == len(found)
    (method,) = report["methods"]
    assert METHODS[method["method"]] == type(fitted).__name__
    assert sorted(place.name for place in out.iterdir()) == ["calibrator.safetensors", "predictions", "report.json"]
    return method["method"]


@pytest.mark.skipif(sys.platform == "win32", reason="fork and flock are POSIX")
def test_a_kill_leaves_the_old_folder_or_the_new_one_and_nothing_else_for_long(tmp_path):
    source, out = write_npz(tmp_path / "test.npz", predictions(n=100)), tmp_path / "out" / "here"
    arguments = ["--bootstrap", "0", "--fraction", "0.5", "--out", str(out), "--overwrite"]
    before = "structured_vector"
    assert run(["calibrate", str(source), "--method", before, *arguments]) == 0
    draw, kills, lost, ends, leftovers = random.Random(0), times(4, 120), [], set(), 0
    events = 60  # file operations of one run, as far as is known
    while kills:
        after = next(name for name in METHODS if name != before)
        moment = draw.randint(1, events)
        child = Forked(PROGRAM, source, out, after, moment, environment={})
        child.communicate()
        if child.returncode == 0:
            events = moment
            before = after
            continue
        assert child.returncode == -signal.SIGKILL
        kills -= 1
        try:
            ends.add((found := whole(out)) == after)
            before = found
        except (OSError, ValueError, AssertionError) as error:
            lost.append(repr(error)[:300])
            break
        parts = [place for place in out.parent.iterdir() if place != out]
        leftovers += len(parts)
        assert len(parts) <= 1  # what the last start left, this one has removed
    count("SIGKILL", "calibrate --out --overwrite", injected=times(4, 120), lost=len(lost))
    assert lost == []
    assert leftovers
    atomic._tidied.clear()
    assert run(["calibrate", str(source), *arguments]) == 0
    assert [place.name for place in out.parent.iterdir()] == ["here"]
