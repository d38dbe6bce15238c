"""Which calibrators `calattn calibrate` runs, in which order, and what is left of them after Ctrl-C."""

from __future__ import annotations

import json

import pytest
import torch

import calattn
from calattn.posthoc import CALIBRATORS, DirichletCalibration, MatrixScaling, Methods, VectorScaling
from calattn.posthoc.contests import _cost
from tests.cli_runner import invoke, predictions, ran, refused, write_npz

QUICK = ("--metrics", "nll", "--bootstrap", 0)


@pytest.fixture
def files(tmp_path):
    test, validation = predictions(sharpness=2.0), predictions(7, sharpness=2.0)
    return write_npz(tmp_path / "test.npz", test), write_npz(tmp_path / "validation.npz", validation)


@pytest.mark.parametrize(
    "flags", [("histogram,temperature",), ("histogram", "temperature"), (" histogram , temperature,",)]
)
def test_several_methods(capsys, files, flags):
    given = [part for flag in flags for part in ("--method", flag)]
    found = invoke(capsys, "calibrate", files[0], "--validation", files[1], *given, *QUICK, "--json").json
    assert {each["method"] for each in found["methods"]} == {"histogram", "temperature"}
    best = min(("histogram", "temperature"), key=lambda name: nll_of(CALIBRATORS[name]()))
    assert found["leader"] == best


def nll_of(calibrator):
    after = calibrator.fit(predictions(7, sharpness=2.0))(predictions(sharpness=2.0))
    return float(torch.nn.functional.cross_entropy(after.calibrated_logits, after.labels))


def test_skip(capsys, files):
    base = ("calibrate", files[0], "--validation", files[1], *QUICK)
    found = invoke(
        capsys, *base, "--method", "all", "--skip", "dirichlet,matrix,sats", "--skip", "isotonic", "--json"
    ).json
    done = {each["method"] for each in found["methods"]} | {each["method"] for each in found["skipped"]}
    assert done == set(CALIBRATORS) - {"dirichlet", "matrix", "sats", "isotonic"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--method", "vectro"), "unknown calibrator 'vectro'; did you mean 'vector'?"),
        (("--method", "vector,tempreture"), "unknown calibrator 'tempreture'"),
        (("--method", "all", "--skip", "matrxi"), "unknown calibrator 'matrxi'; did you mean 'matrix'?"),
        (
            ("--method", "vector", "--skip", "matrix"),
            "skip names matrix, which is not among the methods (vector); leave it out",
        ),
        (("--method", "vector", "--skip", "vector"), "skip leaves no method of vector"),
        (("--method", "all", "--skip", "all"), "unknown calibrator 'all'"),
    ],
)
def test_names_that_do_not_fit(capsys, files, flags, message):
    assert message in refused(capsys, "calibrate", files[0], *flags)


def test_one_method_is_a_table_of_before_and_after(capsys, files):
    assert "before" in invoke(capsys, "calibrate", files[0], "--method", "vector", *QUICK).out
    assert "(as it is)" in invoke(capsys, "calibrate", files[0], "--method", "vector,histogram", *QUICK).out


def many_classes(path, num_classes):
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1000, num_classes, generator=g)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=g).squeeze(1)
    return write_npz(path, calattn.Predictions(logits=logits, labels=labels))


@pytest.fixture
def no_fit_of_a_matrix(monkeypatch):
    def fit(self, *_):
        raise AssertionError(f"{type(self).__name__} was fitted")

    for kind in (MatrixScaling, DirichletCalibration):
        monkeypatch.setattr(kind, "_fit", fit)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("no_fit_of_a_matrix")
def test_many_classes_leave_the_matrices_out(capsys, tmp_path):
    path = many_classes(tmp_path / "many.npz", 401)
    base = ("calibrate", path, "--fraction", 0.5, *QUICK, "--skip", "sats,isotonic,vector,temperature")
    shown = ran(capsys, *base, "--method", "all")
    assert (
        "skipped matrix, dirichlet, structured_matrix: with 401 classes (more than 400) one fit can take minutes; "
        "name it beside all to have it"
    ) in shown.out
    assert "temperature" in shown.out


