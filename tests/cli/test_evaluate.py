"""`calattn evaluate` prints what `calattn.evaluate` computes, whatever the file and however it is read."""

from __future__ import annotations

import csv
import errno
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import calattn
from calattn.cli import subjects
from calattn.posthoc import TemperatureScaling
from calattn.report import verdict_of
from calattn.runs.folder import RunFolder
from calattn.runs.spec import RunSpec
from tests.cli_runner import document_in, invoke, predictions, ran, refused, write_npz, write_run


@pytest.fixture
def file(tmp_path):
    return write_npz(tmp_path / "a.npz", predictions())


def values(result, place=0):
    return {name: row["value"] for name, row in result.json["results"][place]["metrics"].items()}


def test_json_is_the_library_in_full_precision(capsys, file):
    result = ran(capsys, "evaluate", file, "--json")
    (found,) = result.json["results"]
    want = calattn.evaluate(calattn.read_predictions(file))
    for name, row in want.rows.items():
        assert found["metrics"][name]["value"] == row.value
    assert found["metrics"]["ece"]["low"] == calattn.evaluate(calattn.read_predictions(file))["ece"].low
    assert (found["samples"], found["classes"], found["temperature"]) == (600, 10, None)
    assert result.json["schema"] == 1


def test_table_is_in_per_cent(capsys, file):
    result = invoke(capsys, "evaluate", file, "-m", "ece,nll", "--bootstrap", 0)
    want = calattn.evaluate(predictions(), metrics=["ece", "nll"], num_bootstrap=0)
    assert f"{100 * want['ece'].value:.2f}" in result.out
    assert f"{want['nll'].value:.3f}" in result.out
    assert "Brier" not in result.out
    assert "[" not in result.out


