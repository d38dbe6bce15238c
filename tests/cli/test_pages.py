"""`evaluate --html`, `compare --html` and `report`: what is written, from which files, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import calattn
from calattn.cli import pages, subjects
from calattn.report.page import document as documents
from calattn.runs.folder import RunFolder
from calattn.runs.train import train_run
from tests.cli_runner import document_in, invoke, predictions, ran, refused, write_npz, write_run
from tests.small_runs import CPU, small_spec


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    train_run(small_spec("model.head=calattn", "evaluation.checkpoints=[last, best-ece]"), folder, runtime=CPU)
    return folder


@pytest.fixture
def npz(tmp_path) -> Path:
    return write_npz(tmp_path / "test.npz", predictions())


def test_a_page_of_a_csv_file_that_scikit_learn_predicted(capsys, tmp_path):
    x, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=300).fit(x[:900] / 16, y[:900])
    probs = model.predict_proba(x[900:] / 16)
    lines = ["label," + ",".join(f"prob_{k}" for k in range(10))]
    lines += [f"{label}," + ",".join(f"{p:.9g}" for p in row) for label, row in zip(y[900:], probs, strict=True)]
    path = tmp_path / "scikit.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = ran(capsys, "evaluate", path, "--html", tmp_path / "page.html", "--bootstrap", 20)
    assert "wrote" in found.err
    subject = document_in(tmp_path / "page.html")["subjects"][0]
    accuracy = {row["name"]: row["value"] for row in subject["metrics"]}["accuracy"]
    assert accuracy == pytest.approx(model.score(x[900:] / 16, y[900:]))
    assert subject["provenance"][0] == ["file", str(path)]


def test_a_page_of_a_run_has_all_that_the_run_knows(capsys, tmp_path, run):
    ran(capsys, "evaluate", run, "--html", tmp_path / "page.html", "--bootstrap", 20)
    subject = document_in(tmp_path / "page.html")["subjects"][0]
    facts = dict(subject["provenance"])
    assert facts["split"] == "test"
    assert facts["checkpoint"] == "last"
    assert facts["spec hash"] == RunFolder(run).spec().hash
    assert facts["hardware"]
    assert "backbone:" in subject["spec"]
    assert subject["dynamics"]["epoch"] == [1, 2, 3]
    assert {each["panel"] for each in subject["dynamics"]["series"]} >= {"loss", "accuracy", "calibration", "scale"}
    assert [mark["label"] for mark in subject["dynamics"]["marks"]] == ["best-ece"]
    assert subject["scale"] is not None
    assert subject["errors"][0]["image"].startswith("data:image/png;base64,")
    assert subject["temperature"]["best"]["fitted_on"] == "validation"


def test_the_picture_is_that_of_the_sample(run):
    import io

    from PIL import Image

    from calattn import data
    from calattn.cli import options

    subject = subjects.find([run], reader=options.FILE_FLAGS, part=options.RunPart())[0]
    p = subject.predictions()
    made = pages.exhibit(subject, p, calattn.evaluate(p, num_bootstrap=0))
    picture = made.images([5])[5]
    expected = data.load("digits", "test").decode(int(p.indices[5]))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(picture))), expected[0].numpy())


def test_several_files_are_compared_on_the_page(capsys, tmp_path, npz):
    other = write_npz(tmp_path / "other.npz", predictions(sharpness=0.3))
    shorter = write_npz(tmp_path / "short.npz", predictions(sharpness=0.3, n=50))
    found = ran(capsys, "evaluate", npz, other, shorter, "--html", tmp_path / "p.html", "--bootstrap", 30)
    assert "short.npz is not compared with test.npz on the page" in found.err
    document = document_in(tmp_path / "p.html")
    assert [each["id"] for each in document["subjects"]] == ["s0", "s1", "s2"]
    assert [(each["a"], each["b"]) for each in document["comparisons"]] == [("s0", "s1")]

    found = ran(capsys, "compare", npz, other, "--html", tmp_path / "c.html", "--bootstrap", 30, "--json")
    (compared,) = document_in(tmp_path / "c.html")["comparisons"]
    rows = compared["rows"]
    assert (compared["a"], compared["b"]) == ("s0", "s1")
    assert {row["name"]: row["difference"] for row in rows} == pytest.approx(
        {name: each["difference"] for name, each in found.json["comparisons"][0]["differences"].items()}
    )


def test_a_validation_file_marks_the_temperature(capsys, tmp_path, npz):
    p = predictions(seed=4, sharpness=2.0)
    validation = write_npz(tmp_path / "v.npz", p)
    ran(capsys, "evaluate", npz, "--ts", "--validation", validation, "--html", tmp_path / "p.html", "--bootstrap", 0)
    first, scaled = document_in(tmp_path / "p.html")["subjects"]
    wanted = calattn.posthoc.TemperatureScaling().fit(p).temperature_
    best = first["temperature"]["best"]
    assert best["fitted_on"] == "validation"
    assert best["value"] == pytest.approx(wanted, rel=1e-6)
    assert "applied before" in dict(scaled["provenance"])["temperature"]


def test_a_large_file_is_drawn_from_a_random_part(monkeypatch, capsys, tmp_path, npz):
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1)
    monkeypatch.setattr(documents, "MOST_SAMPLES", 100)
    ran(capsys, "evaluate", npz, "--html", tmp_path / "p.html", "--bootstrap", 0)
    subject = document_in(tmp_path / "p.html")["subjects"][0]
    assert subject["samples"] == 600
    assert subject["shown"] == "drawn from 100 of 600 samples, chosen at random"
    expected = torch.bincount(predictions().labels[documents.drawn(600)], minlength=10)
    assert [row["count"] for row in subject["per_class"]] == expected.tolist()
    top = predictions().logits.argmax(dim=1)
    for error in subject["errors"]:
        row = error["row"]
        assert (error["predicted"], error["label"]) == (str(int(top[row])), str(int(predictions().labels[row])))


def test_a_leaderboard_of_runs_links_to_their_pages(capsys, tmp_path, run, npz):
    broken = run.parent / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "spec.yaml").write_text("data: {name: digits}\n", encoding="utf-8")
    ran(capsys, "calibrate", run, "--out", run.parent / "better", "--bootstrap", 0)
    out = tmp_path / "report"
    found = ran(capsys, "report", run.parent, npz, "--out", out, "--bootstrap", 20, "--json", "--title", "Mine")
    document = document_in(out / "index.html")
    assert document["title"] == "Mine"
    rows = {row["title"].rpartition("/")[2]: row for row in document["rows"]}
    assert rows.keys() == {"a", "better", "broken", "test.npz"}
    assert rows["better"]["values"]["ece"]["value"] is not None
    assert (out / rows["a"]["href"]).is_file()
    assert rows["a"]["facts"]["head"] == "calattn"
    assert rows["a"]["facts"]["data"] == "digits"
    assert rows["broken"]["href"] is None
    assert "calattn train" in rows["broken"]["note"]
    page = document_in(out / rows["a"]["href"])["subjects"][0]
    values = {row["name"]: row["value"] for row in page["metrics"]}
    assert rows["a"]["values"]["ece"]["value"] == values["ece"]
    folder = (
        calattn.load_predictions(run / "predictions" / "validation"),
        calattn.load_predictions(run / "predictions" / "test"),
    )
    scaled = calattn.posthoc.TemperatureScaling().fit(folder[0])(folder[1])
    assert rows["a"]["values"]["nll_ts"]["value"] == pytest.approx(
        calattn.evaluate(scaled, metrics="nll", num_bootstrap=0)["nll"].value
    )
    assert found.json["rows"] == document["rows"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "{npz}", "--html", "page.txt"), "--html page.txt must end in .html"),
        (("report", "{empty}"), "holds no run folder"),
        (("report", "nowhere"), "nowhere does not exist; "),
        (("report", "{npz}", "--out", "{npz}"), "is a file; name a folder"),
        (("report", "{npz}", "--split", "test,validation"), "one at a time"),
    ],
)
def test_wrong_usage_is_said_in_a_line(capsys, tmp_path, npz, arguments, said):
    (tmp_path / "empty").mkdir()
    filled = [text.format(npz=npz, empty=tmp_path / "empty") for text in arguments]
    found = refused(capsys, *filled)
    assert said in found
    assert "Traceback" not in found


def test_a_page_that_cannot_be_written_is_an_error_in_a_line(capsys, npz):
    found = invoke(capsys, "evaluate", npz, "--html", npz / "p.html", "--bootstrap", 0)
    assert found.code != 0
    assert "p.html" in found.err or str(npz) in found.err
    assert "Traceback" not in found.err


def test_large_files_are_compared_without_being_loaded(monkeypatch, capsys, tmp_path, npz):
    p = predictions(sharpness=0.3)
    other = write_npz(tmp_path / "other.npz", p)
    wrong = write_npz(tmp_path / "wrong.npz", p.replace(labels=p.labels.flip(0)))
    whole = invoke(capsys, "compare", npz, other, "--bootstrap", 50, "--json").json
    monkeypatch.setattr(subjects, "STREAM_BYTES", 1)
    monkeypatch.setattr(subjects.PredictionStream, "whole", None)
    streamed = ran(capsys, "compare", npz, other, "--bootstrap", 50, "--json", "--html", tmp_path / "p.html")
    assert streamed.json["samples"] == 600
    assert streamed.json["comparisons"][0]["differences"] == whole["comparisons"][0]["differences"]
    assert len(document_in(tmp_path / "p.html")["comparisons"]) == 1
    assert "the labels of test.npz and wrong.npz differ" in refused(capsys, "compare", npz, wrong, "--bootstrap", 50)


@pytest.mark.slow
def test_a_page_of_fifty_thousand_by_a_thousand_takes_seconds(tmp_path):
    """Fifteen seconds on two cores, from the command to the file."""
    import subprocess
    import sys
    import time

    generator = np.random.default_rng(0)
    labels = generator.integers(1000, size=50_000)
    logits = 2 * generator.standard_normal((50_000, 1000), dtype=np.float32)
    logits[np.arange(50_000), labels] += 7
    np.savez(tmp_path / "big.npz", logits=logits, labels=labels)
    command = [sys.executable, "-m", "calattn", "evaluate", tmp_path / "big.npz", "--html", tmp_path / "big.html"]
    started = time.monotonic()
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"}, stdout=subprocess.DEVNULL)
    assert time.monotonic() - started < 15
    assert (tmp_path / "big.html").stat().st_size < 6e6


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("summary.json", '{"training_seconds": null, "results": {"best-ece": {}}}'),
        ("summary.json", "{"),
        ("environment.json", "{}"),
        ("environment.json", '{"devices": ["cuda"], "commit": "abc"}'),
        ("environment.json", ""),
        ("log.jsonl", '{"event": "epoch"}'),
        ("log.jsonl", '{"event": "epoch", "epoch": 1, "validation": null}'),
        ("log.jsonl", "nonsense"),
        ("spec.yaml", "- 1"),
        ("predictions/validation/manifest.json", "{}"),
    ],
)
def test_a_damaged_side_file_costs_a_panel_not_the_page(capsys, tmp_path, run, name, text):
    place = copied(run, tmp_path / "b")
    (place / name).write_text(text, encoding="utf-8")
    ran(capsys, "evaluate", place, "--html", tmp_path / "p.html", "--bootstrap", 0)
    assert document_in(tmp_path / "p.html")["subjects"][0]["samples"] > 0


def test_a_damaged_run_is_listed_and_the_rest_goes_on(capsys, tmp_path, run):
    runs = tmp_path / "runs"
    damages = {
        "b": "{}",
        "c": '{"files": 3, "schema": [], "format": {}}',
        "d": "[" * 100_000,
        "e": "null",
    }
    for name in ("a", "z", "f", *damages):
        copied(run, runs / name)
    for name, text in damages.items():
        (runs / name / "predictions" / "test" / "manifest.json").write_text(text, encoding="utf-8")
    (runs / "z" / "spec.yaml").write_text("seed: .nan\ndata: {name: digits, size: 2024-01-01}\n", encoding="utf-8")
    (runs / "f" / "spec.yaml").write_text("[" * 1000, encoding="utf-8")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "linked").symlink_to(runs / "a")
    (tmp_path / "links" / "loop").symlink_to(tmp_path / "links")
    found = invoke(capsys, "report", runs, tmp_path / "links", "--out", tmp_path / "out", "--bootstrap", 0)
    assert found.code == 1
    assert all(f"{runs.name}/{name} has no page" in found.err or f"{name} has no page" in found.err for name in damages)
    rows = {row["title"].rpartition("/")[2]: row for row in document_in(tmp_path / "out" / "index.html")["rows"]}
    assert rows.keys() == {"a", "z", "f", *damages}, "the link leads to a run that is there already"
    assert "manifest" in rows["b"]["note"]
    assert rows["a"]["group"] == rows["z"]["group"]
    assert rows["a"]["facts"]["samples"] == len(calattn.load_predictions(run / "predictions" / "test"))
    ran(capsys, "report", tmp_path / "links", "--out", tmp_path / "out2", "--bootstrap", 0)


def test_a_run_that_breaks_us_is_listed_and_the_rest_goes_on(capsys, tmp_path, npz, monkeypatch):
    other = shutil.copy(npz, tmp_path / "other.npz")
    write = pages.write
    monkeypatch.setattr(
        pages,
        "write",
        lambda page, *more, **options: write(page, *more, **options) if "other" in page.name else {}["x"],
    )
    found = invoke(capsys, "report", npz, other, "--out", tmp_path / "out", "--bootstrap", 0, "--json")
    assert found.code == 1
    assert [row["href"] for row in found.json["rows"]] == [None, "pages/other.npz.html"]
    assert "KeyError" in found.json["rows"][0]["note"]


def test_only_runs_on_the_same_data_are_ranked_together(capsys, tmp_path):
    for name, data in (("a", "pets"), ("b", "pets"), ("c", "odd")):
        write_run(tmp_path / "runs" / name, spec=f"data: {{name: 'imagefolder:/x/{data}'}}\n")
    file = write_npz(tmp_path / "f.npz", predictions())
    few = ("--bootstrap", 0, "-m", "nll", "--json")

    def groups(*paths):
        rows = invoke(capsys, "report", *paths, "--out", tmp_path / "out", *few).json["rows"]
        return [row["group"] for row in rows]

    a, b, c, unknown = groups(tmp_path / "runs", file)
    assert a == b
    assert len({a, c, unknown}) == 3, "a file may be of either data set"
    alone, beside = groups(tmp_path / "runs" / "a", file)
    assert alone == beside, "of one data set and of the same labels: the same samples"


def test_a_leaderboard_of_runs_on_different_data_with_the_same_labels_says_so(capsys, tmp_path):
    for name, data in (("a", "pets"), ("b", "pets"), ("c", "odd")):
        write_run(tmp_path / "runs" / name, spec=f"data: {{name: 'imagefolder:/x/{data}'}}\n")
    few = ("--out", tmp_path / "out", "--bootstrap", 0, "-m", "nll", "--json")
    found = invoke(capsys, "report", tmp_path / "runs", *few)
    (text,) = document_in(tmp_path / "out" / "index.html")["warnings"]
    assert text.startswith("not the same data: a and 1 more of imagefolder:/x/pets; c of imagefolder:/x/odd.")
    assert "each data set is ranked by itself" in text
    assert found.json["warnings"] == [text]
    assert found.err.count("warning: not the same data") == 1
    same = invoke(capsys, "report", tmp_path / "runs" / "a", tmp_path / "runs" / "b", *few)
    assert same.json["warnings"] == document_in(tmp_path / "out" / "index.html")["warnings"] == []
    assert "warning" not in same.err


def test_nothing_measured_is_a_failure(capsys, tmp_path, run):
    found = invoke(capsys, "report", run, "--split", "tset", "--out", tmp_path / "out", "--bootstrap", 0)
    assert found.code == 1
    assert "nothing was measured" in found.err


def test_a_foreign_page_is_not_replaced(capsys, tmp_path, run):
    (tmp_path / "index.html").write_text("<h1>my site</h1>", encoding="utf-8")
    assert "did not write" in refused(capsys, "report", run, "--out", tmp_path, "--bootstrap", 0)
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == "<h1>my site</h1>"
    ran(capsys, "report", run, "--out", tmp_path, "--bootstrap", 0, "--overwrite")
    assert "my site" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "is a run folder" in invoke(capsys, "report", run, "--out", run, "--bootstrap", 0).err
    page = tmp_path / "r" / "pages" / "a.html"
    page.parent.mkdir(parents=True)
    for line in (("report", run, "--out", tmp_path / "r"), ("calibrate", run, "--html", page)):
        page.write_text("mine", encoding="utf-8")
        assert "did not write" in refused(capsys, *line, "--bootstrap", 0)
        assert page.read_text(encoding="utf-8") == "mine"
    page.unlink()
    for _ in range(2):
        ran(capsys, "report", run, "--out", tmp_path / "r", "--bootstrap", 0)


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_an_input_is_not_replaced(capsys, tmp_path, command):
    path = tmp_path / "in.csv"
    path.write_text("label,p_0,p_1\n0,0.9,0.1\n1,0.2,0.8\n", encoding="utf-8")
    before = path.read_bytes()
    more = (path,) if command == "compare" else ()
    assert "is also read" in refused(capsys, command, path, *more, "--write", tmp_path / "." / "in.csv")
    assert path.read_bytes() == before


def test_pictures_of_another_data_set_are_not_shown(capsys, tmp_path, run):
    place = copied(run, tmp_path / "b")
    folder = place / "predictions" / "test"
    p = calattn.load_predictions(folder)
    calattn.save_predictions(p.replace(labels=(p.labels + 1) % 10), folder, overwrite=True)
    found = ran(capsys, "evaluate", place, "--html", tmp_path / "p.html", "--bootstrap", 0)
    assert "no pictures of mistakes: the labels of digits are not those" in found.err
    assert document_in(tmp_path / "p.html")["subjects"][0]["errors"][0]["image"] is None
    of_class = ran(capsys, "evaluate", place, "--target", 3, "--html", tmp_path / "p.html", "--bootstrap", 0)
    assert "no pictures" not in of_class.err, "the page of one class shows no mistakes"


def test_names_that_look_like_markup(capsys, tmp_path, npz):
    places = [tmp_path / folder / "b].npz" for folder in ("m[", "n[")]
    for place in places:
        place.parent.mkdir()
        place.write_bytes(npz.read_bytes())
    ran(capsys, "evaluate", *places, "--html", tmp_path / "p.html", "--bootstrap", 20)
    assert [each["title"] for each in document_in(tmp_path / "p.html")["subjects"]] == ["m[/b].npz", "n[/b].npz"]


def test_the_table_is_printed_even_if_the_page_cannot_be_written(capsys, npz, monkeypatch):
    def full(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr("calattn.cli.pages.write", full)
    found = invoke(capsys, "evaluate", npz, "--html", npz.with_name("p.html"), "--bootstrap", 0)
    assert found.code != 0
    assert "accuracy" in found.out


def test_two_validation_files_go_to_their_own_subjects(capsys, tmp_path, npz):
    files = []
    for place, sharpness in enumerate((0.5, 1.0)):
        p = predictions(seed=4 + place, sharpness=sharpness)
        files.append((tmp_path / f"v{place}.npz", calattn.posthoc.TemperatureScaling().fit(p)))
        write_npz(files[-1][0], p)
    flags = [flag for path, _ in files for flag in ("--validation", path)] + ["--ts"]
    ran(capsys, "evaluate", npz, npz, *flags, "--html", tmp_path / "p.html", "--bootstrap", 0)
    shown = document_in(tmp_path / "p.html")["subjects"]
    for place, (_, fitted) in enumerate(files):
        assert shown[2 * place]["temperature"]["best"]["value"] == pytest.approx(fitted.temperature_, rel=1e-6)


def test_a_contest_is_written_as_a_page_and_as_a_table(capsys, tmp_path, npz):
    page, table = tmp_path / "p.html", tmp_path / "t.csv"
    methods = ("--method", "histogram,temperature,vector", "--bootstrap", 100, "--json", "--sets", 0.9)
    found = ran(capsys, "calibrate", npz, *methods, "--html", page, "--table", table)
    document, leader = document_in(page), found.json["leader"]
    assert document["title"] == "Calibration of test.npz"
    assert document["contest"]["leader"] == leader
    assert document["contest"]["verdict"] == found.json["verdict"]
    assert document["sets"] == found.json["sets"]
    assert [each["score"] for each in (document["sets"], *document["sets"]["others"])] == ["raps", "aps", "lac"]
    ranking = [each["method"] for each in found.json["methods"]]
    assert [each["title"] for each in document["subjects"]] == ["as it is", *dict.fromkeys([leader, "temperature"])]
    assert all(each["scale"] is None for each in document["subjects"]), "the temperatures of folds are none of samples"
    assert all(["title", "test.npz"] in each["provenance"] for each in document["subjects"])
    for row, each in zip(document["contest"]["methods"], found.json["methods"], strict=True):
        for metric, difference in row["from_before"].items():
            wanted = each["from_before"][metric]["difference"]
            assert difference["difference"] == (None if wanted == "Infinity" else wanted)
    lines = table.read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["title", "(as it is)", *ranking]
    both = ("--apply", "x", "--write", tmp_path / "w.csv")
    assert "--html is about metrics" in refused(capsys, "calibrate", npz, *both, "--html", page)


def test_groups_on_the_page_are_those_of_the_json(capsys, tmp_path):
    p = predictions()
    columns = [*(f"logit_{k}" for k in range(p.num_classes)), "label", "camera"]
    lines = [
        [*row, label, "ab"[k % 2]]
        for k, (row, label) in enumerate(zip(p.logits.tolist(), p.labels.tolist(), strict=True))
    ]
    path, page = tmp_path / "t.csv", tmp_path / "p.html"
    path.write_text("\n".join(",".join(map(str, line)) for line in [columns, *lines]))
    few = ("--group", "camera", "--bootstrap", 50, "--json", "--html", page)
    found = invoke(capsys, "evaluate", path, *few).json["results"][0]["groups"]
    assert document_in(page)["subjects"][0]["groups"] == found
    assert sorted(each["group"] for each in found) == ["a", "b"]
    sets = invoke(capsys, "calibrate", path, "--sets", 0.8, *few).json["sets"]
    assert document_in(page)["sets"] == sets
    assert sets["by_group"].keys() == {"a", "b"}
    assert "is about prediction sets" in refused(capsys, "calibrate", path, *few)
    assert "--fraction judges a part" in refused(capsys, "calibrate", path, "--sets", 0.8, "--fraction", 0.5, *few)


def test_a_leaderboard_is_written_as_a_table(capsys, tmp_path, npz):
    out = ("--out", tmp_path / "r", "--table", tmp_path / "t.tex", "--bootstrap", 0)
    ran(capsys, "report", f"ours={npz}", *out)
    assert "\nours & " in (tmp_path / "t.tex").read_text()
    assert "\\label{tab:calattn-t}" in (tmp_path / "t.tex").read_text()


def test_the_caveat_of_single_trainings_is_on_the_page(capsys, tmp_path):
    runs = [
        write_run(tmp_path / f"{k}", spec=f"seed: 0\nmodel: {{head: {k}}}\n", sharpness=1.0 + s)
        for s, k in enumerate("ab")
    ]
    few = ("--bootstrap", 50, "-m", "nll", "--html", tmp_path / "p.html", "--json")
    remark = invoke(capsys, "compare", *runs, *few).json["remark"]
    assert remark.startswith("one training each")
    assert document_in(tmp_path / "p.html")["remark"] == remark
    ran(capsys, "evaluate", *runs, *few)
    assert document_in(tmp_path / "p.html")["remark"] == remark
    ran(capsys, "evaluate", runs[0], *few)
    assert document_in(tmp_path / "p.html")["remark"] is None
    for paths, said in ((runs, remark), (runs[:1], None)):
        ran(capsys, "report", *paths, "--out", tmp_path / "r", *few[:4])
        assert document_in(tmp_path / "r" / "index.html")["remark"] == said


def test_a_folder_of_several_methods_is_told_to_name_one(capsys, tmp_path, npz):
    out = tmp_path / "all"
    ran(capsys, "calibrate", npz, "--method", "temperature", "--out", out, "--bootstrap", 0)
    ran(capsys, "evaluate", out, "--bootstrap", 0)
    (tmp_path / "contest" / "temperature").parent.mkdir()
    shutil.move(out, tmp_path / "contest" / "temperature")
    report = {"command": "calibrate", "leader": "temperature"}
    (tmp_path / "contest" / "report.json").write_text(json.dumps(report), encoding="utf-8")
    assert "name one, such as" in refused(capsys, "evaluate", tmp_path / "contest", "--bootstrap", 0)
