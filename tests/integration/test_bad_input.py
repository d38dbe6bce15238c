"""Bad input at the command line: one line that names the thing and the remedy, no traceback, the right exit code.

To add a case, add a `Case`: its `make` function writes what is wrong into an empty folder, which is then the current one, and
returns the arguments (a list, or one text that is split at spaces); `says` are pieces that the line must contain, the remedy
among them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import calattn
from tests.cli_runner import invoke, predictions, write_npz, write_run

Arguments = list[str] | str


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Path], Arguments]
    says: tuple[str, ...]
    code: int = 2


def npz(**arrays: object) -> Callable[[Path], Arguments]:
    """`evaluate` of one file with these arrays."""

    def make(folder: Path) -> Arguments:
        np.savez(folder / "a.npz", **{name: np.asarray(array) for name, array in arrays.items()})
        return "evaluate a.npz"

    return make


def on_good(arguments: str) -> Callable[[Path], Arguments]:
    """A line about a.npz, which is all right."""

    def make(folder: Path) -> Arguments:
        write_npz(folder / "a.npz", predictions())
        return arguments

    return make


def on_run(arguments: str) -> Callable[[Path], Arguments]:
    def make(folder: Path) -> Arguments:
        write_run(folder / "run")
        return arguments

    return make


def text(name: str, content: str | bytes, arguments: str) -> Callable[[Path], Arguments]:
    def make(folder: Path) -> Arguments:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return arguments

    return make


def truncated_npz(folder: Path) -> Arguments:
    path = write_npz(folder / "a.npz", predictions())
    path.write_bytes(path.read_bytes()[:-1000])
    return "evaluate a.npz"


def corrupt_parquet(folder: Path) -> Arguments:
    import pyarrow
    import pyarrow.parquet

    found = predictions()
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"logits": found.logits.tolist(), "label": found.labels.tolist()}), path)
    data = bytearray(path.read_bytes())
    data[100:-100] = bytes(len(data) - 200)
    path.write_bytes(data)
    return "evaluate a.parquet"


def hostile_pickle(folder: Path) -> Arguments:
    class Bomb:
        def __reduce__(self):
            return Path.touch, (folder / "exploded",)

    (folder / "a.pkl").write_bytes(pickle.dumps(Bomb()))
    return "evaluate a.pkl"


def hostile_torch(folder: Path) -> Arguments:
    class Bomb:
        def __reduce__(self):
            return Path.touch, (folder / "exploded",)

    torch.save({"logits": Bomb()}, folder / "a.pt")
    return "evaluate a.pt"


def damaged_folder(folder: Path) -> Arguments:
    place = calattn.save_predictions(predictions(), folder / "p")
    (tensors,) = place.glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    return "evaluate p"


def other_samples(folder: Path) -> Arguments:
    write_npz(folder / "a.npz", predictions())
    write_npz(folder / "b.npz", predictions(1))
    return "compare a.npz b.npz"


def other_length(folder: Path) -> Arguments:
    write_npz(folder / "a.npz", predictions())
    write_npz(folder / "b.npz", predictions(n=500))
    return "compare a.npz b.npz"


def other_classes(folder: Path) -> Arguments:
    write_npz(folder / "a.npz", predictions())
    np.savez(folder / "v.npz", logits=np.random.default_rng(0).normal(size=(20, 3)), labels=np.arange(20) % 3)
    return "calibrate a.npz --validation v.npz"


def existing_output(folder: Path) -> Arguments:
    write_npz(folder / "a.npz", predictions())
    (folder / "out").mkdir()
    (folder / "out" / "calibration.json").write_text("{}")
    return "calibrate a.npz --out out"


def empty_run(folder: Path) -> Arguments:
    (folder / "run").mkdir()
    (folder / "run" / "spec.yaml").write_text("seed: 0\n")
    return "evaluate run"


GOOD, LABELS = np.eye(4) * 2, np.arange(4)

CASES = [
    # reading
    Case("wrong path", on_good("evaluate b.npz"), ("b.npz does not exist", "near it: a.npz")),
    Case("wrong folder", lambda _: "evaluate no/such/file.npz", ("there is no folder no/such",)),
    Case("folder without predictions", lambda _: "evaluate .", ("a folder without predictions",)),
    Case("unknown suffix", text("a.xlsx", "x", "evaluate a.xlsx"), ("suffix that is not read", "known: .npz")),
    Case("empty file", text("a.npz", "", "evaluate a.npz"), ("is empty (0 bytes)", "save it again")),
    Case("truncated npz", truncated_npz, ("a.npz", "again")),
    Case("corrupt parquet", corrupt_parquet, ("a.parquet", "again")),
    Case("not parquet at all", text("a.parquet", "hello", "evaluate a.parquet"), ("a.parquet", "again")),
    Case("pickle", hostile_pickle, ("is a pickle", "numpy.savez")),
    Case("torch file that is a pickle", hostile_torch, ("a.pt", "save")),
    Case("damaged predictions folder", damaged_folder, ("does not match its checksum", "copy the folder again")),
    Case("csv with a short line", text("a.csv", "prob_0,prob_1,label\n1,0,0\n1,0\n", "evaluate a.csv"), ("a.csv", "3")),
    # what is in the file
    Case(
        "labels out of range",
        npz(logits=GOOD, labels=[0, 1, 2, 9]),
        ("labels[3] is 9", "outside [0, 3]", "--class-names"),
    ),
    Case("labels from 1", npz(logits=GOOD, labels=[1, 2, 3, 4]), ("look 1-based", "--label-offset 1")),
    Case("zero rows", npz(logits=np.zeros((0, 3)), labels=np.zeros(0, int)), ("has no rows", "at least one sample")),
    Case(
        "one class",
        npz(logits=np.zeros((4, 1)), labels=np.zeros(4, int)),
        ("one value a row", "class 1 of a binary problem", "--kind logits"),
    ),
    Case("NaN logits", npz(logits=GOOD * [1, 1, 1, np.nan], labels=LABELS), ("logits[0, 3] is nan", "mend the model")),
    Case(
        "infinite logits",
        npz(logits=GOOD + np.array([np.inf, 0, 0, 0]), labels=LABELS),
        ("logits[0, 0] is inf", "mend the model"),
    ),
    Case(
        "sums that are not 1", npz(probs=GOOD, labels=LABELS), ("sums to 2, not 1", "--kind logits", "--sum-tolerance")
    ),
    Case("negative probabilities", npz(probs=GOOD - 0.25, labels=LABELS), ("negative entry", "--kind logits")),
    Case(
        "names that say nothing",
        npz(outputs=GOOD, labels=LABELS),
        ("may be logits or probabilities", "--kind logits or --kind probs"),
    ),
    Case("no labels", npz(logits=GOOD), ("nothing named like labels", "--labels")),
    Case(
        "logits and probabilities",
        npz(logits=GOOD, probs=GOOD / 2, labels=LABELS),
        ("both logits and prob", "--kind logits"),
    ),
    Case(
        "fewer labels than rows", npz(logits=GOOD, labels=LABELS[:3]), ("'labels' has 3 rows", "save them from one run")
    ),
    Case("text labels", npz(logits=GOOD, labels=list("abcd")), ("labels are text", "--class-names A,B,…")),
    # evaluate
    Case("unknown metric", on_good("evaluate a.npz --metrics ecee"), ("unknown metric 'ecee'", "did you mean 'ece'?")),
    Case("no bins", on_good("evaluate a.npz --bins 0"), ("--bins must be a positive integer, got 0",)),
    Case("bins in words", on_good("evaluate a.npz --bins many"), ("'--bins'", "integer", "calattn evaluate --help")),
    Case("level beyond 1", on_good("evaluate a.npz --level 95"), ("--level must be between 0 and 1", "0.95")),
    Case("negative resamples", on_good("evaluate a.npz --bootstrap -5"), ("--bootstrap must be 0 or more",)),
    Case("unknown option", on_good("evaluate a.npz --metric ece"), ("No such option: --metric", "--metrics")),
    Case("nothing to evaluate", lambda _: "evaluate", ("Missing argument", "calattn evaluate --help")),
    Case("unknown column", on_good("evaluate a.npz --columns logitz"), ("'logitz'", "did you mean 'logits'?")),
    Case(
        "output of unknown kind", on_good("evaluate a.npz --out t.xlsx"), ("--out t.xlsx must end in .json, .csv, .md",)
    ),
    Case("output is a folder", on_good("evaluate a.npz --out ."), ("--out . must end in",)),
    Case("diagram of unknown kind", on_good("evaluate a.npz --diagram d.gif"), ("must end in .png, .pdf, .svg",)),
    Case("missing validation", on_good("evaluate a.npz --ts"), ("is no run folder", "--temperature FILE")),
    Case("too few temperatures", on_good("evaluate a.npz a.npz --temperature a.npz"), ("give one for each",)),
    Case(
        "split that is not there",
        on_run("evaluate run --split fog-5"),
        ("it has test, validation", "calattn predict run --split fog-5"),
    ),
    Case("unknown checkpoint", on_run("evaluate run --checkpoint best"), ("--checkpoint must be one of last",)),
    Case("run without predictions", empty_run, ("has no predictions yet", "calattn predict run")),
    # compare
    Case("different samples", other_samples, ("labels differ, the first in row", "the same samples")),
    Case("different lengths", other_length, ("a.npz has 600 samples and b.npz has 500", "the same samples")),
    Case("nothing to compare with", on_good("compare a.npz"), ("calattn compare A B",)),
    # calibrate
    Case(
        "unknown calibrator",
        on_good("calibrate a.npz --method temperatur"),
        ("unknown calibrator", "did you mean 'temperature'?"),
    ),
    Case(
        "needs features", on_good("calibrate a.npz --method frozen_calattn"), ("features", "calattn predict --features")
    ),
    Case("missing validation file", on_good("calibrate a.npz --validation v.npz"), ("v.npz does not exist",)),
    Case("validation of another task", other_classes, ("3 classes", "10", "the same model")),
    Case("nothing left to judge", on_good("calibrate a.npz --fraction 1"), ("--fraction must be between 0 and 1",)),
    Case("output is there already", existing_output, ("out already holds a calibration", "--overwrite")),
    Case("output folder is a file", on_good("calibrate a.npz --out a.npz"), ("is a file", "name a folder")),
    # list, data and the rest
    Case("unknown list", lambda _: "list loses", ("loses", "losses", "calattn list --help")),
    Case("nothing matches", lambda _: "list losses zzz", ("no losses match 'zzz'", "calattn list losses")),
    Case("unknown data set", lambda _: "data get cifar11", ("unknown data set 'cifar11'", "did you mean 'cifar10'?")),
    Case("data set that is not here", lambda _: "data show svhn --root .", ("calattn data get svhn",)),
    Case("image folder that is not there", lambda _: "data show imagefolder:nowhere", ("nowhere",)),
    Case("unknown command", lambda _: "evalute", ("No such command 'evalute'", "Did you mean 'evaluate'?")),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.usefixtures("untyped")
def test_bad_input(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = case.make(tmp_path)
    given = arguments.split() if isinstance(arguments, str) else arguments
    before = sorted(tmp_path.rglob("*"))
    result = invoke(capsys, *given)
    check(case, result.code, result.err)
    assert result.out == ""
    assert sorted(tmp_path.rglob("*")) == before, "a refused command leaves nothing behind"
    in_json = invoke(capsys, *given, "--json")
    if "No such option" not in in_json.err or "--json" not in in_json.err:
        assert json.loads(in_json.err.splitlines()[-1])["exit_code"] == case.code


def check(case: Case, code: int, err: str) -> None:
    assert code == case.code, err
    lines = [line for line in err.splitlines() if "warning:" not in line]
    assert len(lines) == 1, err
    assert lines[0].startswith("calattn: error: ")
    assert "Traceback" not in err
    for piece in case.says:
        assert piece in lines[0]


def command(*arguments: str, cwd: Path, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """The console command in a process of its own, its files no longer than `limit` bytes."""

    def shrink() -> None:
        if limit is not None:
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the kernel kills; a full disk only fails the write
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    script = Path(sys.executable).with_name("calattn")
    return subprocess.run(
        [str(script), *arguments], cwd=cwd, capture_output=True, text=True, check=False, preexec_fn=shrink
    )


def test_the_installed_command_answers_the_same(tmp_path):
    case = next(case for case in CASES if case.name == "NaN logits")
    arguments = case.make(tmp_path)
    assert isinstance(arguments, str)
    done = command(*arguments.split(), cwd=tmp_path)
    check(case, done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ("evaluate a.npz --out t.json", "write elsewhere"),
        ("evaluate a.npz --diagram d.png", "write elsewhere"),
        ("calibrate a.npz --out out", "free space and retry"),
    ],
)
def test_full_disk(tmp_path, arguments, remedy):
    """Simulated by a limit on the size of files: the write fails half-way, as it does on a full disk."""
    write_npz(tmp_path / "a.npz", predictions())
    done = command(*arguments.split(), "--bootstrap", "0", cwd=tmp_path, limit=1000)
    check(Case("full disk", lambda _: "", (remedy,), code=1), done.returncode, done.stderr)
    assert [place.name for place in tmp_path.iterdir()] == ["a.npz"], "nothing half-written stays"


@pytest.mark.parametrize("arguments", ["evaluate a.npz --out ro/t.json", "calibrate a.npz --out ro/out"])
def test_read_only_folder(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", predictions())
    (tmp_path / "ro").mkdir(mode=0o555)
    if os.access(
        tmp_path / "ro", os.W_OK
    ):  # the superuser may write anywhere: let the system say what it says to others
        refuse_writes(monkeypatch, tmp_path / "ro")
    result = invoke(capsys, *arguments.split(), "--bootstrap", "0")
    check(Case("read-only", lambda _: "", ("permission denied", "ro"), code=1), result.code, result.err)
    assert list((tmp_path / "ro").iterdir()) == []


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    real_mkdir, real_open = Path.mkdir, Path.open

    def refused(path: Path) -> bool:
        return folder in path.absolute().parents

    def mkdir(self, *given, **options):
        if refused(self):
            raise PermissionError(13, "Permission denied", str(self))
        return real_mkdir(self, *given, **options)

    def opened(self, mode="r", *given, **options):
        if refused(self) and set(mode) & set("wax"):
            raise PermissionError(13, "Permission denied", str(self))
        return real_open(self, mode, *given, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "open", opened)


def test_there_are_more_than_twenty():
    assert len({case.name for case in CASES}) == len(CASES) > 20
