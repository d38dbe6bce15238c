"""`calattn calibrate` judges on samples that no fit has seen, ranks, and writes both the result and what made it."""

from __future__ import annotations

import errno
import itertools
import json
import re
import time

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from safetensors import SafetensorError
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import PredefinedSplit, cross_val_predict

import calattn
from calattn.files.atomic import atomic_folder
from calattn.posthoc import CALIBRATORS, TemperatureScaling, VectorScaling, cross_fit, drawn_folds
from calattn.posthoc import load as load_calibrator
from calattn.report import sentence
from tests.cli_runner import invoke, predictions, ran, refused, write_npz, write_run
from tests.posthoc.test_crossfit import Scores


@pytest.fixture
def files(tmp_path):
    test, validation = predictions(sharpness=2.0), predictions(7, sharpness=2.0)
    return write_npz(tmp_path / "test.npz", test), write_npz(tmp_path / "validation.npz", validation)


def test_with_a_validation_file(capsys, files, tmp_path):
    test, validation = files
    result = ran(
        capsys, "calibrate", test, "--validation", validation, "--method", "vector", "--out", tmp_path / "out", "--json"
    )
    fitted = VectorScaling().fit(predictions(7, sharpness=2.0))
    want = fitted(predictions(sharpness=2.0))
    found = calattn.load_predictions(tmp_path / "out" / "predictions")
    assert torch.equal(found.calibrated_logits, want.calibrated_logits)
    again = load_calibrator(tmp_path / "out" / "calibrator.safetensors")
    assert torch.equal(again(predictions(sharpness=2.0)).logits, want.logits)
    (method,) = result.json["methods"]
    assert method["after"]["ece"]["value"] == pytest.approx(calattn.metrics.ece(want.probs, want.labels), rel=1e-6)
    assert result.json["before"]["ece"]["value"] == pytest.approx(
        calattn.metrics.ece(predictions(sharpness=2.0).probs, predictions().labels)
    )
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == result.json


def test_a_run_folder_is_fitted_on_its_validation(capsys, tmp_path):
    run = write_run(tmp_path / "run", sharpness=3.0, rules=("last", "best-nll"))
    result = invoke(capsys, "calibrate", run, "--checkpoint", "best-nll", "--json", "--bootstrap", 0)
    want = TemperatureScaling().fit(calattn.load_predictions(run / "predictions" / "validation.best-nll"))
    assert result.json["methods"][0]["learned"]["temperature_"] == want.temperature_
    assert result.json["validation"].endswith("predictions/validation.best-nll")


def test_one_file_is_cross_fitted(capsys, files, tmp_path):
    """Numbers are scikit-learn's, of out-of-fold predictions; the calibrator that is kept has seen all samples."""
    out = tmp_path / "out"
    arguments = ("calibrate", files[0], "--method", "temperature", "--folds", 4, "--seed", 3, "--out", out)
    result = ran(capsys, *arguments, "--json", "--bootstrap", 0)
    p = predictions(sharpness=2.0)
    x, y = p.logits.double().numpy(), p.labels.numpy()
    folds = drawn_folds(p.labels, folds=4, seed=3)
    model = CalibratedClassifierCV(FrozenEstimator(Scores().fit(x, y)), method="temperature")
    probs = cross_val_predict(model, x, y, cv=PredefinedSplit(folds.numpy()), method="predict_proba")
    (method,) = result.json["methods"]
    assert method["after"]["nll"]["value"] == pytest.approx(log_loss(y, probs), abs=1e-5)
    found = calattn.load_predictions(out / "predictions")
    np.testing.assert_allclose(found.probs.numpy(), probs, atol=2e-5)
    want = TemperatureScaling().fit(p).temperature_
    assert method["learned"]["temperature_"] == pytest.approx(want)
    assert load_calibrator(out / "calibrator.safetensors").temperature_ == pytest.approx(want)
    assert (result.json["fitted_on"], result.json["samples"], result.json["folds"]) == (600, 600, 4)
    assert result.json["validation"] is None
    shown = invoke(capsys, *arguments[:-2], "--bootstrap", 0)
    assert "600 out-of-fold predictions: 4 random folds, seed 3" in shown.out
    assert "one more fit, on all 600 samples" in shown.out


