"""`calattn calibrate` with calibrators of other people: one that breaks is named, and costs the others nothing."""

from __future__ import annotations

import dataclasses
import inspect
import signal

import numpy as np
import pytest
import torch

import calattn
from calattn.cli import errors
from calattn.posthoc import CALIBRATORS, TemperatureScaling, VectorScaling
from tests.cli_runner import invoke, predictions, ran, refused, write_npz
from tests.posthoc.test_own import Shift

QUICK = ("--metrics", "nll", "--bootstrap", 0, "--fraction", 0.5)


@pytest.fixture
def file(tmp_path):
    return write_npz(tmp_path / "test.npz", predictions(sharpness=2.0))


@pytest.fixture
def register(monkeypatch):
    return lambda name, made: monkeypatch.setitem(CALIBRATORS._items, name, made)


def raising(error: BaseException, *, fewest: int = 0):
    @dataclasses.dataclass(kw_only=True, eq=False, repr=False)
    class Breaks(Shift):
        def _fit(self, given):
            if len(given) >= fewest:
                raise error
            return {"slope_": 1.0}

    return Breaks


class Demanding(TemperatureScaling):
    """Refuses what is made up to warm up with."""

    refusal: type[Exception] = ValueError

    def _fit(self, given):
        if len(given) < 100:
            raise self.refusal(f"needs at least 100 samples, got {len(given)}")
        return super()._fit(given)


@pytest.mark.parametrize("refusal", [ValueError, RuntimeError, MemoryError])
def test_a_method_may_refuse_the_samples_that_warm_it_up(capsys, file, register, refusal):
    register("demanding", type("Demanding", (Demanding,), {"refusal": refusal}))
    for methods in ("demanding", "demanding,vector"):
        result = ran(capsys, "calibrate", file, "--method", methods, *QUICK, "--json")
        assert "demanding" in [each["method"] for each in result.json["methods"]]
        assert result.json["skipped"] == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("singular matrix"), "RuntimeError: singular matrix (test_calibrate_own.py, line {}, in _fit)"),
        (torch.linalg.LinAlgError("not positive"), "_LinAlgError: not positive (test_calibrate_own.py, line {}, in _f"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero (test_calibrate_own.py, line"),
        (KeyError("a"), "KeyError: 'a' (test_calibrate_own.py, line {}, in _fit)"),
        (ValueError(), "ValueError: without a message (test_calibrate_own.py, line {}, in _fit)"),
        (FileNotFoundError("weights.pt"), "FileNotFoundError: weights.pt (test_calibrate_own.py, line {}, in _fit)"),
        (MemoryError("4 TB"), "out of memory: 4 TB; use a smaller batch or a smaller file"),
        (ModuleNotFoundError("No module named 'gpy'", name="gpy"), "No module named 'gpy'; install what is missing"),
    ],
)
def test_a_method_that_breaks_is_skipped_with_its_name(capsys, file, register, tmp_path, error, text):
    register("breaks", raising(error))
    source, start = inspect.getsourcelines(raising)
    text = text.format(start + next(i for i, line in enumerate(source) if "raise error" in line))
    base = ("calibrate", file, "--method", "breaks,vector", *QUICK)
    result = invoke(capsys, *base, "--out", tmp_path / "out", "--json")
    assert result.code == 1
    assert [each["method"] for each in result.json["methods"]] == ["vector"]
    (skipped,) = result.json["skipped"]
    assert (skipped["method"], skipped["failed"]) == ("breaks", True)
    assert text in skipped["reason"]
    assert "bug in calattn" not in skipped["reason"] + result.err
    assert calattn.load_predictions(tmp_path / "out" / "vector" / "predictions").num_classes == 10
    shown = invoke(capsys, *base)
    assert shown.code == 1
    assert f"skipped breaks: {text}" in shown.out
    assert f"1 of 2 methods failed, and the results are without: breaks ({type(error).__name__})" in shown.err
    alone = invoke(capsys, "calibrate", file, "--method", "breaks", *QUICK)
    assert (alone.code, alone.out) == (1, "")
    assert f"calattn: error: breaks: {text}" in alone.err
    assert len(alone.err.splitlines()) == 1


