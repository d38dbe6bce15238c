"""`calattn compare` is the paired bootstrap, of the same samples or of none."""

from __future__ import annotations

import csv
import math

import pytest
import torch

import calattn
from calattn.posthoc import TemperatureScaling
from tests.cli_runner import document_in, invoke, predictions, ran, refused, write_npz, write_run


@pytest.fixture
def pair(tmp_path):
    return write_npz(tmp_path / "a.npz", predictions()), write_npz(tmp_path / "b.npz", predictions(sharpness=2.0))


def test_json_is_the_library(capsys, pair):
    result = ran(capsys, "compare", *pair, "--json", "--bootstrap", 200)
    want = calattn.compare(predictions(), predictions(sharpness=2.0), num_bootstrap=200)
    (found,) = result.json["comparisons"]
    assert found["differences"].keys() == want.keys()
    for name, difference in want.items():
        for field in ("a", "b", "difference", "low", "high", "p_value", "significant"):
            asked = getattr(difference, field)
            undefined = isinstance(asked, float) and math.isnan(asked)  # the interval of MCE
            assert found["differences"][name][field] == (None if undefined else pytest.approx(asked))
    assert (result.json["baseline"]["title"], found["title"]) == ("a.npz", "b.npz")


def test_the_table_has_the_numbers_and_one_line_says_what_they_mean(capsys, pair):
    out = invoke(capsys, "compare", *pair, "-m", "ece,accuracy").out
    assert "600 samples" in out
    assert out.endswith("\nb.npz against a.npz: worse in ECE; no clear difference in accuracy.\n")
    assert (out.count("ECE"), out.count("accuracy")) == (2, 2), "in the table and in the line, nowhere else"
    found = invoke(capsys, "compare", *reversed(pair), "-m", "ece", "--json").json["comparisons"][0]
    assert found["differences"]["ece"]["sentence"].startswith("ECE falls by ")
    assert found["summary"] == "a.npz against b.npz: better in ECE."


def test_several_against_the_first(capsys, pair, tmp_path):
    third = write_npz(tmp_path / "c.npz", predictions(sharpness=0.5))
    result = invoke(capsys, "compare", *pair, third, "--json", "-m", "nll", "--bootstrap", 50)
    assert [each["title"] for each in result.json["comparisons"]] == ["b.npz", "c.npz"]
    assert len({each["differences"]["nll"]["a"] for each in result.json["comparisons"]}) == 1


def test_order_is_mended_by_sample_index(capsys, tmp_path):
    order = torch.randperm(600, generator=torch.Generator().manual_seed(2))  # the baseline's need not be sorted either
    a, b = (predictions(sharpness=s, indices=torch.arange(600) * 3).select(order) for s in (1.0, 2.0))
    shuffled = b.select(torch.randperm(600, generator=torch.Generator().manual_seed(1)))
    for name, found in (("a", a), ("b", b), ("shuffled", shuffled)):
        calattn.save_predictions(found, tmp_path / name)
    straight = invoke(capsys, "compare", tmp_path / "a", tmp_path / "b", "--json", "--bootstrap", 50)
    mended = ran(capsys, "compare", tmp_path / "a", tmp_path / "shuffled", "--json", "--bootstrap", 50)
    assert "shuffled was put in the order of a by sample index" in mended.err
    assert mended.json["comparisons"][0]["differences"] == straight.json["comparisons"][0]["differences"]


def test_after_temperature_scaling_each_on_its_own_validation(capsys, tmp_path):
    runs = [write_run(tmp_path / name, sharpness=s) for name, s in (("a", 1.0), ("b", 3.0))]
    result = invoke(capsys, "compare", *runs, "--ts", "--json", "--bootstrap", 50, "-m", "nll")
    temperatures = [
        TemperatureScaling().fit(calattn.load_predictions(run / "predictions" / "validation")).temperature_
        for run in runs
    ]
    assert [result.json["baseline"]["temperature"], result.json["comparisons"][0]["temperature"]] == temperatures
    # The two differ by a factor that the temperature takes out.
    assert result.json["comparisons"][0]["differences"]["nll"]["difference"] == pytest.approx(0, abs=1e-5)