def test_a_fraction_asks_for_one_split(capsys, files, tmp_path):
    arguments = ("calibrate", files[0], "--method", "temperature", "--json", "--bootstrap", 0)
    result = invoke(capsys, *arguments, "--fraction", 0.25, "--seed", 3, "--out", tmp_path / "out")
    assert (result.json["fitted_on"], result.json["samples"], result.json["folds"]) == (150, 450, None)
    whole = predictions(sharpness=2.0)
    first, _ = whole.shuffle_split(0.25, torch.Generator().manual_seed(3))
    want = TemperatureScaling().fit(first).temperature_
    assert result.json["methods"][0]["learned"]["temperature_"] == pytest.approx(want)
    found = calattn.load_predictions(tmp_path / "out" / "predictions")
    assert torch.equal(found.logits, whole.logits[found.indices]), "indices are rows of the file"
    other = invoke(capsys, *arguments, "--fraction", 0.25, "--seed", 4)
    assert other.json["methods"][0]["learned"] != result.json["methods"][0]["learned"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("test --folds 1", "--folds must be between 2 and the number of samples, 600, got 1"),
        ("test --folds 601", "--folds must be between 2 and the number of samples, 600, got 601"),
        ("test --folds 3 --fraction 0.5", "--folds and --fraction exclude each other"),
        ("test --validation validation --folds 3", "with --validation there is something to fit on already"),
        ("test --validation validation --fraction 0.5", "leave --fraction out"),
        ("test --fraction 1", "error: --fraction must be between 0 and 1, got 1"),
        ("test --write table.txt", "--write table.txt must end in .npz, .csv, .parquet"),
        ("run --folds 3", "a run folder has something to fit on already"),
        ("one", "cross-fitting needs at least 2 samples, and there is 1; fit on validation predictions"),
    ],
)
def test_what_cannot_be_fitted(capsys, files, tmp_path, line, message):
    places = dict(zip(("test", "validation"), files, strict=True))
    places |= {"run": write_run(tmp_path / "run"), "one": write_npz(tmp_path / "one.npz", predictions(n=1))}
    assert message in refused(capsys, "calibrate", *(places.get(word, word) for word in line.split()))


def test_a_rare_class_is_mentioned_once(capsys, tmp_path):
    found = predictions(n=300, sharpness=2.0)
    labels = found.labels.clone()
    labels[labels == 9] = 8
    labels[0] = 9
    path = write_npz(tmp_path / "rare.npz", found.replace(labels=labels))
    result = ran(capsys, "calibrate", path, "--method", "all", "--bootstrap", 0, "--folds", 2)
    assert result.err.count("1 of the classes (9) have one sample") == 1
    assert "no sample" not in result.err, "its own fold lacks it, which is what the line says"


def test_a_class_without_samples_to_fit_on_is_named(capsys, files, tmp_path):
    found = predictions(n=300)
    validation = write_npz(tmp_path / "v.npz", found.replace(labels=torch.where(found.labels == 9, 8, found.labels)))
    for source in ((files[0], "--validation", validation), (validation,)):
        result = invoke(capsys, "calibrate", *source, "--method", "vector,sats", "--bootstrap", 0, "--json")
        assert result.err.count("warning: vector: 1 of the 10 classes (9) has no sample") == 1
        said = {each["method"]: each["warnings"] for each in result.json["methods"]}
        assert [text.startswith("1 of the 10 classes (9)") for text in said["vector"]] == [True]
        assert said["sats"] == []


def test_warnings_of_several_fits_are_one_line(capsys, tmp_path):
    sure = calattn.Predictions(logits=8 * torch.eye(3).repeat(20, 1), labels=torch.arange(3).repeat(20))
    result = invoke(capsys, "calibrate", write_npz(tmp_path / "sure.npz", sure), "--method", "temperature", "--json")
    assert result.err.count("minimises this NLL") == 1
    (warning,) = result.json["methods"][0]["warnings"]
    assert warning.endswith("(6 fits)")


