"""A metric that somebody registers gets what the built-in ones get: intervals, paired differences, pages."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from calattn import Predictions, compare, evaluate
from calattn.metrics import METRICS, MetricState, evaluation, parts, ranks
from calattn.metrics.state import Metric
from tests.cli_runner import document_in, invoke, predictions, write_npz, write_run
from tests.samples import logits_and_labels

# Each built-in metric that has an interval once more, as somebody else would write it.
TWINS = {name: dataclasses.replace(metric, title=f"own {name}") for name, metric in METRICS.items() if metric.interval}


def overconfident(state: MetricState) -> float:
    """Σ |B|/N max(gap, 0)."""
    return float((state.bins.count * state.bins.gap.clamp_min(0)).sum() / state.bins.count.sum())


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(METRICS, "_items", dict(METRICS._items))
    return METRICS


@pytest.fixture
def overconfidence(registry):
    return registry.add("overconfidence", Metric("overconf", ("bins",), overconfident, "lower"))


@pytest.fixture
def twins(registry):
    for name, metric in TWINS.items():
        registry.add(f"own_{name}", metric)
    return [f"own_{name}" for name in TWINS]


def pair(n: int = 1500) -> tuple[Predictions, Predictions]:
    logits, labels = logits_and_labels("ten_classes")
    logits, labels = (logits[:n] / 0.25).round() * 0.25, labels[:n]  # with ties
    return Predictions(logits=logits, labels=labels), Predictions(logits=1.3 * logits, labels=labels)


def near(name: str) -> float:
    """How far own replicates may be from the built-in ones, which take kernel ECE on a coarse grid."""
    return 1e-3 if name == "kernel_ece" else 1e-4


def blocks(p: Predictions) -> list[Predictions]:
    return [p.select(part) for part in torch.arange(len(p)).split(400)]


@pytest.mark.parametrize("large", [False, True])
def test_own_metrics_have_the_intervals_of_their_built_in_twins(twins, monkeypatch, large):
    if large:
        monkeypatch.setattr(parts, "IN_MEMORY", 1000)
    a, _ = pair()
    names = [*TWINS, *twins]
    found = evaluate(blocks(a) if large else a, metrics=names, num_bootstrap=60)
    for name in TWINS:
        own, built_in = found[f"own_{name}"], found[name]
        assert own.value == built_in.value
        assert (own.low, own.high) == pytest.approx((built_in.low, built_in.high), abs=near(name)), name


@pytest.mark.parametrize("large", [False, True])
def test_own_metrics_are_compared_like_their_built_in_twins(twins, monkeypatch, large):
    if large:
        monkeypatch.setattr(parts, "IN_MEMORY", 1000)
    a, b = map(blocks, pair()) if large else pair()
    found = compare(a, b, metrics=[*TWINS, *twins], num_bootstrap=60)
    for name in TWINS:
        own, built_in = found[f"own_{name}"], found[name]
        assert own.difference == built_in.difference, name
        assert own.p_value == pytest.approx(built_in.p_value, abs=0.07), name  # two resamples of 60
        assert (own.low, own.high) == pytest.approx((built_in.low, built_in.high), abs=near(name)), name


def test_alone_and_among_others_an_own_metric_has_the_same_interval(twins):
    a, _ = pair(400)
    both = evaluate(a, metrics=twins, num_bootstrap=40)
    for name in twins:
        assert evaluate(a, metrics=name, num_bootstrap=40).as_dict()[name] == pytest.approx(
            both.as_dict()[name], abs=1e-6
        )


def test_a_metric_of_several_parts_reads_them_of_one_resample(registry):
    """Σ over classes, over bins and over ranks all count the samples: read together they agree in every resample."""

    seen = []

    def disagreement(state: MetricState) -> float:
        counts = [
            float(state.scores.sums[0]),
            float(state.bins.count.sum()),
            state.grid.num_samples,
            state.ranks.num_samples,
            state.class_bins().num_samples,
        ]
        right = [float(each.correct.sum()) for each in (state.bins, state.ranks.groups())]
        seen.append(max(counts) - min(counts) + abs(right[0] - right[1]) + abs(right[0] - float(state.scores.sums[1])))
        return seen[-1]

    parts = ("scores", "bins", "grid", "ranks", "classes")
    registry.add("disagreement", Metric("disagreement", parts, disagreement, "lower"))
    evaluate(pair(500)[0], metrics="disagreement", num_bootstrap=20)
    assert (len(seen), max(seen)) == (21, pytest.approx(0, abs=1e-3))


@pytest.mark.parametrize("large", [False, True])
def test_an_infinite_nll_is_infinite_in_the_resamples_that_hold_it(registry, monkeypatch, large):
    if large:
        monkeypatch.setattr(parts, "IN_MEMORY", 10)
    registry.add("perplexity", Metric("perplexity", ("scores",), lambda s: 2 ** s.scores.read()["nll"], "lower"))
    probs = torch.tensor([[0.9, 0.1]] * 19 + [[1.0, 0.0]])
    found = evaluate(Predictions.from_probs(probs, torch.tensor([0] * 19 + [1])), metrics="perplexity")["perplexity"]
    assert (found.value, found.high) == (float("inf"), float("inf"))
    assert found.low == pytest.approx(2 ** -torch.tensor(0.9).log().item())


@pytest.mark.usefixtures("overconfidence")
def test_the_command_compares_and_evaluates_it(capsys, tmp_path):
    files = [write_npz(tmp_path / f"{i}.npz", predictions(sharpness=1.0 + i)) for i in range(2)]
    names = ("-m", "overconfidence,ece")
    found = invoke(capsys, "compare", *files, *names, "--json").json["comparisons"][0]["differences"]
    assert set(found) == {"overconfidence", "ece"}
    assert found["overconfidence"]["low"] < found["overconfidence"]["difference"] < found["overconfidence"]["high"]
    runs = []
    for place, head in enumerate(("none", "calattn")):
        for seed in (0, 1):
            spec = f"seed: {seed}\nmodel: {{head: {head}}}\n"
            runs.append(write_run(tmp_path / f"{head}-{seed}", spec=spec, sharpness=1 + place + seed / 10))
    found = invoke(capsys, "compare", *runs, "--over-seeds", *names, "--json").json["comparisons"][0]["differences"]
    assert found["overconfidence"]["low"] < found["overconfidence"]["difference"] < found["overconfidence"]["high"]
    shown = invoke(capsys, "evaluate", files[0], *names, "--json").json["results"][0]["metrics"]["overconfidence"]
    assert shown["low"] < shown["value"] < shown["high"]


def test_what_cannot_be_resampled_is_named(registry):
    registry.add(
        "worst_class", Metric("worst class", ("classes",), lambda s: float(s.class_bins().per_class().max()), "lower")
    )
    a, b = pair(600)
    with pytest.warns(evaluation.NotComparedWarning, match="worst class is not compared: .* read only once"):
        assert list(compare(iter([a]), iter([b]), metrics=["worst_class", "ece"], num_bootstrap=40)) == ["ece"]
    sure = Predictions(logits=10 * torch.eye(3).repeat(10, 1), labels=torch.arange(3).repeat(10))
    with pytest.warns(
        evaluation.NotComparedWarning, match=r"confidence of errors at p ≥ 0.9 is not compared: .* fewer than 10 errors"
    ):
        compare(sure, sure, metrics="high_confidence_error_confidence", num_bootstrap=40)
    found = evaluate(iter([a]), metrics=["worst_class", "ece"], num_bootstrap=40)
    assert (found["worst_class"].low, found["ece"].low is None) == (None, False)


@pytest.mark.parametrize("beside", [[], ["ece"], ["adaptive_ece", "classwise_ece", "smooth_ece"]])
@pytest.mark.parametrize(
    ("part", "read"),
    [
        ("bins", lambda s: s.bins.error()),
        ("ranks", lambda s: ranks.aurc_of(s.ranks.groups())),
        ("grid", lambda s: s.smooth_error()),
        ("classes", lambda s: s.class_bins().error()),
    ],
)
def test_a_part_that_is_read_and_not_named_is_an_error_whatever_else_is_asked(registry, beside, part, read):
    registry.add("m", Metric("m", ("scores",), read, "lower"))
    with pytest.raises(ValueError, match=f"metric 'm' reads '{part}' of the state"):
        evaluate(pair(50)[0], metrics=["m", *beside], num_bootstrap=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parts": ("bin",)}, "parts of metric 'm' names 'bin'; there are scores, bins"),
        ({"parts": "bins"}, "must be a tuple"),
        ({"parts": ()}, "must be a tuple"),
        ({"better": "low"}, 'must be "lower" or "higher", got \'low\''),
        ({"read": 0.5}, "read of metric 'm' must be a function"),
        ({"limits": (1.0, 0.0)}, "limits of metric 'm'"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_a_metric_is_checked_where_it_is_made(change, words):
    right = {"title": "m", "parts": ("bins",), "read": overconfident, "better": "lower"}
    with pytest.raises(ValueError, match=words):
        Metric(**right | change)


def test_pages_show_it_and_define_it_in_its_own_words(capsys, registry, tmp_path):
    words = "Mean gap of the bins that are too sure. {braces} stay."
    registry.add("overconfidence", Metric("overconf", ("bins",), overconfident, "lower", text=words))
    registry.add("unexplained", Metric("unexplained", ("bins",), overconfident, "lower"))
    file, page = write_npz(tmp_path / "a.npz", predictions()), tmp_path / "a.html"
    assert invoke(capsys, "evaluate", file, "-m", "overconfidence,ece", "--html", page).code == 0
    defined = dict(document_in(page)["methods"])
    assert defined["overconf"] == words
    assert defined["unexplained"] == "A metric added under the name unexplained; lower is better."
    assert "overconf" in [each["title"] for each in document_in(page)["subjects"][0]["metrics"]]
    # and where nobody asks for it
    assert invoke(capsys, "evaluate", file, "-m", "ece", "--html", page).code == 0
    run = write_run(tmp_path / "run")
    assert invoke(capsys, "report", run, "--out", tmp_path / "report").code == 0
