"""Predictions: what they take, refuse and derive, what is noticed, how they print."""

import dataclasses
import math
import warnings

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import calattn
from calattn import ModelOutput, Predictions, attach, evaluate
from calattn.backbones import create
from calattn.metrics import MetricState

pytestmark = pytest.mark.usefixtures("untyped")


def make(**changes):
    fields = {"logits": torch.randn(6, 3), "labels": torch.arange(6) % 3} | changes
    return Predictions(**fields)


def test_numpy_and_half_precision_come_in_as_float32():
    p = Predictions(logits=np.zeros((4, 3), dtype=np.float16), labels=np.arange(4) % 3)
    assert p.logits.dtype == torch.float32
    assert p.labels.dtype == torch.int64


def test_calibrated_logits_divide_by_the_scale():
    p = make(scale=torch.full((6,), 2.0))
    assert torch.equal(p.calibrated_logits, p.logits / 2)
    assert torch.allclose(p.probs.sum(1), torch.ones(6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": torch.tensor([1.0, 1, 1, 0, 1, 1])}, r"scale\[3\] is 0.0, not positive and finite"),
        ({"scale": torch.tensor([1.0, math.nan, 1, 1, 1, 1])}, r"scale\[1\] is nan"),
        ({"scale": torch.ones(5)}, r"scale must have shape \[6\]"),
        ({"features": torch.ones(5, 2)}, r"features must be floating point \[6, d\]"),
        ({"features": torch.full((6, 2), math.inf)}, r"features\[0\] has a NaN or infinite"),
        ({"indices": torch.ones(6)}, "indices must be 6 integers"),
        ({"class_names": ("a", "b")}, "class_names has 2 names for 3 classes"),
        ({"logits": torch.full((6, 3), math.nan)}, r"logits\[0, 0\] is nan"),
        ({"logits": torch.full((6, 3), math.inf)}, r"logits\[0, 0\] is inf"),
        ({"labels": torch.tensor([0, 1, 2, 3, 0, 1])}, r"labels\[3\] is 3, outside \[0, 2\]"),
        ({"labels": torch.tensor([1, 2, 3, 1, 2, 3])}, "look 1-based: subtract 1"),
    ],
)
def test_bad_fields(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_minus_infinity_is_a_probability_of_zero():
    p = make(logits=torch.tensor([[0.0, -math.inf, 0.0]] * 6))
    assert float(p.probs[0, 1]) == 0


def test_from_probs_round_trips_and_keeps_zeros():
    probs = torch.tensor([[0.2, 0.8], [1.0, 0.0]])
    p = Predictions.from_probs(probs, torch.tensor([1, 0]))
    assert torch.allclose(p.probs, probs)
    assert p.logits[1, 1] == -math.inf
    floored = Predictions.from_probs(probs, torch.tensor([1, 0]), floor=1e-6)
    assert torch.isfinite(floored.logits).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_are_read_as_stated(dtype):
    probs, labels = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]], dtype=dtype), torch.tensor([0, 1, 1])
    p = Predictions.from_probs(probs, labels)
    assert torch.equal(p.probs, probs.to(p.probs.dtype))
    found = calattn.evaluate(p, metrics=["ece", "brier"], num_bootstrap=0)
    assert found["ece"].value == calattn.metrics.ece(probs, labels)
    assert found["brier"].value == pytest.approx(calattn.metrics.brier(probs, labels), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_in_half_precision_are_made_to_sum_to_one(dtype):
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=dtype)
    p = Predictions.from_probs(probs, torch.tensor([0, 1]))
    torch.testing.assert_close(p.probs, probs.float() / probs.float().sum(dim=1, keepdim=True))
    assert (probs.float().sum(dim=1) - 1).abs().max() > (p.probs.sum(dim=1) - 1).abs().max()


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.4]], r"probs\[0\] sums to 0.9, not 1"),
        ([[1.5, -0.5]], r"probs\[0, 1\] is -0.5, negative"),
        ([[math.nan, 0.5]], r"probs\[0, 0\] is nan"),
        ([[0.9, 0.8, 0.48]], "sums to 2.18, not 1; .*sigmoid for each class are multi-label: every metric here"),
        ([[60.0, 39.5, 0.5]], "sums to 100, not 1; these look like per cent: divide by 100"),
    ],
)
def test_from_probs_refuses(probs, message):
    with pytest.raises(ValueError, match=message):
        Predictions.from_probs(torch.tensor(probs), torch.tensor([0]))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("classes_first", [True, False])