def test_temperature_scaling_of_files_names_what_works(capsys, tmp_path):
    files = [write_npz(tmp_path / f"{name}.npz", predictions(sharpness=s)) for name, s in (("a", 1.0), ("b", 2.0))]
    assert "name them with --validation FILE" in refused(capsys, "compare", *files, "--ts")
    fitted_on = write_npz(tmp_path / "validation.npz", predictions(100))
    both = ("--validation", fitted_on, "--validation", fitted_on)
    scaled = invoke(capsys, "compare", *files, "--ts", *both, "--bootstrap", 50, "-m", "ece", "--json")
    for file in files:
        out = ("--out", file.with_suffix(""))
        ran(capsys, "calibrate", file, "--validation", fitted_on, *out, "--bootstrap", 0)
    folders = [file.with_suffix("") for file in files]
    found = invoke(capsys, "compare", *folders, "--bootstrap", 50, "-m", "ece", "--json")
    assert found.json["comparisons"][0]["differences"] == scaled.json["comparisons"][0]["differences"]
    assert "add --ts" in refused(capsys, "compare", *files, *both)


def test_out(capsys, pair, tmp_path):
    for suffix in ("json", "csv", "md"):
        result = ran(capsys, "compare", *pair, "--json", "-m", "ece", "--write", tmp_path / f"t.{suffix}")
    want = result.json["comparisons"][0]["differences"]["ece"]
    assert (tmp_path / "t.json").read_text() == result.out
    with (tmp_path / "t.csv").open() as table:
        first, row = csv.DictReader(table)
    assert (first["title"], float(first["ece"]), first["ece_difference"]) == ("a.npz", want["a"], "")
    assert float(row["ece_difference"]) == want["difference"]
    text = (tmp_path / "t.md").read_text()
    assert f"- {result.json['comparisons'][0]['summary']}\n" in text
    assert (
        f"| a.npz | {100 * want['a']:.2f} |\n| b.npz | {100 * want['b']:.2f} (+{100 * want['difference']:.2f} [" in text
    )


def test_one_path_is_not_enough(capsys, pair):
    assert "calattn compare A B" in refused(capsys, "compare", pair[0])


def test_with_few_resamples_nothing_is_called_chance(capsys, pair):
    few = ("compare", *pair, "-m", "ece,nll,accuracy", "--bootstrap", 20)
    out = invoke(capsys, *few).out
    assert "chance" not in out
    assert "no clear difference in accuracy; too few resamples to tell (at least 39 at 95 %) in ECE and NLL." in out
    found = invoke(capsys, *few, "--json").json["comparisons"][0]["differences"]["nll"]
    assert found["significant"] is False
    assert found["sentence"].endswith(": too few resamples to tell (at least 39 at 95 %)")


def of_data(path, name, sharpness=1.0):
    return write_run(path, sharpness=sharpness, spec=f"seed: 0\ndata: {{name: '{name}'}}\n")


def test_runs_on_different_data_are_warned_about(capsys, tmp_path):
    a, b = of_data(tmp_path / "a", "imagefolder:/x/pets"), of_data(tmp_path / "b", "imagefolder:/x/odd pets", 2.0)
    few = ("--bootstrap", 50, "-m", "nll")
    found = ran(capsys, "compare", a, b, *few, "--json", "--write", tmp_path / "t.md")
    (text,) = found.json["warnings"]
    assert text.startswith("not the same data: a of imagefolder:/x/pets; b of imagefolder:/x/odd pets.")
    assert text in (tmp_path / "t.md").read_text()
    for pair in ((a, b), (a / "predictions" / "test", b / "predictions" / "test")):
        assert "warning: not the same data" in invoke(capsys, "compare", *pair, *few).err


