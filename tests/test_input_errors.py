"""Errors as fields: the sentence, copies with other fields, and the way through a pickle."""

from __future__ import annotations

import pickle

import pytest
import torch

from calattn import Predictions
from calattn.data import DataError, DataMissing
from calattn.engine.checkpoint import CheckpointError, CheckpointWriteError
from calattn.errors import Args, BadRowError, InputError, InputWarning
from calattn.files.predictions import PredictionFileError, PredictionFileMissing, PredictionsExist, save_predictions
from calattn.plugins import PluginError
from calattn.posthoc import NotFittedError
from calattn.registry import UnknownName
from calattn.runs.folder import RunFolderError, RunFolderWriteError
from calattn.runs.spec import SpecError

KINDS = [
    InputError,
    BadRowError,
    InputWarning,
    DataError,
    DataMissing,
    CheckpointError,
    CheckpointWriteError,
    PluginError,
]
KINDS += [PredictionFileError, PredictionFileMissing, PredictionsExist, NotFittedError, UnknownName, SpecError]
KINDS += [RunFolderError, RunFolderWriteError]
FIELDS = {"subject": "a.npz", "argument": "probs", "row": 3, "column": 1, "remedy": ("pass ", Args(kind="logits"))}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_fields_and_keeps_them_in_a_pickle(kind):
    """Which is how an error comes out of another process."""
    for error in (kind("is -1", **FIELDS), pickle.loads(pickle.dumps(kind("is -1", **FIELDS)))):
        assert type(error) is kind
        assert str(error) == 'a.npz: probs[3, 1] is -1; pass kind="logits"'
        assert error.sentence(lambda args: f"--{next(iter(args.values))}") == "a.npz: probs[3, 1] is -1; pass --kind"
        assert (error.subject, error.argument, error.row, error.column) == ("a.npz", "probs", 3, 1)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "is odd"),
        ({"argument": "num_bins"}, "num_bins is odd"),
        ({"argument": "labels", "row": 0}, "labels[0] is odd"),
        ({"subject": "a.csv", "remedy": "fix it"}, "a.csv: is odd; fix it"),
    ],
)
def test_a_sentence_has_the_parts_that_are_there(fields, sentence):
    assert str(InputError("is odd", **fields)) == sentence


def test_a_copy_of_another_kind_keeps_what_is_not_changed():
    error = BadRowError("is nan", argument="logits", row=1, column=2, remedy="remove it")
    moved = PredictionFileError.of(error, subject="a.npz").at(range(10, 20))
    assert type(moved) is PredictionFileError
    assert str(moved) == "a.npz: logits[11, 2] is nan; remove it"
    assert str(error) == "logits[1, 2] is nan; remove it"
    assert InputError("has no row").at([]).row is None
    assert str(InputError.of(ValueError("of others"), remedy="ask them")) == "of others; ask them"


def test_values_that_are_no_prediction_have_a_class_of_their_own():
    """What `Predictions` refuses row by row; other mistakes, such as labels out of range, are none of it."""
    nan = torch.tensor([[0.0, 1.0], [0.0, torch.nan]])
    with pytest.raises(BadRowError) as caught:
        Predictions(logits=nan, labels=torch.tensor([0, 1]))
    assert (caught.value.argument, caught.value.row, caught.value.column) == ("logits", 1, 1)
    with pytest.raises(InputError) as other:
        Predictions(logits=torch.zeros(2, 2), labels=torch.tensor([0, 2]))
    assert (type(other.value), other.value.argument, other.value.row) == (InputError, "labels", 1)


def test_predictions_that_are_there_are_an_input_error_and_a_file_that_exists(tmp_path):
    some = Predictions(logits=torch.eye(2), labels=torch.tensor([0, 1]))
    save_predictions(some, tmp_path / "p")
    with pytest.raises(PredictionsExist, match="pass overwrite=True to replace them") as caught:
        save_predictions(some, tmp_path / "p")
    assert {InputError, FileExistsError} < set(type(caught.value).mro())