def test_maps_of_logits_say_how_to_flatten_them(kind, classes_first):
    maps, mask = torch.rand(2, 4, 5, 6), torch.randint(4, (2, 5, 6))
    shown = maps if classes_first else maps.movedim(1, -1)
    given = {"logits": shown, "labels": mask} if kind == "torch" else {"logits": shown.numpy(), "labels": mask.numpy()}
    with pytest.raises(ValueError, match=r"must have shape \[n, c\].*one row per label: ") as caught:
        Predictions(**given)
    names = {"torch": torch, "np": np, **given}
    exec(str(caught.value).partition("one row per label: ")[2], names)
    p = Predictions(logits=names["logits"], labels=names["labels"])
    torch.testing.assert_close(p.logits[-1], maps[1, :, 4, 5])
    assert int(p.labels[-1]) == int(mask[1, 4, 5])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.eye(3, dtype=torch.int64), r"got \[3, 3\]; these are one-hot: pass labels.argmax\(1\)"),
        (torch.ones(3, 3, dtype=torch.int64), "one true class per row; take each class as a binary problem of its own"),
        (torch.zeros(3, 1, dtype=torch.int64), r"got \[3, 1\]; pass labels.reshape\(-1\)"),
        (torch.zeros(3, 5, dtype=torch.int64), "pass the class of each row"),
    ],
)
def test_labels_of_another_shape_are_refused_with_the_remedy(labels, message):
    with pytest.raises(ValueError, match=message):
        Predictions(logits=torch.zeros(3, 3), labels=labels)


def test_select_and_split_keep_rows_together():
    p = make(scale=torch.arange(1.0, 7), features=torch.arange(12.0).view(6, 2), indices=torch.arange(6) + 100)
    a, b = p.shuffle_split(0.5, torch.Generator().manual_seed(0))
    assert len(a) == len(b) == 3
    rows = torch.cat([a.indices, b.indices])
    assert sorted(rows.tolist()) == list(range(100, 106))
    assert torch.equal(a.logits, p.logits[a.indices - 100])
    assert torch.equal(a.features, p.features[a.indices - 100])
    assert torch.equal(a.scale, p.scale[a.indices - 100])
    with pytest.raises(ValueError, match="leaves one part empty"):
        p.shuffle_split(0.01, torch.Generator())


def test_frozen_and_fingerprinted():
    p = make()
    with pytest.raises(AttributeError):
        p.split = "test"
    assert p.fingerprint() == p.replace(split="test").fingerprint()
    assert p.fingerprint() != p.replace(logits=p.logits + 1).fingerprint()


def test_model_output_with_offset():
    out = ModelOutput(torch.ones(2, 3), torch.full((2,), 2.0), torch.zeros(2, 4), torch.tensor([[1.0, 0, 0]] * 2))
    assert out.calibrated_logits.tolist() == [[1.5, 0.5, 0.5]] * 2


def whole(**changes):
    g = torch.Generator().manual_seed(0)
    fields = {
        "logits": torch.randn(9, 3, generator=g),
        "labels": torch.arange(9) % 3,
        "scale": torch.rand(9, generator=g) + 0.5,
        "features": torch.randn(9, 4, generator=g),
        "indices": torch.arange(9) + 100,
        "class_names": ("a", "b", "c"),
        "split": "test",
        "spec_hash": "1234",
    }
    return Predictions(**fields | changes)


@pytest.mark.parametrize("scale", [torch.rand(9) + 0.5, None])
def test_cat_undoes_select(scale):
    p = whole(scale=scale)
    found = Predictions.cat([p.select(torch.arange(k, min(k + 4, 9))) for k in (0, 4, 8)])
    for field in dataclasses.fields(Predictions):
        want, got = getattr(p, field.name), getattr(found, field.name)
        assert torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got, field.name


def test_cat_keeps_stated_probabilities_where_all_have_them():
    stated = Predictions.from_probs(torch.tensor([[0.9, 0.1], [1.0, 0.0]]), torch.tensor([0, 1]))
    assert torch.equal(Predictions.cat([stated, stated]).stated_probs, torch.cat([stated.probs] * 2))
    mixed = Predictions.cat([stated, stated.replace(stated_probs=None)])
    assert mixed.stated_probs is None
    torch.testing.assert_close(mixed.probs, torch.cat([stated.probs] * 2))