def test_what_a_method_refuses_is_no_failure(capsys, file, register):
    for error in (ValueError("too flat"), np.linalg.LinAlgError("too flat")):
        register("refuses", raising(error))
        result = ran(capsys, "calibrate", file, "--method", "refuses,vector", *QUICK, "--json")
        assert result.json["skipped"] == [{"method": "refuses", "reason": "too flat", "failed": False}]
        alone = invoke(capsys, "calibrate", file, "--method", "refuses", *QUICK)
        assert (alone.code, alone.err.strip()) == (2, "calattn: error: refuses: too flat")


def test_one_of_ours_that_breaks_is_a_bug_of_ours(capsys, file, register, monkeypatch):
    def breaks(*_, **__):
        raise RuntimeError("singular matrix")

    monkeypatch.setattr("calattn.posthoc.temperature.nll_optimum", breaks)
    register("mine", raising(KeyError("a")))
    result = invoke(capsys, "calibrate", file, "--method", "temperature,mine,vector", *QUICK, "--json")
    assert result.code == 70
    reason = result.json["skipped"][0]["reason"]
    assert reason.startswith("RuntimeError: singular matrix (calattn/posthoc/temperature.py, line ")
    assert reason.endswith("in nll_temperature); this is a bug in calattn, please rerun with --debug and report it")
    assert (
        "2 of 3 methods failed, and the results are without: temperature (RuntimeError), mine (KeyError)" in result.err
    )
    alone = invoke(capsys, "calibrate", file, "--method", "temperature", *QUICK)
    assert alone.code == 70
    assert alone.err.startswith("calattn: error: temperature: RuntimeError: singular matrix (calattn/posthoc/")


def test_debugging_shows_where_a_method_broke(capsys, file, register):
    register("breaks", raising(RuntimeError("singular matrix")))
    with pytest.raises(errors.MethodFailed) as caught:
        invoke(capsys, "calibrate", file, "--method", "breaks", *QUICK, "--debug")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert str(caught.value.__cause__) == "singular matrix"


def test_one_that_cannot_be_made(capsys, file, register):
    @dataclasses.dataclass(kw_only=True, eq=False, repr=False)
    class Needy(VectorScaling):
        slope: float

    register("needy", Needy)
    result = invoke(capsys, "calibrate", file, "--method", "needy,vector", *QUICK, "--json")
    assert result.code == 1
    assert "missing 1 required keyword-only argument: 'slope'" in result.json["skipped"][0]["reason"]


@pytest.mark.usefixtures("untyped")
def test_what_it_makes_of_predictions_is_its_own_doing(capsys, file, register):
    register("mine", lambda: Shift(applied=lambda p: p.replace(logits=p.logits * torch.nan)))
    text = "nan in what Shift._apply made of sound predictions; fix Shift, or leave it out"
    result = ran(capsys, "calibrate", file, "--method", "mine,vector", *QUICK)
    assert "skipped mine: " in result.out
    assert text in result.out
    alone = refused(capsys, "calibrate", file, "--method", "mine", *QUICK)
    assert alone.startswith("calattn: error: mine: ")
    assert text in alone
    assert "remove such rows" not in alone


def test_one_that_no_file_holds_costs_the_others_nothing(capsys, file, register, tmp_path):
    register("mine", lambda: Shift())
    result = ran(capsys, "calibrate", file, "--method", "mine,vector", *QUICK, "--out", tmp_path / "out")
    assert "out/mine has no calibrator.safetensors: Shift is not registered; add it" in result.err
    assert sorted(place.name for place in (tmp_path / "out" / "mine").iterdir()) == ["predictions"]
    assert (tmp_path / "out" / "vector" / "calibrator.safetensors").is_file()
    refused(capsys, "calibrate", file, "--method", "mine", *QUICK, "--out", tmp_path / "alone")
    assert not (tmp_path / "alone").exists()


def test_ctrl_c_that_an_import_swallowed_stops_the_contest(capsys, file, register, monkeypatch):
    """While a compiled module is imported, Ctrl-C can come out as an error of that module."""

    class Imports(Shift):
        def _fit(self, _):
            monkeypatch.setattr(errors, "_signals", [signal.SIGINT])
            raise SystemError("initialization failed")

    register("imports", Imports)
    monkeypatch.setattr("calattn.posthoc.contests._cost", lambda name: name == "imports")
    result = invoke(capsys, "calibrate", file, "--method", "imports,vector", *QUICK, "--json")
    assert result.code == 130
    assert [each["method"] for each in result.json["methods"]] == ["vector"]
    assert result.json["not_run"] == ["imports"]
    assert result.json["skipped"] == []