def test_what_is_left_out():
    """All but what is named: the way to have a matrix after all."""
    every = Methods.of("all")
    assert set(every.left_out(401)) == {"matrix", "dirichlet", "structured_matrix"}
    assert every.left_out(400) == {}
    assert Methods.of(["all", "matrix"]).left_out(1000).keys() == {"dirichlet", "structured_matrix"}
    assert Methods.of(["dirichlet", "vector"]).left_out(1000) == {}
    assert Methods.of("all", skip=["matrix"]).left_out(1000).keys() == {"dirichlet", "structured_matrix"}


@pytest.fixture
def stopped(monkeypatch):
    """Ctrl-C in the middle of a fit of vector scaling (the small ones before are for the imports)."""

    def fit(self, predictions):
        if len(predictions) > 30 and self.strength is None:
            raise KeyboardInterrupt
        return original(self, predictions)

    original = VectorScaling._fit
    monkeypatch.setattr(VectorScaling, "_fit", fit)


@pytest.mark.usefixtures("stopped")
def test_an_interrupt_ranks_what_is_done(capsys, files, tmp_path):
    base = ("calibrate", files[0], "--validation", files[1], "--metrics", "nll", "--bootstrap", 20, "--method", "all")
    result = invoke(capsys, *base, "--json", "--out", tmp_path / "out")
    assert result.code == 130
    done = [each["method"] for each in result.json["methods"]]
    late = ["dirichlet", "frozen_calattn", "matrix", "vector"]
    assert sorted([*done, "venn_abers"]) == sorted(set(CALIBRATORS) - set(late))
    assert sorted(result.json["not_run"]) == late
    assert result.json["leader"] == done[0]
    assert result.json["methods"][1]["from_leader"]["nll"]["difference"] != 0
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == result.json
    assert json.loads(result.err.splitlines()[-1]) == {"error": "interrupted", "exit_code": 130}
    shown = invoke(capsys, *base)
    assert shown.code == 130
    assert "best by NLL: " in shown.out
    assert "not run, because it was stopped: frozen_calattn, vector, matrix, dirichlet" in shown.out
    assert shown.err.endswith("calattn: interrupted\n")
    assert "ranking what is done (8 of 12)" in shown.err


@pytest.mark.usefixtures("stopped")
def test_an_interrupt_of_the_first_method_shows_nothing(capsys, files):
    result = invoke(capsys, "calibrate", files[0], "--method", "vector,matrix", *QUICK)
    assert (result.code, result.out) == (130, "")


def test_the_slow_ones_come_last():
    """Whatever the order on the line; the order of the results is not that of the work."""
    assert sorted(["dirichlet", "sats", "matrix", "vector"], key=_cost) == ["sats", "vector", "dirichlet", "matrix"]


@pytest.mark.parametrize("given", [True, False])
def test_prediction_sets(capsys, files, tmp_path, given):
    from calattn.posthoc import PredictionSets

    more = ("--validation", files[1]) if given else ()
    base = ("calibrate", files[0], *more, "--method", "temperature,histogram", "--sets", 0.8, *QUICK)
    found = invoke(capsys, *base, "--json", "--out", tmp_path / "out").json["sets"]
    assert (found["method"], found["coverage"]["value"] > 0.74, found["samples"]) == ("temperature", True, 600)
    assert found["coverage"]["low"] < 0.8 < found["coverage"]["high"]
    kept = PredictionSets.load(tmp_path / "out" / "sets.safetensors")
    assert (kept.coverage, kept.num_samples_) == (0.8, 600)
    shown = invoke(capsys, *base).out.replace("\n", " ")
    assert "prediction sets after temperature (raps, asked 80 %): coverage" in shown
    assert "coverage must be between 0 and 1, got 1.5" in refused(capsys, "calibrate", files[0], "--sets", 1.5)
