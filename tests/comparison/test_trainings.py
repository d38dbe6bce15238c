"""Several trainings: the interval against scipy and by simulation, and `calattn compare --over-seeds`."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from scipy import stats

import calattn
from calattn.metrics.evaluation import Difference
from calattn.metrics.state import Options
from tests.cli_runner import invoke, predictions, write_npz, write_run

Z = stats.norm.ppf(0.975)


def difference(value: float, *, arm: float = 0.0, a: float = 0.05, **changes) -> Difference:
    fields = {"name": "ece", "a": a, "b": a + value, "difference": value, "p_value": 0.5}
    return Difference(**fields | {"low": value - arm, "high": value + arm} | changes)


def test_without_an_error_of_the_samples_it_is_students_test():
    values = [-0.012, -0.02, -0.004, -0.015]
    found = calattn.over_seeds([difference(value) for value in values])
    known = stats.ttest_1samp(values, 0)
    ends = known.confidence_interval(0.95)
    assert (found.difference, found.low, found.high) == pytest.approx((np.mean(values), ends.low, ends.high))
    assert found.p_value == pytest.approx(known.pvalue)
    assert (found.a, found.b, found.num_seeds) == pytest.approx((0.05, 0.05 + np.mean(values), 4))
    assert (found.std_a, found.std_b) == pytest.approx((0.0, np.std(values, ddof=1)), abs=1e-12)


def test_where_seeds_agree_the_interval_is_that_of_the_samples():
    found = calattn.over_seeds([difference(-0.02, arm=0.01)] * 3)
    assert (found.low, found.high) == pytest.approx((-0.03, -0.01))
    assert found.p_value == pytest.approx(2 * stats.norm.sf(0.02 * Z / 0.01))


def test_both_arms_are_added_in_quadrature_and_p_is_where_the_interval_ends():
    values = (-0.03, -0.02, -0.004)
    found = calattn.over_seeds([difference(value, arm=0.006) for value in values])
    arm = math.hypot(0.006, stats.t.ppf(0.975, 2) * stats.sem(values))
    assert (found.low, found.high) == pytest.approx((np.mean(values) - arm, np.mean(values) + arm))
    level = 1 - found.p_value
    reach = math.hypot(0.006 / Z * stats.norm.ppf((1 + level) / 2), stats.t.ppf((1 + level) / 2, 2) * stats.sem(values))
    assert reach == pytest.approx(-np.mean(values))


def test_the_arms_may_differ():
    skewed = [difference(value, low=value - 0.02, high=value + 0.001) for value in (0.01, 0.0101)]
    found = calattn.over_seeds(skewed)
    assert found.difference - found.low > 2 * (found.high - found.difference)


@pytest.mark.parametrize(("seeds", "noise"), [(3, 1.0), (2, 1.0), (2, 3.2)])
def test_how_often_the_interval_holds_the_truth(seeds, noise):
    """1,000 worlds; `noise` is that of the seeds' mean beside that of the samples. Two seeds held 88 %."""
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 0.01, 1000)  # shared by the seeds of a world
    worlds = 0.03 + samples[:, None] + rng.normal(0, 0.01 * noise * math.sqrt(seeds), (1000, seeds))
    found = [calattn.over_seeds([difference(v, arm=0.01 * Z) for v in values]) for values in worlds]
    held = np.mean([each.low <= 0.03 <= each.high for each in found])
    assert 0.945 <= held <= 0.995


def test_what_is_not_finite_gets_no_interval():
    found = calattn.over_seeds([difference(math.inf), difference(0.1)])
    assert math.isinf(found.difference)
    assert math.isnan(found.low)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [difference(0.1)],
        [difference(0.1), difference(0.1, name="nll")],
        [difference(0.1), difference(0.1, level=0.9)],
        [difference(0.1, options=Options(target=0)), difference(0.1, options=Options(target=1))],
    ],
)
def test_other_than_one_metric_of_several_seeds_is_refused(given):
    with pytest.raises(ValueError, match="one metric, with the same options and at one level, from two or more seeds"):
        calattn.over_seeds(given)


def test_the_reading_is_kept():
    """ECE of P(1) is not the ECE of the predicted class."""
    found = calattn.over_seeds([difference(0.1, options=Options(target=1))] * 2)
    assert str(found).startswith("ECE of P(1) ")


# --- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path):
    """Two methods with three seeds each; the second is sharper, and more so with each seed."""
    made = []
    for seed in (0, 1, 2):
        for name, head, sharpness in (("plain", "none", 1.0), ("ours", "calattn", 1.5 + 0.1 * seed)):
            spec = f"seed: {seed}\nmodel: {{head: {head}}}\n"
            made.append(write_run(tmp_path / f"{name}-seed{seed}", sharpness=sharpness, spec=spec))
    return made


