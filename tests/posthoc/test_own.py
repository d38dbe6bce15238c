"""Calibrators of other people: what they get wrong is said with their name and the remedy, before it does harm."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch

from calattn import Predictions
from calattn.posthoc import CALIBRATORS, Calibrator, cross_fit, load
from tests.posthoc.test_protocol import made_up


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Shift(Calibrator):
    """A made-up calibrator that can be told to misbehave."""

    returned: object = None
    applied: object = None
    slope_: float = dataclasses.field(init=False, repr=False)

    def _fit(self, _):
        return {"slope_": 1.0} if self.returned is None else self.returned

    def _apply(self, predictions):
        return predictions.replace(logits=predictions.logits) if self.applied is None else self.applied(predictions)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(CALIBRATORS._items, "shift", Shift)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            {"slope": 1.0},
            "Shift._fit returned slope, but Shift declares slope_: return a dict of what is declared; to declare",
        ),
        ({"slope_": 1.0, "b_": torch.ones(2)}, "returned b_, slope_, but Shift declares slope_: "),
        ({}, "Shift._fit returned nothing, but Shift declares slope_: "),
        ([1.0], "Shift._fit returned a list, but Shift declares slope_: "),
        (
            {"slope_": np.ones(2)},
            "Shift._fit returned a ndarray as slope_; a calibrator's file holds tensors, dicts of",
        ),
        ({"slope_": {"a": 1.0}}, "Shift._fit returned a dict as slope_; a calibrator's file holds tensors, dicts of"),
    ],
)
def test_what_fit_returned_and_what_is_declared(returned, message):
    calibrator = Shift(returned=returned)
    with pytest.raises(ValueError, match=re.escape(message)):
        calibrator.fit(made_up(0))
    assert not hasattr(calibrator, "num_classes_")


def test_what_fit_returns_is_not_changed_and_may_hold_what_fit_adds():
    given = {"slope_": 2.0, "num_classes_": 4}
    assert Shift(returned=given).fit(made_up(0)).slope_ == 2.0
    assert set(given) == {"slope_", "num_classes_"}


def with_value(value, field="logits"):
    def apply(p):
        changed = p.probs.clone()
        changed[3, 1] = value
        return p.replace(**{"scale": None, field: changed})

    return apply


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("applied", "message"),
    [
        (lambda p: p.logits, "Shift._apply returned a Tensor, not Predictions; return predictions.replace(logits="),
        (lambda _: (), "Shift._apply returned a tuple, not Predictions"),
        (
            lambda p: p.select(torch.arange(10)),
            "returned 10 samples of 4 classes, and was given 400 of 4; return every row",
        ),
        (
            lambda p: p.replace(logits=p.logits[:, :3], labels=p.labels.clamp(max=2), class_names=None),
            "Shift._apply returned 400 samples of 3 classes, and was given 400 of 4",
        ),
        (lambda p: p.select(torch.arange(399, -1, -1)), "Shift._apply returned other labels than it was given, or"),
        (with_value(torch.nan), "logits[3, 1] is nan in what Shift._apply made of sound predictions; fix Shift, or"),
        (with_value(torch.inf), "logits[3, 1] is inf in what Shift._apply made of sound predictions"),
        (with_value(torch.nan, "stated_probs"), "probs[3, 1] is nan in what Shift._apply made of sound predictions"),
        (
            lambda p: p.replace(scale=0 * p.scale),
            "scale[0] is 0.0, not positive and finite in what Shift.",
        ),
        (lambda p: Predictions.from_probs(p.logits, p.labels), "in what Shift._apply made of sound predictions"),
    ],
)
def test_what_apply_returned(applied, message):
    calibrator, new = Shift(applied=applied).fit(made_up(0)), made_up(1)
    with pytest.raises(ValueError, match=re.escape(message)):
        calibrator(new)
    with pytest.raises(ValueError, match=re.escape(message)):
        calibrator.apply_to_block(new)
    if "labels" not in message:  # without labels all of them are 0
        with pytest.raises(ValueError, match=re.escape(message)):
            calibrator.predict_proba(new.logits, scale=new.scale)
    with pytest.raises(ValueError, match=r"fold 1 of 5, fitted on 1600 samples: .*Shift\._apply"):
        cross_fit(lambda: Shift(applied=applied), made_up(1, n=2000))


def test_errors_about_what_it_was_given_stay_as_they_are():
    def refuses(_):
        raise ValueError("logits[0] has a −inf entry (probability 0), which Shift cannot transform")

    with pytest.raises(ValueError, match=r"cannot transform$"):
        Shift(applied=refuses).fit(made_up(0))(made_up(1))


@pytest.mark.usefixtures("registered")
def test_a_file_whose_class_is_not_registered_is_not_damaged(tmp_path, monkeypatch):
    Shift().fit(made_up(0)).save(tmp_path / "shift")
    assert isinstance(load(tmp_path / "shift"), Shift)
    monkeypatch.delitem(CALIBRATORS._items, "shift")
    with pytest.raises(ValueError, match="shift: needs the calibrator 'shift', which nothing imported") as caught:
        load(tmp_path / "shift")
    assert "damaged" not in str(caught.value)
    assert "import the module with its CALIBRATORS.register('shift') first" in str(caught.value)


@pytest.mark.usefixtures("registered")
def test_an_option_that_no_file_holds(tmp_path):
    with pytest.raises(ValueError, match=r"Shift has an option that a file cannot hold \(Object of type function"):
        Shift(applied=lambda p: p).fit(made_up(0)).save(tmp_path / "shift")
    assert not (tmp_path / "shift").exists()