def test_leaderboard_has_every_method_or_the_reason(capsys, files, tmp_path):
    test, validation = files
    out = tmp_path / "all"
    arguments = ("calibrate", test, "--validation", validation, "--method", "all")
    result = ran(capsys, *arguments, "--json", "--bootstrap", 20, "--out", out)
    done = [method["method"] for method in result.json["methods"]]
    skipped = {each["method"]: each["reason"] for each in result.json["skipped"]}
    assert sorted([*done, *skipped]) == sorted(CALIBRATORS)
    assert list(skipped) == ["frozen_calattn", "venn_abers"]
    assert "features" in skipped["frozen_calattn"]
    assert "is for two classes, and there are 10" in skipped["venn_abers"]
    nll = [float(method["after"]["nll"]["value"]) for method in result.json["methods"]]
    assert not any(one > other + 5e-4 for one, other in itertools.pairwise(nll))  # what prints alike goes by speed
    assert sorted(place.name for place in out.iterdir()) == sorted([*done, "report.json"])
    assert result.json["leader"] == done[0]
    best = load_calibrator(out / result.json["leader"] / "calibrator.safetensors")
    assert best.num_classes_ == 10
    shown = invoke(capsys, *arguments, "--bootstrap", 0).out
    assert "(as it is)" in shown
    assert "skipped frozen_calattn" in shown


def test_differences_are_those_of_compare(capsys, files):
    test, validation = files
    found = invoke(
        capsys, "calibrate", test, "--validation", validation, "--method", "all", "--json", "--bootstrap", 50
    )
    before, fit_on = predictions(sharpness=2.0), predictions(7, sharpness=2.0)
    methods = {each["method"]: each for each in found.json["methods"]}
    calibrated = {name: CALIBRATORS[name]().fit(fit_on)(before) for name in ("temperature", "vector", "histogram")}
    leader = CALIBRATORS[found.json["leader"]]().fit(fit_on)(before)
    for name, after in calibrated.items():
        for key, other in (("from_before", before), ("from_leader", leader)):
            if name == found.json["leader"] and key == "from_leader":
                assert methods[name][key] is None
                continue
            want = calattn.compare(other, after, metrics=["nll", "ece"], num_bootstrap=50)
            for metric, difference in want.items():
                got = methods[name][key][metric]
                assert float(got["difference"]) == pytest.approx(difference.difference)
                assert float(got["low"]) == pytest.approx(difference.low)
                assert got["significant"] == difference.significant
                assert got["sentence"] == sentence(difference)
    others = [each for each in found.json["methods"] if each["from_leader"]]
    finite = [each for each in others if each["from_leader"]["nll"]["difference"] != "Infinity"]
    tied = [
        each["method"]
        for each in finite
        if not each["from_leader"]["nll"]["significant"] or abs(float(each["from_leader"]["nll"]["difference"])) < 5e-4
    ]
    assert found.json["tied_with_leader"] == tied
    assert f"best by NLL: {found.json['leader']}" in found.json["verdict"][0]


IN_SAMPLE = "no method is called best: each was judged on the samples it was fitted on"


@pytest.fixture
def in_sample(files):
    return ("calibrate", files[0], "--validation", files[0], "--metrics", "accuracy", "--bootstrap", 20)


def test_judged_on_what_was_fitted_on_nothing_leads(capsys, in_sample, tmp_path):
    result = ran(capsys, *in_sample, "--method", "all", "--json", "--out", tmp_path / "out")
    assert result.json["leader"] is None
    assert result.json["no_leader"].startswith(IN_SAMPLE)
    assert result.json["tied_with_leader"] is None
    assert result.json["verdict"] == [result.json["no_leader"]]
    named = [name for name in CALIBRATORS if name not in ("frozen_calattn", "venn_abers")]
    assert [each["method"] for each in result.json["methods"]] == named  # not the order of a ranking
    assert all(each["from_before"] and each["from_leader"] is None for each in result.json["methods"])
    assert "leader" not in result.err
    assert (tmp_path / "out" / named[0] / "calibrator.safetensors").is_file()


