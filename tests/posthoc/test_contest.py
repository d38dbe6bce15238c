"""The contest of calibrators in Python is the one that `calattn calibrate` shows."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from calattn.posthoc import CALIBRATORS, Methods, TemperatureScaling, VectorScaling, Watcher, contest, cross_fit
from calattn.report import contest_tables, contest_verdict
from tests.cli_runner import invoke, predictions, write_npz

METHODS = ("temperature", "vector")
FEW = {"methods": METHODS, "num_bootstrap": 50}


@pytest.fixture(scope="module")
def found():
    return contest(predictions(sharpness=2.0), predictions(7, sharpness=2.0), **FEW)


def test_it_is_what_the_command_shows(capsys, tmp_path, found):
    test = write_npz(tmp_path / "test.npz", predictions(sharpness=2.0))
    validation = write_npz(tmp_path / "validation.npz", predictions(7, sharpness=2.0))
    base = ("calibrate", test, "--validation", validation, "--method", ",".join(METHODS), "--bootstrap", 50)
    shown = invoke(capsys, *base, "--json").json
    assert [each["method"] for each in shown["methods"]] == found.ranking
    assert shown["tied_with_leader"] == found.tied
    assert shown["verdict"] == contest_verdict(found)
    for row, each in zip(found.rows, shown["methods"], strict=True):
        assert each["after"] == row.evaluation.as_dict()
        assert each["from_before"]["nll"]["difference"] == row.from_before["nll"].difference
    out = invoke(capsys, *base).out
    board, differences = contest_tables(found)
    assert all(
        cell.text in out
        for table in (board, differences)
        for row in table.rows
        for cell in row[1:-1]
        if cell != "leads"
    )


def test_rows_are_ranked_by_nll_whatever_is_measured():
    found = contest(predictions(sharpness=2.0), methods=METHODS, folds=2, metrics="ece", num_bootstrap=0)
    values = [row.evaluation["nll"].value for row in found.rows]
    assert values == sorted(values)
    assert list(found.before.rows) == ["ece", "nll"]
    assert found.best is found.rows[0]
    assert (found.tied, found.rows[0].from_before, found.folds, found.fitted_on) == (None, None, 2, 600)


def test_without_validation_each_sample_is_calibrated_out_of_its_fold():
    whole = predictions(sharpness=2.0)
    found = contest(whole, methods="temperature", folds=3, seed=4, num_bootstrap=0)
    want = cross_fit(TemperatureScaling, whole, folds=3, seed=4)
    assert torch.equal(found.rows[0].predictions.probs, want.probs)
    all_of_it = TemperatureScaling().fit(whole)
    assert found.rows[0].calibrator.temperature_ == all_of_it.temperature_


def test_in_sample_there_is_no_best():
    found = contest(predictions(), predictions(), **FEW)
    assert (found.best, found.ranking, found.tied) == (None, [], None)
    assert [row.method for row in found.rows] == list(METHODS)
    assert contest_verdict(found)[0].startswith("no method is called best")


def test_a_generator_stays_as_it_is_and_gives_every_row_the_same_resamples():
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    first, again = (contest(predictions(), methods=METHODS, generator=generator, num_bootstrap=50) for _ in range(2))
    assert torch.equal(generator.get_state(), state)
    for a, b in zip(first.rows, again.rows, strict=True):
        assert (a.evaluation["ece"].low, a.evaluation["ece"].high) == (
            b.evaluation["ece"].low,
            b.evaluation["ece"].high,
        )


def test_other_classes_are_refused():
    other = dataclasses.replace(predictions(), logits=predictions().logits[:, :9], labels=predictions().labels % 9)
    with pytest.raises(ValueError, match="validation has 9 classes and predictions has 10"):
        contest(predictions(), other)


class Listener(Watcher):
    def __init__(self):
        self.steps, self.most, self.broken = [], 0, []

    def start(self, overlap, steps):
        assert overlap.shared == 0
        self.most = steps

    def step(self, text):
        self.steps.append(text)

    def broke(self, error):
        self.broken.append(error)


def test_a_watcher_hears_each_step_and_what_broke(monkeypatch):
    class Breaks(VectorScaling):
        def _fit(self, predictions):
            if len(predictions) > 30:
                raise RuntimeError("singular")
            return super()._fit(predictions)

    monkeypatch.setitem(CALIBRATORS._items, "breaks", Breaks)
    heard = Listener()
    found = contest(predictions(), methods=["temperature", "breaks"], folds=2, num_bootstrap=50, watcher=heard)
    (skipped,) = found.skipped
    assert (skipped.method, skipped.failed, skipped.stage, skipped.reason) == (
        "breaks",
        True,
        "fit",
        "RuntimeError: singular",
    )
    assert heard.broken == [skipped.error]
    own = [f"temperature, {what}" for what in ("on all", "fold 1 of 2", "fold 2 of 2", "intervals")]
    assert heard.steps == ["as it is", *own, "breaks, on all", "comparing temperature"]
    assert len(heard.steps) <= heard.most


def test_what_a_watcher_raises_ends_it():
    class Refuses(Watcher):
        def start(self, *_):
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        contest(predictions(), watcher=Refuses())


def test_ctrl_c_keeps_what_is_done(monkeypatch):
    def fit(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(VectorScaling, "fit", fit)
    found = contest(predictions(), **FEW)
    assert (found.ranking, found.not_run) == (["temperature"], ["vector"])
    with pytest.raises(KeyboardInterrupt):
        contest(predictions(), methods="vector")


def test_names():
    assert Methods.of("all").names == tuple(CALIBRATORS)
    with pytest.raises(ValueError, match="unknown calibrator 'vectro'"):
        contest(predictions(), methods=["vectro"])