def test_five_metrics_are_shown_and_all_with_a_flag(capsys, file, tmp_path):
    base = ("evaluate", file, "--bootstrap", 0)
    brief = invoke(capsys, *base, "--write", tmp_path / "t.md")
    rows = [cell.strip() for cell in (tmp_path / "t.md").read_text().splitlines()[0].strip("|").split("|")][1:]
    assert rows == ["accuracy", "NLL", "Brier score", "ECE", "AURC"]
    assert all(title in brief.out for title in rows)
    assert "smECE" not in brief.out
    assert "5 of 15 metrics; --all shows all of them" in brief.err
    every = invoke(capsys, *base, "--all", "--write", tmp_path / "t.csv")
    assert "smECE" in every.out
    assert "of 15 metrics" not in every.err
    csv_in_full = (tmp_path / "t.csv").read_text()
    invoke(capsys, *base, "--write", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == csv_in_full
    assert len(values(invoke(capsys, *base, "--json"))) == 15
    assert "AURC" not in invoke(capsys, *base, "--target", 1).out
    assert "smECE" in invoke(capsys, *base, "-m", "smooth_ece").out


def test_options_reach_the_metrics(capsys, file):
    flags = "--bins 7 --threshold 0.6 --bandwidth 0 --bootstrap 20 --level 0.5 --json"
    result = invoke(capsys, "evaluate", file, *flags.split())
    want = calattn.evaluate(predictions(), num_bins=7, threshold=0.6, bandwidth=None, num_bootstrap=0)
    assert values(result) == {name: row.value for name, row in want.rows.items()}
    assert (result.json["bins"], result.json["resamples"], result.json["level"]) == (7, 20, 0.5)


def test_columns_share_their_resamples(capsys, tmp_path):
    files = [write_npz(tmp_path / f"{i}.npz", predictions()) for i in range(2)]
    first, second = invoke(capsys, "evaluate", *files, "--json").json["results"]
    assert first["metrics"] == second["metrics"]
    assert (first["title"], second["title"]) == ("0.npz", "1.npz")


def test_reader_flags(capsys, tmp_path):
    found = predictions()
    np.savez(
        tmp_path / "odd.npz", outputs=found.probs.numpy(), truth=found.labels.numpy() + 1, label=found.labels.numpy()
    )
    np.save(tmp_path / "labels.npy", found.labels.numpy())
    flags = "--kind probs --columns outputs --json -m accuracy --bootstrap 0"
    base = ("evaluate", tmp_path / "odd.npz", *flags.split())
    want = calattn.metrics.accuracy(found.probs, found.labels)
    for flags in (
        ("--labels", "truth", "--label-offset", 1),
        ("--labels", tmp_path / "labels.npy"),
        ("--ignore", "truth"),
    ):
        result = ran(capsys, *base, *flags)
        assert values(result)["accuracy"] == want


def test_text_flags(capsys, tmp_path):
    (tmp_path / "a.csv").write_text("0.9|0.1|0\n0.305|0.69|1\n0.2|0.8|1\n")
    base = ("evaluate", tmp_path / "a.csv", "--json", "-m", "accuracy", "--bootstrap", 0)
    flags = ("--delimiter", "|", "--header", "prob_0,prob_1,label", "--sum-tolerance", 0.01, "--floor", 0.001)
    assert values(invoke(capsys, *base, *flags)) == {"accuracy": 1.0}


def test_infinite_and_undefined_numbers_are_valid_json(capsys, tmp_path):
    np.savez(tmp_path / "a.npz", probs=np.array([[1.0, 0.0], [1.0, 0.0]]), labels=np.array([0, 1]))
    result = invoke(
        capsys, "evaluate", tmp_path / "a.npz", "--json", "-m", "nll,high_confidence_error_rate", "--threshold", 1.0
    )
    assert values(result)["nll"] == "Infinity"
    assert float(values(result)["nll"]) == math.inf
    np.savez(tmp_path / "b.npz", probs=np.array([[0.6, 0.4]]), labels=np.array([0]))
    assert values(invoke(capsys, "evaluate", tmp_path / "b.npz", "--json", "-m", "misclassification_auroc")) == {
        "misclassification_auroc": None
    }


def test_large_files_are_streamed_to_the_same_numbers(capsys, file, monkeypatch, tmp_path):
    validation = write_npz(tmp_path / "v.npz", predictions(7))
    arguments = ("evaluate", file, "--json", "--ts", "--validation", validation, "--diagram", tmp_path / "d.png")
    whole = invoke(capsys, *arguments).json
    passes = []

    def stream(*given, **options):
        passes.append(given)
        return calattn.stream_predictions(*given, rows_per_block=100, **options)

    monkeypatch.setattr(subjects, "STREAM_BYTES", 0)
    monkeypatch.setattr(subjects, "stream_predictions", stream)
    streamed = invoke(capsys, *arguments).json
    assert passes.count((file,)) == 2  # before and after the temperature
    for a, b in zip(whole["results"], streamed["results"], strict=True):
        for name, row in a["metrics"].items():
            for part, value in row.items():
                got = b["metrics"][name][part]
                assert (got is None) == (value is None)
                assert value is None or got == pytest.approx(value, rel=1e-6, abs=1e-9)


def test_run_folder_splits_and_checkpoints(capsys, tmp_path):
    run = write_run(tmp_path / "run", rules=("last", "best-ece"))
    result = invoke(
        capsys, "evaluate", run, "--split", "validation,test", "--checkpoint", "best-ece", "--json", "--bootstrap", 0
    )
    first, second = result.json["results"]
    assert [each["split"] for each in (first, second)] == ["validation", "test"]
    assert [each["title"] for each in (first, second)] == ["run validation", "run test"]
    want = calattn.evaluate(calattn.load_predictions(run / "predictions" / "test.best-ece"), num_bootstrap=0)
    assert values(result, 1)["ece"] == want["ece"].value
    default = invoke(capsys, "evaluate", run, "--json", "--bootstrap", 0).json["results"][0]
    assert (default["split"], default["checkpoint"]) == ("test", "last")


def with_checkpoint(run):
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "state-00000001.safetensors").touch()
    return run


def test_a_split_of_all_corruptions_is_clustered_by_image_and_grouped_by_corruption(capsys, tmp_path):
    """600 rows: 40 images, once under each of fifteen corruptions, one after another."""
    run = write_run(tmp_path / "run")
    found = predictions(7)
    calattn.save_predictions(found, run / "predictions" / "test-all-5")
    flags = ("evaluate", run, "--split", "test-all-5", "--bootstrap", 40, "-m", "nll")
    assert "run test-all-5" in invoke(capsys, *flags).out
    (result,) = invoke(capsys, *flags, "--group", "corruption", "--json").json["results"]
    want = calattn.evaluate(found, metrics="nll", num_bootstrap=40, clusters=torch.arange(600) % 40)
    assert result["clusters"] == 40
    assert result["metrics"] == want.as_dict()
    assert len(result["groups"]) == 15
    assert {each["samples"] for each in result["groups"]} == {40}
    assert "clusters" not in invoke(capsys, "evaluate", run, "--bootstrap", 0, "--json").json["results"][0]