def test_cat_says_of_which_split_only_where_all_agree():
    found = Predictions.cat([whole(), whole(split="train")])
    assert (found.split, found.spec_hash) == (None, "1234")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.randn(9, 4), "class_names": None}, r"parts\[1\] has 4 classes and parts\[0\] has 3"),
        (
            {"scale": None},
            r"scale of parts\[1\] is missing, that of parts\[0\] is there; give all one, p.replace\(scale=",
        ),
        ({"features": None}, r"features of parts\[1\] is missing, that of parts\[0\] is 4 wide; leave them out"),
        ({"features": torch.randn(9, 5)}, r"features of parts\[1\] is 5 wide, that of parts\[0\] is 4 wide"),
        ({"indices": None}, r"indices of parts\[1\] is missing"),
        ({"class_names": ("b", "a", "c")}, r"class_names of parts\[1\] is \('b', 'a', 'c'\)"),
    ],
)
def test_cat_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        Predictions.cat([whole(), whole(**changes)])


@pytest.mark.parametrize(("parts", "got"), [([], "an empty list"), ([torch.zeros(2, 2)], "Tensor")])
def test_cat_wants_predictions(parts, got):
    with pytest.raises(ValueError, match=f"parts must be a list of one or more Predictions, got {got}"):
        Predictions.cat(parts)


def test_a_calibrator_says_how_to_fit_on_several_parts():
    with pytest.raises(ValueError, match=r"predictions is a list: join its parts with Predictions.cat\(parts\)"):
        calattn.posthoc.TemperatureScaling().fit([whole(), whole()])


def test_stated_probabilities_end_with_new_logits_or_a_scale():
    stated = Predictions.from_probs(torch.tensor([[0.9, 0.1]] * 4), torch.tensor([0, 0, 1, 1]))
    assert stated.select(torch.arange(2)).stated_probs is not None
    assert stated.replace(scale=torch.full((4,), 2.0)).stated_probs is None
    assert float(stated.replace(scale=torch.full((4,), 2.0)).probs[0, 0]) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="stated_probs needs the shape"):
        Predictions(logits=torch.zeros(4, 2), labels=torch.zeros(4).long(), stated_probs=torch.zeros(4, 3))


def test_from_output_keeps_what_every_head_says():
    for head in calattn.heads.HEADS:
        model = attach(create("vit_nano_patch8_32", num_classes=10), head=head).eval()
        for parameter in model.head.parameters():
            nn.init.normal_(parameter, std=0.1)
        out = model.output(torch.randn(4, 3, 32, 32))
        p = Predictions.from_output(out, torch.arange(4), split="test")
        assert torch.allclose(p.probs, out.probs, atol=1e-6), head
        assert p.features is not None
        assert not p.logits.requires_grad
    with pytest.raises(ValueError, match=r"use Predictions\.from_output"):
        Predictions(logits=out, labels=torch.arange(4))


def test_probabilities_passed_as_logits_are_noticed():
    probs = torch.randn(10, 4).softmax(1)
    with pytest.warns(UserWarning, match="look like probabilities"):
        Predictions(logits=probs, labels=torch.zeros(10).long())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictions(logits=probs.log(), labels=torch.zeros(10).long())


def test_reprs_are_short():
    p = Predictions(logits=torch.randn(60, 3), labels=torch.zeros(60).long(), split="test")
    assert repr(p) == "Predictions(60 samples, 3 classes, float32, split='test')"
    assert repr(evaluate(p, num_bootstrap=0)).startswith("60 samples, 3 classes")
    assert "no predictions" in repr(MetricState("ece"))


def without_labels(**fields):
    return Predictions(logits=torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), **fields)


def test_new_images_have_no_labels(tmp_path):
    p = without_labels(class_names=("a", "b", "c"))
    assert "no labels" in repr(p)
    saved = calattn.load_predictions(calattn.save_predictions(p, tmp_path / "p"))
    marked = Predictions(logits=p.logits, labels=np.full(6, -1))
    for same in (p, saved, marked, p.replace(split="new"), p.select(torch.arange(2)), Predictions.cat([p, saved])):
        assert not same.labelled
    assert torch.equal(saved.logits, p.logits)
    assert p.replace(labels=torch.zeros(6).long()).labelled
    with pytest.raises(ValueError, match=r"labels\[1\] is -1, outside"):
        Predictions(logits=p.logits[:2], labels=torch.tensor([0, -1]))
    scaling = calattn.posthoc.TemperatureScaling().fit(make())
    assert not scaling(p).labelled
    torch.testing.assert_close(scaling(p).probs, scaling.predict_proba(p.logits))