def test_without_a_leader_all_has_nothing_to_write(capsys, in_sample, tmp_path):
    target = tmp_path / "probs.csv"
    assert "name one --method" in refused(capsys, *in_sample, "--method", "all", "--write", target)
    assert not target.exists()
    ran(capsys, *in_sample, "--method", "vector", "--write", target)
    assert target.is_file()


def test_a_forest_that_states_zeros(capsys, tmp_path):
    """Skipped methods are told the flag that helps, once for all of them; with it nothing is skipped or infinite."""
    inputs, labels = (each[:1300] for each in load_digits(return_X_y=True))
    forest = RandomForestClassifier(10, random_state=0).fit(inputs[:900], labels[:900])
    np.savez(tmp_path / "forest.npz", probs=forest.predict_proba(inputs[900:]), labels=labels[900:])
    arguments = ("calibrate", tmp_path / "forest.npz", "--method", "all", "--bootstrap", 50, "--folds", 2)
    plain = invoke(capsys, *arguments)
    assert (
        "skipped vector, matrix, dirichlet, structured_vector, structured_matrix, sats: logits[0] has a −inf entry"
        in plain.out.replace("\n", " ")
    )
    assert "pass --floor 1e-6" in plain.out
    assert "from_probs" not in plain.out
    assert "(as it is)" in plain.out
    floored = invoke(capsys, *arguments, "--floor", "1e-6", "--json").json
    assert [each["method"] for each in floored["skipped"]] == ["frozen_calattn", "venn_abers"]
    assert all(each["after"]["nll"]["value"] != "Infinity" for each in floored["methods"])
    probs = forest.predict_proba(inputs[900:])
    raised, of_labels = int((probs < 1e-6).sum()), int((probs[np.arange(len(probs)), labels[900:]] < 1e-6).sum())
    assert raised > of_labels > 0
    assert (floored["floor"], floored["labels_at_floor"]) == (1e-6, of_labels)
    one = ("calibrate", tmp_path / "forest.npz", "--bootstrap", 0, "--metrics", "nll", "--floor", "1e-6")
    shown = invoke(capsys, *one).out
    assert "before, floor 1e-06" in shown
    assert f"--floor 1e-06 raised {raised:,} probabilities before anything was measured, {of_labels} of them" in shown
    np.savez(tmp_path / "few.npz", probs=probs[:100], labels=labels[900:1000])
    board = invoke(capsys, "calibrate", tmp_path / "few.npz", *one[2:], "--method", "all", "--fraction", 0.5).out
    assert "(as it is, floor 1e-06)" in board


def test_a_floor_does_nothing_to_logits(capsys, files):
    arguments = ("calibrate", files[0], "--bootstrap", 0, "--metrics", "nll", "--floor", "1e-6")
    shown = invoke(capsys, *arguments).out
    assert "before, floor" not in shown
    assert "--floor 1e-06 raised no probability" in shown
    assert invoke(capsys, *arguments, "--json").json["labels_at_floor"] == 0


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("temperature", r"T = \d\.\d\d \(lowest NLL\)"),
        ("temperature_ece", r"T = \d\.\d\d \(lowest ECE\)"),
        (
            "vector",
            r"learned: temperature = [\d.]+, .*strength = \w+, objective value = [\d.]+, converged = yes, iterations = \d+; "
            r"tensors \(weight, bias\) are in .*",
        ),
        ("histogram", r"learned: tensors \(frequencies\) are in the calibrator's file \(--out\)"),
    ],
)
def test_what_was_learned_is_said_in_words(capsys, files, method, line):
    shown = invoke(capsys, "calibrate", files[0], "--bootstrap", 0, "--method", method, "--metrics", "nll").out
    last = shown.splitlines()[-1]
    assert re.fullmatch(line, last)
    if method == "temperature":
        want = TemperatureScaling().fit(predictions(sharpness=2.0)).temperature_
        assert last.startswith(f"T = {want:.2f} ")


