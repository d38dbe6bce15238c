"""One line for each error, in flags, with a code."""

from __future__ import annotations

import errno
import logging
import signal
import warnings
from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
import typer

from calattn import Predictions, compare
from calattn.cli import errors
from calattn.data import DataError, DataMissing
from calattn.errors import Args, InputError, InputWarning
from calattn.posthoc import FitWarning
from calattn.readers import PredictionFileError, PredictionFileMissing, read_predictions
from calattn.registry import UnknownName
from tests.cli_runner import invoke, predictions, ran, refused, write_npz, write_run


class SignalStop(Exception):
    signal = signal.SIGTERM


class WriteError(ValueError, OSError):
    """As the checkpoint's: a ValueError for callers, an OSError by nature."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), 2),
        (PredictionFileError("x"), 2),
        (PredictionFileMissing("x"), 2),
        (DataError("x"), 2),
        (DataMissing("x"), 2),
        (UnknownName("x"), 2),
        (FileNotFoundError("x"), 2),
        (FileExistsError("x"), 2),
        (typer.BadParameter("x"), 2),
        (OSError(errno.ENOSPC, "no space"), 1),
        (PermissionError(errno.EACCES, "denied"), 1),
        (ConnectionError("x"), 1),
        (WriteError("x"), 1),
        (MemoryError(), 1),
        (FloatingPointError("x"), 1),
        (torch.OutOfMemoryError("x"), 1),
        (RuntimeError("could not create a primitive"), 1),  # oneDNN without memory
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 1),
        (ModuleNotFoundError("no tensorboard", name="tensorboard"), 1),
        (ModuleNotFoundError("no calattn.x", name="calattn.x"), 70),
        (TypeError("x"), 70),
        (KeyError("x"), 70),
        (RuntimeError("x"), 70),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (SignalStop("stopped by SIGTERM"), 143),
        (BrokenPipeError(), 141),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_codes(error, code):
    assert errors.code_of(error) == code


@pytest.mark.parametrize(
    ("args", "python", "flags"),
    [
        (Args(kind="logits"), 'kind="logits"', "--kind logits"),
        (Args(columns="…"), 'columns="…"', "--columns NAME"),
        (Args(columns=...), "columns=…", "--columns NAME"),
        (Args(columns="out_*"), 'columns="out_*"', "--columns 'out_*'"),
        (Args(columns=["", "b"]), 'columns=["", "b"]', "--columns NAME"),
        (Args(labels=Path("a b.npy")), 'labels=Path("a b.npy")', "--labels 'a b.npy'"),
        (Args(label_offset=0), "label_offset=0", "--label-offset 0"),
        (Args(ignore=["scale"]), 'ignore=["scale"]', "--ignore scale"),
        (Args(ignore=[...]), "ignore=[…]", "--ignore NAME"),
        (Args(ignore_index=(-100, 255)), "ignore_index=[-100, 255]", "--ignore-label -100,255"),
        (Args(class_names=[...]), "class_names=[…]", "--class-names A,B,…"),
        (Args(class_names=["-1", "1"]), 'class_names=["-1", "1"]', "--class-names -1,1"),
        (Args(delimiter=";"), 'delimiter=";"', "--delimiter ';'"),
        (Args(delimiter="\t"), r'delimiter="\t"', r"--delimiter '\t'"),
        (Args(header=[...]), "header=[…]", "--header A,B,…"),
        (Args(sum_tolerance=None), "sum_tolerance", "--sum-tolerance"),
        (Args(features=False), "features=False", "--no-features"),
        (Args(features=...), "features=…", "as an array named features (calattn predict --features)"),
        (Args(overwrite=True), "overwrite=True", "--overwrite"),
        (Args(num_bins=None), "num_bins", "--bins"),
        (Args("f(..., floor=1e-6)", floor="1e-6"), "f(..., floor=1e-6)", "--floor 1e-6"),
        (Args(kind="probs", columns="…"), 'kind="probs", columns="…"', "--kind probs --columns NAME"),
        (Args(rows_per_block=7), "rows_per_block=7", "rows_per_block=7"),
    ],
    ids=str,
)
def test_arguments_become_flags(args, python, flags):
    assert (str(args), errors.in_flags(args)) == (python, flags)


def test_every_flag_that_is_suggested_is_there(capsys):
    named = {errors._flag(name, None) for name in {*errors._FLAGS, *errors._ALIKE}}
    commands = (["evaluate"], ["compare"], ["calibrate"], ["data", "get"])
    helps = "".join(invoke(capsys, *command, "--help").out for command in commands)
    assert [flag for flag in sorted(named) if flag not in helps] == []


def test_pydantic_names_the_fields():
    class Spec(pydantic.BaseModel):
        lr: float
        epochs: int

    with pytest.raises(pydantic.ValidationError) as caught:
        Spec(lr="fast", epochs="many")
    message = errors.message_of(caught.value)
    assert "\n" not in message
    assert message.startswith("lr: Input should be a valid number")
    assert "; epochs: Input should be a valid integer" in message
    assert errors.code_of(caught.value) == 2


def test_system_errors_name_the_path_and_what_helps():
    full = OSError(errno.ENOSPC, "No space left on device", "/data/out.json")
    assert errors.message_of(full) == "/data/out.json: the disk is full: free some space, or write elsewhere"
    odd = OSError(errno.ELOOP, "Too many levels of symbolic links", "/data")
    assert errors.message_of(odd) == "[Errno 40] Too many levels of symbolic links: '/data'"


def test_messages_are_one_line():
    assert errors.message_of(ValueError("a\n  b")) == "a b"
    wanted = "ValueError without a message; rerun with --debug to see where it comes from"
    assert errors.message_of(ValueError()) == wanted
    assert errors.message_of(FileNotFoundError()).startswith("FileNotFoundError without a message; rerun with --debug")
    assert errors.message_of(AssertionError()).startswith(
        "AssertionError: AssertionError without a message; this is a bug"
    )
    assert len(errors.message_of(RuntimeError("size mismatch " * 1000))) < 700


def test_our_warnings_and_logs_become_lines_and_others_are_quiet(capsys):
    with errors.reported(as_json=False, debug=False) as outcome:
        warnings.warn("T = 10 is the end", FitWarning, stacklevel=1)
        warnings.warn(InputWarning("odd", subject="a.npz", remedy=("pass ", Args(num_bins=9))), stacklevel=1)
        warnings.warn("somebody else's", DeprecationWarning, stacklevel=1)
        logging.getLogger("calattn.data.sources.download").warning("took the other way")
    lines = capsys.readouterr().err.splitlines()
    assert outcome.code == 0
    assert lines == [
        "calattn: warning: T = 10 is the end",
        "calattn: warning: a.npz: odd; pass --bins 9",
        "calattn: warning: took the other way",
    ]


def test_brackets_in_messages_are_not_markup(capsys):
    with errors.reported(as_json=False, debug=False):
        raise ValueError("labels[3] is [bold]9[/bold]")
    assert capsys.readouterr().err == "calattn: error: labels[3] is [bold]9[/bold]\n"


def test_a_lost_process_is_not_called_a_bug():
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:45678")
    assert errors.code_of(lost) == errors.FAILED
    assert "another process of this run has ended" in errors.message_of(lost)
    assert errors.code_of(RuntimeError("shape mismatch")) == errors.BUG


def test_a_pickle_is_refused_without_flags_that_do_not_help(tmp_path):
    (tmp_path / "x.pkl").write_bytes(b"x")
    with pytest.raises(PredictionFileError) as caught:
        read_predictions(tmp_path / "x.pkl")
    message = errors.message_of(caught.value)
    assert message.endswith("as an .npz file (numpy.savez) with arrays named logits (or probs) and labels")
    assert "--" not in message.replace(str(tmp_path), "")


def test_a_comparison_without_resamples_names_the_flag():
    some = Predictions(logits=torch.eye(3), labels=torch.arange(3))
    with pytest.raises(ValueError, match="resamples") as caught:
        compare(some, some, num_bootstrap=0)
    assert errors.message_of(caught.value) == (
        "--bootstrap is 0: a comparison needs resamples; pass --bootstrap 1000, or leave it out"
    )


def test_logits_that_look_like_probabilities_name_flags_that_work(tmp_path, capsys):
    path = tmp_path / "p.npz"
    np.savez(path, logits=np.full((10, 4), 0.25), labels=np.zeros(10, int))
    with errors.reported(as_json=False, debug=False) as outcome:
        read_predictions(path)
    line = capsys.readouterr().err
    assert outcome.code == 0
    assert "look like probabilities" in line
    assert "if they are, use --kind probs --columns NAME" in line
    assert "from_probs" not in line
    with errors.reported(as_json=False, debug=False):
        assert read_predictions(path, kind="probs", columns="logits").stated_probs is not None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evaluate a.npz --split validation", "--split chooses among the predictions of a run folder"),
        ("compare a.npz a.npz --checkpoint best-nll", "--checkpoint chooses among the predictions of a run folder"),
        ("report a.npz --split test", "--split chooses among the predictions of a run folder"),
        ("evaluate a.npz --all -m ece", "--all shows more than the main five metrics, and --metrics names them"),
        ("evaluate a.npz --data-root .", "--data-root is where a page finds its pictures"),
        ("compare a.npz a.npz --data-root .", "--data-root is where a page finds its pictures"),
        ("evaluate a.npz --bootstrap 0 --level 0.9", "--level is about intervals, and --bootstrap 0 asks for none"),
        ("evaluate a.npz --bootstrap 0 --resample-seed 3", "--resample-seed is about intervals"),
        ("evaluate a.npz --validation a.npz", "add --ts"),
        ("evaluate a.npz --out t.csv", "--out names a folder, and this command writes a file: use --write"),
        ("data show digits --out=sheet.png", "use --write"),
        ("calibrate a.npz --overwrite", "--overwrite is about --out and --html"),
        (
            "calibrate a.npz --apply a.npz --write b.npz -m ece",
            "--metrics is about metrics, and --apply measures nothing",
        ),
        ("calibrate a.npz --apply a.npz --write b.npz --seed 3", "--seed is about fitting"),
        ("list losses --all", "--all adds timm's backbones"),
        ("teach vit_tiny --checkpoint best-nll", "--checkpoint is of a run folder"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(capsys, monkeypatch, tmp_path, line, said):
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", predictions())
    assert said in refused(capsys, *line.split())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evaluate a.npz --bins ten", "--bins must be a whole number, got 'ten'; see calattn evaluate --help"),
        ("evaluate a.npz --level high", "--level must be a number, got 'high'; see calattn evaluate --help"),
        ("train digits --epochs 1.5", "--epochs must be a whole number, got '1.5'; see calattn train --help"),
        ("sweep grid.yaml --jobs 0", "--jobs must be greater than or equal to 1, got '0'; see calattn sweep --help"),
    ],
)
def test_a_value_that_a_flag_does_not_take_is_told_in_our_words(capsys, line, said):
    assert refused(capsys, *line.split()).strip() == f"calattn: error: {said}"


def test_beside_a_run_a_file_may_stand_whatever_the_split(capsys, tmp_path):
    run, file = write_run(tmp_path / "run"), write_npz(tmp_path / "a.npz", predictions())
    few = ("--split", "validation", "--bootstrap", 0, "-m", "nll", "--json")
    first, second = invoke(capsys, "evaluate", run, file, *few).json["results"]
    assert (first["split"], second["split"]) == ("validation", None)
    ran(capsys, "report", run, file, *few, "--out", tmp_path / "r")


@pytest.mark.parametrize(
    "line",
    [
        *(f"evaluate a.npz --{flag}" for flag in ("write file/x.md", "diagram file/x.png", "html file/x.html")),
        *(f"compare a.npz a.npz --{flag}" for flag in ("write file/x.md", "html file/x.html")),
        *(f"calibrate a.npz --{flag}" for flag in ("out file/x", "write file/sub/x.csv")),
        "report a.npz --out file/x",
        "data show digits --write file/x.png",
    ],
)
def test_an_output_that_cannot_be_written_is_found_before_the_work(capsys, monkeypatch, tmp_path, line):
    def work(*_, **__):
        raise AssertionError("the work has begun")

    for name in ("calattn.readers.stream.PredictionStream.__iter__", "calattn.data.load"):
        monkeypatch.setattr(name, work)
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", predictions())
    (tmp_path / "file").touch()
    result = refused(capsys, *line.split())
    assert "calattn: error: file/" in result
    assert "a part of that path is a file: choose another path" in result


def test_a_folder_that_takes_no_files_is_named(capsys, monkeypatch, tmp_path):
    def denied(*, dir):
        raise PermissionError(errno.EACCES, "denied", str(dir / "tmp123"))

    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    path = write_npz(tmp_path / "a.npz", predictions())
    result = invoke(capsys, "calibrate", path, "--write", tmp_path / "x.csv")
    assert result.code == 1
    assert f"{tmp_path / 'x.csv'}: permission denied: choose a place that you may use" in result.err


def test_what_an_import_that_ctrl_c_cut_short_raises_is_no_bug(monkeypatch):
    """numpy's and torch's compiled parts swallow the KeyboardInterrupt and raise errors of their own."""
    monkeypatch.setattr(errors, "_signals", [])
    cut_short = AttributeError("module 'numpy._core' has no attribute '_multiarray_umath'")
    assert errors.code_of(cut_short) == 70
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminating = signal.getsignal(signal.SIGTERM)
    try:
        errors.notice_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert (errors.code_of(cut_short), errors.message_of(cut_short)) == (130, "interrupted")
        assert errors.code_of(ValueError("could not determine the shape of object type 'Storage'")) == 130, "torch's"
        assert errors.code_of(InputError("the file is empty")) == 2, "what we say ourselves is said"
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        assert (errors.code_of(cut_short), errors.message_of(cut_short)) == (143, "terminated")
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, terminating)


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminating = signal.getsignal(signal.SIGTERM)
    try:
        errors.notice_signals()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, terminating)
