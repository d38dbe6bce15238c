"""The same samples are put in one order, others are told apart, in memory and in blocks."""

from __future__ import annotations

import pytest
import torch

import calattn
from calattn.comparison import compare_over_seeds, data_warning, labels_of, over_seeds, same_samples
from tests.cli_runner import predictions


def numbered(**given):
    return predictions(indices=torch.arange(600) * 3, **given)


def test_rows_are_put_in_the_order_of_the_first():
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    a, b = numbered().select(order), numbered(sharpness=2.0)
    found = same_samples({"a": a, "b": b, "c": a})
    assert torch.equal(found["b"].logits, b.logits[order])
    assert found["a"] is a
    assert found["c"] is a
    assert calattn.compare(found["a"], found["b"], metrics="nll", num_bootstrap=50)["nll"].difference > 0


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda p: p.select(torch.arange(500)), "a has 600 samples and b has 500"),
        (lambda p: p.replace(logits=p.logits[:, :9], labels=p.labels.clamp(max=8)), "a has 10 classes and b has 9"),
        (lambda p: p.replace(indices=p.indices + 1), "sample 0 of a is not in b"),
        (lambda p: p.replace(labels=p.labels.flip(0)), "of 600 labels differ, the first in row 1"),
    ],
)
def test_other_samples_are_refused(other, words):
    with pytest.raises(ValueError, match=words):
        same_samples({"a": numbered(), "b": other(numbered())})


def test_of_blocks_the_labels_are_compared():
    a = predictions()
    blocks = [a.select(torch.arange(0, 400)), a.select(torch.arange(400, 600))]
    assert labels_of(blocks) == labels_of(a)
    assert same_samples({"a": a, "b": blocks})["b"] is blocks
    with pytest.raises(ValueError, match="a has 600 samples and b has 400"):
        same_samples({"a": a, "b": blocks[:1]})
    narrow = a.replace(logits=a.logits[:, :5], labels=a.labels % 5)
    with pytest.raises(ValueError, match="a has 10 classes and b has 5"):
        same_samples({"a": a, "b": [narrow]})
    with pytest.raises(ValueError, match="the labels of a and b differ"):
        same_samples({"a": a, "b": blocks[::-1]})


def test_methods_are_compared_seed_by_seed():
    pairs = [(predictions(seed), predictions(seed, sharpness=2.0 + seed / 10)) for seed in range(3)]
    found = compare_over_seeds(pairs, metrics=["nll", "ece"], num_bootstrap=50)
    single = [calattn.compare(a, b, metrics=["nll", "ece"], num_bootstrap=50) for a, b in pairs]
    assert found == {name: over_seeds([each[name] for each in single]) for name in ("nll", "ece")}
    few = {"metrics": "ece", "num_bootstrap": 50}
    again = compare_over_seeds(pairs, **few, generator=torch.Generator().manual_seed(3))["ece"]
    single = [calattn.compare(a, b, **few, generator=torch.Generator().manual_seed(3))["ece"] for a, b in pairs]
    assert again == over_seeds(single), "every seed sees the same resamples"
    with pytest.raises(ValueError, match="from two or more seeds"):
        compare_over_seeds(pairs[:1], metrics="nll", num_bootstrap=50)


def test_other_data_is_warned_about():
    assert data_warning([("a", "digits"), ("b", "digits"), ("c", None)]) is None
    found = [("a", "digits"), ("b", "mnist")]
    assert "p mean nothing" in data_warning(found)
    assert "ranked by itself" in data_warning(found, ranked=True)
