"""The validation split: seeded, disjoint, stored and checked."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calattn import data


@given(st.integers(20, 500), st.floats(0.05, 0.95), st.integers(0, 2**31 - 1))
def test_parts_are_disjoint_sorted_and_whole(n, fraction, seed):
    train, validation = data.validation_split(torch.zeros(n, dtype=torch.int64), fraction=fraction, seed=seed)
    assert len(validation) == round(fraction * n)
    assert train.tolist() == sorted(train.tolist())
    assert validation.tolist() == sorted(validation.tolist())
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(n))


def test_pinned_and_independent_of_the_global_generator():
    """These indices are in every run folder: they may never change."""
    labels = torch.zeros(1000, dtype=torch.int64)
    torch.manual_seed(7)
    _, first = data.validation_split(labels, fraction=0.05, seed=0)
    state = torch.get_rng_state()
    _, again = data.validation_split(labels, fraction=0.05, seed=0)
    _, other = data.validation_split(labels, fraction=0.05, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert first[:6].tolist() == [15, 19, 23, 37, 44, 51]


@pytest.mark.parametrize(
    ("n", "fraction"), [(5, 0.05), (5, 0.95), (100, 0.0), (100, 1.0), (100, -0.1), (100, float("nan"))]
)
def test_empty_parts_are_refused(n, fraction):
    with pytest.raises(data.DataError, match=r"fraction must be|leaves"):
        data.validation_split(torch.zeros(n, dtype=torch.int64), fraction=fraction, seed=0)


@pytest.fixture
def saved(tmp_path):
    labels = torch.arange(40) % 4
    train, validation = data.validation_split(labels, fraction=0.25, seed=3)
    path = tmp_path / "run" / "splits.json"
    data.save_splits(path, validation, labels, fraction=0.25, seed=3)
    return path, labels, train, validation


def test_round_trip(saved):
    path, labels, train, validation = saved
    again = data.load_splits(path, labels)
    assert torch.equal(again[0], train)
    assert torch.equal(again[1], validation)
    content = json.loads(path.read_text())
    assert (content["seed"], content["fraction"], content["images"]) == (3, 0.25, 40)


def test_other_data_is_refused(saved):
    path, labels, *_ = saved
    with pytest.raises(data.DataError, match="other labels than these 39"):
        data.load_splits(path, labels[:39])
    changed = labels.clone()
    changed[5] = 3
    with pytest.raises(data.DataError, match="the data set has changed"):
        data.load_splits(path, changed)


@pytest.mark.parametrize(
    "rows", [[], [40], [-1], [3, 2], [2, 2], [1.0], [True], ["1"], list(range(40)), "12", None, {"0": 1}]
)
def test_bad_indices_are_refused(saved, rows):
    path, labels, *_ = saved
    path.write_text(json.dumps(json.loads(path.read_text()) | {"validation": rows}))
    with pytest.raises(data.DataError, match=r"splits\.json.*validation"):
        data.load_splits(path, labels)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "other", "version": 1}'])
def test_foreign_files_are_refused(saved, content):
    path, labels, *_ = saved
    path.write_bytes(content)
    with pytest.raises(data.DataError, match=r"splits\.json is not"):
        data.load_splits(path, labels)
