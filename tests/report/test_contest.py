"""The ranking says in words what the paired differences say in numbers."""

from __future__ import annotations

import dataclasses
import functools
import io
import math

import pytest
from rich.console import Console

from calattn.metrics.evaluation import Difference
from calattn.report.contest import ranking_table, words_of_differences


def between(name: str, a: float, b: float, half: float) -> Difference:
    d = b - a
    return Difference(name=name, a=a, b=b, difference=d, low=d - half, high=d + half, p_value=0.01)


nll, ece = (functools.partial(between, name) for name in ("nll", "ece"))


def ranked(before: float, values: dict[str, float], half: float = 0.1):
    """Differences of made-up NLLs, best first, all with the same half-width."""
    first = next(iter(values.values()))
    own = {name: {"nll": nll(before, value, half), "ece": ece(0.1, 0.1, half)} for name, value in values.items()}
    rest = {name: {"nll": nll(first, value, half)} for name, value in list(values.items())[1:]}
    for differences in rest.values():
        differences["ece"] = ece(0.02, 0.02, 0.01)
    return own, rest


def test_the_winner_and_those_that_cannot_be_told_from_it():
    own, rest = ranked(2.0, {"a": 1.0, "b": 1.05, "c": 1.5})
    lines = words_of_differences("a", own, rest, level=0.95)
    assert lines[0] == "best by NLL: a, 1.000 nats; as good, no clear difference in NLL (paired 95 % interval): b"
    assert "a against as it is: NLL falls by 1.000 nats [0.900, 1.100]: better, more than chance" in lines
    assert not any("does not improve" in line for line in lines)


def test_a_difference_too_small_to_print_is_none_and_speed_is_told():
    own, rest = ranked(2.0, {"a": 1.0, "b": 1.0004, "c": 1.0006}, half=1e-5)
    line = words_of_differences("a", own, rest, level=0.95, seconds={"a": 4.7, "b": 0.1, "c": 0.1})[0]
    assert line.endswith("as good, no clear difference in NLL (paired 95 % interval): b (47 × faster)")


def test_a_few_huge_losses_do_not_make_a_method_as_good():
    """Their interval holds zero: resamples without them say that it is better."""
    own, rest = ranked(2.0, {"a": 0.68, "b": 2350.0, "c": 0.7}, half=5000.0)
    line = words_of_differences("a", own, rest, level=0.95, highest=0.75)[0]
    assert (
        "as good, no clear difference in NLL (paired 95 % interval): c; worse by a few samples with a huge loss: b"
        in line
    )
    own, rest = ranked(2.0, {"a": 0.68, "b": 2350.0}, half=5000.0)
    assert words_of_differences("a", own, rest, level=0.95, highest=0.75)[0].endswith(
        "nats; worse by a few samples with a huge loss: b"
    )


def test_a_clear_winner():
    own, rest = ranked(2.0, {"a": 1.0, "b": 1.2})
    assert words_of_differences("a", own, rest, level=0.95)[0].endswith(
        "every other method is worse by more than chance (paired 95 % interval)"
    )


@pytest.mark.parametrize("before", [1.05, 0.5])
def test_doing_nothing_may_be_as_good(before):
    """It is no advice to do nothing: predictions that `evaluate` calls over-confident may gain less than chance shows."""
    own, rest = ranked(before, {"a": 1.0, "b": 1.2})
    assert words_of_differences("a", own, rest, level=0.95)[1] == "a does not improve NLL by more than chance"
    own["a"]["ece"] = ece(0.1, 0.05, 0.01)
    lines = words_of_differences("a", own, rest, level=0.95)
    assert lines[1] == "a does not improve NLL by more than chance, but it does improve ECE"


def test_infinite_nll_is_no_matter_of_chance():
    """A single label of probability zero is missing from a third of the resamples: the interval may hold zero."""
    infinite = Difference(name="nll", a=1.0, b=math.inf, difference=math.inf, low=-0.1, high=math.inf, p_value=0.4)
    own, rest = ranked(2.0, {"a": 1.0, "b": 1.05})
    rest["b"]["nll"] = infinite
    assert "every other method is worse" in words_of_differences("a", own, rest, level=0.95)[0]
    own, rest = ranked(math.inf, {"a": 1.0, "b": 1.2})
    lines = words_of_differences("a", own, rest, level=0.95)
    assert "as it is, some label has the probability 0" in lines[1]
    own, rest = ranked(2.0, {"a": math.inf})
    assert words_of_differences("a", own, rest, level=0.95)[0].startswith("no method has a finite NLL")


def test_table_has_a_verdict_in_every_cell():
    own, rest = ranked(2.0, {"a": 1.0, "b [2]": 1.05, "c": 2.5})
    text = shown(own, rest, a=0.25)
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if line.count("│") > 5}
    assert "−1.000 better" in rows["a"]
    assert rows["a"].count("leads") == 2
    assert "0.25" in rows["a"]
    assert "+0.050 chance" in rows["b [2]"]
    assert "+0.500 worse" in rows["c"]
    assert "+1.500 worse" in rows["c"]


def shown(own, rest, **seconds: float) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(ranking_table(own, rest, seconds=dict.fromkeys(own, 1.0) | seconds, level=0.95))
    return console.export_text()


def test_rounding_is_no_difference():
    """The last digit of a sum is on one side of zero in every resample: a tie all the same."""
    own, rest = ranked(2.0, {"a": 1.0, "b": 1.0 + 4e-16, "c": 1.5}, half=0.0)
    assert rest["b"]["nll"].low > 0
    lines = words_of_differences("a", own, rest, level=0.95)
    assert lines[0].endswith("as good, no clear difference in NLL (paired 95 % interval): b")
    assert "+0.000 chance" in shown(own, rest)
    own, rest = ranked(1.0 + 4e-16, {"a": 1.0, "b": 1.5}, half=0.0)
    assert any("does not improve NLL by more" in line for line in words_of_differences("a", own, rest, level=0.95))


def test_a_real_difference_never_reads_as_zero():
    own, rest = ranked(1.0001, {"a": 1.0, "b": 1.0002}, half=0.00001)
    rest["b"]["ece"] = ece(0.02, 0.02001, 0.000001)
    text = shown(own, rest)
    assert text.count("<0.001 better") == 1  # a's NLL from as it is
    assert text.count("<0.001 worse") == 2  # b's, from both
    assert "<0.01 worse" in text  # b's ECE from the leader, in points
    assert "0.000 worse" not in text
    assert "0.000 better" not in text
    assert "+0.001 worse" in shown(*ranked(1.0, {"a": 1.00051}, half=0.00001))


def test_two_infinite_ones_are_not_told_apart():
    own, rest = ranked(2.0, {"a": math.inf, "b": math.inf})
    assert math.isnan(rest["b"]["nll"].difference)
    assert "worse by more than chance" not in " ".join(words_of_differences("a", own, rest, level=0.95))


def test_with_few_resamples_nothing_is_told_apart():
    own, rest = ranked(2.0, {"a": 1.0, "b": 1.2})
    own, rest = (
        {k: {m: dataclasses.replace(d, num_bootstrap=20) for m, d in v.items()} for k, v in part.items()}
        for part in (own, rest)
    )
    lines = words_of_differences("a", own, rest, level=0.95)
    few = "too few resamples to tell (at least 39 at 95 %)"
    assert lines[0] == f"best by NLL: a, 1.000 nats; whether others are as good: {few}"
    assert "a against as it is: NLL falls by 1.000 nats [0.900, 1.100]: " + few in lines
    assert not any("chance" in line for line in lines)