def test_a_page_of_runs_on_different_data_says_so_at_its_top(capsys, tmp_path):
    """A page is what is passed on, without what was said on stderr."""
    a, b, c = (of_data(tmp_path / name, f"imagefolder:/x/{name}", 1.0 + k) for k, name in enumerate("abc"))
    few, page = ("--bootstrap", 50, "-m", "nll", "--json", "--html", tmp_path / "p.html"), tmp_path / "p.html"
    found = invoke(capsys, "compare", a, b, *few)
    assert found.json["warnings"] == document_in(page)["warnings"]
    assert found.json["warnings"][0].startswith("not the same data: a of imagefolder:/x/a; b of imagefolder:/x/b.")
    found = invoke(capsys, "evaluate", a, b, c, *few)
    assert found.err.count("warning: not the same data") == 1, "three runs, one warning"
    (text,) = document_in(page)["warnings"]
    assert "a of imagefolder:/x/a; b of imagefolder:/x/b; c of imagefolder:/x/c." in text
    assert found.json["warnings"] == [text]
    alone = invoke(capsys, "evaluate", a, *few)
    assert alone.json["warnings"] == document_in(page)["warnings"] == []
    beside = invoke(capsys, "evaluate", a, b, "--bootstrap", 0, "-m", "nll", "--json")
    assert beside.json["warnings"] == [], "side by side, nothing is compared"
    assert "warning" not in beside.err


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("imagefolder:/x/pets", "imagefolder:/x/../x/pets/"), ("digits", "digits"), ("digits", None), (None, None)],
)
def test_the_same_data_or_unknown_data_is_not_warned_about(capsys, tmp_path, ours, theirs):
    runs = []
    for name, data in (("a", ours), ("b", theirs)):
        runs.append(write_run(tmp_path / name) if data is None else of_data(tmp_path / name, data))
    found = invoke(capsys, "compare", *runs, "--bootstrap", 50, "-m", "nll", "--json")
    assert found.json["warnings"] == []
    assert "warning" not in found.err


def test_predictions_of_other_data_are_of_the_data_they_are_named_by(capsys, tmp_path):
    runs = [of_data(tmp_path / "a", "digits"), of_data(tmp_path / "b", "mnist")]
    for run in runs:
        (run / "predictions" / "test").rename(run / "predictions" / "svhn-test")
    found = invoke(capsys, "compare", *runs, "--split", "svhn-test", "--bootstrap", 50, "-m", "nll", "--json")
    assert found.json["warnings"] == []


def test_target_is_that_of_the_library(capsys, pair, tmp_path):
    few = ("--target", 3, "--bootstrap", 100, "-m", "ece,nll")
    found = ran(capsys, "compare", *pair, *few, "--json", "--html", tmp_path / "p.html", "--write", tmp_path / "t.csv")
    want = calattn.compare(
        predictions(), predictions(sharpness=2.0), target=3, num_bootstrap=100, metrics=["ece", "nll"]
    )
    (one,) = found.json["comparisons"]
    assert found.json["target"] == 3
    assert one["differences"]["ece"]["difference"] == want["ece"].difference
    assert one["differences"]["ece"]["sentence"].startswith("ECE of P(3) rises by")
    assert "P(3)" in (tmp_path / "p.html").read_text()
    with (tmp_path / "t.csv").open() as table:
        assert [row["target"] for row in csv.DictReader(table)] == ["3", "3"]
    out = invoke(capsys, "compare", *pair, *few).out
    assert out.count("ECE of P(3)") == 2  # the table and the summary
    assert invoke(capsys, "compare", *pair, "--json", "--bootstrap", 50, "-m", "nll").json["target"] is None
    assert "fraud" in refused(capsys, "compare", *pair, "--target", "fraud")


def test_target_over_seeds(capsys, tmp_path):
    runs = two_methods(tmp_path)
    found = invoke(capsys, "compare", *runs, "--over-seeds", "--target", 3, "--bootstrap", 50, "-m", "ece", "--json")
    assert found.json["comparisons"][0]["differences"]["ece"]["sentence"].startswith("ECE of P(3)")


@pytest.mark.parametrize("flags", [(), ("--target", "1")])
def test_a_metric_that_is_dropped_is_named_though_nobody_named_it(capsys, tmp_path, flags):
    files = [write_npz(tmp_path / f"{s}.npz", predictions(sharpness=s)) for s in (0.3, 0.4)]
    found = invoke(capsys, "compare", *files, "--bootstrap", 50, "--json", *flags)
    dropped = "high_confidence_error_confidence"
    assert dropped not in found.json["comparisons"][0]["differences"]
    assert ("confidence of errors at p ≥ 0.9 is not compared: there are fewer than" in found.err) == (not flags)