def test_what_calibrate_made_of_all_corruptions_is_clustered_too(capsys, tmp_path):
    """The same images at the same width of interval; a random part of them says nothing of whole images."""
    found = predictions(7).replace(split="test-all-5", indices=torch.arange(600))
    for name, part in {"all": found, "part": found.select(torch.arange(0, 600, 2))}.items():
        calattn.save_predictions(part, tmp_path / name)
    flags = ("--bootstrap", 40, "-m", "nll", "--json")
    (result,) = invoke(capsys, "evaluate", tmp_path / "all", *flags).json["results"]
    want = calattn.evaluate(found, metrics="nll", num_bootstrap=40, clusters=torch.arange(600) % 40)
    assert (result["clusters"], result["metrics"]) == (40, want.as_dict())
    assert "clusters" not in invoke(capsys, "evaluate", tmp_path / "part", *flags).json["results"][0]


def test_missing_split_names_those_that_are_there(capsys, tmp_path):
    run = with_checkpoint(write_run(tmp_path / "run"))
    result = refused(capsys, "evaluate", run, "--checkpoint", "best-nll")
    assert "it has test, validation; make them with: calattn predict" in result
    assert "--checkpoint best-nll" in result


def test_a_run_without_a_checkpoint_is_not_sent_to_predict(capsys, tmp_path):
    """`calattn predict` would only answer that it has to be trained."""
    run = write_run(tmp_path / "run")
    train = f"it has no checkpoint to make them with either; train it: calattn train {run}/spec.yaml --out {run}"
    said = refused(capsys, "evaluate", run, "--checkpoint", "best-nll")
    assert f"no predictions of test.best-nll; it has test, validation; {train}" in said
    shutil.rmtree(run / "predictions")
    for arguments in (("evaluate", run), ("report", run, "--out", tmp_path / "page")):
        result = invoke(capsys, *arguments)
        assert f"{run} has no predictions yet; {train}" in result.err
        assert "calattn predict" not in result.err
    assert train.partition("; train it: ")[2] in invoke(capsys, "predict", run).err
    with RunFolder.create_or_open(tmp_path / "busy", RunSpec()):
        assert "and is being written by process" in invoke(capsys, "evaluate", tmp_path / "busy").err
    (run / "predictions").mkdir()
    (run / "spec.yaml").unlink()
    result = invoke(capsys, "evaluate", run)
    assert "it has no checkpoint and no spec.yaml, so they cannot be made: name what it has" in result.err


@pytest.mark.parametrize("command", ["evaluate", "compare", "calibrate"])
def test_of_a_folder_of_runs_the_runs_are_listed(capsys, tmp_path, command):
    write_run(tmp_path / "runs" / "b.pt")
    write_run(tmp_path / "runs" / "a")
    assert "name one of the runs in it: a, b.pt; all of them: calattn report" in refused(
        capsys, command, tmp_path / "runs"
    )


def test_a_diagram_that_cannot_be_written_does_not_cost_the_table(capsys, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "x.png")

    monkeypatch.setattr("calattn.report.reliability.save_figure", full)
    path = write_npz(tmp_path / "a.npz", predictions())
    result = invoke(capsys, "evaluate", path, "-m", "ece", "--bootstrap", 0, "--diagram", tmp_path / "x.png")
    assert result.code == 1
    assert "ECE" in result.out
    assert "x.png: the disk is full" in result.err


def test_folders_are_not_listed_as_files(capsys, tmp_path):
    (tmp_path / "x.pt").mkdir()
    write_npz(tmp_path / "a.npz", predictions())
    result = invoke(capsys, "evaluate", tmp_path)
    assert "name a file in it: a.npz\n" in result.err


def test_a_split_that_predict_does_not_make_is_not_suggested(capsys, tmp_path):
    run = with_checkpoint(write_run(tmp_path / "my run"))
    result = refused(capsys, "evaluate", run, "--split", "train")
    assert "its own are validation and test" in result
    assert f"calattn predict '{run}' --data DATA" in result
    assert "--split train" not in result


def test_temperature_scaling_on_the_runs_own_validation(capsys, tmp_path):
    run = write_run(tmp_path / "run", sharpness=3.0)
    result = invoke(capsys, "evaluate", run, "--ts", "--json", "--bootstrap", 0)
    before, after = result.json["results"]
    scaling = TemperatureScaling().fit(calattn.load_predictions(run / "predictions" / "validation"))
    assert before["temperature"] is None
    assert after["temperature"] == scaling.temperature_
    want = calattn.evaluate(scaling(calattn.load_predictions(run / "predictions" / "test")), num_bootstrap=0)
    assert values(result, 1)["ece"] == want["ece"].value
    assert values(result, 1)["accuracy"] == values(result, 0)["accuracy"]