NEEDS_LABELS = {
    "evaluate": evaluate,
    "blocks": lambda p: evaluate(iter([p]), num_bootstrap=0),
    "compare": lambda p: calattn.compare(p, p),
    "fit": lambda p: calattn.posthoc.TemperatureScaling().fit(p),
    "contest": lambda p: calattn.posthoc.contest(p, methods=["temperature"]),
    "cross_fit": lambda p: calattn.posthoc.cross_fit(calattn.posthoc.TemperatureScaling, p, folds=2),
    "figure": lambda p: calattn.report.reliability.reliability_diagram(p),
}


@pytest.mark.parametrize("name", NEEDS_LABELS)
def test_what_needs_labels_refuses_predictions_without(name):
    with pytest.raises(calattn.errors.InputError, match=r"has no labels.*give them: p\.replace\(labels=…\)"):
        NEEDS_LABELS[name](without_labels())


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_probabilities_without_labels_are_written_and_read_so(tmp_path, suffix):
    from calattn.files.probabilities import write_probabilities

    path = tmp_path / f"new.{suffix}"
    write_probabilities(without_labels(class_names=("a", "b", "c")), path)
    with pytest.raises(ValueError, match=r"nothing named like labels; pass labels="):
        calattn.read_predictions(path)
    back = calattn.read_predictions(path, labels_optional=True)
    assert (back.labelled, back.class_names) == (False, ("a", "b", "c"))
    torch.testing.assert_close(back.probs.float(), without_labels().probs)


def arrays_of(kind, probs, labels):
    if kind == "pandas":
        table = pandas.DataFrame(probs.numpy(), columns=["a", "b", "c"], index=range(7, 7 + len(probs)))
        return table, pandas.Series(list("abc"), dtype="category").take(labels.numpy())
    return (probs, labels) if kind == "torch" else (probs.numpy(), labels.numpy().astype(np.int32))


@pytest.mark.parametrize("kind", ["torch", "numpy", "pandas"])
def test_plain_arrays_are_evaluated_and_fitted_as_predictions_are(kind):
    logits, labels = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    want = evaluate(Predictions.from_probs(logits.softmax(1), labels))
    probs, given = arrays_of(kind, logits.softmax(1), labels)
    assert evaluate(probs=probs, labels=given).as_dict() == want.as_dict()
    values, given = arrays_of(kind, logits, labels)
    assert evaluate(logits=values, labels=given)["nll"].value == pytest.approx(want["nll"].value, rel=1e-6)
    for name, build in calattn.posthoc.CALIBRATORS.items():
        if name not in ("frozen_calattn", "venn_abers"):  # of features, and of two classes
            one, other = build().fit(values, given), build().fit(Predictions(logits=logits, labels=labels))
            torch.testing.assert_close(one.predict_proba(logits), other.predict_proba(logits), msg=name)
    fitted = calattn.posthoc.TemperatureScaling().fit(probs=probs, labels=given)
    assert fitted.temperature_ == pytest.approx(
        calattn.posthoc.TemperatureScaling().fit(logits, labels).temperature_, rel=1e-4
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give either predictions.*got nothing"),
        ({"labels": [0]}, "got labels"),
        ({"probs": [[0.5, 0.5]], "logits": [[0.0, 0.0]], "labels": [0]}, "got logits, probs, labels"),
        ({"probs": [[0.5, 0.5]], "labels": ["cat"]}, "labels are text such as 'cat'; give class indices"),
        (
            {"probs": pandas.DataFrame({"cat": [1.0], "dog": [0.0]}), "labels": ["cow"]},
            r"labels\[0\] is cow, which is no",
        ),
        ({"probs": [[0.5, 0.4]], "labels": [0]}, "sums to 0.9"),
        ({"probs": [[0.5, 0.5]]}, "has no labels"),
    ],
)
def test_arrays_that_cannot_be_evaluated(given, message):
    with pytest.raises(ValueError, match=message):
        evaluate(**given)