def test_the_clock_starts_after_the_imports(capsys, files, monkeypatch):
    """A method whose first fit takes long, as that of one which imports scikit-learn does."""
    ready = []

    class Heavy(TemperatureScaling):
        def fit(self, *given):
            if not ready:
                time.sleep(0.5)
            ready.append(len(given[0]))
            return super().fit(*given)

    monkeypatch.setitem(CALIBRATORS._items, "heavy", Heavy)
    base = ("calibrate", files[0], "--method", "heavy", "--fraction", 0.5, "--bootstrap", 0, "--metrics", "nll")
    result = invoke(capsys, *base, "--json")
    assert result.json["methods"][0]["seconds"] < 0.4
    assert ready == [30, 300]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_damage_to_what_was_written_is_found_when_it_is_read(capsys, tmp_path, suffix):
    file, path = write_npz(tmp_path / "a.npz", predictions()), tmp_path / f"probs{suffix}"
    ran(capsys, "calibrate", file, "--write", path, "--bootstrap", 0)
    data = path.read_bytes()
    for place in range(len(data) // 10, len(data) // 2, len(data) // 30):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = invoke(capsys, "evaluate", path, "--bootstrap", 0)
        assert found.code == 2, place
        assert len(found.err.splitlines()) == 1
        assert f"{path} is not a whole" in found.err
        assert "copy or save it again" in found.err


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("a", "a"), "several classes are named 'a'"),
        (("", "b"), "the class name '' is not plain text"),
        (("  ", "b"), "the class name ' ' is not plain text"),
        (("x\ny", "b"), r"the class name 'x\ny' is not plain text"),
        (("NA", "b"), "the class name 'NA' is not plain text"),  # a missing label, to readers of CSV
        (("2", "1"), "the class name '2' is a number"),
        (("b", "1e3"), "the class name '1e3' is a number"),
    ],
)
def test_class_names_that_columns_cannot_have(capsys, tmp_path, suffix, names, why):
    names = (*names, *"cdefghij")
    calattn.save_predictions(predictions(class_names=names), tmp_path / "named")
    path = tmp_path / f"calibrated{suffix}"
    result = ran(capsys, "calibrate", tmp_path / "named", "--bootstrap", 0, "--write", path)
    assert why in result.err
    assert "p_0, p_1, …" in result.err
    table = (pyarrow.parquet.read_table if suffix == ".parquet" else pyarrow.csv.read_csv)(path)
    assert table.column_names == ["label", *(f"p_{k}" for k in range(10))]
    np.testing.assert_allclose(sum(table[f"p_{k}"].to_numpy() for k in range(10)), 1, atol=1e-5)
    again = calattn.read_predictions(path)
    assert torch.equal(again.labels, predictions().labels)


def test_of_all_methods_the_leaders_probabilities_are_written(capsys, files, tmp_path):
    path = tmp_path / "calibrated.npz"
    result = invoke(
        capsys, "calibrate", files[0], "--method", "all", "--folds", 2, "--bootstrap", 0, "--write", path, "--json"
    )
    nll = calattn.evaluate(calattn.read_predictions(path), metrics="nll", num_bootstrap=0)["nll"].value
    assert nll == pytest.approx(result.json["methods"][0]["after"]["nll"]["value"], abs=1e-5)
    assert f"probabilities by {result.json['leader']}" in result.err


def test_with_features_nothing_is_skipped(capsys, tmp_path):
    features = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    for name, seed in (("test", 0), ("validation", 7)):
        calattn.save_predictions(predictions(seed, features=features), tmp_path / name)
    fitted = ("--validation", tmp_path / "validation", "--method", "frozen_calattn")
    base = ("calibrate", tmp_path / "test", *fitted, "--bootstrap", 0)
    assert invoke(capsys, *base, "--json").json["skipped"] == []
    assert "features" in refused(capsys, *base, "--no-features")