def test_each_file_has_the_temperature_of_its_own_validation(capsys, file, tmp_path):
    other = write_npz(tmp_path / "other.npz", predictions(sharpness=3.0))
    sharpness = (1.0, 3.0)
    paths = [write_npz(tmp_path / f"v{s:g}.npz", predictions(7, sharpness=s)) for s in sharpness]
    flags = [argument for path in paths for argument in ("--validation", path)]
    flags += ["--ts", "--json", "--bootstrap", 0]
    results = invoke(capsys, "evaluate", file, other, *flags).json["results"]
    want = [TemperatureScaling().fit(predictions(7, sharpness=s)).temperature_ for s in sharpness]
    assert want[0] != want[1]
    assert [results[1]["temperature"], results[3]["temperature"]] == want


def test_chance_is_not_called_below_chance(capsys, tmp_path):
    """A tenth of 600 samples is right by chance, give or take 1.2 % of them: a little less is nothing to note."""
    found = predictions()
    wrong = (found.logits.argmax(dim=1) + 1) % 10
    right = found.logits.argmax(dim=1)
    for hits, noted in ((52, False), (10, True)):
        labels = torch.where(torch.arange(600) < hits, right, wrong)
        path = write_npz(tmp_path / f"{hits}.npz", found.replace(labels=labels))
        said = invoke(capsys, "evaluate", path, "-m", "accuracy", "--bootstrap", 0).err
        assert ("is below chance (10.0 % of 10 classes)" in said) == noted


def test_out_in_three_formats(capsys, file, tmp_path):
    for suffix in ("json", "csv", "md"):
        result = ran(capsys, "evaluate", file, "--json", "--write", tmp_path / f"t.{suffix}")
        assert f"wrote {tmp_path}/t.{suffix}" in result.err
    assert (tmp_path / "t.json").read_text() == result.out
    with (tmp_path / "t.csv").open() as table:
        (row,) = csv.DictReader(table)
    assert (row["title"], float(row["ece"])) == ("a.npz", values(result)["ece"])
    assert f"| {100 * values(result)['ece']:.2f} [" in (tmp_path / "t.md").read_text()


def test_names_are_given_and_the_verdict_is_that_of_the_page(capsys, file, tmp_path):
    sharp = write_npz(tmp_path / "b=c.npz", predictions(sharpness=3.0))
    few = ("--bootstrap", 100, "--json")
    found = invoke(capsys, "evaluate", f"plain={file}", sharp, *few, "--html", tmp_path / "p.html")
    assert [each["title"] for each in found.json["results"]] == ["plain", "b=c.npz"]
    pages = [each["verdict"] for each in document_in(tmp_path / "p.html")["subjects"]]
    for each, page, s in zip(found.json["results"], pages, (1.0, 3.0), strict=True):
        assert each["verdict"].items() <= page.items()
        assert page == verdict_of(predictions(sharpness=s))
    shown = invoke(capsys, "evaluate", f"plain={file}", "--bootstrap", 0).out
    assert shown.splitlines()[-1] == f"plain: {pages[0]['headline']}"
    out = tmp_path / "t.md"
    ran(capsys, "evaluate", f"plain={file}", f"3 × sharper={sharp}", *few, "--write", out)
    first, second = out.read_text().splitlines()[2:4]
    assert first.startswith("| plain | ")
    assert second.startswith("| 3 × sharper | ")
    assert first.count("**") == 2 * 3, "NLL, Brier score and ECE, not accuracy or AURC"
    assert "**" not in second
    assert "does not exist" in refused(capsys, "evaluate", f"x={tmp_path / 'nowhere.npz'}")


def test_diagram(capsys, file, tmp_path):
    ran(capsys, "evaluate", file, file, "--diagram", tmp_path / "d.png")
    with Image.open(tmp_path / "d.png") as picture:
        assert picture.width > picture.height


def test_titles_are_as_long_as_it_takes(tmp_path):
    paths = [tmp_path / "x" / "a.npz", tmp_path / "y" / "a.npz", tmp_path / "y" / "a.npz"]
    assert subjects.titles(paths, [None] * 3) == ["x/a.npz", "y/a.npz", "y/a.npz (2)"]
    assert subjects.titles(paths[:1], [None]) == ["a.npz"]
