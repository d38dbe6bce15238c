"""Evaluation in parts: the same numbers however the rows are divided over shards, and in whatever order these are merged."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch

from calattn import Predictions, evaluate
from calattn.cli import subjects
from calattn.metrics import METRICS
from calattn.metrics.evaluation import evaluate_shards
from calattn.metrics.parts import Part, merged
from calattn.metrics.state import Options
from calattn.readers.stream import PredictionStream
from calattn.report.verdict import verdict_of
from tests.cli_runner import invoke
from tests.samples import near

NAMES = tuple(METRICS)


def predictions(n: int) -> Predictions:
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(n, 20, generator=g) * 2, torch.randint(20, (n,), generator=g)
    logits[torch.arange(n), labels] += 6 * torch.rand(n, generator=g)
    return Predictions(logits=logits, labels=labels)


def shards(p: Predictions, count: int) -> list[list[Predictions]]:
    """Of very different sizes, each of two blocks."""
    size = torch.arange(1, count + 1).double()
    ends = (size.cumsum(0) / size.sum() * len(p)).ceil().long().clamp(max=len(p)).tolist()
    parts = [p.select(torch.arange(a, b)) for a, b in zip([0, *ends], ends, strict=False)]
    return [
        [part] if len(part) == 1 else [part.select(half) for half in torch.arange(len(part)).chunk(2)] for part in parts
    ]


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def elsewhere(function, *arguments):
    """As `map`, but as another machine would: nothing is shared."""
    return [pickled(pickled(function)(*pickled(each))) for each in zip(*arguments, strict=True)]


@pytest.mark.parametrize("n", [3000, 9000])  # multinomial weights, Poisson weights
def test_shards_are_evaluated_as_one_stream(n):
    p = predictions(n)
    whole = evaluate([p], num_bootstrap=40)
    for count in (7, 40):
        divided = shards(p, count)
        found = evaluate_shards(divided, over=elsewhere, num_bootstrap=40)
        for name, row in whole.as_dict().items():
            assert found.as_dict()[name] == near(row, name, rel=1e-12), name
        assert (found.num_samples, found.num_classes, found.num_bootstrap) == (n, 20, 40)


@pytest.mark.parametrize("count", [7, 40])
def test_parts_are_merged_in_any_order(count):
    p, order = predictions(9000), random.Random(count)
    divided = shards(p, count)
    first = [Part.of(shard, NAMES, Options()) for shard in divided]
    begin = torch.tensor([0, *(part.rows for part in first)]).cumsum(0).tolist()
    whole = merged(order.sample(first, count))
    plan = pickled(whole.resampling(count=24, seed=5))
    second = [plan.drawn(shard, row) for shard, row in zip(divided, begin, strict=False)]
    found = merged(order.sample(second, count)).values()
    alone = Part.of(p, NAMES, Options())
    assert whole.state.compute() == pytest.approx(alone.state.compute(), rel=1e-12)
    assert torch.equal(whole.state.bins.count, alone.state.bins.count)
    for name, draws in alone.resampling(count=24, seed=5).drawn(p).values().items():
        torch.testing.assert_close(
            found[name], draws, rtol=1e-6 if name == "classwise_ece" else 1e-12, atol=0, equal_nan=True
        )


def test_parts_of_other_questions_and_shards_that_come_once_are_refused():
    p = predictions(50)
    with pytest.raises(ValueError, match="have 20 and 2 classes"):
        Part.of(p, ("ece",), Options()).merge(
            Part.of(p.replace(logits=p.logits[:, :2], labels=p.labels % 2), ("ece",), Options())
        )
    with pytest.raises(ValueError, match="can be read only once"):
        evaluate_shards([iter([p]), iter([p])])
    assert evaluate_shards([iter([p]), iter([p])], num_bootstrap=0).num_samples == 100
    with pytest.raises(ValueError, match="shards is empty"):
        evaluate_shards([])


@pytest.mark.parametrize("target", [None, 1])
def test_the_command_reads_a_file_twice_and_no_third_time_for_its_verdict(tmp_path, monkeypatch, capsys, target):
    p, passes = predictions(300), []
    np.savez(tmp_path / "a.npz", logits=p.logits.numpy(), labels=p.labels.numpy())
    each = PredictionStream.__iter__
    monkeypatch.setattr(subjects, "STREAM_BYTES", 0)
    monkeypatch.setattr(PredictionStream, "__iter__", lambda self: [passes.append(1), each(self)][1])
    asked = [] if target is None else ["--target", target]
    found = invoke(capsys, "evaluate", tmp_path / "a.npz", "--json", *asked)
    assert len(passes) == (2 if target is None else 4)  # the name of a target is looked up in the first block, twice
    headline = found.json["results"][0]["verdict"]["headline"]
    assert headline == verdict_of(p, target=target)["headline"]