def test_overwriting_has_to_be_said_and_spares_strangers(capsys, files, tmp_path):
    arguments = ("calibrate", files[0], "--bootstrap", 0, "--out", tmp_path / "out")
    ran(capsys, *arguments)
    before = (tmp_path / "out" / "report.json").read_text()
    assert "pass --overwrite" in refused(capsys, *arguments, "--seed", 5)
    assert (tmp_path / "out" / "report.json").read_text() == before
    ran(capsys, *arguments, "--seed", 5, "--overwrite")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["seed"] == 5
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert "holds other things" in refused(capsys, *arguments[:-1], tmp_path / "mine", "--overwrite")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert [place.name for place in tmp_path.iterdir() if place.name.startswith(".part")] == []


def tree(folder):
    return {place.relative_to(folder): place.read_bytes() for place in folder.rglob("*") if place.is_file()}


@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("temperature", "thesis.txt"),
        ("temperature", "predictions/thesis.txt"),
        ("temperature", "notes/thesis.txt"),
        ("temperature,vector", "vector/thesis.txt"),
        ("temperature,vector", "vector/predictions/thesis.txt"),
    ],
)
def test_what_lies_beside_an_earlier_result_is_kept(capsys, files, tmp_path, method, place):
    out = tmp_path / "out"
    arguments = ("calibrate", files[0], "--bootstrap", 0, "--metrics", "nll", "--out", out, "--overwrite")
    ran(capsys, *arguments, "--method", method)
    (out / place).parent.mkdir(exist_ok=True)
    (out / place).write_text("years of work")
    before = tree(out)
    assert "holds other things beside a calibration" in refused(capsys, *arguments)
    assert tree(out) == before
    (out / place).unlink()
    if place.startswith("notes"):
        (out / "notes").rmdir()
    ran(capsys, *arguments)
    assert sorted(each.name for each in out.iterdir()) == ["calibrator.safetensors", "predictions", "report.json"]


@pytest.mark.parametrize("content", ["{}", "[1]", "years of work", '{"command": "thesis"}'])
def test_a_report_json_of_another_program_is_not_ours(capsys, files, tmp_path, content):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "report.json").write_text(content)
    assert "holds other things" in refused(
        capsys, "calibrate", files[0], "--bootstrap", 0, "--out", mine, "--overwrite"
    )
    assert (mine / "report.json").read_text() == content
    (mine / "report.json").write_text('{"schema": 1, "command": "calibrate"}')
    ran(capsys, "calibrate", files[0], "--bootstrap", 0, "--out", mine, "--overwrite")
    assert "methods" in json.loads((mine / "report.json").read_text())


def test_results_do_not_replace_their_input(capsys, files, tmp_path):
    test, validation = files
    hard, soft = tmp_path / "hard.npz", tmp_path / "soft.npz"
    hard.hardlink_to(test)
    soft.symlink_to(validation)
    before = tree(tmp_path)
    for write in (test, validation, hard, soft, tmp_path / "." / "test.npz"):
        assert "is the input" in refused(
            capsys, "calibrate", test, "--validation", validation, "--bootstrap", 0, "--write", write
        )
    assert tree(tmp_path) == before


def test_an_earlier_result_that_is_read_is_not_replaced(capsys, files, tmp_path):
    out = tmp_path / "out"
    ran(capsys, "calibrate", files[0], "--bootstrap", 0, "--out", out)
    before = tree(out)
    for path in (out, out / "predictions"):
        assert "holds the input" in refused(capsys, "calibrate", path, "--bootstrap", 0, "--out", out, "--overwrite")
    assert tree(out) == before


def test_a_table_inside_the_folder_is_replaced_with_it(capsys, files, tmp_path):
    out = tmp_path / "out"
    arguments = ("calibrate", files[0], "--bootstrap", 0, "--overwrite", "--out", out, "--write")
    for seed in (0, 1):
        ran(capsys, *arguments, out / "table.csv", "--seed", seed)
        assert (out / "table.csv").exists()
    assert "table.csv" in refused(capsys, *arguments, tmp_path / "table.csv")
    assert "--out and --write are both" in refused(
        capsys, *arguments[:-2], tmp_path / "x.csv", "--write", tmp_path / "x.csv"
    )


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_a_full_disk_does_not_throw_the_numbers_away(capsys, files, tmp_path, monkeypatch, json_flag):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "out")

    monkeypatch.setattr("calattn.files.predictions.save_blocks", full)
    flags = ("--out", tmp_path / "out", "--write", tmp_path / "table.csv", *json_flag)
    result = invoke(capsys, "calibrate", files[0], "--bootstrap", 0, "--metrics", "nll", *flags)
    assert result.code == 1
    assert "the disk is full" in result.err
    assert "lowest NLL" in result.out or result.json["leader"] == "temperature"
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "table.csv").exists(), "the other file is still tried"


