"""Groups and clusters: against evaluations of the parts, brute-force resampling, simulation, and from the command line."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from benchmarks.coverage import clustered_coverage, draw_clusters
from calattn import Predictions, compare, evaluate
from calattn.metrics.groups import Labelling, _shuffles, holm
from calattn.metrics.resampling.weights import MOST_MULTINOMIAL, Weights
from tests.cli_runner import invoke


def cameras(n: int = 1500, seed: int = 0, spoilt: str = "") -> tuple[Predictions, np.ndarray]:
    """A calibrated model and three cameras, the last with few samples; `spoilt` is over-confident."""
    g = torch.Generator().manual_seed(seed)
    names = np.where(np.arange(n) < n // 25, "few", np.where(np.arange(n) % 2, "left", "right"))
    logits = 2.5 * torch.randn(n, 4, generator=g)
    labels = torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
    scale = torch.from_numpy(np.where(names == spoilt, 0.4, 1.0)).float()
    return Predictions(logits=logits, labels=labels, scale=scale), names


def test_a_group_has_the_numbers_of_its_samples_and_the_worst_comes_first():
    p, names = cameras(spoilt="left")
    found = evaluate(p, groups=names, num_bootstrap=60)
    assert next(iter(found.groups)) == "left"
    assert set(found.groups) == {"few", "left", "right"}
    plain = evaluate(p, num_bootstrap=60, generator=None)
    assert found.as_dict() == plain.as_dict()
    for name, group in found.groups.items():
        alone = evaluate(p.select(torch.from_numpy(names == name)), num_bootstrap=0)
        for metric, row in alone.rows.items():
            assert group.evaluation[metric].value == pytest.approx(row.value, nan_ok=True), metric
    assert found.groups["left"].evaluation["ece"].low is not None
    assert "left: 720 samples" in str(found)
    assert evaluate(p, groups=names, num_bootstrap=0).groups["left"].differences == {}


def test_a_spoilt_group_is_found_and_a_small_one_is_not_blamed_for_its_size():
    """40 samples of a calibrated model have an ECE three times as high as 1,500: chance, not the camera."""
    p, names = cameras(spoilt="left")
    apart = evaluate(p, groups=names, num_bootstrap=200, metrics=["ece", "accuracy"]).groups
    assert [apart["left"].differences[name].mark for name in ("ece", "accuracy")] == ["worse", ""]
    fair, names = cameras()
    found = evaluate(fair, groups=names, num_bootstrap=200, metrics="ece")
    few = found.groups["few"].differences["ece"]
    assert few.value > 2 * found["ece"].value
    assert few.expected > 2 * found["ece"].value
    assert few.mark == ""


def test_random_groups_are_seldom_told_apart():
    """Holm keeps the chance of any false finding among the groups at 5 %: 60 worlds, three metrics."""
    found = dict.fromkeys(("ece", "accuracy", "aurc"), 0)
    for seed in range(60):
        p, names = cameras(300, seed)
        groups = evaluate(p, groups=names, num_bootstrap=120, metrics=list(found)).groups.values()
        for metric in found:
            found[metric] += any(each.differences[metric].mark for each in groups)
    assert max(found.values()) <= 8, found


def test_whole_clusters_change_their_group_or_names_move_within_clusters():
    clusters = torch.arange(12).repeat_interleave(3)
    nested = Labelling.of((clusters % 2).numpy(), 36, "groups")
    as_they_are, *drawn = _shuffles(nested, clusters, 20, torch.Generator().manual_seed(0))
    assert as_they_are.tolist() == nested.codes.tolist()
    for each in drawn:
        assert bool((each.view(12, 3) == each.view(12, 3)[:, :1]).all())
        assert int(each.sum()) == 18
    crossing = Labelling.of(np.tile([0, 1, 2], 12), 36, "groups")
    for each in list(_shuffles(crossing, clusters, 20, torch.Generator().manual_seed(0)))[1:]:
        assert each.view(12, 3).sort(dim=1).values.tolist() == [[0, 1, 2]] * 12
    assert len({tuple(each.tolist()) for each in drawn}) > 15


def test_holm_by_hand():
    assert holm([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


# --- clusters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [40, MOST_MULTINOMIAL + 10])
def test_the_rows_of_a_cluster_have_one_weight(units):
    clusters = torch.arange(units).repeat_interleave(2).flip(0)
    weights = Weights(2 * units, 0, 0, 16, clusters)
    rows = weights.rows(0, 60)
    assert torch.equal(rows[::2], rows[1::2])
    assert rows.shape == (60, 16)
    assert float(weights.rows(0, 2 * units).mean()) == pytest.approx(1, abs=0.05)


def test_the_interval_is_that_of_a_loop_over_drawn_clusters():
    p, of = draw_clusters(80, 10, 0.8, torch.Generator().manual_seed(1))
    found = evaluate(p, clusters=of, metrics=["accuracy", "nll"])
    correct = (p.logits.argmax(1) == p.labels).double().view(80, 10).mean(1).numpy()
    losses = torch.nn.functional.cross_entropy(p.logits, p.labels, reduction="none").view(80, 10).mean(1).numpy()
    random = np.random.default_rng(0)
    rows = random.integers(80, size=(2000, 80))
    for name, parts in (("accuracy", correct), ("nll", losses)):
        low, high = np.quantile(parts[rows].mean(1), [0.025, 0.975])
        assert found[name].high - found[name].low == pytest.approx(high - low, rel=0.1), name
        alone = evaluate(p, metrics=name)[name]
        assert found[name].high - found[name].low > 1.05 * (alone.high - alone.low), name
    assert found.num_clusters == 80
    assert "800 samples in 80 clusters" in str(found)
    single = evaluate(p, clusters=torch.arange(800), metrics="nll")["nll"]
    alone = evaluate(p, metrics="nll")["nll"]
    assert single.high - single.low == pytest.approx(alone.high - alone.low, rel=0.02)


def test_paired_differences_of_clusters():
    p, of = draw_clusters(60, 10, 0.8, torch.Generator().manual_seed(1))
    other = p.replace(scale=torch.full((len(p),), 1.2))
    whole, rows = (compare(p, other, metrics="nll", clusters=each)["nll"] for each in (of, None))
    assert whole.difference == rows.difference
    assert whole.high - whole.low > 1.1 * (rows.high - rows.low)
    assert compare([p], [other], metrics="nll", clusters=of.tolist())["nll"].low == pytest.approx(whole.low)


def test_intervals_of_clustered_rows_hold_what_they_promise():
    """100 clusters of 10, 150 worlds; `benchmarks/coverage.py` has the long form, with fewer and more clusters."""
    names = ("accuracy", "nll", "brier", "ece", "aurc")
    aware, not_aware = (
        clustered_coverage(100, 10, 0.8, 150, seed=3, aware=each, resamples=200, metrics=names)
        for each in (True, False)
    )
    assert min(aware[name]["coverage"] for name in names) >= 0.88, aware
    assert max(not_aware[name]["coverage"] for name in ("nll", "brier")) <= 0.87, not_aware


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": ["a"] * 9}, r"groups must be one value for each of 10 samples, got \[9\]"),
        ({"clusters": [0.0] * 9 + [float("nan")]}, r"clusters\[9\] is missing"),
        ({"groups": [["a"]] * 10}, r"got \[10, 1\]"),
    ],
)
def test_what_is_no_labelling_is_named(given, message):
    p = Predictions(logits=torch.randn(10, 3), labels=torch.zeros(10, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        evaluate(p, **given, num_bootstrap=5)
    with pytest.raises(ValueError, match="groups needs predictions in memory"):
        evaluate([p], groups=["a"] * 10, num_bootstrap=5)


def test_too_many_groups_are_refused():
    p = Predictions(logits=torch.randn(300, 3), labels=torch.zeros(300, dtype=torch.int64))
    with pytest.raises(ValueError, match="groups has 300 different values, and 256 are the most"):
        evaluate(p, groups=list(range(300)), num_bootstrap=5)


# --- the command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pixels(tmp_path):
    p, of = draw_clusters(40, 6, 0.8, torch.Generator().manual_seed(1))
    path, kinds = tmp_path / "pixels.csv", ["[b]left", "right"]
    header = ",".join(f"logit_{k}" for k in range(5))
    rows = [
        ",".join([*(f"{x:.5f}" for x in logits), str(label), kinds[int(c) % 2], str(int(c))])
        for logits, label, c in zip(p.logits.tolist(), p.labels.tolist(), of, strict=True)
    ]
    path.write_text("\n".join([f"{header},label,camera,image", *rows]) + "\n")
    return path, p, of


def test_columns_of_a_file_are_groups_and_clusters(capsys, tmp_path, pixels):
    path, _, of = pixels
    flags = ("evaluate", path, "--group", "camera", "--cluster", "image", "--bootstrap", 40)
    (found,) = invoke(capsys, *flags, "--json").json["results"]
    from calattn import read_predictions

    named = [("[b]left", "right")[int(c) % 2] for c in of]
    want = evaluate(read_predictions(path), groups=named, clusters=of, num_bootstrap=40)
    assert found["clusters"] == 40
    assert [each["group"] for each in found["groups"]] == list(want.groups)
    for each in found["groups"]:
        group = want.groups[each["group"]]
        assert each["samples"] == 120
        assert each["metrics"]["ece"]["low"] == group.evaluation["ece"].low
        assert each["metrics"]["ece"]["p_value"] == group.differences["ece"].p_value
    for suffix in ("csv", "md", "tex"):
        assert invoke(capsys, *flags, "--write", tmp_path / f"t.{suffix}").code == 0
        assert "left" in (tmp_path / f"t.{suffix}").read_text()
    records = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert {record["group"] for record in records} == {"[b]left", "right"}
    assert "[b]left" in invoke(capsys, *flags).out


def test_rows_left_out_by_their_label_are_left_out_of_the_columns(capsys, pixels):
    path, _, _ = pixels
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(line.replace(",1,", ",-1,", 1) for line in lines[1:])]) + "\n")
    (found,) = invoke(
        capsys, "evaluate", path, "--group", "camera", "--ignore-label", "-1", "--bootstrap", 0, "--json"
    ).json["results"]
    assert sum(each["samples"] for each in found["groups"]) == found["samples"] < 240


def test_a_column_that_is_not_there_is_named(capsys, pixels):
    assert (
        "there is no column 'camra'; did you mean 'camera'?"
        in invoke(capsys, "evaluate", pixels[0], "--group", "camra").err
    )


def test_a_comparison_takes_clusters(capsys, pixels):
    path = pixels[0]
    other = path.with_name("other.csv")
    other.write_text(path.read_text().replace("-", "", 400).replace(",left", ",left"))
    whole, rows = (
        invoke(capsys, "compare", path, other, "-m", "nll", *flags, "--json").json["comparisons"][0]["differences"][
            "nll"
        ]
        for flags in (("--cluster", "image"), ())
    )
    assert whole["difference"] == rows["difference"]
    assert whole["high"] - whole["low"] != rows["high"] - rows["low"]