def test_methods_are_compared_seed_by_seed(capsys, runs):
    result = invoke(capsys, "compare", *runs, "--over-seeds", "--json", "-m", "nll,ece", "--bootstrap", 100)
    assert result.code == 0
    want = [
        calattn.compare(
            predictions(), predictions(sharpness=1.5 + 0.1 * seed), metrics=["nll", "ece"], num_bootstrap=100
        )
        for seed in (0, 1, 2)
    ]
    (found,) = result.json["comparisons"]
    assert (result.json["baseline"]["title"], found["title"]) == ("plain (3 seeds)", "ours (3 seeds)")
    assert [each["seed"] for each in found["runs"]] == [0, 1, 2]
    for metric in ("nll", "ece"):
        joined = calattn.over_seeds([each[metric] for each in want])
        for field in ("a", "b", "difference", "low", "high", "p_value", "std_a", "std_b", "num_seeds"):
            assert found["differences"][metric][field] == pytest.approx(getattr(joined, field)), (metric, field)


def test_the_table_has_means_and_deviations(capsys, runs, tmp_path):
    result = invoke(
        capsys, "compare", *runs, "--over-seeds", "-m", "nll", "--write", tmp_path / "t.csv", "--bootstrap", 50
    )
    assert "plain (3 seeds)" in result.out
    assert "± 0.000" in result.out, "the baseline's seeds are the same predictions here"
    first, second = csv.DictReader((tmp_path / "t.csv").open())
    assert float(second["nll_std"]) > float(first["nll_std"]) == 0
    assert second["nll_seeds"] == "3"


def test_after_scaling_each_has_its_own_temperature(capsys, runs):
    result = invoke(capsys, "compare", *runs, "--over-seeds", "--ts", "--json", "-m", "nll", "--bootstrap", 50)
    (found,) = result.json["comparisons"]
    assert found["title"] == "ours + TS (3 seeds)"
    assert len({each["temperature"] for each in found["runs"]}) > 1
    assert abs(found["differences"]["nll"]["difference"]) < 0.02, "sharpness is what a temperature takes away"


def calibrated(capsys, runs, tmp_path, *arguments):
    made = [tmp_path / f"{run.name}-calibrated" for run in runs]
    for run, out in zip(runs, made, strict=True):
        assert invoke(capsys, "calibrate", run, *arguments, "--bootstrap", 50, "--out", out).code == 0
    return made


def test_calibrated_runs_are_compared_seed_by_seed(capsys, runs, tmp_path):
    """As --ts does, which fits the same temperatures on its way."""
    made = calibrated(capsys, runs, tmp_path, "--method", "temperature")
    common = ("--over-seeds", "--json", "-m", "nll", "--bootstrap", 50)
    found = invoke(capsys, "compare", *made, *common)
    assert found.code == 0, found.err
    want = invoke(capsys, "compare", *runs, *common, "--ts")
    (ours,), (theirs,) = (each.json["comparisons"] for each in (found, want))
    assert ours["differences"]["nll"] == theirs["differences"]["nll"]
    assert [each["seed"] for each in ours["runs"]] == [0, 1, 2]
    before = invoke(capsys, "compare", *runs[::2], *made[::2], *common)
    assert (before.json["baseline"]["title"], len(before.json["comparisons"])) == ("plain (3 seeds)", 1)


def test_calibrators_are_methods(capsys, runs, tmp_path):
    plain = runs[::2]
    made = calibrated(capsys, plain, tmp_path, "--method", "temperature,vector")
    folders = [each / name for name in ("temperature", "vector") for each in made]
    found = invoke(capsys, "compare", *folders, "--over-seeds", "--json", "-m", "nll", "--bootstrap", 50)
    assert found.code == 0, found.err
    assert found.json["comparisons"][0]["differences"]["nll"]["num_seeds"] == 3
    titles = (found.json["baseline"]["title"], found.json["comparisons"][0]["title"])
    assert titles == ("plain/temperature (3 seeds)", "plain/vector (3 seeds)")
    twice = invoke(capsys, "compare", *folders, folders[0], "--over-seeds")
    assert twice.code == 2
    assert "are the same method with the same seed 0" in " ".join(twice.err.split())


def test_calibrated_runs_are_found_from_where_one_stands(capsys, runs, tmp_path, monkeypatch):
    made = calibrated(capsys, runs[:4:2], tmp_path, "--method", "temperature,vector")
    for place, named in (
        (made[0] / "vector", "."),
        (made[0] / "vector", "predictions"),
        (made[0] / "vector" / "predictions", ".."),
    ):
        monkeypatch.chdir(place)
        found = invoke(
            capsys, "compare", *runs[:4:2], named, made[1] / "vector", "--over-seeds", "-m", "nll", "--bootstrap", 50
        )
        assert found.code == 0, (named, found.err)


@pytest.mark.parametrize("given", [("--validation",), ("--floor", 1e-6), ("--split", "validation")])
def test_what_was_fitted_or_judged_otherwise_is_no_seed_of_the_same_method(capsys, runs, tmp_path, given):
    plain = runs[:4:2]
    if given == ("--validation",):
        given = ("--validation", write_npz(tmp_path / "other.npz", predictions(seed=5)))
    one, two = (tmp_path / "one", tmp_path / "two")
    common = ("--method", "temperature", "--bootstrap", 50, "--out")
    assert invoke(capsys, "calibrate", plain[0], *common, one).code == 0
    assert invoke(capsys, "calibrate", plain[1], *given, *common, two).code == 0
    found = invoke(capsys, "compare", *plain, one, two, "--over-seeds", "-m", "nll", "--bootstrap", 50)
    assert found.code == 2, found.out


