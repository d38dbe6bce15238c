"""Bad input at the command line: one line that names the thing and the remedy, no traceback, the right exit code.

To add a case, add a `Case`: `prepare` writes what is wrong into an empty folder, which is then the current one; `arguments` is a
list, or one text that is split at spaces; `says` are pieces that the line must contain, the remedy among them.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import calattn
from calattn.runs.folder import write_spec
from calattn.runs.train import train_run
from tests.cli_runner import invoke, predictions, write_npz, write_run
from tests.forking import COMMAND, Forked, limit_files
from tests.pictures import class_folders
from tests.small_runs import CPU, SMALL, set_flags, small_spec

Arguments = list[str] | str
Prepare = Callable[[Path], object]


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    arguments: Arguments
    prepare: Prepare
    says: Sequence[str]
    code: int = 2
    # It goes wrong after training has begun: a run folder stays, and lines of progress are printed.
    trains: bool = False


def nothing(_: Path) -> None:
    pass


def npz(**arrays: object) -> Prepare:
    return lambda folder: np.savez(folder / "a.npz", **{name: np.asarray(array) for name, array in arrays.items()})


def good(folder: Path) -> None:
    write_npz(folder / "a.npz", predictions())


def run(folder: Path) -> None:
    write_run(folder / "run")


def text(name: str, content: str | bytes) -> Prepare:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def truncated_npz(folder: Path) -> None:
    path = write_npz(folder / "a.npz", predictions())
    path.write_bytes(path.read_bytes()[:-1000])


def corrupt_parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    found = predictions()
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"logits": found.logits.tolist(), "label": found.labels.tolist()}), path)
    data = bytearray(path.read_bytes())
    data[100:-100] = bytes(len(data) - 200)
    path.write_bytes(data)


def hostile(name: str) -> Prepare:
    class Bomb:
        def __reduce__(self):
            return Path.touch, (Path("exploded"),)

    save = pickle.dump if name.endswith(".pkl") else torch.save
    return lambda folder: save({"logits": Bomb()}, (folder / name).open("wb"))


def damaged_folder(folder: Path) -> None:
    place = calattn.save_predictions(predictions(), folder / "p")
    (tensors,) = place.glob("*.safetensors")
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)


def compared(*of: int, **options: int) -> Prepare:
    """a.npz and b.npz, which has predictions of something else."""
    return lambda folder: (good(folder), write_npz(folder / "b.npz", predictions(*of, **options)))


def other_classes(folder: Path) -> None:
    good(folder)
    np.savez(folder / "v.npz", logits=np.random.default_rng(0).normal(size=(20, 3)), labels=np.arange(20) % 3)


def existing_output(folder: Path) -> None:
    good(folder)
    (folder / "out").mkdir()
    (folder / "out" / "report.json").write_text('{"command": "calibrate"}')


def empty_run(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "spec.yaml").write_text("seed: 0\n")


def train(*changes: str, flags: str = "--accelerator cpu") -> Arguments:
    """`calattn train` of the smallest network on a few digits, with these changes."""
    return ["train", "digits", *set_flags(*SMALL, *changes), "--out", "run", *flags.split()]


# For a handful of images.
OWN = ("data.limit=null", "data.size=8", "train.batch_size=4")


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8))


def png(seed: int) -> bytes:
    picture(seed).save(file := io.BytesIO(), "png")
    return file.getvalue()


def image_folder(train: str = "ab", test: str = "ab", *, images: int = 6, spoil: bytes | None = None) -> Prepare:
    """pics/{train,test}/CLASS/*.png, classes named by a letter each; `spoil` takes the place of one image."""

    def prepare(folder: Path) -> None:
        for split, classes in (("train", train), ("test", test)):
            class_folders(folder / "pics", classes, lambda _, number: picture(number), **{split: images})
        if spoil is not None:
            (folder / "pics/train/a/3.png").write_bytes(spoil)

    return prepare


def parquet(
    *, first_label: int = 0, without: str = "", names: tuple[str, ...] = ("a", "b"), corrupt: bool = False
) -> Prepare:
    """The hub's layout; `names` are those of the test file's labels."""
    import pyarrow
    import pyarrow.parquet

    def prepare(folder: Path) -> None:
        (folder / "hub").mkdir()
        for split, classes, first in (("train", ("a", "b"), first_label), ("test", names, 0)):
            columns = {
                "image": [{"bytes": png(row), "path": f"{row}.png"} for row in range(12)],
                "label": [first, *(row % 2 for row in range(1, 12))],
            }
            features = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
            table = pyarrow.table({key: column for key, column in columns.items() if key != without})
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
            pyarrow.parquet.write_table(table, folder / "hub" / f"{split}-00000-of-00001.parquet")
        if corrupt:
            path = folder / "hub" / "train-00000-of-00001.parquet"
            path.write_bytes(path.read_bytes()[:100] + bytes(500) + path.read_bytes()[600:-100] + bytes(100))

    return prepare


def unfinished(folder: Path) -> None:
    """A run that was stopped before its first checkpoint."""
    (folder / "run").mkdir()
    (folder / "run" / ".lock").touch()
    write_spec(small_spec(), folder / "run" / "spec.yaml")


@functools.cache
def trained_once() -> tempfile.TemporaryDirectory[str]:
    place = tempfile.TemporaryDirectory()
    train_run(small_spec(), Path(place.name) / "run", runtime=CPU)
    return place


def trained(folder: Path) -> None:
    shutil.copytree(Path(trained_once().name) / "run", folder / "run")


def damaged_checkpoint(folder: Path) -> None:
    trained(folder)
    for path in (folder / "run" / "checkpoints").glob("state-*"):
        path.write_bytes(path.read_bytes()[:100])


def colour_for_grey(folder: Path) -> None:
    trained(folder)
    image_folder()(folder)


def here(folder: Path) -> None:
    (folder / "here").mkdir()


YAML = "seed: 1\ntrain: {epochs: 3\nloss: x: y\n"

GOOD, LABELS = np.eye(4) * 2, np.arange(4)


def each(kind: str, prepare: Prepare, table: dict[str, tuple[str, ...]], arguments=str) -> list[Case]:
    """A case a line: what is given, and what must be said of it."""
    return [Case(f"{kind}: {given}", arguments(given), prepare, says) for given, says in table.items()]


def cases(arguments: Arguments, table: dict[str, tuple[Any, ...]]) -> list[Case]:
    """A case a line, of one command: what lies in the folder, and what must be said of it."""
    return [Case(name, arguments, prepare, says) for name, (prepare, *says) in table.items()]


PLAIN = {
    "evaluate no/such/file.npz": ("there is no folder no/such",),
    "evaluate .": ("a folder without predictions",),
    "evaluate": ("Missing argument", "calattn evaluate --help"),
    "list loses": ("loses", "losses", "calattn list --help"),
    "list losses zzz": ("no losses match 'zzz'", "calattn list losses"),
    "data get cifar11": ("unknown data set 'cifar11'", "did you mean 'cifar10'?"),
    "data show svhn --data-root .": ("calattn data get svhn",),
    "data show imagefolder:nowhere": ("nowhere",),
    "train imagefolder:/pics": ("is data, not a recipe", "calattn train finetune --data imagefolder:/pics"),
    "train digit": ("neither a recipe nor a YAML file", "did you mean 'digits'?"),
    "train my.yaml": ("my.yaml does not exist", "or a recipe: "),
    "train mnist --out run --data-root .": ("calattn data get mnist --data-root .",),
    "predict nowhere": ("no run folder at nowhere", "`calattn train` makes one"),
    "evalute": ("No such command 'evalute'", "Did you mean 'evaluate'?"),
}

ON_GOOD = {
    "evaluate b.npz": ("b.npz does not exist", "near it: a.npz"),
    "evaluate a.npz --metrics ecee": ("unknown metric 'ecee'", "did you mean 'ece'?"),
    "evaluate a.npz -m ECE": ("unknown metric 'ECE'", "did you mean 'ece'?"),
    "evaluate a.npz --metrics ece nll": ("nll does not exist, and is the name of a metric", "--metrics ece,nll"),
    "evaluate a.npz --bins 0": ("--bins must be a positive integer, got 0",),
    "evaluate a.npz --bins many": ("--bins must be a whole number, got 'many'", "calattn evaluate --help"),
    "evaluate a.npz --level 95": ("--level must be between 0 and 1", "0.95"),
    "evaluate a.npz --bootstrap -5": ("--bootstrap must be 0 or more",),
    "evaluate a.npz --metric ece": ("No such option: --metric", "--metrics"),
    "evaluate a.npz --columns logitz": ("'logitz'", "did you mean 'logits'?"),
    "evaluate a.npz --write t.xlsx": ("--write t.xlsx must end in .json, .csv, .md",),
    "evaluate a.npz --write .": ("--write . must end in",),
    "evaluate a.npz --diagram d.gif": ("must end in .png, .pdf, .svg",),
    "evaluate a.npz --ts": ("is no run folder", "--validation FILE"),
    "evaluate a.npz a.npz --ts --validation a.npz": ("give one for each",),
    "compare a.npz": ("calattn compare A B",),
    "calibrate a.npz --method ts": ("'ts'; did you mean 'temperature'?",),
    "calibrate a.npz --method Platt": ("'Platt'; did you mean 'vector'?",),
    "calibrate a.npz --method temperatur": ("unknown calibrator", "did you mean 'temperature'?"),
    "calibrate a.npz --method frozen_calattn": ("features", "calattn predict --features"),
    "calibrate a.npz --validation v.npz": ("v.npz does not exist",),
    "calibrate a.npz --fraction 1": ("--fraction must be between 0 and 1",),
    "calibrate a.npz --out a.npz": ("is a file", "name a folder"),
}

CHANGES = {
    "train.lr=1": ("unknown key 'train.lr'", "did you mean 'optimizer.lr'?"),
    "optimizer.lr=-1": ("optimizer.lr must be greater than 0, got -1",),
    "train.precision=fp8": ("train.precision must be 'auto', '32-true'", "got 'fp8'"),
    "schedule.warmup_epochs=5": ("=5 is not less than train.epochs=3", "--set schedule.warmup_epochs=0"),
    "model.backbone=deit_smal": ("unknown backbone 'deit_smal'", "did you mean deit_small?"),
    "model.backbone=resnet5": ("unknown backbone 'resnet5'", "did you mean", "resnet50"),
    "loss.gamma=2": ("unknown key 'loss.gamma'", "'loss.options.gamma'?"),
    "loss.name=brierr": ("unknown loss 'brierr'", "did you mean 'brier'?"),
    "loss.options={weigth: 1}": ("ce_brier has no option 'weigth'", "it takes weight"),
    "model.head=calatn": ("unknown head 'calatn'", "did you mean 'calattn'?"),
    "optimizer.name=adamww": ("unknown optimiser 'adamww'", "did you mean adamw"),
    "optimizer.options={betta: 1}": ("'adamw' does not take these options", "'betta'", "see optimizer.options"),
    "schedule.name=cosin": ("unknown schedule 'cosin'", "did you mean 'cosine'?"),
    "data.name=digts": ("unknown data set 'digts'", "did you mean 'digits'?"),
    "train.batch_size=1000": ("more than the 192 training", "make it smaller"),
    "data.size=9": ("takes images of 8 px, the data gives 9", "pass --size 8"),
    "data.validation=0.001": ("0 for validation", "change data.validation"),
    "data.validation=0.999": ("0 for training", "change data.validation"),
}

FLAGS = {
    "--epochs 0": ("train.epochs=0 only teaches a head", "train for 1 epoch or more, or take model.head=taught"),
    "--seed -1": ("seed must be greater than or equal to 0, got -1",),
    "--devices lots": ("--devices 'lots' must be a number", "a list such as 0,2"),
    "--devices 0": ("--devices '0' must be a number from 1 on",),
    "--accelerator quantum": ("'quantum' is unknown", "known: auto, cpu, cuda"),
    "--strategy dpd": ("--strategy 'dpd' is unknown", "use auto, ddp or fsdp"),
    "--threads 0": ("--threads must be greater than or equal to 1, got '0'", "train --help"),
    "--save-seconds -1": ("--save-seconds must be greater than or equal to 0, got '-1'", "train --help"),
}

ON_TRAINED = {
    "predict run --checkpoint best": (
        "unknown checkpoint 'best'",
        "known: last, best-nll, best-ece, best-accuracy, best-nll-ts",
    ),
    "predict run --split tset": ("no split 'tset'", "it has validation and test", "--data"),
    "predict run --data digits --split tset": ("it has train, test",),
    "predict run --data digts": ("did you mean 'digits'?",),
    "predict run --ood": ("--ood is about another data set", "--data"),
}

PICTURES, HUB = train("data.name=imagefolder:pics", *OWN), train("data.name=parquet:hub", *OWN)
ARRAYS = {
    "empty file": (text("a.npz", ""), "is empty (0 bytes)", "save it again"),
    "truncated npz": (truncated_npz, "a.npz", "again"),
    "labels out of range": (npz(logits=GOOD, labels=[0, 1, 2, 9]), "labels[3] is 9", "outside [0, 3]", "--class-names"),
    "labels from 1": (npz(logits=GOOD, labels=[1, 2, 3, 4]), "look 1-based", "--label-offset 1"),
    "zero rows": (npz(logits=np.zeros((0, 3)), labels=np.zeros(0, int)), "has no rows", "at least one sample"),
    "one class": (
        npz(logits=np.zeros((4, 1)), labels=np.zeros(4, int)),
        "one value per row",
        "class 1 in a binary problem",
        "--kind logits",
    ),
    "NaN logits": (npz(logits=GOOD * [1, 1, 1, np.nan], labels=LABELS), "logits[0, 3] is nan", "fix the model"),
    "infinite logits": (
        npz(logits=GOOD + np.array([np.inf, 0, 0, 0]), labels=LABELS),
        "logits[0, 0] is inf",
        "fix the model",
    ),
    "sums that are not 1": (npz(probs=GOOD, labels=LABELS), "sums to 2, not 1", "--kind logits", "--sum-tolerance"),
    "negative probabilities": (
        npz(probs=GOOD - 0.25, labels=LABELS),
        "probs[0, 1] is -0.25, negative",
        "--kind logits",
    ),
    "names that say nothing": (
        npz(outputs=GOOD, labels=LABELS),
        "may be logits or probabilities",
        "--kind logits or --kind probs",
    ),
    "no labels": (npz(logits=GOOD), "nothing named like labels", "--labels"),
    "logits and probabilities": (
        npz(logits=GOOD, probs=GOOD / 2, labels=LABELS),
        "both logits and prob",
        "--kind logits",
    ),
    "fewer labels than rows": (npz(logits=GOOD, labels=LABELS[:3]), "'labels' has 3 rows", "save them from one run"),
    "text labels": (npz(logits=GOOD, labels=list("abcd")), "labels are text", "--class-names A,B,…"),
    "labels that are no class": (
        npz(logits=np.eye(4), labels=[0, 1, -100, 2]),
        "labels[2] is -100",
        "pass --ignore-label -100 to leave out",
    ),
    "multi-label": (
        npz(logits=np.eye(3), labels=[[1, 0, 0], [1, 1, 0], [0, 0, 1]]),
        "labels[1] does not have exactly one 1",
        "multi-label files are not read, because",
    ),
    "maps of logits": (
        npz(logits=np.zeros((2, 3, 4, 5)), labels=np.zeros((2, 4, 5), int)),
        "logits = np.moveaxis(logits, 1, -1).reshape(-1, 3); labels = labels.reshape(-1)",
    ),
}

FOLDERS = {
    "zero images": (image_folder(images=0), "pics/train/a holds no image", "add some or remove the folder"),
    "one class of images": (image_folder("a", "a"), "only one class (a)", "needs two or more"),
    "no test images": (image_folder("ab", ""), "has only train images", "add a train and a test folder"),
    "other classes in test": (image_folder("ab", "ac"), "pics/test/c is a class that", "remove or rename it"),
    "corrupt image": (image_folder(spoil=b"rubbish"), "pics/train/a/3.png cannot be decoded", "replace or remove"),
    "truncated image": (image_folder(spoil=png(0)[:300]), "3.png cannot be decoded", "replace or remove"),
}

HUBS = {
    "corrupt parquet of images": (parquet(corrupt=True), "train-00000-of-00001.parquet is not", "copy it again"),
    "label out of range in parquet": (parquet(first_label=7), "row 0 has label 7, outside [0, 1]", "fix the label"),
    "parquet without labels": (parquet(without="label"), "has neither a label column (label", "rename one"),
    "parquet without images": (parquet(without="image"), "none named image or img", "rename one"),
    "other class names in test": (
        parquet(names=("a", "c")),
        "test-00000-of-00001.parquet: class 1 is 'c'",
        "it is 'b'; number the classes alike",
    ),
}

OTHERS = {
    "corrupt parquet": ("evaluate a.parquet", corrupt_parquet, "a.parquet", "again"),
    "not parquet at all": ("evaluate a.parquet", text("a.parquet", "hello"), "a.parquet", "again"),
    "different samples": ("compare a.npz b.npz", compared(1), "labels differ, the first in row", "the same samples"),
    "different lengths": (
        "compare a.npz b.npz",
        compared(n=500),
        "a.npz has 600 samples and b.npz has 500",
        "the same samples",
    ),
    "predict too early": ("predict run", unfinished, "has no checkpoint yet", "train run/spec.yaml --out run"),
    "predict from damage": (
        "predict run",
        damaged_checkpoint,
        "is truncated or no safetensors file",
        "put it back from a copy, or remove it and train again",
    ),
    "unknown suffix": ("evaluate a.xlsx", text("a.xlsx", "x"), "suffix that is not read", "known: .npz"),
    "pickle": ("evaluate a.pkl", hostile("a.pkl"), "is a pickle", "numpy.savez"),
    "torch file that is a pickle": ("evaluate a.pt", hostile("a.pt"), "a.pt", "save"),
    "damaged predictions folder": (
        "evaluate p",
        damaged_folder,
        "does not match its checksum",
        "copy the folder again",
    ),
    "csv with a short line": ("evaluate a.csv", text("a.csv", "prob_0,prob_1,label\n1,0,0\n1,0\n"), "a.csv", "3"),
    "JSON": ("evaluate a.jsonl", text("a.jsonl", "{}"), "a.jsonl is JSON", "read_json('a.jsonl'), 'a.parquet'"),
    "predictions beside the classes": (
        "evaluate a.csv --kind probs --columns cat,dog",
        text("a.csv", "pred,zed,cat,dog\ncat,x,0.9,0.1\n"),
        "nothing named like labels",
        "pass --labels zed",
    ),
    "split that is not there": (
        "evaluate run --split fog-5",
        run,
        "it has test, validation",
        "calattn train run/spec.yaml --out run",
    ),
    "unknown checkpoint": ("evaluate run --checkpoint best", run, "--checkpoint must be one of last"),
    "run without predictions": ("evaluate run", empty_run, "has no predictions yet", "calattn train run/spec.yaml"),
    "validation of another task": (
        "calibrate a.npz --validation v.npz",
        other_classes,
        "3 classes",
        "10",
        "the same model",
    ),
    "output is there already": (
        "calibrate a.npz --out out",
        existing_output,
        "out already holds a calibration",
        "--overwrite",
    ),
    "broken YAML": ("train a.yaml", text("a.yaml", YAML), "a.yaml, line 3, column 5", "fix the YAML there"),
    "spec is a folder": ("train here", here, "here is a folder", "give the YAML file"),
    "a key with a brace": (train("dat}a=1"), nothing, "unknown key 'dat}a'", "did you mean 'data'?"),
    "one beta": (train("optimizer.options={betas: [0.9]}"), nothing, "optimiser 'adamw'", "optimizer.options"),
    "an option that only steps look at": (
        train("schedule.options={cycle_limit: []}"),
        nothing,
        "a step cannot be made",
        "schedule.options",
    ),
    "images too small for the network": (
        train("model.backbone=vgg11", "model.options={}"),
        nothing,
        "vgg11 does not take images of 8 px",
        "choose another --size or model.backbone",
    ),
    "predict with a folder": ("predict here", here, "here is not a run folder", "that `calattn train` made"),
    "predict with a file": ("predict f", text("f", "x"), "f is a file", "name the folder of a run"),
    "predict colour for grey": (
        "predict run --data imagefolder:pics --split test --ood",
        colour_for_grey,
        "3 channel(s)",
        "trained on 1",
        "save them as grey",
    ),
}

CASES = [
    *each("plain", nothing, PLAIN),
    *each("good", good, ON_GOOD),
    *each("train", nothing, CHANGES, train),
    *each("train", nothing, FLAGS, lambda flags: train(flags=flags)),
    *each("trained", trained, ON_TRAINED),
    *cases("evaluate a.npz", ARRAYS),
    *cases(PICTURES, FOLDERS),
    *cases(HUB, HUBS),
    Case(
        "loss that is not finite",
        train("optimizer.lr=1e30"),
        nothing,
        ("loss is not finite at update 2 (epoch 1)", "try a lower optimizer.lr", "nothing was saved before it"),
        code=1,
        trains=True,
    ),
    *(Case(name, arguments, prepare, says) for name, (arguments, prepare, *says) in OTHERS.items()),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.usefixtures("untyped")
def test_bad_input(case, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case.prepare(tmp_path)
    given = case.arguments.split() if isinstance(case.arguments, str) else case.arguments
    before = sorted(tmp_path.rglob("*"))
    result = invoke(capsys, *given)
    check(result.code, result.err, case.says, code=case.code, trains=case.trains)
    assert result.out == ""
    assert case.trains or sorted(tmp_path.rglob("*")) == before, "a refused command leaves nothing behind"
    in_json = invoke(capsys, *given, "--json")
    if "No such option" not in in_json.err or "--json" not in in_json.err:
        assert json.loads(in_json.err.splitlines()[-1])["exit_code"] == case.code


def check(given: int, err: str, says: Iterable[str], *, code: int = 1, trains: bool = False) -> None:
    assert given == code, err
    told = "warning:", *(("training in", "epoch ") if trains else ())
    lines = [line for line in err.splitlines() if not any(word in line for word in told) or "error:" in line]
    assert len(lines) == 1, err
    assert lines[0].startswith("calattn: error: ")
    assert "Traceback" not in err
    for piece in says:
        assert piece in lines[0]


def test_the_installed_command_answers_the_same(tmp_path):
    case = next(case for case in CASES if case.name == "NaN logits")
    case.prepare(tmp_path)
    script = Path(sys.executable).with_name("calattn")
    done = subprocess.run([script, *case.arguments.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
    check(done.returncode, done.stderr, case.says, code=case.code)


@pytest.mark.parametrize(("name", "code"), [("losses", 0), ("nonsense", 2)])
def test_closed_streams_are_no_bug(name, code):
    started = ["-m", "calattn", "list", name]
    done = subprocess.run([sys.executable, *started], preexec_fn=lambda: (os.close(1), os.close(2)), check=False)
    assert done.returncode == code


def on_a_full_disk(*arguments: str, limit: int) -> tuple[int, str]:
    """Simulated by a limit on the size of files: a write fails half-way, as it does on a full disk."""
    process = Forked(COMMAND, *arguments, environment={}, before=functools.partial(limit_files, limit))
    _, err = process.communicate()
    return process.returncode, err


@pytest.mark.parametrize(
    "arguments", ["evaluate a.npz --write t.json", "evaluate a.npz --diagram d.png", "calibrate a.npz --out out"]
)
def test_full_disk(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", predictions())
    code, err = on_a_full_disk(*arguments.split(), "--bootstrap", "0", limit=1000)
    check(code, err, ("write elsewhere",))
    assert [place.name for place in tmp_path.iterdir()] == ["a.npz"], "nothing half-written stays"


WRITING = {
    "evaluate a.npz --bootstrap 0 --write ro/t.json": ("permission denied", "ro"),
    "calibrate a.npz --bootstrap 0 --out ro/out": ("permission denied", "ro"),
    shlex.join([*train(), "--out", "ro/run"]): ("cannot write to ro/run: Permission denied", "or make it writable"),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("arguments", "says"), WRITING.items(), ids=["evaluate", "calibrate", "train"])
def test_read_only_folder(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", predictions())
    (tmp_path / "ro").mkdir(mode=0o555)
    if os.access(
        tmp_path / "ro", os.W_OK
    ):  # the superuser may write anywhere: let the system say what it says to others
        refuse_writes(monkeypatch, tmp_path / "ro")
    result = invoke(capsys, *shlex.split(arguments))
    check(result.code, result.err, says)
    assert list((tmp_path / "ro").iterdir()) == []


def test_full_disk_at_a_checkpoint(tmp_path, monkeypatch, capsys):
    """The first checkpoint does not fit, all that was written before it does; with room the same command then goes on."""
    monkeypatch.chdir(tmp_path)
    arguments = [*train(), "--threads", "1"]
    code, err = on_a_full_disk(*arguments, limit=20_000)
    says = ("cannot write", "checkpoints", "make room and start the same run again, it resumes")
    check(code, err, says, trains=True)
    assert not list((tmp_path / "run" / "checkpoints").glob("*")), "nothing half-written stays"
    assert invoke(capsys, *arguments).code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_gpu_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = invoke(capsys, *train(flags="--accelerator cuda"))
    says = ("--accelerator cuda: torch finds no CUDA device here", "pass --accelerator cpu", "`calattn doctor`")
    check(result.code, result.err, says, code=2)


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