def test_a_metric_that_has_no_resamples_leaves_nothing_to_compare(capsys, tmp_path):
    sure = calattn.Predictions(logits=10 * torch.eye(3).repeat(10, 1), labels=torch.arange(3).repeat(10))
    path = write_npz(tmp_path / "sure.npz", sure)
    found = invoke(capsys, "compare", path, path, "-m", "high_confidence_error_confidence", "--json")
    assert (found.code, found.json["target"], found.json["comparisons"][0]["differences"]) == (0, None, {})


def two_methods(tmp_path, *, sharpness=(1.0, 2.0), step=0.1):
    """Runs without and with CalAttn of two seeds each, the second one sharper by `step`."""
    return [
        write_run(
            tmp_path / f"{head}-{seed}", spec=f"seed: {seed}\nmodel: {{head: {head}}}\n", sharpness=first + step * seed
        )
        for head, first in zip(("none", "calattn"), sharpness, strict=True)
        for seed in (0, 1)
    ]


def test_the_markdown_of_methods_has_what_the_console_has(capsys, tmp_path):
    runs = two_methods(tmp_path)
    out = tmp_path / "seeds.md"
    arguments = ("compare", *runs, "--over-seeds", "--bootstrap", 50, "-m", "ece,nll")
    shown = invoke(capsys, *arguments, "--write", out).out
    _, _, first, second = (line.strip("|").split("|")[1:] for line in out.read_text().splitlines()[:4])
    for a, b in zip(first, second, strict=True):
        value, _, difference = b.strip().replace("**", "").partition(" (")
        assert a.count(" ± ") == value.count(" ± ") == 1
        for cell in (a.strip(), value, difference.split()[0]):
            assert cell in shown
    assert (
        "Mean ± standard deviation over seeds; 95 % intervals cover other trainings and other samples"
        in out.read_text()
    )
    assert "Paired" not in out.read_text()


def test_a_metric_that_one_seed_lacks_is_left_out_and_named(capsys, tmp_path):
    """Resamples of few confident errors say nothing: the first seed's have too few of them, the second's do not."""
    runs = two_methods(tmp_path, sharpness=(0.4, 0.5), step=2)
    names = "high_confidence_error_confidence,ece"
    found = invoke(capsys, "compare", *runs, "--over-seeds", "--bootstrap", 50, "-m", names, "--json")
    assert (found.code, list(found.json["comparisons"][0]["differences"])) == (0, ["ece"])
    assert "high_confidence_error_confidence is left out: " in " ".join(found.err.split())


def test_a_metric_that_one_of_several_lacks_is_a_dash_there(capsys, tmp_path):
    a, b, c = (write_npz(tmp_path / f"{s}.npz", predictions(sharpness=s)) for s in (2.0, 0.3, 2.5))
    out = tmp_path / "t.md"
    found = invoke(
        capsys, "compare", a, b, c, "--bootstrap", 50, "-m", "high_confidence_error_confidence", "--write", out
    )
    assert (found.code, "is not compared: there are" in " ".join(found.err.split())) == (0, True)
    assert "0.3.npz against 2.0.npz: nothing could be compared." in found.out
    assert "| 0.3.npz | – |" in out.read_text()


def test_latex_has_the_numbers_of_the_markdown_and_nothing_unescaped(capsys, tmp_path):
    a, b = of_data(tmp_path / "a_1 & 50%", "imagefolder:/x/pets"), of_data(tmp_path / "b", "imagefolder:/x/cats", 2.0)
    for suffix in ("md", "tex"):
        out = ("--bootstrap", 50, "-m", "nll,high_confidence_error_rate", "--write", tmp_path / f"t.{suffix}")
        ran(capsys, "compare", a, b, *out)
    text, table = (tmp_path / "t.tex").read_text(), (tmp_path / "t.md").read_text()
    assert text.isascii()
    assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{table}\n")
    rows = [line.removesuffix(" \\\\").split(" & ") for line in text.splitlines() if line.endswith("\\\\")]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert [row[0] for row in rows] == ["", "a\\_1 \\& 50\\%", "b"]
    for line, row in zip([each for each in table.splitlines() if each.startswith("| ")][2:], rows[2:], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        plain = [
            cell.replace("$-$", "−").replace("$\\ge$", "≥").replace("{[}", "[").replace("{]}", "]") for cell in row
        ]
        assert plain == cells
    assert "not the same data: " in text.split("\\end{tabular}")[1]