def test_a_calibrator_that_cannot_be_written_is_no_bug(capsys, files, tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(TemperatureScaling, "save", full)
    result = invoke(capsys, "calibrate", files[0], "--bootstrap", 0, "--out", tmp_path / "out")
    assert result.code == 1
    assert "free some space" in result.err


def test_files_are_written_though_nobody_reads_the_numbers(capsys, files, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("calattn.cli.calibrate._show", full)
    result = invoke(capsys, "calibrate", files[0], "--bootstrap", 0, "--out", tmp_path / "out")
    assert result.code == 1
    assert (tmp_path / "out" / "report.json").exists()


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()

    def fail():
        with atomic_folder(target) as partial:
            (partial / "new").touch()
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [place.name for place in target.iterdir()] == ["old"]
    with atomic_folder(target) as partial:
        (partial / "new").touch()
    assert [place.name for place in target.iterdir()] == ["new"]
    assert [place.name for place in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
def test_probabilities_and_class_names_for_other_tools(capsys, tmp_path, suffix):
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "9 [nine], or so")
    given = predictions(sharpness=2.0, class_names=names)
    calattn.save_predictions(given, tmp_path / "named")
    path = tmp_path / f"calibrated{suffix}"
    arguments = ("calibrate", tmp_path / "named", "--method", "vector", "--bootstrap", 0, "--write", path)
    ran(capsys, *arguments)
    want = cross_fit(VectorScaling, given).probs.numpy()
    if suffix == ".npz":
        probs = np.load(path)["probs"]
    else:
        table = (pyarrow.parquet.read_table if suffix == ".parquet" else pyarrow.csv.read_csv)(path)
        probs = np.stack([table[name].to_numpy() for name in table.column_names if name != "label"], axis=1)
    np.testing.assert_array_equal(probs.astype(np.float32), want)
    again = calattn.read_predictions(path)
    assert again.class_names == names
    assert torch.equal(again.labels, given.labels)


def test_five_folds_unless_said_and_fits_repeat(capsys, files):
    base = ("calibrate", files[0], "--method", "temperature", "--json", "--bootstrap", 0)
    five, given, other = (invoke(capsys, *base, *more).json for more in ((), ("--folds", 5), ("--seed", 1)))
    assert five["folds"] == 5
    assert five["methods"][0]["after"] == given["methods"][0]["after"]
    assert five["methods"][0]["after"] != other["methods"][0]["after"]


def test_slow_fits_are_announced(capsys, files, monkeypatch):
    arguments = ("calibrate", files[0], "--bootstrap", 0, "--folds", 3)
    assert "more follow" not in invoke(capsys, *arguments).err
    monkeypatch.setattr("calattn.posthoc.contests._SLOW", 0.0)
    assert "temperature: one fit took 0 s, and 3 more follow" in invoke(capsys, *arguments).err


def test_a_calibrator_of_a_run_folder_is_applied_to_it(capsys, tmp_path):
    run = write_run(tmp_path / "run", sharpness=2.0)
    ran(capsys, "calibrate", run, "--out", tmp_path / "fit")
    target = tmp_path / "probs.npz"
    ran(capsys, "calibrate", run, "--apply", tmp_path / "fit", "--write", target)
    temperature = load_calibrator(tmp_path / "fit" / "calibrator.safetensors").temperature_
    test = calattn.load_predictions(run / "predictions" / "test")
    with np.load(target) as found:
        np.testing.assert_allclose(found["probs"], (test.logits / temperature).softmax(dim=1).numpy(), atol=1e-6)