def test_methods_whose_runs_have_like_names_are_told_apart(capsys, tmp_path):
    """Runs that are numbered through: what they have in common is the same for all methods."""
    specs = [f"seed: {seed}\nmodel: {{head: {head}}}\n" for head in ("none", "calattn", "dirichlet") for seed in (0, 1)]
    runs = [write_run(tmp_path / f"x{i}", spec=spec, sharpness=1 + i / 10) for i, spec in enumerate(specs)]
    found = invoke(capsys, "compare", *runs, "--over-seeds", "--json", "-m", "nll", "--bootstrap", 50).json
    titles = [found["baseline"]["title"], *(each["title"] for each in found["comparisons"])]
    assert titles == ["x (2 seeds)", "x no. 2 (2 seeds)", "x no. 3 (2 seeds)"]
    assert len({each["differences"]["nll"]["b"] for each in found["comparisons"]}) == 2


def test_what_was_calibrated_from_a_file_has_no_seed(capsys, runs, tmp_path):
    out = tmp_path / "of a file"
    file = write_npz(tmp_path / "a.npz", predictions())
    assert invoke(capsys, "calibrate", file, "--method", "temperature", "--bootstrap", 50, "--out", out).code == 0
    found = invoke(capsys, "compare", runs[0], out, "--over-seeds")
    assert found.code == 2
    assert "does not say which training it is of" in " ".join(found.err.split())
    (out / "report.json").write_text('{"command": "calibrate", "methods": []}')
    assert "does not say which training it is of" in " ".join(
        invoke(capsys, "compare", runs[0], out, "--over-seeds").err.split()
    )


def test_seeds_that_one_side_lacks_are_left_out_and_said(capsys, runs):
    result = invoke(capsys, "compare", *runs[:-1], "--over-seeds", "--json", "-m", "nll", "--bootstrap", 50)
    assert result.json["comparisons"][0]["differences"]["nll"]["num_seeds"] == 2
    assert "plain (3 seeds): left out, because the other side has no such seed: 2" in result.err


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (lambda runs, _: runs[:3], "have 1 seed in common (0, 1 and 0); a comparison over seeds needs at least 2"),
        (lambda runs, _: runs[::2], "all of these runs are of one method"),
        (lambda runs, file: [runs[0], file], "is no run folder; --over-seeds needs them"),
        (lambda runs, file: [*runs, "--html", file.with_suffix(".html")], "--html shows single runs"),
    ],
)
def test_what_cannot_be_compared(capsys, runs, tmp_path, take, message):
    file = write_npz(tmp_path / "a.npz", predictions())
    result = invoke(capsys, "compare", *take(runs, file), "--over-seeds")
    assert result.code == 2
    assert message in result.err


def test_the_same_spec_and_seed_twice(capsys, runs, tmp_path):
    again = write_run(tmp_path / "again", spec="seed: 0\nmodel: {head: none}\n")
    result = invoke(capsys, "compare", *runs, again, "--over-seeds")
    assert result.code == 2
    assert "are the same method with the same seed 0; name one of them" in result.err


def test_single_runs_say_what_their_intervals_do_not_cover(capsys, runs, tmp_path):
    plain, ours, other = runs[0], runs[1], runs[2]
    two = invoke(capsys, "compare", plain, ours, "--json", "-m", "nll", "--bootstrap", 50)
    assert "one training each" in two.json["remark"]
    assert two.json["remark"] in " ".join(two.err.split())
    seeds = invoke(capsys, "compare", plain, other, "-m", "nll", "--bootstrap", 50, "--write", tmp_path / "t.md")
    assert "plain-seed0 (seed 0) and plain-seed1 (seed 1) are trainings of one method" in " ".join(seeds.err.split())
    assert "are trainings of one method" in (tmp_path / "t.md").read_text()
    again = write_run(tmp_path / "again", spec="seed: 0\nmodel: {head: none}\n")
    same = invoke(capsys, "compare", plain, again, "--json", "-m", "nll", "--bootstrap", 50)
    assert "plain-seed0 (seed 0) and again (seed 0) are trainings of one method" in same.json["remark"]
    files = [write_npz(tmp_path / f"{name}.npz", predictions()) for name in "ab"]
    assert invoke(capsys, "compare", *files, "--json", "-m", "nll", "--bootstrap", 50).json["remark"] is None


@pytest.mark.parametrize(("places", "said"), [((0, 2), True), ((0, 1), False)])
def test_a_leaderboard_says_which_rows_are_one_method(capsys, runs, tmp_path, places, said):
    chosen = [runs[place] for place in places]
    assert invoke(capsys, "report", *chosen, "--out", tmp_path / "page", "--bootstrap", 0).code == 0
    told = (
        "are trainings of one method: what they differ by is another training"
        in (tmp_path / "page/index.html").read_text()
    )
    assert told is said
